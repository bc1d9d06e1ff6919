"""Compressed collectives over communicators of mpi4py, for programs that use NumPy.

    from mpi4py import MPI
    import tersor.mpi

    tersor.mpi.allreduce(MPI.COMM_WORLD, gradient, codec="int8", reduction="mean")

The module needs mpi4py and a build of this package with MPI. An import of this module initialises
MPI, as an import of ``mpi4py.MPI`` does. All ranks of a communicator make the same calls in the
same order.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from mpi4py import MPI

import tersor
from tersor import CollectiveOptions, CollectiveStatistics, InvalidArgumentError, Transport
from tersor._options import Unpack

try:
    from tersor import _mpi
except ImportError as error:
    raise ImportError(
        "this build of tersor has no MPI: install MPI's headers (libopenmpi-dev) and build the "
        "package again in a copy of its repository: pip install '.[mpi]'"
    ) from error

__all__ = ["allgather", "allreduce", "reduce_scatter", "transport"]
__dir__ = __all__.copy


class _TransportOwner:
    """Releases a transport when its communicator is freed, or before MPI ends."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport | None = transport


_owners: weakref.WeakSet[_TransportOwner] = weakref.WeakSet()
_attribute = MPI.Comm.Create_keyval()


@atexit.register
def _release_transports() -> None:
    """Runs before mpi4py finalises MPI, because mpi4py does so after the functions of atexit."""
    for owner in _owners:
        owner.transport = None


def _check_library() -> None:
    """Compares the MPI libraries, because handles of one library are invalid in another."""
    found = MPI.Get_library_version(), _mpi.library_version()
    theirs, ours = (text.strip("\0 \n") for text in found)
    if theirs != ours:
        raise InvalidArgumentError(
            f"mpi4py uses {theirs}, but tersor was built with {ours}: rebuild mpi4py or tersor"
        )


def transport(comm: MPI.Intracomm) -> Transport:
    """Returns the transport of a communicator, made by the first call, which is collective.

    The transport uses a duplicate of the communicator, so messages of Tersor and of the caller
    never mix. The transport lives until ``comm`` is freed. After a ``TransportError``, the
    transport stays aborted; continue with ``comm.Dup()``.

    Args:
        comm: An intra-communicator of mpi4py.

    Returns:
        A transport for :class:`tersor.GradientReducer` and the functions of :mod:`tersor`.

    Raises:
        InvalidArgumentError: The communicator is null or an inter-communicator, or mpi4py uses
            another MPI library than Tersor.
        TransportError: MPI reported an error.

    Example:
        >>> reducer = tersor.GradientReducer(tersor.mpi.transport(MPI.COMM_WORLD), codec="int8")
    """
    cached = comm.Get_attr(_attribute) if comm != MPI.COMM_NULL else None
    if isinstance(cached, _TransportOwner) and cached.transport is not None:
        return cached.transport
    _check_library()
    made = _mpi.make_transport(MPI._addressof(comm))
    owner = _TransportOwner(made)
    comm.Set_attr(_attribute, owner)
    _owners.add(owner)
    return made


def allreduce(
    comm: MPI.Intracomm, gradient: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """Calls :func:`tersor.allreduce` over a communicator of mpi4py.

    Args:
        comm: An intra-communicator of mpi4py.
        gradient: As in :func:`tersor.allreduce`.
        options: See :class:`tersor.CollectiveOptions`.

    Returns:
        As :func:`tersor.allreduce`.

    Raises:
        tersor.Error: As :func:`tersor.allreduce`.

    Example:
        >>> tersor.mpi.allreduce(MPI.COMM_WORLD, gradient, codec="int8")
    """
    return tersor.allreduce(transport(comm), gradient, **options)


def reduce_scatter(
    comm: MPI.Intracomm, input: Any, shard: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """Calls :func:`tersor.reduce_scatter` over a communicator of mpi4py.

    Args:
        comm: An intra-communicator of mpi4py.
        input: As in :func:`tersor.reduce_scatter`.
        shard: As in :func:`tersor.reduce_scatter`.
        options: See :class:`tersor.CollectiveOptions`.

    Returns:
        As :func:`tersor.reduce_scatter`.

    Raises:
        tersor.Error: As :func:`tersor.reduce_scatter`.

    Example:
        >>> tersor.mpi.reduce_scatter(MPI.COMM_WORLD, gradient, shard, codec="int8")
    """
    return tersor.reduce_scatter(transport(comm), input, shard, **options)


def allgather(
    comm: MPI.Intracomm, shard: Any, output: Any, **options: Unpack[CollectiveOptions]
) -> CollectiveStatistics:
    """Calls :func:`tersor.allgather` over a communicator of mpi4py.

    Args:
        comm: An intra-communicator of mpi4py.
        shard: As in :func:`tersor.allgather`.
        output: As in :func:`tersor.allgather`.
        options: See :class:`tersor.CollectiveOptions`.

    Returns:
        As :func:`tersor.allgather`.

    Raises:
        tersor.Error: As :func:`tersor.allgather`.

    Example:
        >>> tersor.mpi.allgather(MPI.COMM_WORLD, shard, weights, codec="int8")
    """
    return tersor.allgather(transport(comm), shard, output, **options)
