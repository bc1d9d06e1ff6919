"""``ray``: pushes of a worker to an actor of Ray, in turns with bare bytes of a frame's length.

Through Ray's object store, two calls under way at a time. A push encodes, travels, is decoded, and
moves the weights by SGD; it counts when it has. Who joins a cluster that runs sends to another node
of it, where there is one; else all is on this machine.
"""

import argparse
import collections
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import tersor.ray
from tersor import _text
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile, add_option

UNDER_WAY = 2


class _Taker:
    """An actor that takes bytes."""

    def take(self, what: Any) -> None:
        """And does nothing with them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--codec", nargs="+", default=["none", "int8+ef"], help="(none int8+ef)")
    parser.add_argument("--mib", type=int, default=16, help="of gradient, f32 (16)")
    parser.add_argument("--pushes", type=int, default=20, help="of each way in a turn (20)")
    parser.add_argument("--turns", type=int, default=7, help="of which the median counts (7)")
    parser.add_argument("--address", help="of a cluster to join; none: one on this machine")
    parser.add_argument("--link", default="none", help="what the records say of it (none)")
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Times each codec. Returns the exit status."""
    if min(chosen.mib, chosen.pushes, chosen.turns) < 1:
        raise BenchmarkError("--mib, --pushes and --turns: give 1 or more")
    records = RecordFile(chosen.json)
    ray.init(chosen.address, include_dashboard=False, log_to_driver=False)
    try:
        found = [_measure(codec, chosen) for codec in chosen.codec]
    finally:
        ray.shutdown()
    for record in found:
        records.add(record)
    head = ["codec", "frame", "a push", "bare bytes", "of their speed"]
    print(_text.table(head, [_row(record) for record in found]))
    return 0


def _row(record: Record) -> list[str]:
    times = [_text.seconds(float(str(record[field]))) for field in ("seconds", "baseline_seconds")]
    size = _text.byte_count(float(str(record["payload_bytes"])))
    return [str(record["codec"]), size, *times, f"{record['ratio']:.2f}"]


def _elsewhere() -> dict[str, Any]:
    """Options of an actor on another node, where there is one."""
    own = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
    if not others:
        return {"num_cpus": 0}
    where = NodeAffinitySchedulingStrategy(others[0], soft=False)
    return {"num_cpus": 0, "scheduling_strategy": where}


def _measure(codec: str, chosen: argparse.Namespace) -> Record:
    gradient = {"w": np.random.default_rng(1).standard_normal(chosen.mib * 2**18, np.float32)}
    there = _elsewhere()
    zeros = {"w": np.zeros_like(gradient["w"])}
    server = tersor.ray.ParameterServer(zeros, push=codec, actor_options=there)
    client = server.client(0)
    client.push(gradient)
    client.flush()
    frame = np.zeros(server.statistics()[0].pushed_bytes, np.uint8)
    taker: Any = ray.remote(_Taker).options(**there).remote()
    sent: collections.deque[Any] = collections.deque()

    def bare() -> None:
        while len(sent) >= UNDER_WAY:
            ray.get(sent.popleft())
        sent.append(taker.take.remote(frame))

    def finish() -> None:
        while sent:
            ray.get(sent.popleft())

    turns = [
        (
            _seconds(lambda: client.push(gradient), client.flush, chosen),
            _seconds(bare, finish, chosen),
        )
        for _ in range(1 + chosen.turns)
    ][1:]
    client.leave()
    return {
        "benchmark": "ray",
        "codec": codec,
        "count": gradient["w"].size,
        "ray": ray.__version__,
        "nodes": 1 + ("scheduling_strategy" in there),
        "link": chosen.link,
        "payload_bytes": len(frame),
        "seconds": statistics.median(ours for ours, _ in turns),
        "baseline_seconds": statistics.median(theirs for _, theirs in turns),
        "ratio": statistics.median(theirs / ours for ours, theirs in turns),
    }


def _seconds(
    call: Callable[[], None], end: Callable[[], None], chosen: argparse.Namespace
) -> float:
    """Of one call."""
    start = time.perf_counter()
    for _ in range(chosen.pushes):
        call()
    end()
    return (time.perf_counter() - start) / float(chosen.pushes)
