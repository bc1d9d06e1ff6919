"""Compressed collectives on tensors, over a process group of torch.distributed.

::

    tersor.torch.all_reduce(gradient, codec="int8", reduction="mean")

Tensors are dense, of float32, bfloat16 or float16, on the host or on a CUDA device. All ranks of
the process group make the same calls with equal options, in the same order.

Every collective takes ``process_group=`` (default: all ranks) and the options of
:class:`tersor.collectives.Keywords`, such as ``codec=`` and ``timeout=`` (seconds; default: the
time limit of the process group). ``src=`` and ``dst=`` are ranks of all ranks, ``group_src=`` and
``group_dst=`` ranks of the process group, as in torch.distributed. The default is the first rank of
the process group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from tersor import collectives
from tersor._core import CollectiveStatistics, InvalidArgumentError
from tersor._options import Unpack, expect
from tersor._renamed import deprecated, renamed_keywords
from tersor.collectives import CollectiveOptions, Keywords
from tersor.torch._src.collectives.old_calls import accept_group_ranks, accept_tensors
from tersor.torch._src.parameters.memory_order import as_contiguous, contiguous_like, on_stream
from tersor.torch._src.parameters.selection import restore_overflow
from tersor.torch._src.process_group.connections import as_group, transport_of, with_timeout

_COLLECTIVES = {"all_reduce": "allreduce", "all_gather": "allgather"}  # torch's names, and MPI's


class FeedbackState(collectives.FeedbackState):
    """The residuals that error feedback keeps between the calls of one collective.

    All residuals start at zero. The memory is on the device of ``like``.

    Args:
        like: The tensor that the calls send (``tensor`` or ``input``); the values do not matter.
        process_group: The ranks of the calls. Default: all ranks.
        dtype: Of the residuals, ``"f32"`` or ``"bf16"``. A residual has one value per value of
            ``like``; two-shot adds one per value that this rank reduces.
        collective: The collective. With ``algorithm="hierarchical"``, the number of residuals
            depends on the collective.
        options: The other arguments of the calls.

    Raises:
        InvalidArgumentError: The codec has no ``+ef``, or an option is invalid.

    Example:
        >>> state = FeedbackState(gradient, codec="int4+ef")
        >>> all_reduce(gradient, codec="int4+ef", state=state)
    """

    @renamed_keywords(group="process_group")
    def __init__(
        self,
        like: Tensor,
        *,
        process_group: dist.ProcessGroup | None = None,
        dtype: Literal["f32", "bf16"] = "f32",
        collective: Literal["all_reduce", "reduce_scatter", "all_gather"] = "all_reduce",
        **options: Unpack[CollectiveOptions],
    ) -> None:
        ranks = transport_of(process_group, like)
        for new, old in _COLLECTIVES.items():
            if collective == old:
                text = 'FeedbackState(collective="{}")'.format
                deprecated(text(old), "use " + text(new), __name__)
        mpi_name: Any = _COLLECTIVES.get(collective, collective)
        super().__init__(ranks, contiguous_like(like), dtype=dtype, collective=mpi_name, **options)


@renamed_keywords(group="process_group")
def all_reduce(
    tensor: Tensor, *, process_group: dist.ProcessGroup | None = None, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sums (or averages) a tensor over all ranks, in place. All ranks get the same bits.

    On the host, the call waits. On a device, the call is queued on ``stream`` (default: the current
    stream).

    Args:
        tensor: Any shape. A tensor that is not contiguous costs copies.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`.

    Returns:
        The algorithm, the sent bytes and the times of the call.

    Raises:
        InvalidArgumentError: An argument is invalid. Nothing changed.
        TransportError: A rank failed, is late, or made another call. The values of ``tensor`` are
            undefined, and the transport is aborted.
        WireError: A frame is damaged. The consequences are as for TransportError.
        CudaError: CUDA reported an error. The consequences are as for TransportError.

    Example:
        >>> all_reduce(gradient, codec="int8", reduction="mean")
    """
    statistics = _call_in_place(collectives.allreduce, tensor, process_group, options)
    return _with_infinities(statistics, tensor, options)


@renamed_keywords(group="process_group")
def reduce_scatter(
    output: Tensor,
    input: Tensor,
    *,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Sums (or averages) a tensor over all ranks, and gives each rank one shard of the result.

    Args:
        output: Contiguous; receives shard r of the result on rank r.
        input: Contiguous, with one shard per rank: ranks x ``output.numel()`` values.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> reduce_scatter(shard, gradient, codec="int8", reduction="mean")
    """
    statistics = _call(collectives.reduce_scatter, input, process_group, options, input, output)
    return _with_infinities(statistics, output, options)


@renamed_keywords(group="process_group")
def all_gather(
    output: Tensor,
    input: Tensor,
    *,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Gathers the tensors of all ranks on all ranks. All ranks get the same bits.

    Args:
        output: Contiguous; receives the inputs in rank order: ranks x ``input.numel()`` values.
        input: Contiguous, with the same number of values on all ranks.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> all_gather(weights, shard, codec="bf16")
    """
    return _call(collectives.allgather, input, process_group, options, input, output)


@accept_group_ranks("src")
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    *,
    group_src: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Copies the tensor of one rank to all ranks, in place. By default, the copy is exact
    but for the bits of NaNs, which the codec ``entropy`` keeps.

    With a lossy ``codec``, the source also gets the decoded values.

    Args:
        tensor: Of one shape and dtype on all ranks.
        src: The source, as a rank of all ranks. Default: the first rank of the process group.
        group_src: The source, as a rank of the process group; pass ``src`` or ``group_src``.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`. The default codec is ``"none"``, and
            ``+ef`` is refused.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> broadcast(weights, src=0)
    """
    root = group_rank(src, group_src, process_group, "src")
    return _call_in_place(collectives.broadcast, tensor, process_group, options, root)


@accept_tensors("tensor", "output")
@accept_group_ranks("dst")
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    *,
    output: Tensor | None = None,
    group_dst: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Sums (or averages) a tensor over all ranks on one rank.

    The result has the bits of a two-shot :func:`all_reduce`. A long float32 sum by codec ``"none"``
    may have other bits: see :func:`tersor.reduce`.

    Args:
        tensor: Contiguous. Without ``output``, the result replaces the tensor on the destination.
            Other ranks keep the tensor unchanged.
        dst: The destination, as a rank of all ranks. Default: the first rank of the process group.
        output: Contiguous, on the destination: receives the result; as many values as ``tensor``.
        group_dst: The destination, as a rank of the process group; pass ``dst`` or ``group_dst``.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`. Codecs without two-shot (``topk``) are
            refused.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> reduce(loss, dst=0, codec="none", reduction="mean")
    """
    root = group_rank(dst, group_dst, process_group, "dst")
    if output is None and dist.get_rank(process_group) == root:
        output = tensor
    statistics = _call(collectives.reduce, tensor, process_group, options, tensor, output, root)
    return _with_infinities(statistics, output, options)


@accept_tensors("output", "tensor")
@accept_group_ranks("dst")
def gather(
    tensor: Tensor,
    *,
    output: Tensor | None = None,
    dst: int | None = None,
    group_dst: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Gathers the tensors of all ranks on one rank.

    Args:
        tensor: Contiguous, with the same number of values on all ranks.
        output: Contiguous, on the destination: receives the tensors in rank order, ranks x
            ``tensor.numel()`` values. None on other ranks.
        dst: The destination, as a rank of all ranks. Default: the first rank of the process group.
        group_dst: The destination, as a rank of the process group; pass ``dst`` or ``group_dst``.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> gather(shard, output=whole if rank == 0 else None, dst=0)
    """
    root = group_rank(dst, group_dst, process_group, "dst")
    return _call(collectives.gather, tensor, process_group, options, tensor, output, root)


@accept_group_ranks("src")
def scatter(
    output: Tensor,
    input: Tensor | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> CollectiveStatistics:
    """Sends one shard of a tensor from one rank to each rank. By default, the copies are exact
    but for the bits of NaNs, which the codec ``entropy`` keeps.

    Args:
        output: Contiguous; receives shard r of ``input`` on rank r.
        input: Contiguous, on the source: ranks x ``output.numel()`` values. None on other ranks.
        src: The source, as a rank of all ranks. Default: the first rank of the process group.
        group_src: The source, as a rank of the process group; pass ``src`` or ``group_src``.
        process_group: The ranks that take part. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`. The default codec is ``"none"``, and
            ``+ef`` is refused.

    Returns:
        As :func:`all_reduce`.

    Raises:
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> scatter(shard, whole if rank == 0 else None, src=0)
    """
    root = group_rank(src, group_src, process_group, "src")
    return _call(collectives.scatter, output, process_group, options, input, output, root)


def group_rank(
    rank: int | None, group_rank: int | None, process_group: dist.ProcessGroup | None, name: str
) -> int:
    """Returns the source or destination as a rank of the process group; ``name``: the keyword."""
    group = as_group(process_group)
    if rank is None:
        return group_rank or 0
    if group_rank is not None:
        raise InvalidArgumentError(f"pass {name}= or group_{name}=, not both")
    expect(rank, int, f"{name} must be a rank")
    members = dist.get_process_group_ranks(group)
    if rank not in members:
        raise InvalidArgumentError(
            f"{name}={rank}: the process group has ranks {members}, and ranks of the process group "
            f"itself are group_{name}="
        )
    return members.index(rank)


def _call(
    entry: Callable[..., CollectiveStatistics],
    like: Tensor,
    group: dist.ProcessGroup | None,
    options: Keywords,
    *arguments: Any,
) -> CollectiveStatistics:
    """``like``: a tensor that exists on all ranks."""
    return entry(transport_of(group, like), *arguments, **with_timeout(options, group))


def _with_infinities(
    statistics: CollectiveStatistics, output: Tensor | None, options: Keywords
) -> CollectiveStatistics:
    """Returns ``done``. A sum by a lossy codec gets its infinities."""
    if options.get("reduction", "sum") == "sum" and options.get("codec") != "none":
        with on_stream(options.get("stream"), output):
            restore_overflow(output)
    return statistics


def _call_in_place(
    entry: Callable[..., CollectiveStatistics],
    tensor: Tensor,
    group: dist.ProcessGroup | None,
    options: Keywords,
    *root: int,
) -> CollectiveStatistics:
    """Of values in any memory order."""
    ranks = transport_of(group, tensor)
    with as_contiguous(tensor, options.get("stream")) as values:
        return entry(ranks, values, *root, **with_timeout(options, group))
