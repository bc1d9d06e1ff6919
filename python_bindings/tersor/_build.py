"""Information about the installed build."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

from tersor import _core

_HOW_TO_ADD = {
    "cuda": "build from source with --config-settings=cmake.define.TERSOR_CUDA=ON and nvcc",
    "nccl": "build from source with CUDA and nccl.h",
    "mpi": "build from source with an MPI compiler (Debian, Ubuntu: libopenmpi-dev)",
}


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

    def missing(self) -> dict[str, str]:
        """Returns the missing parts by name, each with the way to add the part."""
        return {name: how for name, how in _HOW_TO_ADD.items() if not getattr(self, name)}

    def __str__(self) -> str:
        lines = [f"{field.name}: {getattr(self, field.name)}" for field in fields(self)]
        return "\n".join(lines + [f"to add {name}: {how}" for name, how in self.missing().items()])


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


def warn_if_portable() -> None:
    """Warns on an x86-64 CPU without the instructions of the fast kernels."""
    if _core.instruction_sets() == ["portable"]:
        warnings.warn(
            "this CPU has no AVX2 and FMA instructions, so Tersor uses slower portable code",
            RuntimeWarning,
            stacklevel=3,
        )
