"""``gossip``: a step of mixing among neighbours, and an all-reduce, over an emulated link.

Ranks are threads of this process. Times are medians on rank 0 of consecutive calls. ``distance`` is
the distance of the ranks from their mean after all steps, relative to the start. ``allreduces`` is
the time of the fastest all-reduce, divided by the time of the step.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

import tersor
import tersor.local
from tersor.bench.errors import fail_if
from tersor.bench.records import Record, add, columns, pick, save, seconds_of, table

ALLREDUCE = "allreduce"
COLUMNS = columns(
    "way=way, codec=codec, by=by, step=seconds:s, allreduces=allreduces:.2f, "
    "sent a step=wire_bytes:B, distance=distance:.2g"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    topologies, algorithms = ["ring", "torus", "exponential"], ["auto", "one-shot", "two-shot"]
    add(parser, "ranks", 16, "number of ranks")
    add(parser, "link", "10Mbit,50ms", "emulated link: RATE,LATENCY")
    add(parser, "kib", 256, "size of the float32 parameters in KiB")
    add(parser, "codec", ["int8"], "codecs of gossip")
    add(parser, "topology", topologies, "graphs of gossip", choices=topologies)
    add(parser, "allreduce", "bf16", "codec of the all-reduce", metavar="SPEC")
    add(parser, "algorithm", algorithms, "algorithms of the all-reduce", choices=algorithms)
    add(parser, "steps", 15, "steps of each way")


def run(chosen: argparse.Namespace) -> None:
    fail_if(chosen.ranks < 2, "gossip: give at least 2 ranks, 1 KiB and 1 step")
    ways = [(ALLREDUCE, chosen.allreduce, one) for one in chosen.algorithm]
    ways += [("gossip", codec, one) for one in chosen.topology for codec in chosen.codec]
    records = save(chosen, (_measure(way, chosen) for way in ways))
    best = min(one["seconds"] for one in records if one["way"] == ALLREDUCE)
    print(table(COLUMNS, ({**one, "allreduces": best / one["seconds"]} for one in records)))


def _measure(way: tuple[str, str, str], chosen: argparse.Namespace) -> Record:
    count = chosen.kib * 256
    kind, codec, by = way

    def rank(transport: Any) -> tuple[float, float | None, Any, Any]:
        weights = np.random.default_rng(transport.rank).standard_normal(count, np.float32)
        before = weights.copy()
        step, sent = _step(transport, weights, *way)
        step()
        already = sent()
        times = [seconds_of(step) for _ in range(chosen.steps - 1)]
        wire = (sent() - already) / max(1, len(times)) if kind == "gossip" else None
        return statistics.median(times or [0.0]), wire, before, weights

    seconds, wire, before, after = zip(
        *tersor.local.run(chosen.ranks, rank, link=chosen.link), strict=True
    )
    return {
        "benchmark": "gossip",
        "way": kind,
        "codec": codec,
        "by": by,
        "count": count,
        **pick(chosen, "ranks link steps"),
        "seconds": seconds[0],
        "wire_bytes": wire[0],
        "distance": _spread(after) / _spread(before),
    }


def _spread(weights: tuple[Any, ...]) -> float:
    stacked = np.stack(weights)
    return float(np.linalg.norm(stacked - stacked.mean(axis=0)))


def _step(
    transport: Any, weights: Any, kind: str, codec: str, by: str
) -> tuple[Callable[[], object], Callable[[], int]]:
    """A step, and the bytes that gossip has sent."""
    if kind == ALLREDUCE:
        workspace = tersor.Workspace()
        options: Any = {"codec": codec, "algorithm": by, "reduction": "mean"}
        return lambda: tersor.allreduce(transport, weights, workspace=workspace, **options), int
    gossip = tersor.Gossip(transport, by, codec)
    gossip.add("weights", weights)
    return gossip.mix, lambda: gossip.statistics().sent_bytes
