"""The backward pass of a chain of linear layers, once for each hook, in turns.

With few rows of input the layers' arithmetic is next to nothing beside their gradients: what is
left is the reduction, overlapped as `DistributedDataParallel` overlaps it, or FSDP2, which gathers
the weights too. Of a mixture of experts, whose rows travel, it is the whole step. Ranks may have
other speeds, which are pauses, and rows accordingly.
"""

import dataclasses
import statistics
import time
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tersor.bench import expert_hooks, hooks, sharded_hooks
from tersor.bench.errors import BenchmarkError, check_error
from tersor.bench.mixture import MixtureOfExperts
from tersor.bench.timing import mark_of
from tersor.bench.traffic import Traffic, parameter_count
from tersor.bench.world import NetworkInterface, World

WIDTH = 1024
LAYER_BYTES = 4 * WIDTH * WIDTH
EXPERTS = 8
WARMUP_STEPS = 5  # DDP makes its buckets anew before the second
LEARNING_STEPS = 200  # at most, of "auto"

Parallel = Literal["ddp", "fsdp", "experts"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """So many MiB of gradients, so many rows of input, buckets of so many MiB (None: DDP's)."""

    gradient_mib: int
    rows: int
    bucket_mib: float | None
    parallel: Parallel = "ddp"
    weights: str | None = None  # a codec for FSDP2's all-gathers, beside our codecs
    speeds: tuple[float, ...] = ()  # of each rank; none: all have 1
    row_seconds: float = 0.0  # that a step waits for each row, on a rank of speed 1

    @property
    def has_experts(self) -> bool:
        """Whether there is a mixture of experts, which sends in the forward pass too."""
        return self.parallel == "experts"

    @property
    def layers(self) -> int:
        """4 MiB each."""
        return max(1, self.gradient_mib * 2**20 // LAYER_BYTES)

    def speed(self, rank: int) -> float:
        """Of this rank."""
        return self.speeds[rank] if self.speeds else 1.0

    def rows_of(self, name: str, rank: int) -> int:
        """Of this rank's input, beside this hook."""
        if not name.startswith(hooks.WEIGHTED):
            return self.rows
        return max(1, round(self.rows * self.speed(rank)))

    def chain(self, device: torch.device) -> nn.Sequential:
        """The layers, the same each time; experts as in a transformer, behind a norm."""
        torch.manual_seed(0)
        if self.has_experts:
            hidden = self.layers * WIDTH // (2 * EXPERTS)
            mixture = MixtureOfExperts(WIDTH, hidden, EXPERTS)
            return nn.Sequential(nn.LayerNorm(WIDTH), mixture).to(device)
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers))
        return nn.Sequential(*layers).to(device)

    def attach(self, name: str, device: torch.device) -> hooks.Hook:
        """The layers, spread over the ranks, with this hook."""
        if self.has_experts:
            return expert_hooks.ExpertHook(self.chain(device), name)
        if self.parallel == "fsdp":
            return sharded_hooks.attach(self.chain(device), name, self.weights)
        return hooks.attach(self.chain(device), name, self.bucket_mib)


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians over iterations of the slowest rank; bytes are the mean over ranks."""

    codec: str  # or another hook
    count: int  # values of the gradients
    seconds: float  # of experts as step_seconds
    step_seconds: float  # the forward pass too
    relative_error: float
    interface_bytes: float
    wire_bytes_are: str
    traffic: Traffic


@dataclasses.dataclass(frozen=True)
class Sample:
    """One iteration."""

    seconds: float
    step_seconds: float
    interface_bytes: float


class Pass:
    """A forward and a backward pass of a model, of the same data each time.

    Attributes:
        rows: of this rank's input; the loss is their mean.
    """

    def __init__(
        self, model: nn.Module, name: str, shape: Shape, world: World, hook: hooks.Hook | None
    ) -> None:
        """``hook``: the model's, if it has one, which is called ``name``."""
        self._model, self._world, self._hook = model, world, hook
        self.rows = shape.rows_of(name, world.rank)
        self._pause = self.rows * shape.row_seconds / shape.speed(world.rank)
        self._counts_forward = shape.has_experts
        self._mark = mark_of(world.device)
        self._interface = NetworkInterface()
        draw = torch.Generator().manual_seed(1 + world.rank)
        self._inputs, self._weights = (
            torch.randn(shape.rows, WIDTH, generator=draw)[: self.rows].to(world.device)
            for _ in range(2)
        )

    def run(self) -> Sample:
        """Once, of all ranks together."""
        self._model.zero_grad()
        self._world.meet()
        sent = self._interface.sent_bytes()
        start = self._mark()
        if self._hook is not None:
            self._hook.samples_follow(self.rows)
        time.sleep(self._pause)
        loss: Tensor = (self._model(self._inputs) * self._weights).sum() / self.rows
        forward_end = self._mark()
        loss.backward()  # type: ignore[no-untyped-call]
        end = self._mark()
        self._world.meet()
        return Sample(
            (start if self._counts_forward else forward_end).seconds_until(end),
            start.seconds_until(end),
            (self._interface.sent_bytes() - sent) / self._world.ranks_here,
        )

    def gradients(self) -> Tensor:
        """Of the last run; shards are gathered."""
        gradients = [values.grad for values in self._model.parameters()]
        return torch.cat([_whole(values).flatten() for values in gradients if values is not None])


def _whole(values: Tensor) -> Tensor:
    return values.full_tensor() if isinstance(values, DTensor) else values


def _exact(name: str, shape: Shape, world: World) -> Tensor:
    """The mean gradient over all ranks' rows, in f64."""
    alone = Pass(shape.chain(world.device), name, shape, world, None)
    alone.run()
    (rows,) = world.mean([alone.rows])
    return world.mean_of(alone.gradients().double() * (alone.rows / rows))


class Case:
    """A model with a hook, whose gradients were checked."""

    def __init__(self, name: str, shape: Shape, world: World) -> None:
        exact = _exact(name, shape, world)
        self.name, self._world = name, world
        self._hook = shape.attach(name, world.device)
        self._pass = Pass(self._hook.model, name, shape, world, self._hook)
        self._samples: list[Sample] = []
        self.relative_error = self._warm_up(exact)

    def _warm_up(self, exact: Tensor) -> float:
        steps = self._hook.plain_steps + 1
        for _ in range(steps):
            self._pass.run()
        error = self._check(exact)
        least = steps + WARMUP_STEPS
        while steps < least or (steps < LEARNING_STEPS and not self._hook.settled):
            self._pass.run()
            steps += 1
        self._hook.traffic(steps)
        return error

    def _check(self, exact: Tensor) -> float:
        """The error of the last step; raises BenchmarkError where it is wrong, or ranks differ."""
        self._hook.gather("grad")
        reduced = self._pass.gradients()
        error = float((reduced - exact).norm() / exact.norm())
        check_error(self.name, "the gradients", error)
        if not self._world.same_everywhere(reduced):
            raise BenchmarkError(f"{self.name}: ranks hold different gradients")
        return error

    def run(self) -> None:
        """One iteration, after which the slowest rank is known."""
        own = self._pass.run()
        slowest = self._world.slowest([own.seconds, own.step_seconds])
        interface_bytes = self._world.mean([own.interface_bytes])[0]
        self._samples.append(Sample(slowest[0], slowest[1], interface_bytes))

    def result(self) -> Result:
        """Of all iterations."""
        steps = len(self._samples)
        return Result(
            codec=self.name,
            count=parameter_count(self._hook.model),
            seconds=statistics.median(sample.seconds for sample in self._samples),
            step_seconds=statistics.median(sample.step_seconds for sample in self._samples),
            relative_error=self.relative_error,
            interface_bytes=statistics.fmean(sample.interface_bytes for sample in self._samples),
            wire_bytes_are=self._hook.bytes_are,
            traffic=self._hook.traffic(steps).mean(steps, self._world),
        )

    def close(self) -> None:
        """Ends the hook."""
        self._hook.close()


def measure(
    names: list[str], shape: Shape, iterations: int, world: World
) -> tuple[float, list[Result]]:
    """All hooks in turns; who begins changes, so that nobody always follows the same one.

    Returns the seconds of a backward pass without communication, and the results in order.
    """
    cases = [Case(name, shape, world) for name in names]
    for iteration in range(iterations):
        first = iteration % len(cases)
        for case in cases[first:] + cases[:first]:
            case.run()
    results = [case.result() for case in cases]
    alone = Pass(shape.chain(world.device), "none", shape, world, None)
    compute_seconds = min(world.slowest([alone.run().seconds])[0] for _ in range(3))
    for case in cases:
        case.close()
    return compute_seconds, results
