"""Information about the installed build."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

from tersor import _core, _cuda_package

_REMEDIES = {
    "cuda": "install tersor-cuda13, or build from source with nvcc and "
    "--config-settings=cmake.define.TERSOR_CUDA=ON",
    "nccl": "build from source with CUDA and nccl.h",
    "mpi": "build from source with an MPI compiler (Debian, Ubuntu: libopenmpi-dev)",
}


@dataclass(frozen=True)
class BuildInfo:
    """The parts and the origin of the installed package.

    Example:
        >>> print(tersor.build_info().instruction_set)
    """

    version: str
    """Version of the package."""
    package: str
    """Package of the loaded extension module: ``"tersor"`` or ``"tersor-cuda13"``."""
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

    @property
    def gpu(self) -> str:
        """Name of the current GPU, or the reason for no GPU. Initialises CUDA if present."""
        return _core.gpu()

    def missing(self) -> dict[str, str]:
        """Returns the missing parts by name, each with the way to add the part.

        Example:
            >>> print(tersor.build_info().missing())
        """
        return {name: how for name, how in _REMEDIES.items() if not getattr(self, name)}

    def __str__(self) -> str:
        names = [*(field.name for field in fields(self)), "gpu"]
        lines = [f"{name}: {getattr(self, name)}" for name in names]
        return "\n".join(lines + [f"to add {name}: {how}" for name, how in self.missing().items()])


def build_info() -> BuildInfo:
    """Returns the version, the compiler and the parts of the installed package.

    Returns:
        A ``BuildInfo``. Its text is suitable for a bug report.

    Raises:
        InvalidArgumentError: The environment variable ``TERSOR_ISA`` names an instruction set
            that this build or this CPU does not have.

    Example::

        print(tersor.build_info().cuda)  # False: the wheel for CPUs
    """
    compiler, cuda, nccl = _core.build_info()
    path = Path(_core.__file__)
    return BuildInfo(
        version=_core.version,
        package="tersor" if path.parent == Path(__file__).parent else _cuda_package.DISTRIBUTION,
        path=path,
        compiler=compiler,
        instruction_set=_core.instruction_set(),
        cuda=cuda,
        nccl=nccl,
        mpi=importlib.util.find_spec("tersor._mpi") is not None,
    )


def warn_if_portable() -> None:
    """Warns on an x86-64 CPU without the instructions of the fast kernels."""
    if _core.instruction_sets() == ["portable"]:
        warnings.warn(
            "this CPU has no AVX2 and FMA instructions, so Tersor uses slower portable code",
            RuntimeWarning,
            stacklevel=3,
        )
