"""``step``: the work of an optimizer in a step, without the exchange, in turns with PyTorch's.

One process has the given number of parameters of one shape, each with a gradient. PyTorch's
optimizers are ``AdamW(foreach=True)``, ``SGD(foreach=True)`` and ``Muon``. The ratio is the median
over pairs of measurements. ``onebit-adam``, ``demo`` and ``dion`` (of rank 4), the peers of
``train``, exchange in a group of one rank, in turns with AdamW.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import tersor.torch
from tersor.bench import hooks
from tersor.bench.errors import fail_if
from tersor.bench.measures import mark_of
from tersor.bench.records import Record, add, columns, compare_times, report
from tersor.bench.world import single_rank_group
from tersor.torch._src.gradients.exchange import Presence
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import Part


class _Alone(CompressedOptimizer):
    """An optimizer without an exchange: the encoded values arrive unchanged, at once."""

    def _exchange_parts(self, parts: Sequence[Part], weight: float) -> list[list[Tensor]]:
        return [[one.contiguous() for one in part.rule.to_send(part)] for part in parts]


class _OneRank(Presence):
    """Counts without an exchange."""

    def _sums(self, flags: Sequence[bool], value: float) -> tuple[list[int], float]:
        return list(map(int, flags)), value


MOMENTUM = {"momentum": 0.9}
# By name: Tersor's optimizer, PyTorch's, the options of both, and PyTorch's own options.
OPTIMIZERS: dict[str, tuple[type, Any, dict[str, Any], dict[str, Any]]] = {
    "adamw": (tersor.torch.CompressedAdamW, torch.optim.AdamW, {}, {"foreach": True}),
    "sgd": (tersor.torch.CompressedSGD, torch.optim.SGD, MOMENTUM, {"foreach": True}),
    "muon": (tersor.torch.CompressedMuon, torch.optim.Muon, MOMENTUM, {}),
}
PEERS = {"onebit-adam": "onebit-adam=1", "demo": "demo", "dion": "dion=4"}  # hooks of train
COLUMNS = columns(
    "optimizer=optimizer, parameters=parameters, own work=seconds:s, "
    "PyTorch's=baseline_seconds:s, ratio=ratio:.2f"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    every = [*OPTIMIZERS, *PEERS]
    add(parser, "optimizer", list(OPTIMIZERS), "optimizers to compare", choices=every)
    add(parser, "parameters", [10, 100, 1000], "numbers of parameters")
    add(parser, "shape", [64, 64], "shape of each parameter")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add(parser, "device", device, "device of the parameters")
    add(parser, "threads", 1, "threads of the arithmetic")
    add(parser, "repetitions", 21, "pairs of measurements")


def run(chosen: argparse.Namespace) -> None:
    for name in {"muon", "dion"}.intersection(chosen.optimizer):
        text = f"{name} needs matrices: give --shape ROWS COLUMNS, or other optimizers"
        fail_if(len(chosen.shape) != 2, text)
    torch.set_num_threads(chosen.threads)
    with single_rank_group():
        cases = itertools.product(chosen.optimizer, chosen.parameters)
        report(chosen, (_measure(*case, chosen) for case in cases), COLUMNS)


def _measure(name: str, count: int, chosen: argparse.Namespace) -> Record:
    mark = mark_of(torch.device(chosen.device))

    def seconds(step: Callable[[], object]) -> float:
        start = mark()
        step()
        return start.seconds_until(mark())

    ours, theirs = _pair(name, count, chosen)
    ours.step()
    theirs.step()
    turns = compare_times(ours.step, theirs.step, chosen.repetitions, seconds)
    return {
        "benchmark": "step",
        "optimizer": name,
        "parameters": count,
        "shape": "x".join(map(str, chosen.shape)),
        "device": chosen.device,
        "threads": chosen.threads,
        "torch": torch.__version__,
        **dict(zip(("seconds", "baseline_seconds", "ratio"), turns, strict=True)),
    }


def _pair(name: str, count: int, chosen: argparse.Namespace) -> tuple[Any, Any]:
    """The optimizer, and PyTorch's."""
    kind, other, options, more = OPTIMIZERS.get(name, OPTIMIZERS["adamw"])
    theirs = other(_parameters(count, chosen), **options, **more)
    parameters = _parameters(count, chosen)
    if name in PEERS:
        hook = hooks.attach(torch.nn.ParameterList(parameters), PEERS[name])
        return hook.optimizer(torch.optim.AdamW(parameters)), theirs
    own = [(str(index), one) for index, one in enumerate(parameters)]
    return without_exchange(kind, own, **options), theirs


def without_exchange(
    kind: type, parameters: list[tuple[str, torch.nn.Parameter]], **options: Any
) -> Any:
    """One of Tersor's optimizers in a group of one rank, without codec and exchange."""
    optimizer: Any = type(kind.__name__, (_Alone, kind), {})(parameters, **options)
    optimizer._presence = _OneRank(optimizer._exchange)
    return optimizer


def _parameters(count: int, chosen: argparse.Namespace) -> list[torch.nn.Parameter]:
    values = (torch.randn(chosen.shape, device=chosen.device) for _ in range(count))
    parameters = [torch.nn.Parameter(one) for one in values]
    for one in parameters:
        one.grad = torch.randn_like(one)
    return parameters
