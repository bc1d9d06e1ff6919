"""torchft: killed and restarted replicas, and training with torchft's DDP, LocalSGD and DiLoCo."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="no torchft"),
]

PROGRAM = pathlib.Path(__file__).with_name("torchft_replica.py")
SECONDS = 240
STEPS = 12


@contextlib.contextmanager
def lighthouse(least: int) -> Iterator[str]:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=least, join_timeout_ms=200, heartbeat_timeout_ms=5000
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


class Replicas:
    """A process per replica."""

    def __init__(self, trainer: str, steps: int, address: str) -> None:
        self._trainer, self._steps = trainer, str(steps)
        self._environment = {
            **os.environ,
            "TORCHFT_LIGHTHOUSE": address,
            "TERSOR_TCP_ADDRESS": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: int, **words: Any) -> Replica:
        told = [self._trainer, str(name), self._steps, json.dumps(words)]
        return Replica([sys.executable, str(PROGRAM), *told], self._environment)


class Replica:
    """Output goes to files, because torchft logs more than a pipe holds."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        out, errors = self._files
        self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)

    def wait(self) -> int:
        return self._process.wait(SECONDS)

    def result(self) -> Any:
        code, texts = self.wait(), []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
        assert code == 0, texts[1][-4000:]
        return json.loads(texts[0].splitlines()[-1])


def trained(trainer: str, count: int, steps: int = STEPS, **words: Any) -> list[Any]:
    """Returns the results of all replicas. No replica may die."""
    with lighthouse(count) as address:
        made = Replicas(trainer, steps, address)
        return [one.result() for one in [made.start(i, **words) for i in range(count)]]


def apart(one: Any, other: Any) -> float:
    """The relative distance between the weights."""
    pairs = list(zip(one["weights"], other["weights"], strict=True))
    between = sum((a - b) ** 2 for a, b in pairs)
    return float((between / sum(b * b for _, b in pairs)) ** 0.5)


def test_replicas_train_like_gloo_with_fewer_bytes() -> None:
    plain = trained("ddp", 2)
    assert plain[0]["weights"] == plain[1]["weights"]
    for codec, near in (("int8+ef", 0.005), ("topk:density=0.25+ef", 0.1), ("int8", 0.005)):
        found = trained("ddp", 2, codec=codec)
        assert found[0]["weights"] == found[1]["weights"], codec
        assert 0 < apart(found[0], plain[0]) < near, codec
        gradient, sent = found[0]["bytes"]
        assert gradient == STEPS * 4 * 16_576
        assert sent < 0.45 * gradient, codec
        assert found[0]["owed"] == (["0.0"] if codec.endswith("+ef") else [])


def test_killed_replica_rejoins(tmp_path: pathlib.Path) -> None:
    gone, until = tmp_path / "gone", str(tmp_path / "until")
    with lighthouse(2) as address:
        made = Replicas("ddp", 0, address)
        words = {"codec": "int8+ef", "until": until}
        others = [made.start(i, **words) for i in range(2)]
        victim = made.start(2, dies=5, **words)
        again = made.start(2, after=str(gone), **words)
        assert victim.wait() == -9
        gone.touch()
        found = [one.result() for one in (*others, again)]
    assert found[0]["weights"] == found[1]["weights"] == found[2]["weights"]
    assert found[0]["loss"] < 0.5
    assert 0 < found[2]["bytes"][1] < found[0]["bytes"][1]


@pytest.mark.parametrize(("trainer", "fragments"), [("local", 1), ("diloco", 2)])
def test_local_sgd_and_diloco_training(trainer: str, fragments: int) -> None:
    plain = trained(trainer, 2, steps=8)
    found = trained(trainer, 2, steps=8, codec="int8+ef", fragments=fragments)
    assert apart(found[0], plain[0]) < 0.02
    shared = slice(
        -8256 if fragments > 1 else 0, None
    )  # DiLoCo's last step is of the last fragment
    assert found[0]["weights"][shared] == found[1]["weights"][shared]
    # a weight is a tensor of its own; biases are short
    places = 2 // fragments
    assert found[0]["owed"] == [f"{i}.{j}" for i in range(fragments) for j in range(places)]


def test_benchmark_compares_torchft_with_tersor(tmp_path: pathlib.Path) -> None:
    records, text = tmp_path / "records.json", tmp_path / "text"
    text.write_text("And God said, Let there be light: and there was light. " * 300, "utf-8")
    names = "diloco=4,fragments=2,delay=1:int8+ef torchft=4,fragments=2,delay=1:int8+ef"
    hooks = [*names.split(), "torchft=4,fragments=2,delay=1"]
    told = ["train", "--model", "gpt", "--threads", "1", "--epochs", "1", "--steps", "8"]
    told += ["--data", str(text), "--json", str(records)]
    command = [sys.executable, "-m", "tersor.bench", *told, "--hooks"]
    done = subprocess.run([*command, *hooks], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(records.read_text())
    assert [one["codec"] for one in found] == hooks
    assert found[2]["wire_bytes"] == found[2]["parameters"]  # f32 values, every fourth step
    assert [one["wire_bytes_are"] for one in found] == ["counted", "computed", "counted"]
    assert found[2]["torchft"]


def test_invalid_arguments_and_states_raise() -> None:
    import torch
    import torch.distributed as dist
    from torchft.process_group import ProcessGroupDummy, ProcessGroupGloo

    import tersor
    from tersor.torch.ft import ProcessGroupTersor

    with pytest.raises(TypeError, match="inner must be a process group of torchft"):
        ProcessGroupTersor(object())
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        ProcessGroupTersor(ProcessGroupDummy(0, 1), "int9")
    with pytest.raises(tersor.InvalidArgumentError):
        ProcessGroupTersor(ProcessGroupDummy(0, 1), "auto")
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        ProcessGroupTersor(ProcessGroupDummy(0, 1), timeout="60")
    with pytest.warns(DeprecationWarning, match="seconds"):
        ProcessGroupTersor(ProcessGroupDummy(0, 1), timeout=timedelta(seconds=5))
    group = ProcessGroupTersor(ProcessGroupGloo(), "int8+ef")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group.configure(f"127.0.0.1:{store.port}/x", "r", 0, 1)
    group.allreduce([torch.ones(9000)], dist.ReduceOp.SUM).wait()  # alone: nothing to encode
    group._world = group._world._replace(ranks=2)
    with pytest.raises(tersor.TransportError, match="no quorum yet"):
        group.allreduce([torch.ones(9000)], dist.ReduceOp.SUM)
