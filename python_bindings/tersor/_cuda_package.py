"""Finds ``tersor-cuda13``, whose extension module replaces the module of this package.

An import of this module before ``tersor._core`` is enough.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

DISTRIBUTION = "tersor-cuda13"


def _prefer_cuda_package() -> None:
    """Puts the folder of the CUDA package, if installed, before the package's own folder."""
    found = importlib.util.find_spec("tersor_cuda13")
    if found is None or found.origin is None:
        return
    from importlib.metadata import distributions  # slow to import

    package = Path(__file__).parent
    for own in distributions(name="tersor", path=[str(package.parent)]):  # none: a build folder
        version = importlib.import_module(found.name).__version__
        if version != own.version:
            raise ImportError(
                f"tersor {own.version} cannot use {DISTRIBUTION} {version}: "
                f"install {DISTRIBUTION}=={own.version}, or uninstall {DISTRIBUTION}"
            )
        if any(package.glob("_mpi*.so")):
            raise ImportError(
                f"{DISTRIBUTION} cannot be combined with a build of tersor with MPI: "
                f"uninstall {DISTRIBUTION}, and build tersor with CUDA and MPI"
            )
        sys.modules["tersor"].__path__.insert(0, str(Path(found.origin).parent))


_prefer_cuda_package()
