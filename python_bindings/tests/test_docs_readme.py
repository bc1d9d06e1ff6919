"""The README's program trains, started by torchrun as a reader would."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from pages import programs

pytest.importorskip("torch")

RANKS = 2
DEADLINE_SECONDS = 180


def test_the_readmes_program_trains(tmp_path: pathlib.Path) -> None:
    [program] = programs("README.md")
    file = tmp_path / "train.py"
    file.write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={RANKS}", str(file)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = map(float, re.findall(r"loss (\d+\.\d+)", done.stdout))
    assert last < 0.5 * first
    sent = re.search(r"sent ([\d.]+) KiB a step instead of ([\d.]+)", done.stdout)
    assert sent is not None, done.stdout
    assert float(sent[1]) < 0.3 * float(sent[2])
