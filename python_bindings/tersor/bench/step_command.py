"""``step``: an optimizer's own work in a step, without its exchange, in turns with PyTorch's.

One process with as many parameters as told, all of one shape; each has a gradient. PyTorch's is
``AdamW(foreach=True)``, ``SGD(foreach=True)``, or ``Muon``; the ratio is the median over pairs.
"""

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import tersor.torch
from tersor import _text
from tersor.bench import options
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile, add_option
from tersor.bench.timing import mark_of
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import Part


class _Alone(CompressedOptimizer):
    """What was made arrives as it is, at once."""

    def _exchanged(self, parts: Sequence[Part], weight: float) -> list[list[Tensor]]:
        return [[one.contiguous() for one in part.rule.sent(part)] for part in parts]

    def _somewhere(self, is_finite: bool, samples: float | None) -> tuple[list[str] | None, float]:
        return list(self._parameters) if is_finite else None, 1.0


class _AdamWAlone(_Alone, tersor.torch.CompressedAdamW):
    pass


class _SGDAlone(_Alone, tersor.torch.CompressedSGD):
    pass


class _MuonAlone(_Alone, tersor.torch.CompressedMuon):
    pass


MOMENTUM = 0.9
THEIRS: dict[str, Any] = {
    "adamw": lambda own: torch.optim.AdamW(own, foreach=True),
    "sgd": lambda own: torch.optim.SGD(own, momentum=MOMENTUM, foreach=True),
    "muon": lambda own: torch.optim.Muon(own, momentum=MOMENTUM),
}
OURS: dict[str, Any] = {
    "adamw": _AdamWAlone,
    "sgd": lambda own: _SGDAlone(own, momentum=MOMENTUM),
    "muon": lambda own: _MuonAlone(own, momentum=MOMENTUM),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    told: dict[str, Any] = {"type": options.positive, "nargs": "+"}
    parser.add_argument("--optimizer", nargs="+", choices=THEIRS, default=list(THEIRS))
    parser.add_argument("--parameters", default=[10, 100, 1000], **told, help="(10 100 1000)")
    parser.add_argument("--shape", default=[64, 64], **told, help="of each (64 64)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=options.positive, default=1, help="of arithmetic (1)")
    parser.add_argument("--repetitions", type=options.positive, default=21, help="pairs (21)")
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Times each optimizer. Returns the exit status."""
    if "muon" in chosen.optimizer and len(chosen.shape) != 2:
        raise BenchmarkError("muon needs matrices: give --shape ROWS COLUMNS, or other optimizers")
    torch.set_num_threads(chosen.threads)
    records, found = RecordFile(chosen.json), []
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for name, count in itertools.product(chosen.optimizer, chosen.parameters):
            found.append(_measure(name, count, chosen))
            records.add(found[-1])
    finally:
        dist.destroy_process_group()
    head = ["optimizer", "parameters", "own work", "PyTorch's", "ratio"]
    print(_text.table(head, [_row(record) for record in found]))
    return 0


def _row(record: Mapping[str, Any]) -> list[str]:
    times = [_text.seconds(record[field]) for field in ("seconds", "baseline_seconds")]
    return [record["optimizer"], str(record["parameters"]), *times, f"{record['ratio']:.2f}"]


def _measure(name: str, count: int, chosen: argparse.Namespace) -> Record:
    mark = mark_of(torch.device(chosen.device))

    def seconds(optimizer: torch.optim.Optimizer) -> float:
        start = mark()
        optimizer.step()
        return start.seconds_until(mark())

    theirs = THEIRS[name](_parameters(count, chosen))
    own = [(str(index), one) for index, one in enumerate(_parameters(count, chosen))]
    ours = OURS[name](own)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(2 + chosen.repetitions)][2:]
    took, took_theirs = map(statistics.median, zip(*pairs, strict=True))
    return {
        "benchmark": "step",
        "optimizer": name,
        "parameters": count,
        "shape": "x".join(map(str, chosen.shape)),
        "device": chosen.device,
        "threads": chosen.threads,
        "torch": torch.__version__,
        "seconds": took,
        "baseline_seconds": took_theirs,
        "ratio": statistics.median(one / other for one, other in pairs),
    }


def _parameters(count: int, chosen: argparse.Namespace) -> list[torch.nn.Parameter]:
    made = [
        torch.nn.Parameter(torch.randn(chosen.shape, device=chosen.device)) for _ in range(count)
    ]
    for one in made:
        one.grad = torch.randn_like(one)
    return made
