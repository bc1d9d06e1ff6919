"""Compressed collectives on tensors, over the process group that the trainer already has.

::

    tersor.torch.allreduce(gradient, codec="int8", reduction="mean")

Tensors are dense, of float32, bfloat16 or float16, on the host or on a CUDA device. All ranks of
the group make the same calls with equal options, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tersor import collectives
from tersor._core import CollectiveStatistics, InvalidArgumentError
from tersor._options import expect
from tersor.collectives import CollectiveOptions
from tersor.torch import _compat
from tersor.torch._src.parameters.memory_order import in_order, straightened
from tersor.torch._src.parameters.selection import DTYPES, is_sharded_over, local_shard
from tersor.torch._src.process_group.connections import checked, ranks_of, with_timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Keywords(collectives.Keywords, total=False):
    """The options of a collective on tensors, and how it is called."""

    group: dist.ProcessGroup | None
    """Whose ranks take part. Default: all."""


class FeedbackState(collectives.FeedbackState):
    """What error feedback (a codec with ``+ef``) keeps between the calls of one collective.

    ``like``: the collective's first tensor; ``options``: the other arguments of its calls. Zero at
    first; the memory lies where ``like`` lies, of f32 or bf16 (``dtype``) as many values;
    ``"hierarchical"`` as many as ``collective`` encodes for other hosts.
    """

    def __init__(
        self,
        like: Tensor,
        *,
        group: dist.ProcessGroup | None = None,
        dtype: Literal["f32", "bf16"] = "f32",
        collective: Literal["allreduce", "reduce_scatter", "allgather"] = "allreduce",
        **options: Unpack[CollectiveOptions],
    ) -> None:
        ranks = ranks_of(group, like)
        super().__init__(ranks, in_order(like), dtype=dtype, collective=collective, **options)


def allreduce(tensor: Tensor, **options: Unpack[Keywords]) -> CollectiveStatistics:
    """Sum (or mean) over ranks, in place; every rank ends with the same bits.

    ``tensor``: any shape; not contiguous costs copies. On the host the call waits; on a device it
    is queued on ``stream`` (default: the current one). Returns what was sent and how.
    Raises InvalidArgumentError (nothing changed), TransportError, WireError or CudaError (values
    undefined; the transport is aborted).
    """
    return _call_in_place(collectives.allreduce, tensor, options=options)


def reduce_scatter(
    output: Tensor, input: Tensor, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sum (or mean) over ranks of ``input``, of which ``output`` gets this rank's part.

    ``input``: contiguous, ranks times as many values as ``output``, rank r's in place r. Else as
    :func:`allreduce`.
    """
    return _call(collectives.reduce_scatter, input, input, output, options=options)


def all_gather(output: Tensor, input: Tensor, **options: Unpack[Keywords]) -> CollectiveStatistics:
    """Every rank's ``input``, decoded alike on all ranks, in the order of ranks in ``output``.

    ``output``: contiguous, ranks times as many values as ``input``. Else as :func:`allreduce`.
    """
    return _call(collectives.allgather, input, input, output, options=options)


def broadcast(tensor: Tensor, root: int = 0, **options: Unpack[Keywords]) -> CollectiveStatistics:
    """``tensor`` of rank ``root`` of the group on all ranks, in place; unrounded without ``codec``.

    ``tensor``: of one shape and dtype on all ranks. Raises InvalidArgumentError for a ``root`` that
    is none of the group's ranks, and for ``"+ef"``; else as :func:`allreduce`.
    """
    return _call_in_place(collectives.broadcast, tensor, root, options=options)


def reduce(
    input: Tensor, output: Tensor | None = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Sum (or mean) over ranks of ``input`` in ``output`` of rank ``root``; None on other ranks.

    ``output``: as many values as ``input``, both contiguous; it has the bits of a two-shot
    :func:`allreduce`, but for long f32 by ``none`` (:func:`tersor.reduce`). Raises
    InvalidArgumentError for codecs that cannot go so (``topk``).
    """
    return _call(collectives.reduce, input, input, output, root, options=options)


def gather(
    output: Tensor | None, input: Tensor, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Every rank's ``input``, in the order of ranks, in ``output`` of ``root``; None on others.

    ``output``: contiguous, ranks times as many values as ``input``. Else as :func:`all_gather`.
    """
    return _call(collectives.gather, input, input, output, root, options=options)


def scatter(
    output: Tensor, input: Tensor | None = None, root: int = 0, **options: Unpack[Keywords]
) -> CollectiveStatistics:
    """Part r of ``input`` of rank ``root`` to ``output`` of rank r; ``input`` is None on others.

    ``input``: contiguous, ranks times as many values as ``output``. Unrounded without ``codec``;
    ``"+ef"`` is refused.
    """
    return _call(collectives.scatter, output, input, output, root, options=options)


def _call(
    entry: Callable[..., CollectiveStatistics], like: Tensor, *arguments: Any, options: Keywords
) -> CollectiveStatistics:
    """``like``: a tensor that is there on all ranks."""
    group = options.pop("group", None)
    return entry(ranks_of(group, like), *arguments, **with_timeout(options, group))


def _call_in_place(
    entry: Callable[..., CollectiveStatistics], tensor: Tensor, *root: int, options: Keywords
) -> CollectiveStatistics:
    """Of values in any order of memory."""
    group = options.pop("group", None)
    ranks = ranks_of(group, tensor)
    with straightened(tensor, options.get("stream")) as values:
        return entry(ranks, values, *root, **with_timeout(options, group))


def broadcast_parameters(
    model: nn.Module,
    root: int = 0,
    *,
    group: dist.ProcessGroup | None = None,
    codec: str = "none",
) -> None:
    """Parameters and buffers of rank ``root``'s model on all ranks, where they begin alike.

    float32, bfloat16 and float16 by ``codec``, others by the group itself. All ranks have a model
    of the same names, shapes and types. Raises InvalidArgumentError for shards (``fully_shard``),
    which are different on each rank.
    """
    expect(model, nn.Module, "model must be a torch.nn.Module")
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in named.items():
        refuse_shard(name, tensor)
    broadcast_all(list(named.values()), root, group, codec=codec)


def broadcast_start(model: nn.Module, group: dist.ProcessGroup | None, timeout: float) -> None:
    """Rank 0's parameters and buffers, as ``broadcast_parameters``; shards within the ranks that
    hold the same shard."""
    own = set(dist.get_process_group_ranks(checked(group))) - {dist.get_rank()}
    tensors = [
        local_shard(one.detach())
        for one in (*model.parameters(), *model.buffers())
        if not is_sharded_over(own, one)
    ]
    broadcast_all(tensors, 0, group, timeout=timeout)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root: int = 0, *, group: dist.ProcessGroup | None = None
) -> None:
    """The state and the settings of rank ``root``'s optimizer on all ranks, unrounded.

    Others need not have stepped yet: what they have is replaced. Their parameters are as many, of
    the same shapes and in the same order. Raises InvalidArgumentError where they are shards.
    """
    expect(optimizer, torch.optim.Optimizer, "optimizer must be a torch.optim.Optimizer")
    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            refuse_shard("a parameter of the optimizer", parameter)
    state = optimizer.state_dict()
    told = [_compat.tree_map_only(Tensor, _Hole, state)]
    dist.broadcast_object_list(told, group=group, group_src=root)
    if dist.get_rank(group) != root:
        state = _compat.tree_map_only(_Hole, _Hole.filled, told[0])
    tensors = [one for one in _compat.tree_leaves(state) if isinstance(one, Tensor)]
    broadcast_all(tensors, root, group)
    if dist.get_rank(group) != root:
        optimizer.load_state_dict(state)


class _Hole:
    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._dtype, self._place = tensor.shape, tensor.dtype, tensor.device.type

    def filled(self) -> Tensor:
        return torch.empty(self._shape, dtype=self._dtype, device=self._place)


def refuse_shard(name: str, tensor: Tensor) -> None:
    """Raises InvalidArgumentError where no rank has the whole tensor."""
    if isinstance(tensor, DTensor):
        raise InvalidArgumentError(f"{name} is a shard: it is different on each rank")


def broadcast_all(
    tensors: list[Tensor],
    root: int,
    group: dist.ProcessGroup | None,
    **options: Unpack[CollectiveOptions],
) -> None:
    for tensor in tensors:
        if tensor.dtype in DTYPES:
            broadcast(tensor.detach(), root, group=group, **options)
        else:
            with straightened(tensor.detach()) as values:
                # As bytes: gloo does not know all types.
                dist.broadcast(values.view(-1).view(torch.uint8), group=group, group_src=root)


Way = dict[str, Any]  # how rows go: options of the collective


class _AllToAll(torch.autograd.Function):
    """What is encoded stays inside: autograd sees floating-point values alone."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, group: dist.ProcessGroup | None, way: Way, back: Way
    ) -> Tensor:
        """``back``: the way of gradients."""
        ctx.backward_arguments = group, back, way
        count = sum(way["received"]) if way["received"] else len(rows)
        output = rows.new_empty((count, *rows.shape[1:]))
        ranks, columns = ranks_of(group, rows), math.prod(rows.shape[1:])
        collectives.all_to_all(ranks, rows.detach().contiguous(), output, columns, **way)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(gradients[0], *ctx.backward_arguments), None, None, None


def all_to_all_single(
    input: Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    codec: str = "int8",
    backward_codec: str | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Tensor:
    """Rows (of the first dimension) of ``input`` to the ranks of ``group`` that they are for.

    ``input_splits[r]`` rows go to rank r, in the order of ranks, and ``output_splits[r]`` come from
    there; None: equally many. Returns these, of ``input``'s dtype, on its device. Gradients go back
    the same way by ``backward_codec`` (None: ``codec``). A row is encoded by itself: rows that are
    whole blocks of the codec (``int8`` 256 values, ``int4`` 128) cost nothing for that.
    Rows for one rank are encoded together if a row alone would not become shorter: values in one
    dimension, for example.
    ``options``: of :class:`tersor.collectives.CollectiveOptions`; with a ``workspace`` calls of one
    codec, dtype and row use what was prepared again, whatever the splits. All ranks need gradients
    of their inputs, or none. Raises InvalidArgumentError for splits that are not the rows, and for
    ``"+ef"``; ranks whose splits differ both get WireError or TransportError.
    """
    if input.dim() == 0:
        raise InvalidArgumentError(
            "a scalar has no rows: pass a tensor with at least one dimension"
        )
    sent, received = list(input_splits or ()), list(output_splits or ())
    way = dict(**with_timeout(options, group), codec=codec, sent=sent, received=received)
    back = {**way, "sent": received, "received": sent}
    if backward_codec is not None:
        back["codec"] = backward_codec
    output: Tensor = _AllToAll.apply(input, group, way, back)
    return output
