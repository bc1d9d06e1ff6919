"""The programs of pages without PyTorch run unchanged."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
from pages import PAGES, SOURCES, kinds, programs

RANKS = 2
DEADLINE_SECONDS = 180
# The kinds of blocks, each with the test of these blocks. A block of torchft needs a lighthouse and
# functions of the reader; test_torchft.py makes the same calls.
TESTS = {
    "": "test_docs_python.py, test_docs_readme.py, test_server.py",
    "accelerate": "test_docs_frameworks.py",
    "backend": "test_backend_ends.py",
    "flower": "test_flower.py, test_flower_secure.py",
    "lightning": "test_docs_frameworks.py",
    "mpi": "test_docs_python.py",
    "ray": "test_ray.py",
    "setup": "test_docs_torch.py",
    "tensorflow": "test_tensorflow.py",
    "torch": "test_docs_torch.py",
    "torchft": "",
    "transformers": "test_docs_frameworks.py",
    "vllm": "test_vllm.py",
}
# Pages with blocks of no kind.
BY_TORCHRUN = {"docs/get-started/pytorch.md", "docs/how-to/diloco.md"}
IN_PROCESS = {
    "docs/get-started/install.md",
    "docs/how-to/weight-deltas.md",
    "docs/how-to/will-it-help.md",
}
IN_TEST_SERVER = {"docs/systems/gossip.md"}


def test_every_block_is_run_by_a_test() -> None:
    found = {page: set(kinds(page)) for page in PAGES}
    assert set.union(*found.values()) == set(TESTS)
    plain = {page for page in PAGES if "" in found[page]}
    assert plain == BY_TORCHRUN | IN_PROCESS | IN_TEST_SERVER
    (torchft,) = programs("docs/how-to/torchft.md", "torchft")
    compile(torchft, "torchft", "exec")


@pytest.mark.parametrize("page", sorted(IN_PROCESS))
def test_single_process_programs_run_in_order(
    page: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    if "Publisher(" in "".join(programs(page)):
        pytest.importorskip("safetensors")
    for program in programs(page):
        exec(compile(program, page, "exec"), known)
    if "payload" in known:
        assert known["payload"].nbytes < known["gradient"].nbytes / 40  # the last one is top-k's
        assert known["error"] < 0.25
    elif "publisher" in known:
        assert (known["version"], known["versions"]) == (2, [2, 2, 2])
        assert all((known["weights"][name] == value).all() for name, value in known["new"].items())
        assert known["loaded_version"] == 2
        assert (known["values"] == known["newer"]["scale"][known["indices"]]).all()
    else:  # 8 bits in a byte, 1.75 times the gradient among 8 ranks
        assert known["exchange_seconds"](1e6, 8, 1) == pytest.approx(1.75 * 4e6 * 8 / 1e9)


def test_the_program_over_mpi_runs(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mpi4py", exc_type=ImportError)
    pytest.importorskip("tersor._mpi", exc_type=ImportError, reason="this build found no MPI")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    [program] = programs("docs/how-to/mpi.md", "mpi")
    file = tmp_path / "program.py"
    file.write_text(program + "assert (gradient == 0.5).all(), gradient\n")
    command = [str(SOURCES / "scripts" / "mpirun"), str(RANKS), sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
