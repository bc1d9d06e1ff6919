"""Collectives that send encoded values, on arrays of any library.

Arrays come from any library with DLPack or the buffer protocol (NumPy, PyTorch, CuPy). Values are
f32, bf16 or f16, on the host or on a CUDA device. All ranks of a transport make the same calls with
equal options, in the same order. If a rank makes another call, all ranks raise ``TransportError``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

import numpy

from tersor import _core
from tersor._core import CollectiveStatistics, InvalidArgumentError, Transport, Tuner, Workspace
from tersor._options import Unpack, expect, fill
from tersor.arrays import refuse_masked

__all__ = [
    "Algorithm", "CollectiveOptions", "CommonOptions", "FeedbackState", "GridOptions", "Keywords",
    "Reduction", "all_to_all", "allgather", "allreduce", "broadcast", "gather", "reduce",
    "reduce_scatter", "scatter",
]  # fmt: skip
__dir__ = __all__.copy

_TEXT_BYTES = 512  # of a compared text; longer texts are cut

Reduction = Literal["sum", "mean"]
Algorithm = Literal["auto", "native", "two-shot", "one-shot", "hierarchical"]


class CommonOptions(TypedDict, total=False):
    """Options of collectives and of gradient reducers.

    Example:
        >>> tersor.allreduce(transport, gradient, codec="int8", seed=1, timeout=60.0)
    """

    hosts: Sequence[int]
    """``"hierarchical"``: the host number of each rank. Default: the transport's."""
    host_codec: str
    """``"hierarchical"``: codec within a host, ``"none"`` (default) or ``"bf16"``."""
    seed: int
    """Seed of stochastic rounding. Default 0."""
    checksum: bool
    """True if frames have a checksum. Default True."""
    timeout: float
    """Seconds until ``TransportError``. Default 300. In ``tersor.torch``, the default is the time
    limit of the process group."""


class GridOptions(CommonOptions, total=False):
    """Options of all-reduces over a grid of ranks.

    Example:
        >>> tersor.allreduce(transport, gradient, codec="int8", error_growth=1.0)  # one dimension
    """

    dims: Sequence[int]
    """``"two-shot"``: numbers of ranks in each of 1 to 3 dimensions of a grid. Ranks exchange in
    one dimension after the other. The product is at least nine tenths of all ranks. Default: as few
    dimensions as have at most 32 ranks each. ``reduce_scatter`` (without ``"+ef"``) and
    ``allgather`` take grids of all ranks; the default is one dimension."""
    error_growth: float
    """``"two-shot"``: maximum factor between the squared error of d dimensions and of one
    dimension, which is (1 + d) / 2; at least 1. Default 2, so up to three dimensions. With codec
    ``"auto"``, pass the option to the collective's ``tuner``."""


class CollectiveOptions(GridOptions, total=False):
    """Options of all collectives, equal on all ranks except ``state`` and ``workspace``.

    Example:
        >>> options: tersor.CollectiveOptions = {"codec": "int8", "reduction": "mean"}
        >>> tersor.allreduce(transport, gradient, **options)
    """

    codec: str
    """A spec, such as ``"int8"`` or ``"topk:density=0.01+ef"``. ``"+ef"`` needs ``state``;
    ``"auto"`` needs a ``tuner``. Default ``"bf16"``."""
    reduction: Reduction
    """The result of ``allreduce``, ``reduce_scatter`` and ``reduce``. Default ``"sum"``."""
    algorithm: Algorithm
    """The algorithm of ``allreduce``. Default ``"auto"``. For ``reduce``, any other value selects
    two-shot. ``reduce_scatter`` and ``allgather`` take ``"hierarchical"`` if all hosts have equally
    many ranks. With other hosts found by the transport, these calls use ``"auto"``; the statistics
    of the call show the algorithm."""
    state: _core.FeedbackState | None
    """The residuals of error feedback. Default: no feedback."""
    workspace: Workspace | None
    """Buffers and threads for calls with equal arguments. Default: new ones in each call."""
    tuner: Tuner | None
    """Chooses codec and algorithm if ``codec`` is ``"auto"``."""
    parameter: int
    """Index of the parameter: rotates owners and varies random numbers. Default 0."""
    step: int
    """Step number for stochastic rounding without a state. Default 0."""
    chunk_count: int
    """Values per chunk. Longer gradients are cut to overlap encoding and sending. Default 1 Mi,
    over NCCL 8 Mi."""


class Keywords(CollectiveOptions, total=False):
    """The keywords of a call: the options and the stream.

    Example:
        >>> tersor.allreduce(transport, gradient, codec="int8", stream=stream)
    """

    stream: Any
    """The stream of a device on which the call is queued. Default: the array library's current
    stream."""


class FeedbackState(_core.FeedbackState):
    """The residuals that error feedback keeps between the calls of one collective.

    All residuals start at zero. The memory is on the device of ``like``.

    Args:
        transport: The transport of the calls.
        like: The first array of the collective's calls; the values do not matter.
        dtype: Of the residuals, ``"f32"`` or ``"bf16"``. A residual has one value per value of
            ``like``; two-shot adds one per value that this rank reduces.
        collective: The collective. With ``algorithm="hierarchical"``, the number of residuals
            depends on the collective.
        options: The other arguments of the calls.

    Raises:
        InvalidArgumentError: An option is invalid.

    Example:
        >>> state = tersor.FeedbackState(transport, gradient, codec="int4+ef")
        >>> tersor.allreduce(transport, gradient, codec="int4+ef", state=state)
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
    """Sums (or averages) an array over all ranks, in place. All ranks get the same bits.

    On the host, the call blocks its thread and releases the GIL. On a device, the call is queued on
    ``stream``.

    Args:
        transport: The ranks, from ``tersor.mpi``, ``tersor.local`` or :class:`tersor.TcpTransport`.
        gradient: Writable, of any shape.
        options: See :class:`Keywords`.

    Returns:
        The algorithm, the sent bytes and the times of the call.

    Raises:
        InvalidArgumentError: An argument is invalid. Nothing changed.
        TransportError: A rank failed, is late, or made another call. The values are undefined, and
            the transport is aborted.
        WireError: A frame is damaged. The consequences are as for TransportError.
        CudaError: CUDA reported an error. The consequences are as for TransportError.

    Example:
        >>> tersor.allreduce(transport, gradient, codec="int8", reduction="mean")
    """
    return _call(_core.allreduce, transport, gradient, options=options)


def reduce_scatter(
    transport: Transport, input: Any, shard: Any, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sums (or averages) an array over all ranks, and gives each rank one shard of the result.

    Args:
        transport: The ranks.
        input: One shard per rank: ranks x ``shard.size`` values.
        shard: Receives shard r of the result on rank r.
        options: See :class:`Keywords`.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.reduce_scatter(transport, gradient, shard, codec="int8")
    """
    return _call(_core.reduce_scatter, transport, input, shard, options=options)


def allgather(
    transport: Transport, shard: Any, output: Any, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Gathers the arrays of all ranks on all ranks. All ranks get the same bits.

    Args:
        transport: The ranks.
        shard: This rank's array, with the same number of values on all ranks.
        output: Receives the shards in rank order: ranks x ``shard.size`` values.
        options: See :class:`Keywords`.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.allgather(transport, shard, weights, codec="bf16")
    """
    return _call(_core.allgather, transport, shard, output, options=options)


def broadcast(
    transport: Transport, values: Any, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Copies the array of one rank to all ranks, in place. By default, the copy is exact
    but for the bits of NaNs, which the codec ``entropy`` keeps.

    With a lossy ``codec``, the root also gets the decoded values.

    Args:
        transport: The ranks.
        values: Of one shape, dtype and memory layout on all ranks.
        root: The source.
        options: See :class:`Keywords`. The default codec is ``"none"``, and ``"+ef"`` is refused.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.broadcast(transport, weights, root=0)
    """
    return _call(_core.broadcast, transport, values, root, options={"codec": "none", **options})


def reduce(
    transport: Transport, input: Any, output: Any = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sums (or averages) an array over all ranks on one rank.

    The result has the bits, and ``state`` the residuals, of a two-shot ``allreduce``. A sum of long
    f32 arrays by codec ``"none"`` goes along a chain of ranks if the chain is faster. Pass
    ``algorithm="two-shot"`` to get the bits of an ``allreduce`` in this case.

    Args:
        transport: The ranks.
        input: This rank's array.
        output: On the root: receives the result; as many values as ``input``. None on other ranks.
        root: The destination.
        options: See :class:`Keywords`. Codecs without two-shot (``topk``) are refused.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.reduce(transport, gradient, total if transport.rank == 0 else None)
    """
    return _call(_core.reduce, transport, input, output, root, options=options)


def gather(
    transport: Transport, shard: Any, output: Any = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Gathers the arrays of all ranks on one rank.

    Args:
        transport: The ranks.
        shard: This rank's array, with the same number of values on all ranks.
        output: On the root: receives the shards in rank order, ranks x ``shard.size`` values. None
            on other ranks.
        root: The destination.
        options: See :class:`Keywords`.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.gather(transport, shard, whole if transport.rank == 0 else None)
    """
    return _call(_core.gather, transport, shard, output, root, options=options)


def scatter(
    transport: Transport, input: Any, shard: Any, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sends one shard of an array from one rank to each rank. By default, the copies are exact
    but for the bits of NaNs, which the codec ``entropy`` keeps.

    Args:
        transport: The ranks.
        input: On the root: one shard per rank, ranks x ``shard.size`` values. None on other ranks.
        shard: Receives shard r of ``input`` on rank r.
        root: The source.
        options: See :class:`Keywords`. The default codec is ``"none"``, and ``"+ef"`` is refused.

    Returns:
        As :func:`allreduce`.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.scatter(transport, whole if transport.rank == 0 else None, shard)
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
    """Sends each row of an array to one rank.

    Each row is encoded separately. If a single row would not become shorter, all rows for one rank
    are encoded together.

    Args:
        transport: The ranks.
        input: The rows for rank 0, then for rank 1 and so on.
        output: Receives the rows from rank 0, rank 1 and so on.
        columns: Values per row. Default: all dimensions of ``input`` except the first.
        sent: Number of rows for each rank; empty: equal numbers.
        received: Number of rows from each rank; empty: equal numbers.
        options: See :class:`Keywords`.

    Returns:
        As :func:`allreduce`.

    Raises:
        InvalidArgumentError: The splits do not match the arrays, the codec has ``"+ef"``, or an
            input of one dimension has no ``columns``.
        WireError: The splits of two ranks differ; TransportError on one of the ranks.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> tersor.all_to_all(transport, tokens, output, codec="int8")
    """
    counts = list(sent), list(received)
    if any(rows < 0 for rows in counts[0] + counts[1]):
        raise InvalidArgumentError(f"sent {counts[0]}, received {counts[1]}: give 0 or more rows")
    if columns is None:
        shape = tuple(getattr(input, "shape", ()))
        if len(shape) < 2:
            raise InvalidArgumentError(
                "the input has no rows: give columns=, or an input of two dimensions"
            )
        columns = math.prod(shape[1:])
    return _call(_core.all_to_all, transport, input, output, columns, *counts, options=options)


def gather_texts(transport: Transport | None, text: str, timeout: float) -> list[str]:
    """Returns the texts of all ranks, each at most 512 bytes."""
    if transport is None:
        return [text]
    own = numpy.zeros(_TEXT_BYTES, numpy.uint8)
    data = text.encode(errors="backslashreplace")[:_TEXT_BYTES]
    own[: len(data)] = numpy.frombuffer(data, numpy.uint8)
    gathered = numpy.empty(transport.ranks * _TEXT_BYTES // 4, numpy.float32)
    allgather(transport, own.view(numpy.float32), gathered, codec="entropy", timeout=timeout)
    rows = gathered.view(numpy.uint8).reshape(transport.ranks, _TEXT_BYTES)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]


def _call(
    entry: Callable[..., CollectiveStatistics],
    transport: Transport,
    *arguments: Any,
    options: Keywords,
) -> CollectiveStatistics:
    stream = options.pop("stream", None)
    refuse_masked(arguments)
    return entry(transport, *arguments, _call_options(transport, options), stream)


def _call_options(transport: Transport, options: CollectiveOptions) -> _core.CallOptions:
    expect(transport, Transport, "transport must be a tersor Transport (tersor.local, …)")
    return fill(_core.CallOptions(), options)
