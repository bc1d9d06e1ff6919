"""Information about the installed build."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tersor import _core


@dataclass(frozen=True)
class BuildInfo:
    """The parts and the origin of the installed package."""

    version: str
    """Version of the package."""
    path: Path
    """The loaded extension module."""
    compiler: str
    """Compiler of the extension module, with its version."""
    instruction_set: str
    """SIMD instructions in use: ``"portable"``, ``"avx2"``, ``"avx512"`` or ``"neon"``."""
    cuda: bool
    """True if the package contains CUDA kernels. False: device memory raises ``CudaError``."""
    nccl: bool
    """True if the package contains the NCCL transport."""
    mpi: bool
    """True if the package contains ``tersor.mpi``'s extension module."""


def build_info() -> BuildInfo:
    """Returns the version, the compiler and the parts of the installed package.

    Returns:
        A ``BuildInfo``. Its text is suitable for a bug report.

    Raises:
        InvalidArgumentError: the environment variable ``TERSOR_ISA`` names an instruction set
            that this build or this CPU does not have.

    Example::

        print(tersor.build_info().cuda)  # False: the wheel for CPUs
    """
    compiler, cuda, nccl = _core.build_info()
    path, instruction_set = Path(_core.__file__), _core.instruction_set()
    mpi = importlib.util.find_spec("tersor._mpi") is not None
    return BuildInfo(_core.version, path, compiler, instruction_set, cuda, nccl, mpi)
