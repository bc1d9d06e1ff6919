"""The backward pass of a chain of linear layers, once for each hook, in turns.

With few rows of input the layers' arithmetic is next to nothing beside their gradients: what is
left is the reduction, overlapped as `DistributedDataParallel` overlaps it.
"""

import dataclasses
import statistics

import torch
from torch import Tensor, nn

from tersor.bench import hooks
from tersor.bench.errors import BenchmarkError
from tersor.bench.timing import mark_of
from tersor.bench.world import NetworkInterface, World

WIDTH = 1024
LAYER_BYTES = 4 * WIDTH * WIDTH
WARMUP_STEPS = 5  # DDP makes its buckets anew before the second
LEARNING_STEPS = 200  # at most, of "auto"
WORST_ERROR = 1.0  # zeros would be as near


@dataclasses.dataclass(frozen=True)
class Shape:
    """So many MiB of gradients, so many rows of input, buckets of so many MiB (None: DDP's)."""

    gradient_mib: int
    rows: int
    bucket_mib: float | None

    @property
    def layers(self) -> int:
        """4 MiB each."""
        return max(1, self.gradient_mib * 2**20 // LAYER_BYTES)


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians over iterations of the slowest rank; bytes are the mean over ranks."""

    hook: str
    count: int  # values of the gradients
    seconds: float
    step_seconds: float  # the forward pass too
    relative_error: float
    interface_bytes: float
    bytes_are: str
    traffic: hooks.Traffic


@dataclasses.dataclass(frozen=True)
class Sample:
    """One iteration."""

    seconds: float
    step_seconds: float
    interface_bytes: float


class Case:
    """A model with a hook, whose gradients were checked."""

    def __init__(self, name: str, shape: Shape, world: World) -> None:
        torch.manual_seed(0)
        chain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(shape.layers)))
        self.name, self._world = name, world
        self._mark = mark_of(world.device)
        self._interface = NetworkInterface()
        self._hook = hooks.attach(chain.to(world.device), name, shape.bucket_mib)
        draw = torch.Generator().manual_seed(1 + world.rank)
        self._inputs, self._weights = (
            torch.randn(shape.rows, WIDTH, generator=draw).to(world.device) for _ in range(2)
        )
        self._samples: list[Sample] = []
        self.relative_error = self._warm_up()

    def _warm_up(self) -> float:
        for _ in range(self._hook.plain_steps):
            self._step()
        error = self._check()
        steps = self._hook.plain_steps + 1
        for _ in range(WARMUP_STEPS):
            self._step()
            steps += 1
        while not self._hook.settled and steps < LEARNING_STEPS:
            self._step()
            steps += 1
        self._hook.traffic(steps)
        return error

    def _step(self) -> Sample:
        model = self._hook.model
        model.zero_grad()
        self._world.meet()
        sent = self._interface.sent_bytes()
        start = self._mark()
        loss = self._loss()
        forward_end = self._mark()
        loss.backward()  # type: ignore[no-untyped-call]
        end = self._mark()
        self._world.meet()
        return Sample(
            forward_end.seconds_until(end),
            start.seconds_until(end),
            (self._interface.sent_bytes() - sent) / self._world.ranks_here,
        )

    def _loss(self) -> Tensor:
        outputs: Tensor = self._hook.model(self._inputs)
        return (outputs * self._weights).sum()

    def _check(self) -> float:
        """The error of one step; raises BenchmarkError where it is wrong, or ranks differ."""
        exact = self._exact_mean()
        self._step()
        reduced = self._gradients()
        error = float((reduced - exact).norm() / exact.norm())
        if not error < WORST_ERROR:
            raise BenchmarkError(f"{self.name}: the relative error of the gradients is {error:.3g}")
        if not self._world.same_everywhere(reduced):
            raise BenchmarkError(f"{self.name}: ranks hold different gradients")
        return error

    def _exact_mean(self) -> Tensor:
        model = self._hook.model
        model.zero_grad()
        with model.no_sync():
            self._loss().backward()  # type: ignore[no-untyped-call]
        return self._world.mean_of(self._gradients().double())

    def _gradients(self) -> Tensor:
        gradients = [values.grad for values in self._hook.model.parameters()]
        return torch.cat([values.flatten() for values in gradients if values is not None])

    def run(self) -> None:
        """One iteration, after which the slowest rank is known."""
        own = self._step()
        slowest = self._world.slowest([own.seconds, own.step_seconds])
        interface_bytes = self._world.mean([own.interface_bytes])[0]
        self._samples.append(Sample(slowest[0], slowest[1], interface_bytes))

    def compute_seconds(self) -> float:
        """Of a backward pass without any communication, on the slowest rank."""
        with self._hook.model.no_sync():
            return self._world.slowest([self._step().seconds])[0]

    def result(self) -> Result:
        """Of all iterations."""
        steps = len(self._samples)
        return Result(
            hook=self.name,
            count=hooks.parameter_count(self._hook.model),
            seconds=statistics.median(sample.seconds for sample in self._samples),
            step_seconds=statistics.median(sample.step_seconds for sample in self._samples),
            relative_error=self.relative_error,
            interface_bytes=statistics.fmean(sample.interface_bytes for sample in self._samples),
            bytes_are=self._hook.bytes_are,
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
    compute_seconds = min(cases[0].compute_seconds() for _ in range(3))
    for case in cases:
        case.close()
    return compute_seconds, results
