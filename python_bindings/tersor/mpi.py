"""Compressed collectives over communicators of mpi4py, for programs that use NumPy.

    from mpi4py import MPI
    import tersor.mpi

    tersor.mpi.allreduce(MPI.COMM_WORLD, gradient, codec="int8", reduction="mean")

Needs mpi4py, and a build of this package that found MPI. Importing this module initialises MPI, as
importing ``mpi4py.MPI`` does. All ranks of a communicator make the same calls in the same order.
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

import tersor
from tersor import CollectiveStatistics, InvalidArgumentError, Transport

try:
    from tersor import _mpi
except ImportError as error:
    raise ImportError(
        "this build of tersor has no MPI: install MPI's headers (libopenmpi-dev) and build the "
        "package again in a copy of its repository: pip install '.[mpi]'"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tersor.collectives import CollectiveOptions

__all__ = ["allgather", "allreduce", "reduce_scatter", "transport"]


class _Holder:
    """A transport that goes when its communicator is freed, or before MPI ends."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport | None = transport


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
_attribute = MPI.Comm.Create_keyval()


@atexit.register
def _release_transports() -> None:
    """mpi4py finalises MPI after the functions of atexit."""
    for holder in _holders:
        holder.transport = None


def _check_library() -> None:
    """Handles of one MPI mean nothing to another."""
    found = MPI.Get_library_version(), _mpi.library_version()
    theirs, ours = (text.strip("\0 \n") for text in found)
    if theirs != ours:
        raise InvalidArgumentError(
            f"mpi4py runs on {theirs}, but tersor was built for {ours}: build one of them again"
        )


def transport(comm: MPI.Intracomm) -> Transport:
    """The transport over a communicator: made at the first call, which is collective, then kept.

    It has a duplicate of the communicator, so that its messages meet none of the caller's, and
    lives until ``comm`` is freed. After a ``TransportError`` it stays aborted: continue with
    ``comm.Dup()``. For :class:`tersor.GradientReducer` and the functions of :mod:`tersor` that take
    a transport.

    Raises:
        InvalidArgumentError: for an inter-communicator, a null one, and where mpi4py was built for
            another MPI than Tersor.
        TransportError: where MPI reports an error.
    """
    kept = comm.Get_attr(_attribute) if comm != MPI.COMM_NULL else None
    if isinstance(kept, _Holder) and kept.transport is not None:
        return kept.transport
    _check_library()
    made = _mpi.make_transport(MPI._addressof(comm))
    holder = _Holder(made)
    comm.Set_attr(_attribute, holder)
    _holders.add(holder)
    return made


def allreduce(
    comm: MPI.Intracomm, gradient: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """:func:`tersor.allreduce` over a communicator of mpi4py."""
    return tersor.allreduce(transport(comm), gradient, **options)


def reduce_scatter(
    comm: MPI.Intracomm, input: Any, shard: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """:func:`tersor.reduce_scatter` over a communicator of mpi4py."""
    return tersor.reduce_scatter(transport(comm), input, shard, **options)


def allgather(
    comm: MPI.Intracomm, shard: Any, output: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """:func:`tersor.allgather` over a communicator of mpi4py."""
    return tersor.allgather(transport(comm), shard, output, **options)
