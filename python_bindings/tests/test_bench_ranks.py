"""The benchmark's commands on real processes, from the command line to the report. Commands with a
training, and commands with all ways, are marked ``long``."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

import ranks

pytest.importorskip("torch")

from tersor.bench.__main__ import main

DEADLINE_SECONDS = 180
SOURCES = pathlib.Path(__file__).resolve().parents[2]
REPORT = SOURCES / "bench" / "report"
SCRIPT = SOURCES / "scripts" / "python-bench"


def bench(*arguments: Any, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command with the packages of this interpreter. The ranks end with the command."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tersor.bench", *map(str, arguments)]
    for _ in range(3):
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        if ranks.UNCONNECTED not in done.stderr:
            break
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def load_for_report(path: pathlib.Path) -> list[Any]:
    """Reads records like the report, which refuses unknown records."""
    sys.path.insert(0, str(REPORT))
    try:
        import records
    finally:
        sys.path.remove(str(REPORT))
    return list(records.load([path]))


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "text"
    path.write_text("And God said, Let there be light: and there was light. " * 300, "utf-8")
    return path


@pytest.mark.long
def test_training_learns_with_every_hook(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    names = ["none", "tersor:none", "torch:powersgd", "int8", "adamw=3:hadamard:bits=1+ef"]
    names += ["diloco=4,fragments=2,delay=1,momentum=0,rate=1:int4"]
    names += ["diloco=4,rate=1,momentum=0,residual=0.95:int4+ef"]
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 2, "--steps", 12, "--batch", 2, "--json", path]
    bench("train", "--model", "gpt", "--hooks", *names, *options)
    runs: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads(path.read_text()):
        runs.setdefault(record["codec"], []).append(record)
    assert list(runs) == names
    for first, last in runs.values():
        assert last["loss"] < first["loss"]
        assert 0 < last["accuracy"] <= 1
    losses = {name: [record["loss"] for record in run] for name, run in runs.items()}
    assert losses["tersor:none"] == losses["none"]  # to the bit, on two ranks
    assert losses["int8"] != losses["none"]
    sent = {name: run[-1]["wire_bytes"] for name, run in runs.items()}
    assert 3 < sent["none"] / sent["int8"] < 4
    assert sent["torch:powersgd"] < sent["int8"]
    assert sent["adamw=3:hadamard:bits=1+ef"] < sent["int8"] / 4
    assert 1.7 < sent["int8"] / (4 * sent[names[-1]]) < 2
    assert sent[names[-2]] == pytest.approx(sent[names[-1]], rel=0.02)
    assert len(load_for_report(path)) == 2 * len(names)


@pytest.mark.long
def test_training_with_peers(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    names = ["none", "onebit-adam=4", "demo=16", "dion=4", "sparseloco=4", "adamw:int8+ef"]
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 1, "--steps", 8, "--batch", 1, "--json", path]
    bench("train", "--model", "gpt", "--hooks", *names, *options)
    records = json.loads(path.read_text())
    assert [one["codec"] for one in records] == names
    methods = [(one["method"], one["options"]) for one in records]
    assert methods[1:4] == [("onebit-adam", "4"), ("demo", "16"), ("dion", "4")]
    for one in records:
        assert one["test_loss"] < one["loss"]  # after the last step, and mean of all steps
        assert 0 < one["optimizer_seconds"] < one["step_seconds"] - one["exposed_seconds"]
        assert one["exposed_seconds"] > 0
        assert 0.9 * one["wire_bytes"] < one["interface_bytes"]
    assert len(load_for_report(path)) == len(names)


@pytest.mark.long
def test_training_with_muon(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    names = ["none", "muon", "muon=1,momentum=0.9:hadamard:bits=1+ef", "diloco=4,muon=0.9:int8"]
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 2, "--steps", 4, "--batch", 2, "--json", path]
    bench("train", "--model", "gpt", "--hooks", *names, *options)
    records = json.loads(path.read_text())
    assert all(record["test_loss"] > 0 for record in records)
    plain, dense, ours, local = zip(records[::2], records[1::2], strict=True)
    for first, last in (dense, ours, local):
        assert last["loss"] < first["loss"]
    assert dense[1]["loss"] != plain[1]["loss"]
    assert dense[1]["wire_bytes"] == plain[1]["wire_bytes"] > 8 * ours[1]["wire_bytes"]


@pytest.mark.long
def test_best_of_several_rates_is_marked(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 1, "--steps", 6, "--batch", 2, "--json", path]
    done = bench("train", "--model", "gpt", "--hooks", "none", "--rate", 0.001, 4, *options)
    slow, fast = json.loads(path.read_text())
    assert [slow["learning_rate"], fast["learning_rate"]] == [2e-6, 8e-3]
    assert fast["test_loss"] < slow["test_loss"]
    marked = [line.split()[:2] for line in done.stdout.splitlines() if " * " in line]
    assert marked == [["none", "0.008"]]


@pytest.mark.long
def test_complete_trainings_are_not_repeated(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 2, "--steps", 4, "--batch", 2, "--json", path]
    options += ["--model", "gpt", "--size", "0.2m", "--hooks", "none", "int8", "--resume"]
    bench("train", *options)
    whole = json.loads(path.read_text())
    assert [(one["codec"], one["epoch"]) for one in whole] == [
        ("none", 1), ("none", 2), ("int8", 1), ("int8", 2)
    ]  # fmt: skip
    whole[0]["seconds"] = -1.0  # the mark of the first file
    other = {**whole[2], "codec": "bf16", "epoch": 1}  # not of the next command
    stopped = [*whole[:2], other, whole[2]]  # after an epoch of int8
    path.write_text(json.dumps(stopped), encoding="utf-8")
    done = bench("train", *options)
    assert "none, seed 1, 2 ranks, 206,848 parameters, complete" in done.stdout
    again = json.loads(path.read_text())
    assert again[:3] == stopped[:3]
    assert [one["loss"] for one in again[3:]] == [one["loss"] for one in whole[2:]]
    bench("train", *options, "--rate", 2)  # other trainings leave nothing out
    assert [one["learning_rate"] for one in json.loads(path.read_text())][-4:] == [
        2 * whole[0]["learning_rate"]
    ] * 4


def steps(_: int, __: int, path: str, *options: str) -> list[dict[str, Any]]:
    """Returns the records of a command."""
    sizes = ["--parameters", "3", "--shape", "8", "6", "--repetitions", "1"]
    assert main(["step", *sizes, *options, "--json", path]) == 0
    records: list[dict[str, Any]] = json.loads(pathlib.Path(path).read_text())
    return records


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["adamw", "sgd", "muon"]),
        (["--optimizer", "onebit-adam", "demo", "dion"], ["onebit-adam", "demo", "dion"]),
    ],
)
def test_step_command_measures_each_optimizer(
    options: list[str], names: list[str], tmp_path: pathlib.Path
) -> None:
    path = str(tmp_path / "step.json")
    (found,) = ranks.outcomes(steps, 1, path, *options, group=False)
    assert found.error is None, found.traceback
    assert [record["optimizer"] for record in found.value] == names
    assert all(record["ratio"] > 0 for record in found.value)


def test_step_command_rejects_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--optimizer", "muon", "--shape", "64"]) == 2
    assert "--shape ROWS COLUMNS" in capsys.readouterr().err


@pytest.mark.long
def test_diloco_requires_a_multiple_of_its_interval(
    tmp_path: pathlib.Path, text: pathlib.Path
) -> None:
    options = [
        "--data",
        text,
        "--epochs",
        1,
        "--steps",
        3,
        "--batch",
        1,
        "--hooks",
        "diloco=2:int8",
    ]
    failed = bench("train", "--model", "gpt", *options, expect=2)
    assert "give a multiple of 2" in failed.stderr


@pytest.mark.long
def test_training_with_servers_and_gossip(text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.json"
    hooks = ["none", "server=BSP:int8+ef", "server=SSP2:int8+ef/bf16", "gossip=ring:int8"]
    options = ["--data", text, "--epochs", 2, "--steps", 5, "--ranks", 3, "--json", path]
    bench("train", "--model", "gpt", "--hooks", *hooks, *options)
    last = [one for one in json.loads(path.read_text()) if one["epoch"] == 2]
    assert [one["codec"] for one in last] == hooks
    none, *others = last
    for one in others:
        assert one["test_loss"] < none["test_loss"] + 1, one["codec"]
        assert 0.1 * none["wire_bytes"] < one["wire_bytes"] < 0.7 * none["wire_bytes"]
        assert one["wire_bytes"] < 1.5 * one["interface_bytes"]  # a push is counted later


@pytest.mark.long
def test_backward_counts_sent_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--mib", 8, "--iterations", 3, "--json", path]
    bench("backward", "--hooks", "none", "torch:fp16", "int8", *options)
    none, half, int8 = json.loads(path.read_text())
    assert none["wire_bytes"] == 8 * 2**20
    assert half["wire_bytes"] == 4 * 2**20
    assert 2**21 < int8["wire_bytes"] < 1.1 * 2**21
    assert none["relative_error"] < 1e-6 < half["relative_error"] < int8["relative_error"] < 0.02
    # The loopback carries all messages; the last messages may be missing in the count.
    for record in (none, half, int8):
        assert 0.9 * record["wire_bytes"] < record["interface_bytes"]
    assert {record["parallel"] for record in (none, half, int8)} == {"ddp"}
    assert len(load_for_report(path)) == 3


@pytest.mark.long
def test_backward_with_unequal_speeds(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--mib", 4, "--iterations", 1, "--rows", 9, "--json", path]
    options += ["--speeds", 1, 0.3333, "--row-seconds", 0.1]
    bench("backward", "--hooks", "none", "weighted:none", "weighted:int8", *options)
    none, exact, int8 = json.loads(path.read_text())
    assert exact["relative_error"] < 1e-6 < int8["relative_error"] < 0.02
    pauses = 9 * 0.1  # a sleep takes its time at least, on any machine
    assert none["step_seconds"] > 3 * pauses
    assert exact["step_seconds"] > pauses
    assert none["speeds"] == exact["speeds"] == [1, 0.3333]


@pytest.mark.long
def test_backward_of_sharded_layers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--parallel", "fsdp", "--mib", 8, "--iterations", 3, "--json", path]
    done = bench("backward", "--hooks", "none", "torch:bf16", "auto", "int8", *options)
    assert "FSDP2: 8 MiB of gradients, 2 ranks" in done.stdout
    records = json.loads(path.read_text())
    assert {record["parallel"] for record in records} == {"fsdp"}
    none, half, auto, int8 = records
    assert none["count"] == 2 * 2**20  # of all shards
    assert none["wire_bytes"] == 8 * 2**20  # gloo's reduce-scatter is an allreduce
    assert half["wire_bytes"] == 4 * 2**20
    assert 2**20 < int8["wire_bytes"] < 1.1 * 2**20
    assert none["relative_error"] < 1e-6 < half["relative_error"] < int8["relative_error"] < 0.02
    assert auto["relative_error"] < 0.02
    # Weights are gathered in the forward pass and in the backward pass.
    for record in records:
        assert 0.9 * (record["wire_bytes"] + 2 * 4 * 2**20) < record["interface_bytes"]
        assert 0 < record["seconds"] < record["step_seconds"]
    assert len(load_for_report(path)) == len(records)


@pytest.mark.long
def test_backward_with_compressed_weights(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--parallel", "fsdp", "--weights", "int8", "--mib", 8, "--iterations", 1]
    done = bench("backward", "--hooks", "none", "tersor:none", *options, "--json", path)
    assert "FSDP2, weights by int8 beside our codecs: 8 MiB" in done.stdout
    none, ours = json.loads(path.read_text())
    assert (none["weights"], ours["weights"]) == ("int8", "int8")
    assert none["relative_error"] < 1e-6  # what PyTorch sends has its weights as they are
    assert 1e-3 < ours["relative_error"] < 0.03  # of gradients that lost nothing on their way


@pytest.mark.long
def test_backward_with_uneven_shards(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--parallel", "fsdp", "--ranks", 3, "--mib", 4, "--iterations", 1, "--json", path]
    bench("backward", "--hooks", "none", "int4+ef", *options)
    none, int4 = json.loads(path.read_text())
    assert none["relative_error"] < 1e-6
    assert 0.01 < int4["relative_error"] < 0.3


@pytest.mark.long
def test_rank_error_ends_the_command(tmp_path: pathlib.Path) -> None:
    """No text: each rank fails by itself."""
    done = bench("train", "--model", "gpt", "--data", tmp_path / "missing", expect=2)
    assert "missing" in done.stderr


@pytest.mark.long
def test_timeout_ends_the_command(text: pathlib.Path) -> None:
    text.write_text(text.read_text("utf-8") * 1000, "utf-8")  # enough for hours of training
    options = ["--data", text, "--epochs", 200, "--timeout", 4]
    done = bench("train", "--model", "gpt", "--hooks", "none", *options, expect=124)
    assert "out of time" in done.stderr


@pytest.mark.long
def test_unknown_hook_is_rejected() -> None:
    assert "torch:powersgd" in bench("backward", "--hooks", "torch:int7", expect=2).stderr


def on_hosts(*arguments: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TERSOR_CLUSTER": f"tersorbench{os.getpid()}",
    }
    return subprocess.run(
        [SCRIPT, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="only root makes hosts, with iproute2"
)
def test_ranks_in_separate_network_namespaces(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.json"
    options = ["--mib", 4, "--iterations", 2, "--hooks", "none", "--json", path]
    done = on_hosts(2, "--rate", "500mbit", "--", "backward", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = json.loads(path.read_text())
    assert (record["link"], record["ranks"]) == ("500mbit", 2)
    assert record["seconds"] > 0.9 * 4 * 2**20 * 8 / 500e6  # the link is as slow as it says
    assert record["interface_bytes"] > record["wire_bytes"]
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"tersorbench{os.getpid()}" not in names.stdout


def test_host_script_without_a_command_prints_usage() -> None:
    done = on_hosts(2, "--rate", "1gbit")
    assert done.returncode == 2
    assert "usage: scripts/python-bench" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("model", ["moe", "pipeline"])
def test_split_models_learn_with_every_hook(
    model: str, tmp_path: pathlib.Path, text: pathlib.Path
) -> None:
    names = ["none", "tersor:none", "torch:bf16", "int8", "int8/bf16"]
    path = tmp_path / "train.json"
    options = ["--data", text, "--epochs", 2, "--steps", 6, "--batch", 4, "--json", path]
    bench("train", "--model", model, "--hooks", *names, *options)
    runs: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads(path.read_text()):
        runs.setdefault(record["codec"], []).append(record)
    assert list(runs) == names
    for first, last in runs.values():
        assert last["loss"] < first["loss"]
        assert 0 < last["exposed_seconds"] < last["step_seconds"]
    losses = {name: [record["loss"] for record in run] for name, run in runs.items()}
    assert losses["tersor:none"] == losses["none"]  # to the bit
    assert losses["int8"] != losses["none"]
    sent = {name: run[-1]["wire_bytes"] for name, run in runs.items()}
    assert 1.9 < sent["none"] / sent["torch:bf16"] < 2.1  # rows of the same experts, nearly
    assert 3.4 < sent["tersor:none"] / sent["int8"] < 4  # 128 columns are half a block
    assert sent["int8"] < sent["int8/bf16"] < sent["torch:bf16"]
    assert len(load_for_report(path)) == 2 * len(names)


@pytest.mark.long
def test_backward_of_experts(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backward.json"
    options = ["--parallel", "experts", "--mib", 8, "--rows", 64, "--iterations", 2]
    names = ["none", "torch:bf16", "tersor:none", "int8"]
    done = bench("backward", "--hooks", *names, *options, "--json", path)
    assert "8 experts, whole steps: 8 MiB of gradients, 2 ranks" in done.stdout
    records = json.loads(path.read_text())
    assert {record["parallel"] for record in records} == {"experts"}
    none, bf16, ours, int8 = records
    assert none["count"] == 2 * 2**20 + 8 * (128 + 1024) + 10 * 1024  # biases, router and norm
    assert none["relative_error"] < 1e-6
    assert ours["relative_error"] == none["relative_error"]
    assert 1e-4 < bf16["relative_error"] < int8["relative_error"] < 0.03
    assert bf16["wire_bytes"] == none["wire_bytes"] / 2
    assert 3.6 < ours["wire_bytes"] / int8["wire_bytes"] < 4
    assert all(record["seconds"] == record["step_seconds"] for record in records)
    assert len(load_for_report(path)) == len(records)
