"""Tersor: gradient codecs and compressed collectives.

This module needs NumPy only. Use ``tersor.torch`` with PyTorch, ``tersor.mpi`` with mpi4py, and
``tersor.local`` for experiments in one process.
"""

from typing import TYPE_CHECKING, Any

from tersor import _cuda_package, _renamed  # noqa: F401  # before tersor._core
from tersor._build import BuildInfo, build_info, warn_if_portable
from tersor._core import (
    AddressError,
    CollectiveStatistics,
    CudaError,
    Difference,
    Error,
    InvalidArgumentError,
    OutOfMemoryError,
    RanksLostError,
    ReducerStatistics,
    TcpTransport,
    Transport,
    TransportError,
    WireError,
    Workspace,
)
from tersor._core import version as __version__
from tersor.codec import Codec, CodecInfo, CodecOption, SentCodes, codecs
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
from tersor.reducer import AdvancedOptions, GradientReducer, ReducerOptions
from tersor.server import ParameterClient, ParameterServer, ServerOptions
from tersor.tuner import Tuner, TunerOptions

__all__ = [
    "AddressError", "AdvancedOptions", "BuildInfo", "Codec", "CodecInfo", "CodecOption",
    "CollectiveOptions", "CollectiveStatistics", "CudaError", "Difference", "Error",
    "FeedbackState", "Gossip", "GradientReducer", "InvalidArgumentError", "OutOfMemoryError",
    "ParameterClient", "ParameterServer", "RanksLostError", "ReducerOptions", "ReducerStatistics",
    "SentCodes", "ServerOptions", "TcpTransport", "Transport", "TransportError", "Tuner",
    "TunerOptions", "WireError", "Workspace", "__version__", "all_to_all", "allgather", "allreduce",
    "broadcast", "build_info", "codecs", "gather", "reduce", "reduce_scatter", "scatter",
]  # fmt: skip
__dir__ = __all__.copy

# The module in tracebacks and pickles.
for _name in __all__:
    if _name.endswith("Error"):
        globals()[_name].__module__ = __name__

warn_if_portable()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return _renamed.attribute(__name__, name)
