"""The programs of docs/python.md run as they stand there."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
from pages import SOURCES, programs

PAGE = "docs/python.md"
RANKS = 2
DEADLINE_SECONDS = 180


def test_the_programs_of_one_process_run_in_order() -> None:
    known: dict[str, Any] = {}
    for program in programs(PAGE):
        exec(compile(program, PAGE, "exec"), known)
    assert known["payload"].nbytes < known["gradient"].nbytes / 40  # the last was top-k's
    assert known["error"] < 0.25


@pytest.mark.parametrize("page", [PAGE, "docs/adopt.md"])
def test_the_program_over_mpi_runs(page: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mpi4py", exc_type=ImportError)
    pytest.importorskip("tersor._mpi", exc_type=ImportError, reason="this build found no MPI")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    [program] = programs(page, "mpi")
    file = tmp_path / "program.py"
    file.write_text(program + "assert (gradient == 0.5).all(), gradient\n")
    command = [str(SOURCES / "scripts" / "mpirun"), str(RANKS), sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
