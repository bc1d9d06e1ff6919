"""`tersor.mpi` over real processes, by the checks of mpi_rank.py."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 3
DEADLINE_SECONDS = 180

pytest.importorskip("mpi4py", exc_type=ImportError)
pytest.importorskip("tersor._mpi", exc_type=ImportError, reason="this build found no MPI")
if shutil.which("mpirun") is None:
    pytest.skip("there is no mpirun", allow_module_level=True)


@pytest.mark.parametrize(
    "checks",
    [
        [
            "allreduce_adds_and_ends_alike",
            "means_and_shards_are_right",
            "a_transport_is_kept_for_its_communicator",
            "the_callers_messages_meet_none_of_ours",
            "a_reducer_takes_the_transport",
        ],
        ["errors_keep_their_type"],
    ],
    ids=["results", "errors"],
)
def test_on_ranks(checks: list[str]) -> None:
    launcher = HERE.parents[1] / "scripts" / "mpirun"
    command = [str(launcher), str(RANKS), sys.executable, str(HERE / "mpi_rank.py"), *checks]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    for check in checks:
        assert outcome.stdout.count(f"{check} is done") == RANKS
    assert "nanobind: leaked" not in outcome.stderr, outcome.stderr
