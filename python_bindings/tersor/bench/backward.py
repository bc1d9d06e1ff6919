"""The backward pass of a chain of linear layers, with all hooks in turns.

With few rows of input, the layers compute little, so the time is the time of the exchange, which
`DistributedDataParallel` or FSDP2 overlaps. FSDP2 also gathers the weights. A mixture of experts
exchanges rows, so the whole step is measured. Ranks may have different speeds (pauses) and rows.
"""

import dataclasses
import statistics
import time
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tersor.bench import hooks, sharded_hooks, split_hooks
from tersor.bench.errors import BenchmarkError, check_error
from tersor.bench.hook_kinds import Hook
from tersor.bench.measures import mark_of, parameter_count
from tersor.bench.models import MixtureOfExperts
from tersor.bench.records import Record
from tersor.bench.world import World, interface_bytes

WIDTH = 1024
LAYER_BYTES = 4 * WIDTH * WIDTH
EXPERTS = 8
WARMUP_STEPS = 5  # DDP makes its buckets again before the second step
LEARNING_STEPS = 200  # the limit for "auto"

Parallel = Literal["ddp", "fsdp", "experts"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a case: gradients and buckets in MiB (None: DDP's), rows of input."""

    gradient_mib: int
    rows: int
    bucket_mib: float | None
    parallel: Parallel = "ddp"
    weights: str | None = None  # a codec for FSDP2's all-gathers, with Tersor's codecs
    speeds: tuple[float, ...] = ()  # of each rank; empty: 1
    row_seconds: float = 0.0  # that a step waits for each row on a rank of speed 1

    @property
    def layers(self) -> int:
        """The number of layers of 4 MiB."""
        return max(1, self.gradient_mib * 2**20 // LAYER_BYTES)

    def speed(self, rank: int) -> float:
        """The speed of a rank."""
        return self.speeds[rank] if self.speeds else 1.0

    def rows_of(self, name: str, rank: int) -> int:
        """The rows of a rank's input with a hook."""
        if not name.startswith(hooks.WEIGHTED):
            return self.rows
        return max(1, round(self.rows * self.speed(rank)))

    def chain(self, device: torch.device) -> nn.Sequential:
        """The layers, always equal; experts follow a norm, as in a transformer."""
        torch.manual_seed(0)
        if self.parallel == "experts":
            hidden = self.layers * WIDTH // (2 * EXPERTS)
            mixture = MixtureOfExperts(WIDTH, hidden, EXPERTS)
            return nn.Sequential(nn.LayerNorm(WIDTH), mixture).to(device)
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers))
        return nn.Sequential(*layers).to(device)

    def attach(self, name: str, device: torch.device) -> Hook:
        """The layers on all ranks with a hook."""
        if self.parallel == "experts":
            return split_hooks.ExpertHook(self.chain(device), name)
        if self.parallel == "fsdp":
            return sharded_hooks.attach(self.chain(device), name, self.weights)
        return hooks.attach(self.chain(device), name, self.bucket_mib)


@dataclasses.dataclass(frozen=True)
class Sample:
    """One iteration."""

    seconds: float
    step_seconds: float
    interface_bytes: float


class Pass:
    """A forward and a backward pass of a model with constant data.

    Attributes:
        rows: The rows of this rank's input. The loss is their mean.
    """

    def __init__(
        self, model: nn.Module, name: str, shape: Shape, world: World, hook: Hook | None
    ) -> None:
        """``hook``: the model's hook with this ``name``, or None."""
        self._model, self._world, self._hook = model, world, hook
        self.rows = shape.rows_of(name, world.rank)
        self._pause = self.rows * shape.row_seconds / shape.speed(world.rank)
        self._counts_forward = shape.parallel == "experts"
        self._mark = mark_of(world.device)
        draw = torch.Generator().manual_seed(1 + world.rank)
        self._inputs, self._weights = (
            torch.randn(shape.rows, WIDTH, generator=draw)[: self.rows].to(world.device)
            for _ in range(2)
        )

    def run(self) -> Sample:
        """One pass of all ranks."""
        self._model.zero_grad()
        self._world.meet()
        sent = interface_bytes()
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
            (interface_bytes() - sent) / self._world.ranks_here,
        )

    def gradients(self) -> Tensor:
        """The gradients of the last pass; shards are gathered."""
        found = [one.grad for one in self._model.parameters() if one.grad is not None]
        whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in found]
        return torch.cat([one.flatten() for one in whole])


def _exact(name: str, shape: Shape, world: World) -> Tensor:
    """The mean gradient over all ranks' rows, in f64."""
    alone = Pass(shape.chain(world.device), name, shape, world, None)
    alone.run()
    (rows,) = world.mean([alone.rows])
    total = alone.gradients().double() * (alone.rows / rows)
    dist.all_reduce(total)
    return total / world.ranks


class Case:
    """A model with a hook, and checked gradients."""

    def __init__(self, name: str, shape: Shape, world: World) -> None:
        exact = _exact(name, shape, world)
        self.name, self._world = name, world
        self.hook = shape.attach(name, world.device)
        self._pass = Pass(self.hook.model, name, shape, world, self.hook)
        self._samples: list[Sample] = []
        self.relative_error = self._warm_up(exact)

    def _warm_up(self, exact: Tensor) -> float:
        steps = self.hook.plain_steps + 1
        for _ in range(steps):
            self._pass.run()
        error = self._check(exact)
        least = steps + WARMUP_STEPS
        while steps < least or (steps < LEARNING_STEPS and not self.hook.settled):
            self._pass.run()
            steps += 1
        self.hook.traffic(steps)
        return error

    def _check(self, exact: Tensor) -> float:
        """The error of the last step. Raises BenchmarkError for wrong or unequal gradients."""
        self.hook.gather("grad")
        reduced = self._pass.gradients()
        error = float((reduced - exact).norm() / exact.norm())
        check_error(self.name, "the gradients", error)
        if not self._world.same_everywhere(reduced):
            raise BenchmarkError(f"{self.name}: ranks hold different gradients")
        return error

    def run(self) -> None:
        """One iteration: the times of the slowest rank."""
        own = self._pass.run()
        slowest = self._world.slowest([own.seconds, own.step_seconds])
        interface_bytes = self._world.mean([own.interface_bytes])[0]
        self._samples.append(Sample(slowest[0], slowest[1], interface_bytes))

    def result(self) -> Record:
        """Medians over iterations of the slowest rank. Bytes are the mean over ranks."""
        steps, samples = len(self._samples), self._samples
        return {
            "codec": self.name,
            "count": parameter_count(self.hook.model),
            "seconds": statistics.median(one.seconds for one in samples),
            "step_seconds": statistics.median(one.step_seconds for one in samples),
            "relative_error": self.relative_error,
            "interface_bytes": statistics.fmean(one.interface_bytes for one in samples),
            "wire_bytes_are": self.hook.bytes_are,
            **self.hook.traffic(steps).mean(steps, self._world).fields(),
        }


def measure(
    names: list[str], shape: Shape, iterations: int, world: World
) -> tuple[float, list[Record]]:
    """Runs all hooks in turns, each iteration starting with another hook.

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
        case.hook.close()
    return compute_seconds, results
