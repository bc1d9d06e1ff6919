"""``tersor-cuda13``: the extension module of ``import tersor``."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest

import tersor
from tersor import _core

PACKAGE = pathlib.Path(tersor.__file__).parent
SHOW = "import tersor; info = tersor.build_info(); print(info.package, info.path)"


@pytest.fixture
def site(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with both packages of one version. Both have the module of this build."""
    shutil.copytree(PACKAGE, tmp_path / "tersor", ignore=shutil.ignore_patterns("_mpi*.so"))
    (tmp_path / "tersor-1.2.3.dist-info").mkdir()
    (tmp_path / "tersor-1.2.3.dist-info/METADATA").write_text(
        "Metadata-Version: 2.4\nName: tersor\nVersion: 1.2.3\n"
    )
    cuda = tmp_path / "tersor_cuda13"
    cuda.mkdir()
    (cuda / "__init__.py").write_text('__version__ = "1.2.3"\n')
    own = pathlib.Path(_core.__file__)
    shutil.copy(own, cuda)
    if not (tmp_path / "tersor" / own.name).exists():  # this build is of tersor-cuda13
        shutil.copy(own, tmp_path / "tersor")
    return tmp_path


def run(site: pathlib.Path, program: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(site)!r}); {program}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def shown(site: pathlib.Path) -> list[str]:
    ended = run(site, SHOW)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_the_cuda_package_replaces_the_module(site: pathlib.Path) -> None:
    package, path = shown(site)
    assert package == "tersor-cuda13"
    assert pathlib.Path(path).parent == site / "tersor_cuda13"


def test_all_parts_use_one_module(site: pathlib.Path) -> None:
    program = (
        "import tersor, tersor.local, tersor.federated.sums;"
        "print([name for name, module in sys.modules.items()"
        " if (getattr(module, '__file__', None) or '').endswith('.so') and '_core' in name])"
    )
    ended = run(site, program)
    assert "'tersor._core'" in ended.stdout
    assert ended.stdout.count("_core") == 1 + ended.stdout.count("numpy")


@pytest.mark.skipif(
    importlib.util.find_spec("tersor_cuda13") is not None, reason="tersor-cuda13 is installed"
)
@pytest.mark.parametrize("remaining", ["nothing", "folder"])
def test_own_module_loads_without_the_cuda_package(site: pathlib.Path, remaining: str) -> None:
    shutil.rmtree(site / "tersor_cuda13")
    if remaining == "folder":  # pip leaves a folder with foreign files
        (site / "tersor_cuda13/__pycache__").mkdir(parents=True)
    package, path = shown(site)
    assert package == "tersor"
    assert pathlib.Path(path).parent == site / "tersor"


def test_version_mismatch_raises_import_error(site: pathlib.Path) -> None:
    (site / "tersor_cuda13/__init__.py").write_text('__version__ = "1.2.4"\n')
    ended = run(site, SHOW)
    assert ended.returncode != 0
    assert "ImportError: tersor 1.2.3 cannot use tersor-cuda13 1.2.4" in ended.stderr
    assert "tersor-cuda13==1.2.3" in ended.stderr


def test_build_with_mpi_raises_import_error(site: pathlib.Path) -> None:
    (site / "tersor/_mpi.abi3.so").touch()
    ended = run(site, SHOW)
    assert "ImportError: tersor-cuda13 cannot be combined" in ended.stderr


def test_build_folder_keeps_its_own_module(site: pathlib.Path) -> None:
    shutil.rmtree(site / "tersor-1.2.3.dist-info")
    assert shown(site)[0] == "tersor"


def test_build_info_explains_a_missing_gpu() -> None:
    info = tersor.build_info()
    if not info.cuda:
        assert "this build of Tersor has no CUDA" in info.gpu
    else:
        assert info.gpu
        assert not info.gpu.startswith("device memory needs") or shutil.which("nvidia-smi") is None
