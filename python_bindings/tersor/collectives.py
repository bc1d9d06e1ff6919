"""Collectives that carry encoded values: of all ranks, and from or to one of them.

Arrays are anything with DLPack or the buffer protocol (NumPy, PyTorch, CuPy), of f32, bf16 or f16
values, on the host or on a CUDA device. All ranks of a transport make the same calls with equal
options, in the same order; a rank that calls something else ends in ``TransportError`` on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tersor import _core
from tersor._core import CollectiveStatistics, InvalidArgumentError, Transport, Tuner, Workspace
from tersor._options import expect, fill

if TYPE_CHECKING:
    from typing_extensions import Unpack

Reduction = Literal["sum", "mean"]
Algorithm = Literal["auto", "native", "two-shot", "one-shot", "hierarchical"]


class CommonOptions(TypedDict, total=False):
    """What collectives and reducers of gradients have in common."""

    hosts: Sequence[int]
    """``"hierarchical"``: for each rank the number of its host. Default: as the transport says."""
    host_codec: str
    """``"hierarchical"``: within a host, ``"none"`` (default) or ``"bf16"``."""
    seed: int
    """Of stochastic rounding. Default 0."""
    checksum: bool
    """Whether frames carry a checksum. Default True."""
    timeout: float
    """Seconds until ``TransportError``. Default 300; under PyTorch's own process groups theirs."""


class GridOptions(CommonOptions, total=False):
    """Likewise of what may be all-reduced over a grid of ranks."""

    dims: Sequence[int]
    """``"two-shot"``: ranks of each of 1 to 3 dimensions of a grid, in which they exchange one
    after the other; their product is at least nine tenths of all. Default: as few dimensions as
    have at most 32 ranks each. Of the collectives ``reduce_scatter`` (without ``"+ef"``) and
    ``allgather`` too: their product is all ranks, the default one dimension."""
    error_growth: float
    """``"two-shot"``: how many times the squared error of one dimension d dimensions may have,
    which is (1 + d) / 2; at least 1. Default 2, up to three dimensions. With codec ``"auto"`` the
    ``tuner`` of a collective has it."""


class CollectiveOptions(GridOptions, total=False):
    """Options of all collectives; equal on all ranks, but for state and workspace."""

    codec: str
    """A spec (``"int8"``, ``"topk:density=0.01+ef"``); ``"+ef"`` needs ``state``, ``"auto"`` a
    ``tuner``. Default ``"bf16"``."""
    reduction: Reduction
    """What ``allreduce``, ``reduce_scatter`` and ``reduce`` yield. Default ``"sum"``."""
    algorithm: Algorithm
    """Of ``allreduce``; any but ``"auto"`` keeps a ``reduce`` to two-shot. Default ``"auto"``.
    ``"hierarchical"`` of ``reduce_scatter`` and
    ``allgather`` too, on hosts of equally many ranks; others that the transport found go as
    ``"auto"``, as the call's statistics say."""
    state: _core.FeedbackState | None
    """What error feedback keeps between calls. Default: no feedback."""
    workspace: Workspace | None
    """Buffers and threads that calls with equal arguments use again. Default: made for the call."""
    tuner: Tuner | None
    """Who chooses where ``codec`` is ``"auto"``."""
    parameter: int
    """Index of the parameter: rotates owners, varies noise. Default 0."""
    step: int
    """Of stochastic rounding, where there is no state. Default 0."""
    chunk_count: int
    """Values of a chunk: longer gradients are cut, so that encoding and the wire overlap. Default
    1 Mi, over NCCL 8 Mi."""


class Keywords(CollectiveOptions, total=False):
    """The options of a collective, and how it is called."""

    stream: Any
    """Of a device, on which the call is queued. Default: the array library's current one."""


class FeedbackState(_core.FeedbackState):
    """What error feedback keeps between the calls of one collective, zero at first.

    ``like`` is the call's first array (any collective); ``options`` are its other arguments. The
    memory lies where ``like`` lies: f32 or bf16 (``dtype``), one value for each of ``like`` and,
    for two-shot, one for each that this rank owns. ``"hierarchical"``: of what this rank encodes
    for other hosts, which depends on the ``collective``.
    """

    def __init__(
        self,
        transport: Transport,
        like: Any,
        *,
        dtype: Literal["f32", "bf16"] = "f32",
        collective: Literal["allreduce", "reduce_scatter", "allgather"] = "allreduce",
        **options: Unpack[CollectiveOptions],
    ) -> None:
        super().__init__(transport, like, _call_options(transport, options), dtype, collective)


def allreduce(
    transport: Transport, gradient: Any, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sum or mean over ranks of ``gradient``, in place; every rank ends with the same bits.

    ``gradient``: any shape, writable. On the host the call blocks its thread, without the GIL. On a
    device it is queued on ``stream`` (default: the array library's current one).
    Raises ``InvalidArgumentError`` (nothing changed), ``TransportError``, ``WireError`` or
    ``CudaError`` (values undefined, the transport is aborted).
    """
    return _call(_core.allreduce, transport, gradient, options=options)


def reduce_scatter(
    transport: Transport, input: Any, shard: Any, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sum or mean over ranks of ``input``, of which this rank's part is written to ``shard``.

    ``input``: ranks times as many values as ``shard``, rank r's at ``r * shard.size``. Else as
    ``allreduce``.
    """
    return _call(_core.reduce_scatter, transport, input, shard, options=options)


def allgather(
    transport: Transport, shard: Any, output: Any, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Every rank's ``shard``, decoded alike on all ranks, in the order of ranks in ``output``.

    ``output``: ranks times as many values as ``shard``. Else as ``allreduce``.
    """
    return _call(_core.allgather, transport, shard, output, options=options)


def broadcast(
    transport: Transport, values: Any, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """``values`` of rank ``root`` on all ranks, in place; by codec ``"none"`` without another.

    ``values``: of one shape, dtype and memory layout on all ranks. The root too ends with what the
    others decode. Raises ``InvalidArgumentError`` for a ``root`` that is no rank, here and below,
    and for ``"+ef"``. Else as ``allreduce``.
    """
    return _call(_core.broadcast, transport, values, root, options={"codec": "none", **options})


def reduce(
    transport: Transport, input: Any, output: Any = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sum or mean over ranks of ``input``, written to ``output`` of rank ``root``.

    ``output``: as many values as ``input``; None on other ranks. It has the bits, and ``state`` the
    residuals, of a two-shot ``allreduce``; codecs that cannot go so (``topk``) are refused. A sum
    of long f32 by ``none`` goes along a chain of ranks where that is quicker: pass
    ``algorithm="two-shot"`` for the bits of an ``allreduce``.
    """
    return _call(_core.reduce, transport, input, output, root, options=options)


def gather(
    transport: Transport, shard: Any, output: Any = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Every rank's ``shard``, in the order of ranks, in ``output`` of rank ``root``.

    ``output``: ranks times as many values as ``shard``; None on other ranks. Else as ``allgather``.
    """
    return _call(_core.gather, transport, shard, output, root, options=options)


def scatter(
    transport: Transport, input: Any, shard: Any, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """To rank r's ``shard`` the values of the root's ``input`` from ``r * shard.size`` on.

    ``input``: ranks times as many values as ``shard``; None on other ranks than ``root``. By codec
    ``"none"`` unless another is said; else as ``broadcast``.
    """
    return _call(_core.scatter, transport, input, shard, root, options={"codec": "none", **options})


def all_to_all(
    transport: Transport,
    input: Any,
    output: Any,
    columns: int | None = None,
    *,
    sent: Sequence[int] = (),
    received: Sequence[int] = (),
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Rows of ``input`` to the ranks that they are for; those for this rank in ``output``.

    ``columns``: values of a row; None: all of ``input`` but its first dimension. ``sent[r]`` rows
    go to rank r, in the order of ranks, ``received[r]`` come from there; empty: equally many. A row
    is encoded by itself; rows for one rank are encoded together if a row alone would not become
    shorter. Raises ``InvalidArgumentError`` for splits that are not the arrays' rows, and
    for ``"+ef"``; ranks whose splits differ both get ``WireError`` or ``TransportError``. Else as
    ``allgather``.
    """
    counts = list(sent), list(received)
    if any(rows < 0 for rows in counts[0] + counts[1]):
        raise InvalidArgumentError(f"sent {counts[0]}, received {counts[1]}: give 0 or more rows")
    if columns is None:
        columns = _columns(input)
    return _call(_core.all_to_all, transport, input, output, columns, *counts, options=options)


def _columns(rows: Any) -> int:
    shape = tuple(getattr(rows, "shape", ()))
    if len(shape) < 2:
        raise InvalidArgumentError(
            "the input has no rows: give columns=, or an input of two dimensions"
        )
    return math.prod(shape[1:])


def _call(
    entry: Callable[..., CollectiveStatistics],
    transport: Transport,
    *arguments: Any,
    options: Keywords,
) -> CollectiveStatistics:
    stream = options.pop("stream", None)
    return entry(transport, *arguments, _call_options(transport, options), stream)


def _call_options(transport: Transport, options: CollectiveOptions) -> _core.CallOptions:
    expect(transport, Transport, "transport must be a tersor Transport (tersor.local, …)")
    return fill(_core.CallOptions(), options)
