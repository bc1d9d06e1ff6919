"""What ``python -m tersor.bench goodput`` draws, counts and refuses."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tersor.bench import goodput  # noqa: E402  torch comes first
from tersor.bench.__main__ import main  # noqa: E402


def told(**more: object) -> argparse.Namespace:
    fields = {"seconds": 1000.0, "seed": 1, "stall_every": 10.0, "death_every": 0.0}
    return argparse.Namespace(**{**fields, **more})


def test_failures_come_of_the_seed_alone() -> None:
    stalls = goodput.times(told(), "stall", 0)
    assert stalls == goodput.times(told(death_every=5.0), "stall", 0) == sorted(stalls)
    assert stalls[0] > 0
    assert stalls[-1] < 1000
    assert len(stalls) == pytest.approx(100, abs=40)
    assert stalls != goodput.times(told(), "stall", 1)
    assert stalls != goodput.times(told(seed=2), "stall", 0)
    assert goodput.times(told(), "death", 0) == []
    assert goodput.times(told(seconds=50.0), "stall", 0) == [one for one in stalls if one < 50]


def test_steps_that_count_outlive_their_process(tmp_path: pathlib.Path) -> None:
    more = {"step": 0.1, "stall": 1.0, "folder": str(tmp_path)}
    goodput.Pace(told(**more), 3).count(5)
    pace = goodput.Pace(told(**more), 3)  # started again
    pace.count(2)
    assert [one.name for one in tmp_path.iterdir()] == ["counted.3"]
    assert (tmp_path / "counted.3").read_text() == "7"


@pytest.mark.parametrize("option", ["--grace=-1", "--stall-every=nan", "--step=0", "--ways=fsdp"])
def test_wrong_options_are_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["goodput", option])
    assert option.partition("=")[0] in capsys.readouterr().err


@pytest.mark.long
def test_each_way_is_a_record(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.json"
    command = [sys.executable, "-m", "tersor.bench", "goodput", "--ranks=3", f"--json={path}"]
    often = ["--stall-every=2", "--stall=1", "--death-every=8", "--seconds=6"]
    ways = ["--ways", "ddp", "diloco", "diloco+grace"]
    found = subprocess.run(
        [*command, *often, *ways, "--every=4"], capture_output=True, text=True, timeout=900
    )
    assert found.returncode == 0, found.stderr
    records = json.loads(path.read_text())
    assert [one["way"] for one in records] == ways[1:]
    for one in records:
        assert one["benchmark"] == "goodput"
        assert one["most_steps"] == 180
        assert 0 < one["steps"] <= 180
        assert one["goodput"] == one["steps"] / 180
        assert one["stalls"] > 0
