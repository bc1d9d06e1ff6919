"""Tersor: gradient codecs and compressed collectives.

This module needs NumPy only. ``tersor.torch`` is for those who train with PyTorch.
"""

from tersor._core import (
    CodecInfo,
    CollectiveStatistics,
    CudaError,
    Error,
    InvalidArgument,
    OutOfMemory,
    ReducerStatistics,
    Transport,
    TransportError,
    WireError,
    Workspace,
    __version__,
    codecs,
)
from tersor.collectives import FeedbackState, allgather, allreduce, reduce_scatter
from tersor.reducer import GradientReducer

__all__ = [
    "CodecInfo",
    "CollectiveStatistics",
    "CudaError",
    "Error",
    "FeedbackState",
    "GradientReducer",
    "InvalidArgument",
    "OutOfMemory",
    "ReducerStatistics",
    "Transport",
    "TransportError",
    "WireError",
    "Workspace",
    "__version__",
    "allgather",
    "allreduce",
    "codecs",
    "reduce_scatter",
]
