"""Tersor: gradient codecs and compressed collectives.

This module needs NumPy only. ``tersor.torch`` is for those who train with PyTorch, ``tersor.mpi``
for those who have mpi4py, ``tersor.local`` for trying things in one process.
"""

from tersor import _renamed as _renamed
from tersor._core import (
    CollectiveStatistics,
    CudaError,
    Error,
    InvalidArgument,
    OutOfMemory,
    RanksLost,
    ReducerStatistics,
    TcpTransport,
    Transport,
    TransportError,
    WireError,
    Workspace,
)
from tersor._core import version as __version__
from tersor.codec import Codec, CodecInfo, CodecOption, codecs
from tersor.collectives import (
    CollectiveOptions,
    FeedbackState,
    all_to_all,
    allgather,
    allreduce,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from tersor.gossip import Gossip
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.server import ParameterClient, ParameterServer, ServerOptions
from tersor.tuner import Tuner, TunerOptions

__all__ = [
    "Codec",
    "CodecInfo",
    "CodecOption",
    "CollectiveOptions",
    "CollectiveStatistics",
    "CudaError",
    "Error",
    "FeedbackState",
    "Gossip",
    "GradientReducer",
    "InvalidArgument",
    "OutOfMemory",
    "ParameterClient",
    "ParameterServer",
    "RanksLost",
    "ReducerOptions",
    "ReducerStatistics",
    "ServerOptions",
    "TcpTransport",
    "Transport",
    "TransportError",
    "Tuner",
    "TunerOptions",
    "WireError",
    "Workspace",
    "__version__",
    "all_to_all",
    "allgather",
    "allreduce",
    "broadcast",
    "codecs",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

# As tracebacks and pickles name them.
for _error in (
    Error,
    CudaError,
    InvalidArgument,
    OutOfMemory,
    RanksLost,
    TransportError,
    WireError,
):
    _error.__module__ = __name__
