"""``python -m tersor.bench goodput``: drawn failures, counts and refused options."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tersor.bench import goodput, goodput_command  # noqa: E402  torch comes first
from tersor.bench.__main__ import main  # noqa: E402


def told(**more: object) -> argparse.Namespace:
    fields = {
        "seconds": 1000.0,
        "seed": 1,
        "stall_every": 10.0,
        "death_every": 0.0,
        "ways": ["ddp"],
    }
    return argparse.Namespace(**{**fields, **more})


def test_failure_times_are_reproducible() -> None:
    stalls = goodput.failures(told(), "stall", 0)
    assert stalls == goodput.failures(told(death_every=5.0), "stall", 0) == sorted(stalls)
    assert stalls[0] > 0
    assert stalls[-1] < 1000
    assert len(stalls) == pytest.approx(100, abs=40)
    assert stalls != goodput.failures(told(), "stall", 1)
    assert stalls != goodput.failures(told(seed=2), "stall", 0)
    assert goodput.failures(told(), "death", 0) == []
    mortal = told(death_every=5.0, ways=["server"])
    assert goodput.failures(mortal, "death", 0) == []  # it serves
    assert goodput.failures(mortal, "death", 1)
    assert goodput.failures(told(seconds=50.0), "stall", 0) == [one for one in stalls if one < 50]


def test_counted_steps_survive_a_process_restart(tmp_path: pathlib.Path) -> None:
    (tmp_path / "go").write_text("0")
    for steps in (5, 2):  # and is started again
        pace = goodput.Pace(told(step=0.1, stall=1.0, folder=str(tmp_path)), 3)
        pace.begin()
        pace.count(steps)
    with (tmp_path / "counted.3").open("a") as half:
        half.write("17.5")  # it was killed while it wrote
    found = goodput.read_counts(tmp_path, 3)
    assert [steps for _, steps in found] == [5, 2]
    assert found[0][0] <= found[1][0]
    assert goodput.read_counts(tmp_path, 4) == []


def test_alive_time_excludes_stalls_and_deaths() -> None:
    chosen = told(seed=3, seconds=100.0, stall=5.0, restart=20.0, death_every=30.0)
    never = told(stall_every=0.0)
    assert goodput_command._uptime(0, "ddp", never) == 1000

    stalls = goodput.failures(chosen, "stall", 2)
    deaths = goodput.failures(chosen, "death", 2)
    assert stalls
    assert deaths
    for way, gone in (("ddp", 100.0), ("torchft-ddp", 20.0)):
        lost = [(at, at + 5) for at in stalls] + [(at, at + gone) for at in deaths]
        cells = [(one + 0.5) / 100 for one in range(10_000)]
        alive = sum(not any(start <= at < end for start, end in lost) for at in cells) / 100
        assert goodput_command._uptime(2, way, chosen) == pytest.approx(alive, abs=0.1)


def test_the_pause_after_a_death() -> None:
    made = [
        [(1.0, 1), (2.0, 1), (6.0, 1), (7.0, 1)],  # learns of it in the step after
        [(1.0, 1), (2.1, 1), (5.5, 1), (30.0, 1)],
        [(1.0, 1)],  # dies
    ]
    assert goodput_command._pauses(made, [(1.5, 2)], 1.0) == [4.0]
    assert goodput_command._pauses(made, [(1.5, 2), (6.1, 1)], 1.0) == [4.0, 1.0]
    assert goodput_command._pauses(made, [], 1.0) == []


@pytest.mark.parametrize("option", ["--grace=-1", "--stall-every=nan", "--step=0", "--ways=fsdp"])
def test_error_names_invalid_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["goodput", option])
    assert option.partition("=")[0] in capsys.readouterr().err


@pytest.mark.long
def test_each_method_produces_a_record(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.json"
    command = [sys.executable, "-m", "tersor.bench", "goodput", "--ranks=3", f"--json={path}"]
    often = ["--stall-every=2", "--stall=1", "--death-every=8", "--seconds=6"]
    ways = ["--ways", "ddp", "diloco", "diloco+grace", "server"]
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
        assert one["goodput"] <= one["alone"] < 0.9
