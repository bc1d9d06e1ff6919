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
from tersor.bench.errors import check_error, fail_if
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
    """The options of a case: gradients and buckets in MiB (None: DDP's), rows of input."""

    mib: int
    rows: int
    bucket: float | None
    parallel: Parallel
    weights: str | None  # a codec for FSDP2's all-gathers, with Tersor's codecs
    speeds: list[float]  # of each rank; empty: 1
    row_seconds: float | None  # that a step waits for each row on a rank of speed 1

    @property
    def layers(self) -> int:
        """The number of layers of 4 MiB."""
        return max(1, self.mib * 2**20 // LAYER_BYTES)

    def speed(self, rank: int) -> float:
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
        return hooks.attach(self.chain(device), name, self.bucket)


class Pass:
    """A forward and a backward pass of a model with constant data. The loss is the mean of the
    rows of this rank's input."""

    def __init__(self, model: nn.Module | Hook, name: str, shape: Shape, world: World) -> None:
        """``model``: with this hook, or without one."""
        self._hook = model if isinstance(model, Hook) else None
        self._model = model.model if isinstance(model, Hook) else model
        self._world = world
        self.rows = shape.rows_of(name, world.rank)
        self._pause = self.rows * (shape.row_seconds or 0.0) / shape.speed(world.rank)
        self._counts_forward = shape.parallel == "experts"
        self._mark = mark_of(world.device)
        draw = torch.Generator().manual_seed(1 + world.rank)
        values = (torch.randn(shape.rows, WIDTH, generator=draw)[: self.rows] for _ in range(2))
        self._inputs, self._weights = (one.to(world.device) for one in values)

    def run(self) -> tuple[float, float, float]:
        """One pass of all ranks: the measured seconds, the seconds of the step, and the bytes of
        the interface."""
        self._model.zero_grad()
        self._world.synchronize()
        sent = interface_bytes()
        start = self._mark()
        if self._hook is not None:
            self._hook.set_sample_count(self.rows)
        time.sleep(self._pause)
        loss: Tensor = (self._model(self._inputs) * self._weights).sum() / self.rows
        forward_end = self._mark()
        loss.backward()  # type: ignore[no-untyped-call]
        end = self._mark()
        self._world.synchronize()
        begin = start if self._counts_forward else forward_end
        interface = (interface_bytes() - sent) / self._world.ranks_here
        return begin.seconds_until(end), start.seconds_until(end), interface

    def gradients(self) -> Tensor:
        """The gradients of the last pass; shards are gathered."""
        found = [one.grad for one in self._model.parameters() if one.grad is not None]
        whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in found]
        return torch.cat([one.flatten() for one in whole])


def _exact(name: str, shape: Shape, world: World) -> Tensor:
    """The mean gradient over all ranks' rows, in f64."""
    single = Pass(shape.chain(world.device), name, shape, world)
    single.run()
    (rows,) = world.mean([single.rows])
    total = single.gradients().double() * (single.rows / rows)
    dist.all_reduce(total)
    return total / world.ranks


class Case:
    """A model with a hook, and checked gradients."""

    def __init__(self, name: str, shape: Shape, world: World) -> None:
        exact = _exact(name, shape, world)
        self.name, self._world = name, world
        self.hook = shape.attach(name, world.device)
        self._pass = Pass(self.hook, name, shape, world)
        self._samples: list[list[float]] = []  # times of the slowest rank, and mean bytes
        self.relative_error = self._warm_up(exact)

    def _warm_up(self, exact: Tensor) -> float:
        steps = self.hook.plain_steps + 1
        for _ in range(steps):
            self._pass.run()
        error = self._check(exact)
        min_steps = steps + WARMUP_STEPS
        while steps < min_steps or (steps < LEARNING_STEPS and not self.hook.settled):
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
        differs = not self._world.same_on_all_ranks(reduced)
        fail_if(differs, f"{self.name}: ranks hold different gradients")
        return error

    def run(self) -> None:
        *seconds, interface = self._pass.run()
        self._samples.append([*self._world.slowest(seconds), *self._world.mean([interface])])

    def result(self) -> Record:
        """Medians over iterations. Bytes are the mean over ranks."""
        seconds, step_seconds, interface = zip(*self._samples, strict=True)
        return {
            "codec": self.name,
            "count": parameter_count(self.hook.model),
            "seconds": statistics.median(seconds),
            "step_seconds": statistics.median(step_seconds),
            "relative_error": self.relative_error,
            "interface_bytes": statistics.fmean(interface),
            "wire_bytes_are": self.hook.bytes_are,
            **self.hook.step_traffic(len(seconds), self._world),
        }


def measure(
    names: list[str], shape: Shape, iterations: int, world: World
) -> tuple[float, list[Record]]:
    """Runs all hooks in turns, each iteration starting with another hook. Returns the seconds of a
    backward pass without communication, and the results in order."""
    cases = [Case(name, shape, world) for name in names]
    for iteration in range(iterations):
        first = iteration % len(cases)
        for case in cases[first:] + cases[:first]:
            case.run()
    results = [case.result() for case in cases]
    single = Pass(shape.chain(world.device), "none", shape, world)
    compute_seconds = min(world.slowest([single.run()[0]])[0] for _ in range(3))
    for case in cases:
        case.hook.close()
    return compute_seconds, results
