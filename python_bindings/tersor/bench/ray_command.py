"""``ray``: pushes of a worker to an actor of Ray, in turns with raw bytes of a frame's length.

Frames pass through Ray's object store, with two calls under way at a time. A push is encoded, sent
and decoded, and SGD changes the parameters; the push counts once all that is done. In a running
cluster with several nodes, the actor is on another node. Otherwise all is on this machine.
"""

import argparse
import collections
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import tersor.ray
from tersor.bench.records import Record, add, columns, compare_times, report

PENDING = 2
COLUMNS = columns(
    "codec=codec, frame=payload_bytes:B, a push=seconds:s, raw bytes=baseline_seconds:s, "
    "of their speed=ratio:.2f"
)


class _Sink:
    """An actor that receives bytes."""

    def receive(self, data: Any) -> None:
        """Ignores the bytes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "codec", ["none", "int8+ef"], "codecs of the pushes")
    add(parser, "mib", 16, "size of the float32 gradient in MiB")
    add(parser, "pushes", 20, "pushes of each kind in a turn")
    add(parser, "turns", 7, "number of turns, of which the median counts")
    add(parser, "address", None, "address of a running cluster; otherwise one on this machine")
    add(parser, "link", "none", "name of the network, for the records")


def run(chosen: argparse.Namespace) -> None:
    ray.init(chosen.address, include_dashboard=False, log_to_driver=False)
    try:
        report(chosen, (_measure(codec, chosen) for codec in chosen.codec), COLUMNS)
    finally:
        ray.shutdown()


def _other_node() -> dict[str, Any]:
    """Options of an actor on another node, if there is another node."""
    own = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
    if not others:
        return {"num_cpus": 0}
    strategy = NodeAffinitySchedulingStrategy(others[0], soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy}


def _measure(codec: str, chosen: argparse.Namespace) -> Record:
    gradient = {"w": np.random.default_rng(1).standard_normal(chosen.mib * 2**18, np.float32)}
    node = _other_node()
    zeros = {"w": np.zeros_like(gradient["w"])}
    server = tersor.ray.ParameterServer(zeros, push=codec, actor_options=node)
    client = server.client(0)
    client.push(gradient)
    client.flush()
    frame = np.zeros(server.statistics()[0].pushed_bytes, np.uint8)
    sink: Any = ray.remote(_Sink).options(**node).remote()
    sent: collections.deque[Any] = collections.deque()

    def push() -> None:
        for _ in range(chosen.pushes):
            client.push(gradient)
        client.flush()

    def send_raw() -> None:
        for index in range(chosen.pushes + PENDING):
            if index >= PENDING:
                ray.get(sent.popleft())
            if index < chosen.pushes:
                sent.append(sink.receive.remote(frame))

    raw_seconds, seconds, ratio = compare_times(send_raw, push, chosen.turns)
    client.leave()
    return {
        "benchmark": "ray",
        "codec": codec,
        "count": gradient["w"].size,
        "ray": ray.__version__,
        "nodes": 1 + ("scheduling_strategy" in node),
        "link": chosen.link,
        "payload_bytes": len(frame),
        "seconds": seconds / chosen.pushes,
        "baseline_seconds": raw_seconds / chosen.pushes,
        "ratio": ratio,
    }
