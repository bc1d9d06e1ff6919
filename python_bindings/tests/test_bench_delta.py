"""The command delta: sizes by Tersor and by others, speeds, and pairs from a short training."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zstandard")

from safetensors.torch import save_file  # noqa: E402  torch comes first

from tersor.bench.__main__ import main  # noqa: E402  torch comes first
from tersor.bench.delta_peers import PEERS  # noqa: E402  torch comes first

COUNT = 2**20


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A pair whose values changed by steps of 2e-6 at most, about 3 % of the bf16 values."""
    draw = np.random.default_rng(7)
    weights = torch.from_numpy(draw.normal(0, 0.02, COUNT).astype(np.float32))
    steps = torch.from_numpy(draw.normal(0, 0.5, COUNT).astype(np.float32)).clamp(-1, 1)
    for name, values in (("base", weights), ("new", weights - 2e-6 * steps)):
        halves = dict(zip("ab", values.bfloat16().split(COUNT // 2), strict=True))
        save_file(
            {key: one.clone() for key, one in halves.items()}, tmp_path / f"x.{name}.safetensors"
        )
    save_file({"weights": weights.bfloat16()}, tmp_path / "tensors.safetensors")
    return tmp_path


def records_of(*options: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    path = folder / "records.json"
    assert main(["delta", "--pairs", str(folder), "--json", str(path), *options]) == 0
    records: list[dict[str, Any]] = json.loads(path.read_text())
    return records


def test_sizes_meet_targets_at_3_percent_changes(folder: pathlib.Path) -> None:
    *deltas, codec = records_of(folder=folder)
    assert {one["tensors"] for one in deltas} == {1, 2}
    assert {(one["benchmark"], one["data"], one["count"]) for one in deltas} == {
        ("delta", "x", COUNT)
    }
    assert 0.03 < deltas[0]["changed_share"] < 0.035
    sizes = {one["codec"]: one["bytes_per_change"] for one in deltas if one["tensors"] == 1}
    assert sizes["delta:classes=4"] < 0.88
    assert sizes["delta:classes=1"] < 1.10
    assert sizes["delta:classes=auto"] < 0.88
    assert 1.5 < sizes["16-bit gaps + XOR, zstd-1"] < 1.7
    assert 2.2 < sizes["dense XOR, zstd-1"] < 2.6
    assert sizes["index + value"] == 6
    assert (codec["data"], codec["codec"]) == ("weights", "entropy")
    assert 10 < codec["bits_per_value"] < 10.7


def test_speed_records_contain_baseline_and_load(folder: pathlib.Path) -> None:
    records = records_of("--speed", "--mib", "1", "--repetitions", "1", folder=folder)
    calls = [one["operation"] for one in records]
    assert calls == 3 * ["encode", "check, trusted base", "apply, trusted base", "apply"] + [
        "encode",
        "decode",
    ]
    for one in records:
        assert one["count"] == 2**19
        assert {"isa", "load", "threads", "baseline"} <= one.keys()
        assert one["copies"] > 0


def test_training_pairs_are_reproducible(tmp_path: pathlib.Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be, that is the question. " * 400)
    options = ["--data", str(text), "--steps", "2", "--layers", "1", "--width", "64"]
    found = [records_of(*options, folder=tmp_path / run) for run in ("first", "second")]
    assert {one.get("optimizer") for one in found[0]} == {"adamw", "muon", None}
    assert {one["data"] for one in found[0] if "bits_per_value" in one} == {
        f"{kind}, {name}"
        for kind in ("weights", "activations", "gradients")
        for name in ("adamw", "muon")
    }
    assert [one["payload_bytes"] for one in found[0]] == [one["payload_bytes"] for one in found[1]]


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("places", [[], [0], [65_535, 65_536, 131_072, 300_000], [399_999]])
def test_peers_are_lossless(peer: str, places: list[int]) -> None:
    base = np.arange(400_000).astype(np.uint16)
    new = base.copy()
    new[places] ^= 0x8001
    encode, decode = PEERS[peer]
    assert np.array_equal(decode(base, encode(base, new)), new)


def test_error_names_missing_package(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert main(["delta", "--pairs", str(folder)]) == 2
    assert "needs zstandard: pip install 'tersor[bench]'" in capsys.readouterr().err


def test_dtypes_other_than_bf16_are_rejected(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"a": torch.zeros(3)}, folder / "x.new.safetensors")
    assert main(["delta", "--pairs", str(folder)]) == 2
    assert "a is not of bf16" in capsys.readouterr().err
