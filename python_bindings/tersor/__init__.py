"""Tersor: gradient codecs and compressed collectives.

This module needs NumPy only. ``tersor.torch`` is for those who train with PyTorch.
"""

from tersor._core import (
    CodecInfo,
    CudaError,
    Error,
    InvalidArgument,
    OutOfMemory,
    TransportError,
    WireError,
    __version__,
    codecs,
)

__all__ = [
    "CodecInfo",
    "CudaError",
    "Error",
    "InvalidArgument",
    "OutOfMemory",
    "TransportError",
    "WireError",
    "__version__",
    "codecs",
]
