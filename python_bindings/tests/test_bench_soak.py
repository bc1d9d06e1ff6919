"""``soak``: losses of ranks over both transports, and the check of equal weights."""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest

pytest.importorskip("torch")  # of other commands

from tersor.bench import soak_command
from tersor.bench.__main__ import main

SHORT = ["soak", "--steps", "60", "--replace", "20", "--every", "20", "--ranks", "3"]


def test_lost_ranks_are_replaced(tmp_path: pathlib.Path) -> None:
    assert main([*SHORT, "--json", str(tmp_path / "soak.json")]) == 0
    records = json.loads((tmp_path / "soak.json").read_text())
    found = [(one["transport"], one["step"], one["losses"]) for one in records]
    assert found == [(kind, 20 * n, n) for kind in ("tcp", "threads") for n in (1, 2, 3)]
    weights = [one["weights"] for one in records]
    assert weights[:3] == weights[3:], "the transport changes the result"
    assert len(set(weights)) == 3
    assert records[2]["loss"] < records[0]["loss"]
    assert all(one["descriptors"] > 0 and one["rss_bytes"] > 0 for one in records)


@pytest.mark.parametrize("kind", ["tcp", "threads"])
def test_rank_error_is_printed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--transport", kind, "--codec", "int5"]) == 2
    assert "int5" in capsys.readouterr().err


def test_unequal_weights_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(chosen: argparse.Namespace) -> None:
        for rank in range(chosen.ranks):
            row = {"step": 20, "weights": f"hash of rank {rank // 2}"}
            pathlib.Path(chosen.folder, f"records.{rank}").write_text(json.dumps(row))

    monkeypatch.setattr(soak_command, "_run_threads", write)
    assert main([*SHORT, "--transport", "threads"]) == 2
    assert "different weights at step 20" in capsys.readouterr().err
