"""The benchmark for ranks that do not wait for all others: uneven data, steps of unequal length,
and mixing among neighbours compared with an allreduce."""

from __future__ import annotations

import json
import pathlib
import struct
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tersor.bench.__main__ import main  # noqa: E402  torch comes first
from tersor.bench.errors import BenchmarkError  # noqa: E402
from tersor.bench.tasks import ImageTask, Share, TaskOptions, TextTask  # noqa: E402
from tersor.bench.training import Pace  # noqa: E402

CPU = torch.device("cpu")
RANKS = 4


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    for part, count in (("train", 2_000), ("t10k", 50)):
        for name, values in (("images-idx3", np.zeros((count, 28, 28))),
                             ("labels-idx1", np.arange(count) % 10)):  # fmt: skip
            head = struct.pack(">BBBB", 0, 0, 8, values.ndim)
            head += struct.pack(f">{values.ndim}I", *values.shape)
            path = tmp_path / f"{part}-{name}-ubyte"
            path.write_bytes(head + values.astype(np.uint8).tobytes())
    return tmp_path


def seen_by(rank: int, task: ImageTask) -> np.ndarray:
    """How many images of each class a rank sees in an epoch."""
    batches = [task.batch(1, step, Share(rank, RANKS))[1] for step in range(task.recipe.steps)]
    return np.bincount(torch.cat(batches).numpy(), minlength=10)


def image_task(images: pathlib.Path, uneven: float | None) -> ImageTask:
    return ImageTask(TaskOptions(images, 10, 1, None, CPU, RANKS, uneven=uneven))


def test_uneven_option_skews_classes_per_rank(images: pathlib.Path) -> None:
    even, uneven, nearly = (
        np.stack([seen_by(rank, image_task(images, alpha)) for rank in range(RANKS)])
        for alpha in (None, 0.1, 1e4)
    )
    assert even.sum() == uneven.sum() == nearly.sum() == 2_000
    assert (uneven == 0).sum() >= 10  # of 40
    assert nearly.min() >= 35
    with pytest.raises(BenchmarkError, match="for images"):
        TextTask(TaskOptions(None, None, None, None, CPU, RANKS, uneven=1.0))


def test_each_step_has_a_slow_rank() -> None:
    def seconds(rank: int, step: int) -> float:
        start = time.perf_counter()
        Pace(0.002, 10.0).wait(1, step, Share(rank, RANKS))
        return time.perf_counter() - start

    slow = [[seconds(rank, step) >= 0.02 for rank in range(RANKS)] for step in range(12)]
    assert all(any(of_step) for of_step in slow)
    assert len({of_step.index(True) for of_step in slow}) > 1


def test_slow_option_requires_step_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--slow", "4"]) == 2
    assert "--step-seconds" in capsys.readouterr().err


def test_gossip_command_compares_with_allreduce(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gossip.json"
    options = ["--ranks", "4", "--kib", "64", "--link", "none", "--steps", "20"]
    assert main(["gossip", *options, "--codec", "int8", "none", "--json", str(path)]) == 0
    records = json.loads(path.read_text())
    assert [one["way"] for one in records] == ["allreduce"] * 3 + ["gossip"] * 6
    assert all(one["distance"] < 1e-6 for one in records[:3])
    assert all(one["distance"] < 0.01 for one in records[3:])
    int8, none = records[3], records[4]
    assert int8["wire_bytes"] < 0.3 * none["wire_bytes"]
    assert none["wire_bytes"] >= 2 * 64 * 1024
    assert "allreduces" in capsys.readouterr().out
    assert main(["gossip", "--ranks", "1"]) == 2
