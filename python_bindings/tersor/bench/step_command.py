"""``step``: the work of an optimizer in a step, without its exchange, in turns with PyTorch's.

One process has the given number of parameters of one shape, each with a gradient. PyTorch's
optimizers are ``AdamW(foreach=True)``, ``SGD(foreach=True)`` and ``Muon``. The ratio is the median
over pairs of measurements.
"""

import argparse
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import mark_of
from tersor.bench.records import Record, add, columns, report
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import Part


class _Alone(CompressedOptimizer):
    """An optimizer without an exchange: the encoded values arrive unchanged, at once."""

    def _exchanged(self, parts: Sequence[Part], weight: float) -> list[list[Tensor]]:
        return [[one.contiguous() for one in part.rule.sent(part)] for part in parts]

    def _somewhere(self, is_finite: bool, samples: float | None) -> tuple[list[str] | None, float]:
        return list(self._parameters) if is_finite else None, 1.0


MOMENTUM = 0.9
THEIRS: dict[str, Any] = {
    "adamw": lambda own: torch.optim.AdamW(own, foreach=True),
    "sgd": lambda own: torch.optim.SGD(own, momentum=MOMENTUM, foreach=True),
    "muon": lambda own: torch.optim.Muon(own, momentum=MOMENTUM),
}
OURS: dict[str, tuple[type, dict[str, Any]]] = {
    "adamw": (tersor.torch.CompressedAdamW, {}),
    "sgd": (tersor.torch.CompressedSGD, {"momentum": MOMENTUM}),
    "muon": (tersor.torch.CompressedMuon, {"momentum": MOMENTUM}),
}
COLUMNS = columns(
    "optimizer=optimizer, parameters=parameters, own work=seconds:s, "
    "PyTorch's=baseline_seconds:s, ratio=ratio:.2f"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command line."""
    add(parser, "optimizer", list(THEIRS), "optimizers to compare", choices=THEIRS)
    add(parser, "parameters", [10, 100, 1000], "numbers of parameters")
    add(parser, "shape", [64, 64], "shape of each parameter")
    add(
        parser, "device", "cuda" if torch.cuda.is_available() else "cpu", "device of the parameters"
    )
    add(parser, "threads", 1, "threads of the arithmetic")
    add(parser, "repetitions", 21, "pairs of measurements")


def run(chosen: argparse.Namespace) -> None:
    """Times each optimizer."""
    if "muon" in chosen.optimizer and len(chosen.shape) != 2:
        raise BenchmarkError("muon needs matrices: give --shape ROWS COLUMNS, or other optimizers")
    torch.set_num_threads(chosen.threads)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        cases = itertools.product(chosen.optimizer, chosen.parameters)
        report(chosen, (_measure(*case, chosen) for case in cases), COLUMNS)
    finally:
        dist.destroy_process_group()


def _measure(name: str, count: int, chosen: argparse.Namespace) -> Record:
    mark = mark_of(torch.device(chosen.device))

    def seconds(optimizer: torch.optim.Optimizer) -> float:
        start = mark()
        optimizer.step()
        return start.seconds_until(mark())

    theirs = THEIRS[name](_parameters(count, chosen))
    own = [(str(index), one) for index, one in enumerate(_parameters(count, chosen))]
    kind, options = OURS[name]
    ours = type(kind.__name__, (_Alone, kind), {})(own, **options)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(2 + chosen.repetitions)][2:]
    own_seconds, their_seconds = map(statistics.median, zip(*pairs, strict=True))
    return {
        "benchmark": "step",
        "optimizer": name,
        "parameters": count,
        "shape": "x".join(map(str, chosen.shape)),
        "device": chosen.device,
        "threads": chosen.threads,
        "torch": torch.__version__,
        "seconds": own_seconds,
        "baseline_seconds": their_seconds,
        "ratio": statistics.median(one / other for one, other in pairs),
    }


def _parameters(count: int, chosen: argparse.Namespace) -> list[torch.nn.Parameter]:
    made = [
        torch.nn.Parameter(torch.randn(chosen.shape, device=chosen.device)) for _ in range(count)
    ]
    for one in made:
        one.grad = torch.randn_like(one)
    return made
