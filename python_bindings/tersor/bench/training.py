"""Trains a model with a hook, and measures each epoch."""

import dataclasses
import random
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as functional
from torch import Tensor

from tersor.bench.errors import fail_if
from tersor.bench.measures import LastGradient, Span, mark_of, seconds_in
from tersor.bench.models import scores_of
from tersor.bench.records import Record
from tersor.bench.tasks import AnyTask, Share
from tersor.bench.world import World, interface_bytes

WARMUP_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Pace:
    """The pause after the backward pass of a step. In each step, the seed selects a rank. The
    selected rank waits ``slow`` times as long."""

    extra_seconds: float = 0.0
    slow: float = 1.0

    def wait(self, seed: int, step: int, share: Share) -> None:
        is_slow = random.Random(f"{seed} {step}").randrange(share.ranks) == share.rank
        time.sleep(self.extra_seconds * (self.slow if is_slow else 1.0))


class Training:
    """Trains a model with a hook. Equal seeds give equal trainings."""

    def __init__(
        self, task: AnyTask, hook: str, seed: int, world: World, pace: Pace | None = None
    ) -> None:
        """Raises BenchmarkError if the training would not end with an exchange."""
        torch.manual_seed(seed)
        self.pace = pace
        self.task, self.name, self.seed, self.world = task, hook, seed, world
        self._share = Share(world.rank, world.ranks)
        self._mark = mark_of(world.device)
        self._module = task.model().to(world.device)
        self._last_gradient = LastGradient(self._module, self._mark)
        self.hook = task.attach(self._module, hook)
        steps, period = task.recipe.epochs * task.recipe.steps, self.hook.period
        text = f"steps is {steps}: give a multiple of {period}, the steps between exchanges"
        fail_if(steps % period, text)
        self._optimizer = self.hook.optimizer(task.optimizer(self._module))

    def epochs(self) -> Iterator[Record]:
        """Trains, and yields each epoch. Raises BenchmarkError if the ranks' weights differ."""
        seconds = 0.0
        for number in range(1, self.task.recipe.epochs + 1):
            epoch = self._epoch(number, seconds)
            seconds = epoch["seconds"]
            if number == self.task.recipe.epochs:
                for name, values in self._module.named_parameters():
                    differs = not self.world.same_on_all_ranks(values)
                    fail_if(differs, f"ranks ended with different values of {name}")
            yield epoch

    def warm_up(self) -> None:
        """Trains a few steps and evaluates. The first hook then does not pay for one-time work."""
        self._steps(range(WARMUP_STEPS))
        self._test()

    def _epoch(self, number: int, seconds_before: float) -> Record:
        """Trains an epoch. Times and bytes are means per step over all steps and ranks."""
        steps = self.task.recipe.steps
        self.world.synchronize()
        sent_before = interface_bytes()
        start = self._mark()
        loss, whole, exposed, own = self._steps(range((number - 1) * steps, number * steps))
        self.world.synchronize()
        seconds = start.seconds_until(self._mark())
        sent = (interface_bytes() - sent_before) / self.world.ranks_here
        before, within = map(seconds_in, exposed)
        totals = [seconds_in(whole), before + within, sent, seconds_in(own) - within]
        means = self.world.mean([float(loss), *(total / steps for total in totals)])
        accuracy, test_loss = self._test()
        return {
            "epoch": number,
            "seconds": seconds_before + seconds,  # of training, without evaluations
            "loss": means[0],
            "accuracy": accuracy,
            "test_loss": test_loss,
            "step_seconds": means[1],
            "exposed_seconds": means[2],  # of waiting for other ranks
            "interface_bytes": means[3],  # of all traffic
            **self.hook.step_traffic(steps, self.world),
            "compute_seconds": means[1] - means[2],
            "optimizer_seconds": means[4],  # of its steps, without waiting
        }

    def _steps(
        self, steps: range
    ) -> tuple[Tensor, list[Span], tuple[list[Span], list[Span]], list[Span]]:
        """The mean loss, the spans of the steps, the spans of waiting for other ranks before and in
        the optimizer's steps, and the spans of the optimizer's steps."""
        loss = torch.zeros((), device=self.world.device)
        whole, before, within, own = list[Span](), list[Span](), list[Span](), list[Span]()
        for step in steps:
            start = self._mark()
            self._optimizer.zero_grad()
            loss += self.hook.run_backward(self.task.batch(self.seed, step, self._share))
            if self.pace is not None:
                self.pace.wait(self.seed, step, self._share)
            reduced = self._mark()
            for group in self._optimizer.param_groups:
                group["lr"] = self.task.recipe.learning_rate_at(step)
            before += self.hook.exposed(self._last_gradient.mark, reduced)
            called = self._mark()
            self._optimizer.step()
            done = self._mark()
            within += self.hook.exposed_in_step()
            own.append((called, done))
            whole.append((start, done))
        return loss / len(steps), whole, (before, within), own

    @torch.no_grad()
    def _test(self) -> tuple[float, float]:
        """Accuracy and mean loss on the test data. Each rank reads a part of the test data."""
        self.hook.gather()
        correct = loss = count = 0.0
        for batch in self.task.test_batches(self._share):
            scores, classes = scores_of(self._module, batch)
            correct += float((scores.argmax(dim=1) == classes).sum())
            loss += float(functional.cross_entropy(scores, classes, reduction="sum"))
            count += len(classes)
        correct, loss, count = self.world.total([correct, loss, count])
        return correct / count, loss / count
