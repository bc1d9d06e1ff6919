"""Information about the installed build."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tersor import _core, _cuda_package


@dataclass(frozen=True)
class BuildInfo:
    """The parts and the origin of the installed package."""

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
    gpu: str
    """Name of the current GPU, or the reason why device memory cannot be used."""
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
    path = Path(_core.__file__)
    return BuildInfo(
        version=_core.version,
        package="tersor" if path.parent == Path(__file__).parent else _cuda_package.DISTRIBUTION,
        path=path,
        compiler=compiler,
        instruction_set=_core.instruction_set(),
        cuda=cuda,
        gpu=_core.gpu(),
        nccl=nccl,
        mpi=importlib.util.find_spec("tersor._mpi") is not None,
    )
