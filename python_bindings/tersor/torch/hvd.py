"""Horovod's names over what Tersor has, for scripts that were written for ``horovod.torch``.

::

    import tersor.torch.hvd as hvd  # in place of horovod.torch

Calls take what Horovod 0.28's take, in the same order, and mean the same; where a tensor wants a
gradient they have one. All ranks make the same calls in the same order: ``name`` does not match
them up; it is compared, as types and shapes are, and TransportError says who differs. They raise
InvalidArgumentError before ``init`` and for arguments that are not here, and so does each name of
Horovod's that is not here: it says what to use instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor.collectives import Reduction
from tersor.torch._src.collectives import models
from tersor.torch._src.hvd.calls import (
    ADVICE,
    Call,
    Op,
    as_bytes,
    differentiable,
    reduction_of,
    root_of,
)
from tersor.torch._src.hvd.launcher import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from tersor.torch._src.optim.distributed import DistributedOptimizer as TersorOptimizer

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Sum", "allgather", "allreduce", "allreduce_",
    "alltoall", "barrier", "broadcast", "broadcast_", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "grouped_allreduce", "init",
    "is_initialized", "local_rank", "local_size", "rank", "reducescatter", "shutdown", "size",
]  # fmt: skip

Average: Reduction = "mean"
Sum: Reduction = "sum"
Name = str | None


def __getattr__(name: str) -> Any:
    if name not in ADVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise InvalidArgumentError(f"there is no hvd.{name} here: use {ADVICE[name]}")


@dataclasses.dataclass(frozen=True)
class _Codec:
    spec: str


class Compression:
    """How values travel: ``none``, ``fp16``, ``int8``, or ``spec(…)`` of any codec."""

    none = _Codec("none")
    fp16 = _Codec("f16")
    int8 = _Codec("int8")
    spec = _Codec


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: Name = None,
    compression: _Codec = Compression.none,
    op: Op = None,
    **others: Any,
) -> Tensor:
    """The mean over ranks (or sum, as ``op`` says): a new tensor of the same type.

    float32, bfloat16 and float16 by ``compression``; float64 and whole numbers as they are, whose
    mean is cut off behind the point. ``average`` is the former word for ``op``.
    """
    call, how = Call("allreduce", name, others), (reduction_of(op, average), _spec(compression))

    def reduce(tensor: Tensor) -> Tensor:
        return call.reduce_(call.take(tensor).clone(), *how)

    return differentiable(tensor, reduce, reduce)


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: Name = None, op: Op = None, **others: Any
) -> Tensor:
    """As :func:`allreduce`, in place, without a gradient."""
    call = Call("allreduce_", name, others)
    call.reduce_(call.take(tensor), reduction_of(op, average), "none")
    return tensor


def grouped_allreduce(tensors: Iterable[Tensor], *how: Any, **named: Any) -> list[Tensor]:
    """:func:`allreduce` of each, which says what else there is."""
    return [allreduce(one, *how, **named) for one in tensors]


def reducescatter(
    tensor: Tensor,
    name: Name = None,
    compression: _Codec = Compression.none,
    op: Reduction = Average,
    **others: Any,
) -> Tensor:
    """This rank's rows of an :func:`allreduce`, which sends as much; without a gradient. The first
    ranks have one more where they are not equally many."""
    call = Call("reducescatter", name, others)
    values = call.take(tensor, rows=True).clone()
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError("hvd.reducescatter has no gradient: give it tensor.detach()")
    reduced = call.reduce_(values, reduction_of(op), _spec(compression))
    return reduced.tensor_split(size())[rank()].clone()


def allgather(tensor: Tensor, name: Name = None, **others: Any) -> Tensor:
    """The rows of all ranks, which may be of different numbers, in the order of ranks."""
    call = Call("allgather", name, others)
    counts: list[int] = []

    def gather(tensor: Tensor) -> Tensor:
        rows = call.take(tensor, rows=True)
        told = call.agree(rows.dtype, list(rows.shape[1:]), own=[len(rows)])
        counts[:] = [one[0] for one in told]
        longest = rows.new_zeros(max(counts), *rows.shape[1:])
        longest[: len(rows)] = rows
        every = rows.new_empty(size(), *longest.shape)
        call.ask(dist.all_gather_into_tensor, as_bytes(every), as_bytes(longest))
        return torch.cat([one[:count] for one, count in zip(every, counts, strict=True)])

    def own(gradient: Tensor) -> Tensor:
        parts: Sequence[Tensor] = torch.split(allreduce(gradient), counts)
        return parts[rank()]

    return differentiable(tensor, gather, own)


def alltoall(
    tensor: Tensor, splits: Tensor | Sequence[int] | None = None, name: Name = None, **others: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Rows to their ranks: ``splits[r]`` to rank r, as they lie (default: equally many).

    Returns those that came, in the order of ranks; with ``splits`` also how many of each.
    """
    call = Call("alltoall", name, others)
    received: list[int] = []

    def exchange(tensor: Tensor) -> Tensor:
        rows = call.take(tensor, rows=True)
        sent = [len(rows) // size()] * size() if splits is None else list(map(int, splits))
        if len(sent) != size():
            raise InvalidArgumentError(
                f"splits={sent} of hvd.alltoall: give {size()} numbers, one per rank"
            )
        told = call.agree(rows.dtype, list(rows.shape[1:]), own=[len(rows), *sent])
        for other, (count, *parts) in enumerate(told):
            if min(parts) < 0 or sum(parts) != count:
                raise InvalidArgumentError(f"rank {other} splits {count} rows into {parts}")
        received[:] = [one[1 + rank()] for one in told]
        output = rows.new_empty(sum(received), *rows.shape[1:])
        row = math.prod(rows.shape[1:]) * rows.element_size()
        lengths = [[row * one for one in counts] for counts in (received, sent)]
        call.ask(dist.all_to_all_single, as_bytes(output), as_bytes(rows), *lengths)
        return output

    output = differentiable(tensor, exchange, lambda gradient: alltoall(gradient, received)[0])
    like = splits if isinstance(splits, Tensor) else torch.empty(0, dtype=torch.int32)
    return output if splits is None else (output, like.new_tensor(received))


def broadcast(tensor: Tensor, root_rank: int, name: Name = None, **others: Any) -> Tensor:
    """Rank ``root_rank``'s values, in a new tensor."""
    return differentiable(
        tensor,
        lambda tensor: broadcast_(torch.clone(tensor), root_rank, name, **others),
        lambda gradient: allreduce(gradient) * (rank() == root_rank),
    )


def broadcast_(tensor: Tensor, root_rank: int, name: Name = None, **others: Any) -> Tensor:
    """Rank ``root_rank``'s values, in place, without a gradient."""
    Call("broadcast", name, others).broadcast_([("", tensor)], root_rank)
    return tensor


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]], root_rank: int = 0
) -> None:
    """Rank ``root_rank``'s values, in place: of ``model.state_dict()``, or of a list of tensors or
    of pairs of a name and a tensor."""
    listed = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    named = [one if isinstance(one, tuple) else ("", one) for one in listed]
    Call("broadcast_parameters", None, {}).broadcast_(named, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: nn.Module | None = None
) -> None:
    """State and settings of rank ``root_rank``'s optimizer on all ranks. ``model``: not needed."""
    call = Call("broadcast_optimizer_state", None, {})
    call.agree(root_of(root_rank))
    call.ask(models.broadcast_optimizer_state, optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: Name = None, **others: Any) -> Any:
    """Rank ``root_rank``'s object on all ranks, by pickle."""
    call = Call("broadcast_object", name, others)
    call.agree(root_of(root_rank))
    told = [obj]
    call.ask(dist.broadcast_object_list, told, group_src=root_rank)
    return told[0]


def barrier(**others: Any) -> None:
    """Waits until all ranks are here."""
    Call("barrier", None, others).agree()


def DistributedOptimizer(  # noqa: N802  # as Horovod spells it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: _Codec = Compression.none,
    backward_passes_per_step: int = 1,
    op: Reduction = Average,
    **options: Any,
) -> TersorOptimizer:
    """A :class:`tersor.torch.DistributedOptimizer`, with any of its ``options``.

    Gradients of several passes are added up, sparse ones made dense (``sparse_as_dense`` or not).
    ``fp16`` is for all parameters; other codecs are for those that they are for without ``rules``.
    """
    options.pop("sparse_as_dense", None)
    Call("DistributedOptimizer", None, {key: options.pop(key) for key in ADVICE.keys() & options})
    codec = _spec(compression)
    if codec == Compression.fp16.spec:
        options.setdefault("rules", [("*", codec)])
    options |= {"codec": codec, "reduction": reduction_of(op)}
    options["backward_passes_per_step"] = backward_passes_per_step
    return TersorOptimizer(optimizer, named_parameters, **options)


def _spec(compression: _Codec) -> str:
    expect(
        compression, _Codec, "compression must be hvd.Compression.none, .fp16, .int8 or .spec(…)"
    )
    return compression.spec
