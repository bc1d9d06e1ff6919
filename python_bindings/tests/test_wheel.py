"""The installed package is complete and light, and needs no library beyond the machine's."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import pytest

import tersor
from tersor import _build, _core

PACKAGE = pathlib.Path(tersor.__file__).parent
SOURCES = pathlib.Path(__file__).resolve().parents[2]
MODULE = pathlib.Path(_core.__file__)


def run_python(program: str) -> str:
    """Returns the output of a new interpreter."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout


def tool_output(tool: str, *arguments: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    command = [tool, *arguments, str(MODULE)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_version_matches_the_library() -> None:
    project = re.search(
        r"project\(tersor VERSION ([0-9.]+)", (SOURCES / "CMakeLists.txt").read_text()
    )
    assert project is not None
    assert tersor.__version__ == project[1]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # in a build folder
        assert importlib.metadata.version("tersor") == project[1]


def test_build_info_names_the_parts_of_the_module() -> None:
    info = tersor.build_info()
    assert info.version == tersor.__version__
    assert info.path == MODULE
    assert info.instruction_set in _core.instruction_sets()
    assert info.compiler.split()[0] in {"gcc", "clang"}
    assert info.mpi == any(PACKAGE.glob("_mpi*.so"))
    assert info.cuda or not info.nccl
    assert info.package in {"tersor", "tersor-cuda13"}


def test_build_info_prints_how_to_add_missing_parts() -> None:
    info = dataclasses.replace(tersor.build_info(), cuda=False, nccl=True, mpi=True)
    assert list(info.missing()) == ["cuda"]
    lines = str(info).splitlines()
    assert f"version: {tersor.__version__}" in lines
    assert lines[-1].startswith("to add cuda: ")
    assert "TERSOR_CUDA=ON" in lines[-1]
    assert dataclasses.replace(info, cuda=True).missing() == {}


def test_import_warns_once_on_a_cpu_without_fast_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(_core, "instruction_sets", lambda: ["portable", "avx2"])
        _build.warn_if_portable()
    monkeypatch.setattr(_core, "instruction_sets", lambda: ["portable"])
    with pytest.warns(RuntimeWarning, match="no AVX2") as caught:
        _build.warn_if_portable()
    assert len(caught) == 1
    program = (
        "import sys; from tersor import _core; _core.instruction_sets = lambda: ['portable'];"
        "del sys.modules['tersor']; import tersor, tersor"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.count("no AVX2") == 1, done.stderr


def test_public_names_exist_with_docstrings() -> None:
    for name in tersor.__all__:
        assert getattr(tersor, name).__doc__ or name == "__version__", name


@pytest.mark.parametrize("name", ["py.typed", "_core.pyi"])
def test_package_contains_type_information(name: str) -> None:
    assert (PACKAGE / name).is_file()


def test_import_needs_numpy_only() -> None:
    program = (
        "import sys, tersor;"
        "known = sys.stdlib_module_names | {'numpy', 'tersor', 'tersor_cuda13', '__main__'};"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - known))"
    )
    foreign = run_python(program).split()
    assert [name for name in foreign if not name.startswith(("_", "sitecustomize"))] == []


def test_torch_module_without_pytorch_names_the_package_to_install() -> None:
    program = (
        "import sys; sys.modules['torch'] = None  # as where it is not installed\n"
        "try: import tersor.torch\n"
        "except ModuleNotFoundError as error: print(error.name, error)"
    )
    told = run_python(program)
    assert told.startswith("torch tersor.torch needs PyTorch: pip install 'torch>=2.11'")


def test_import_is_fast() -> None:
    """The limit is ten times the measured time, 11 to 27 ms in addition to NumPy's import."""
    program = (
        "import numpy, time; begin = time.process_time(); import tersor;"
        "print(time.process_time() - begin)"
    )
    assert min(float(run_python(program)) for _ in range(3)) < 0.25


def test_module_links_what_every_machine_has() -> None:
    found = re.findall(r"\(NEEDED\).*\[(.+)\]", tool_output("readelf", "--dynamic"))
    assert found
    usual = r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux.*)\.so\.\d+"
    assert [name for name in found if not re.fullmatch(usual, name)] == []


def test_module_exports_only_its_init_symbol() -> None:
    lines = tool_output("nm", "--dynamic", "--defined-only").splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__core"]


@pytest.mark.skipif(not pathlib.Path("/proc/cpuinfo").exists(), reason="needs /proc/cpuinfo")
def test_instruction_sets_are_those_of_this_cpu() -> None:
    found = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("not an x86 CPU")
    flags = set(found[1].split())
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "aes", "pclmulqdq"}
    avx512 = avx2 | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
    expected = ["portable", *(["avx2"] if avx2 <= flags else [])]
    expected += ["avx512"] if avx512 <= flags else []
    assert _core.instruction_sets() == expected
    assert run_python("from tersor import _core; print(_core.instruction_set())").split() == [
        expected[-1]
    ]
