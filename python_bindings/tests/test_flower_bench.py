"""``bench federated``: the measured values are correct, in this process and in Flower's
processes."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from image_files import write_idx

from tersor.bench.__main__ import main
from tersor.bench.errors import BenchmarkError
from tersor.bench.federated_link import Link

NO_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
NO_NETWORK += ["sh", "-c"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Ten classes with a separate stripe each, in noise."""
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for part, count in (("train", 2000), ("t10k", 500)):
        labels = draw.integers(0, 10, count)
        pixels = draw.integers(0, 150, (count, 28, 28))
        pixels[np.arange(count), 2 * labels + 4] += 100
        write_idx(folder / f"{part}-images-idx3-ubyte", pixels)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
    return folder


def records_of(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    return {record["way"]: record for record in json.loads(path.read_text())}


def has_no_network() -> bool:
    command = [*NO_NETWORK, "ip link set lo up"]
    return shutil.which("unshare") is not None and subprocess.run(command).returncode == 0


def test_codecs_send_fewer_bytes_at_similar_accuracy(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "records.json"
    options = ["--in-process", "--rounds", "4", "--seeds", "2", "--data", str(images)]
    assert main(["federated", *options, "--json", str(path)]) == 0
    found = records_of(path)
    plain, theirs = found["plain"]["wire_bytes"], found["secagg+"]["wire_bytes"]
    assert found["int8"]["wire_bytes"] < 0.26 * plain
    assert found["int4+ef"]["wire_bytes"] < 0.14 * plain
    assert found["secure"]["wire_bytes"] < 0.26 * theirs
    assert found["secure"]["wire_bytes"] < 0.51 * plain
    for way, record in found.items():
        assert record["accuracy"] > 0.8, way
        assert abs(record["accuracy"] - found["plain"]["accuracy"]) < 0.05, way
        assert record["training_cpu_seconds"] > 0, way


@pytest.mark.skipif(not has_no_network(), reason="no namespace of a network may be made here")
def test_flower_processes_run_without_network_access(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "records.json"
    command = (
        f"ip link set lo up && exec {sys.executable} -m tersor.bench federated --rounds 2 --seeds 1"
        f" --ways plain int4+ef secure --clients 3 --data {images} --json {path}"
    )
    subprocess.run([*NO_NETWORK, command], check=True, timeout=600)
    found = records_of(path)
    here = tmp_path / "here.json"
    options = ["--in-process", "--rounds", "2", "--seeds", "1", "--clients", "3"]
    options += ["--ways", "plain", "int4+ef", "secure", "--data", str(images)]
    assert main(["federated", *options, "--json", str(here)]) == 0
    for way, record in records_of(here).items():
        assert found[way]["accuracy"] == pytest.approx(record["accuracy"], abs=0.05), way
        assert found[way]["wire_bytes"] == pytest.approx(record["wire_bytes"], rel=0.01), way


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--clients", "1"], "at least 2 clients"),
        (["--ways", "int7"], "int7"),
        (["--ways", "int8", "int8"], "each once"),
        (["--clients", "2"], "secagg+ needs 3 clients"),
        (["--clip", "0"], "a number above 0"),
        (["--data", "/nowhere"], "cannot read"),
    ],
)
def test_invalid_federated_options_are_rejected(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federated", "--in-process", *options]) == 2
    assert reason in capsys.readouterr().err


def test_timeout_and_sigterm_leave_no_processes(tmp_path: pathlib.Path) -> None:
    link = Link(tmp_path, 1)
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.closing(link):
        link.open()
        with pytest.raises(BenchmarkError, match=r"no result after 0\.1 s \(--timeout\)"):
            link.run({"results": str(tmp_path)}, timeout=0.1)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert [process.poll() is None for process in link._processes] == [False, False]
    assert signal.getsignal(signal.SIGTERM) is before
