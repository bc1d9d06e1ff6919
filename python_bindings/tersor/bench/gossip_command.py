"""``gossip``: a step of mixing among neighbours beside an allreduce, over an emulated link.

Ranks are threads of this process. Times are medians on rank 0 of calls one after the other; a way
is as near to agreement after so many steps as ``distance`` says: how far ranks are from their mean,
of how far they began. An allreduce is there after one; allreduces: how many steps its best way's
time is long.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tersor
import tersor.local
from tersor import _text
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile, add_option

Call = Callable[[], object]
Made = tuple[Call, Callable[[], int] | None]  # a step, and bytes that were sent until now
ALLREDUCE = "allreduce"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    topologies, algorithms = ["ring", "torus", "exponential"], ["auto", "one-shot", "two-shot"]
    parser.add_argument("--ranks", type=int, default=16, help="(16)")
    parser.add_argument("--link", default="10Mbit,50ms", help="RATE,LATENCY (10Mbit,50ms)")
    parser.add_argument("--kib", type=int, default=256, help="of weights, f32 (256)")
    parser.add_argument("--codec", nargs="+", default=["int8"], help="of mixing (int8)")
    parser.add_argument("--topology", nargs="+", choices=topologies, default=topologies)
    parser.add_argument("--allreduce", default="bf16", metavar="SPEC", help="its codec (bf16)")
    parser.add_argument("--algorithm", nargs="+", choices=algorithms, default=algorithms)
    parser.add_argument("--steps", type=int, default=15, help="of each way (15)")
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Times each way. Returns the exit status."""
    if min(chosen.ranks - 1, chosen.kib, chosen.steps) < 1:
        raise BenchmarkError("gossip: give at least 2 ranks, 1 KiB and 1 step")
    records, found = RecordFile(chosen.json), []
    ways = [(ALLREDUCE, chosen.allreduce, one) for one in chosen.algorithm]
    ways += [("gossip", codec, one) for one in chosen.topology for codec in chosen.codec]
    for way in ways:
        found.append(_measure(way, chosen))
        records.add(found[-1])
    best = min(float(str(one["seconds"])) for one in found if one["way"] == ALLREDUCE)
    head = ["way", "codec", "by", "step", "allreduces", "sent a step", "distance"]
    print(_text.table(head, [_row(record, best) for record in found]))
    return 0


def _row(record: Record, best: float) -> list[str]:
    seconds = float(str(record["seconds"]))
    return [
        *(str(record[field]) for field in ("way", "codec", "by")),
        _text.seconds(seconds),
        f"{best / seconds:.2f}",
        "—" if record["wire_bytes"] is None else _text.byte_count(float(str(record["wire_bytes"]))),
        f"{record['distance']:.2g}",
    ]


def _measure(way: tuple[str, str, str], chosen: argparse.Namespace) -> Record:
    count = chosen.kib * 256
    make = _allreduce if way[0] == ALLREDUCE else _gossip

    def rank(transport: Any) -> tuple[float, float | None, Any, Any]:
        weights = np.random.default_rng(transport.rank).standard_normal(count, np.float32)
        before = weights.copy()
        step, sent = make(transport, weights, *way[1:])
        step()
        already, times = sent() if sent else 0, []
        for _ in range(chosen.steps - 1):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        wire = (sent() - already) / max(1, len(times)) if sent else None
        return statistics.median(times or [0.0]), wire, before, weights

    seconds, wire, before, after = zip(
        *tersor.local.run(chosen.ranks, rank, link=chosen.link), strict=True
    )
    return {
        "benchmark": "gossip",
        "way": way[0],
        "codec": way[1],
        "by": way[2],
        "ranks": chosen.ranks,
        "link": chosen.link,
        "count": count,
        "steps": chosen.steps,
        "seconds": seconds[0],
        "wire_bytes": wire[0],
        "distance": _spread(after) / _spread(before),
    }


def _spread(weights: tuple[Any, ...]) -> float:
    all_of_them = np.stack(weights)
    return float(np.linalg.norm(all_of_them - all_of_them.mean(axis=0)))


def _allreduce(transport: Any, weights: Any, codec: str, algorithm: str) -> Made:
    workspace = tersor.Workspace()
    options: Any = {"codec": codec, "algorithm": algorithm, "reduction": "mean"}
    return (
        lambda: tersor.allreduce(transport, weights, workspace=workspace, **options),
        None,
    )


def _gossip(transport: Any, weights: Any, codec: str, topology: str) -> Made:
    gossip = tersor.Gossip(transport, topology, codec)
    gossip.add("weights", weights)
    return gossip.mix, lambda: gossip.statistics().sent_bytes
