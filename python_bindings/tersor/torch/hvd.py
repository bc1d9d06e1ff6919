"""Horovod's names on top of Tersor, for scripts that were written for ``horovod.torch``.

::

    import tersor.torch.hvd as hvd  # instead of horovod.torch

Calls have the arguments, argument order and meaning of Horovod 0.28, and have gradients if the
tensor requires a gradient. All ranks make the same calls in the same order. A ``name`` does not
match calls; ranks compare names, dtypes and shapes, and TransportError names the ranks that differ.
Before ``init``, and for unknown arguments, calls raise InvalidArgumentError. Missing names of
Horovod raise InvalidArgumentError with a replacement.

Every call takes ``name=`` (compared between ranks) and refuses other arguments of Horovod with a
replacement.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor._renamed import renamed_keywords
from tersor.collectives import Reduction
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules
from tersor.torch._src.collectives import models
from tersor.torch._src.gradients.exchange import OnLoss
from tersor.torch._src.hvd import calls
from tersor.torch._src.hvd.calls import Call, Op
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
from tersor.torch._src.parameters.selection import Unsupported

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Sum", "allgather", "allreduce", "allreduce_",
    "alltoall", "barrier", "broadcast", "broadcast_", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "grouped_allreduce", "init",
    "is_initialized", "local_rank", "local_size", "rank", "reducescatter", "shutdown", "size",
]  # fmt: skip
__dir__ = __all__.copy

Average: Reduction = "mean"
Sum: Reduction = "sum"
Name = str | None


def __getattr__(name: str) -> Any:
    if name not in calls.ADVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise InvalidArgumentError(f"there is no hvd.{name} here: use {calls.ADVICE[name]}")


@dataclasses.dataclass(frozen=True)
class _Codec:
    spec: str


class Compression:
    """The codecs of values: ``none``, ``fp16``, ``int8``, or ``spec(...)`` of any codec.

    Example:
        >>> hvd.allreduce(tensor, compression=hvd.Compression.spec("int4"))
    """

    none = _Codec("none")
    fp16 = _Codec("f16")
    int8 = _Codec("int8")

    @staticmethod
    def spec(spec: str) -> _Codec:
        """Returns any codec of Tersor as a compression.

        Args:
            spec: Spec of the codec, such as ``"int4"``.

        Example:
            >>> hvd.allreduce(tensor, compression=hvd.Compression.spec("hadamard:bits=2"))
        """
        return _Codec(spec)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: Name = None,
    compression: _Codec = Compression.none,
    op: Op = None,
    **others: NoReturn,
) -> Tensor:
    """Returns the mean (or sum) of a tensor over all ranks.

    float32, bfloat16 and float16 are sent by ``compression``, float64 and integers uncompressed. A
    mean of integers is truncated.

    Args:
        tensor: A dense tensor of any shape.
        average: Horovod's former argument; use ``op``.
        name: Compared between ranks.
        compression: The codec of float32, bfloat16 and float16.
        op: ``hvd.Average`` (default) or ``hvd.Sum``.
        others: Further arguments of Horovod, which raise InvalidArgumentError.

    Returns:
        A new tensor of the same dtype.

    Raises:
        InvalidArgumentError: An argument is invalid, or ``init`` was not called.
        TransportError: A rank made another call, failed or is late.

    Example:
        >>> loss = hvd.allreduce(loss, name="loss").item()
    """
    call = Call("allreduce", name, others)
    arguments = calls.reduction_of(op, average), _spec(compression)

    def reduce(tensor: Tensor) -> Tensor:
        return call.reduce_(call.checked(tensor).clone(), *arguments)

    return calls.differentiable(tensor, reduce, reduce)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: Name = None,
    op: Op = None,
    **others: NoReturn,
) -> Tensor:
    """Computes :func:`allreduce` in place, without a gradient.

    Args:
        tensor: Changed in place.
        average: As in :func:`allreduce`.
        name: As in :func:`allreduce`.
        op: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        ``tensor``.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> hvd.allreduce_(parameter.grad)
    """
    call = Call("allreduce_", name, others)
    call.reduce_(call.checked(tensor), calls.reduction_of(op, average), "none")
    return tensor


def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: Name = None,
    compression: _Codec = Compression.none,
    op: Op = None,
    **others: NoReturn,
) -> list[Tensor]:
    """Returns :func:`allreduce` of each tensor.

    Args:
        tensors: The tensors, in the same order on all ranks.
        average: As in :func:`allreduce`.
        name: As in :func:`allreduce`.
        compression: As in :func:`allreduce`.
        op: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        The new tensors.

    Raises:
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> loss, accuracy = hvd.grouped_allreduce([loss, accuracy])
    """
    return [allreduce(one, average, name, compression, op, **others) for one in tensors]


def reducescatter(
    tensor: Tensor,
    name: Name = None,
    compression: _Codec = Compression.none,
    op: Reduction = Average,
    **others: NoReturn,
) -> Tensor:
    """Returns this rank's rows of an :func:`allreduce`, without a gradient.

    The call sends as many bytes as an all-reduce. If the rows are not equally many, the first ranks
    get one more row.

    Args:
        tensor: A tensor with at least one dimension that requires no gradient.
        name: As in :func:`allreduce`.
        compression: As in :func:`allreduce`.
        op: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        A new tensor.

    Raises:
        InvalidArgumentError: The tensor requires a gradient, or is a scalar.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> rows = hvd.reducescatter(table, op=hvd.Sum)
    """
    call = Call("reducescatter", name, others)
    values = call.checked(tensor, rows=True).clone()
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError("hvd.reducescatter has no gradient: give it tensor.detach()")
    reduced = call.reduce_(values, calls.reduction_of(op), _spec(compression))
    return reduced.tensor_split(size())[rank()].clone()


def allgather(tensor: Tensor, name: Name = None, **others: NoReturn) -> Tensor:
    """Returns the rows of all ranks in rank order. The ranks may have different numbers of rows.

    Args:
        tensor: A tensor with at least one dimension.
        name: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        A new tensor.

    Raises:
        InvalidArgumentError: The tensor is a scalar.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> predictions = hvd.allgather(predictions)
    """
    call = Call("allgather", name, others)
    counts: list[int] = []

    def gather(tensor: Tensor) -> Tensor:
        rows = call.checked(tensor, rows=True)
        gathered = call.agree(rows.dtype, list(rows.shape[1:]), own=[len(rows)])
        counts[:] = [one[0] for one in gathered]
        longest = rows.new_zeros(max(counts), *rows.shape[1:])
        longest[: len(rows)] = rows
        every = rows.new_empty(size(), *longest.shape)
        call.run(dist.all_gather_into_tensor, calls.as_bytes(every), calls.as_bytes(longest))
        return torch.cat([one[:count] for one, count in zip(every, counts, strict=True)])

    def own_gradient(gradient: Tensor) -> Tensor:
        parts: Sequence[Tensor] = torch.split(allreduce(gradient), counts)
        return parts[rank()]

    return calls.differentiable(tensor, gather, own_gradient)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: Name = None,
    **others: NoReturn,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends rows to ranks.

    Args:
        tensor: The rows for rank 0, then for rank 1 and so on.
        splits: Number of rows for each rank. Default: equal numbers.
        name: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        The received rows in rank order; with ``splits``, also the number of rows from each rank.

    Raises:
        InvalidArgumentError: The tensor is a scalar, or a rank's splits do not match its rows.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> rows, counts = hvd.alltoall(rows, splits=[3, 1])
    """
    call = Call("alltoall", name, others)
    received: list[int] = []

    def exchange(tensor: Tensor) -> Tensor:
        rows = call.checked(tensor, rows=True)
        sent = [len(rows) // size()] * size() if splits is None else list(map(int, splits))
        if len(sent) != size():
            raise InvalidArgumentError(
                f"splits={sent} of hvd.alltoall: give {size()} numbers, one per rank"
            )
        gathered = call.agree(rows.dtype, list(rows.shape[1:]), own=[len(rows), *sent])
        for other, (count, *parts) in enumerate(gathered):
            if min(parts) < 0 or sum(parts) != count:
                raise InvalidArgumentError(f"rank {other} splits {count} rows into {parts}")
        received[:] = [one[1 + rank()] for one in gathered]
        output = rows.new_empty(sum(received), *rows.shape[1:])
        row = math.prod(rows.shape[1:]) * rows.element_size()
        lengths = [[row * one for one in counts] for counts in (received, sent)]
        call.run(dist.all_to_all_single, calls.as_bytes(output), calls.as_bytes(rows), *lengths)
        return output

    output = calls.differentiable(
        tensor, exchange, lambda gradient: alltoall(gradient, received)[0]
    )
    like = splits if isinstance(splits, Tensor) else torch.empty(0, dtype=torch.int32, device="cpu")
    return output if splits is None else (output, like.new_tensor(received))


def broadcast(tensor: Tensor, root_rank: int, name: Name = None, **others: NoReturn) -> Tensor:
    """Returns the values of one rank in a new tensor.

    Args:
        tensor: Of one dtype and shape on all ranks.
        root_rank: The source.
        name: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Raises:
        InvalidArgumentError: ``root_rank`` is not a rank.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> weights = hvd.broadcast(weights, root_rank=0)
    """
    return calls.differentiable(
        tensor,
        lambda tensor: broadcast_(torch.clone(tensor), root_rank, name, **others),
        lambda gradient: allreduce(gradient) * (rank() == root_rank),
    )


def broadcast_(tensor: Tensor, root_rank: int, name: Name = None, **others: NoReturn) -> Tensor:
    """Copies the values of one rank to all ranks, in place and without a gradient.

    Args:
        tensor: Changed in place.
        root_rank: The source.
        name: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Returns:
        ``tensor``.

    Raises:
        InvalidArgumentError: ``root_rank`` is not a rank.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> hvd.broadcast_(weights, root_rank=0)
    """
    Call("broadcast", name, others).broadcast_([("", tensor)], root_rank)
    return tensor


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]], root_rank: int = 0
) -> None:
    """Copies one rank's parameters to all ranks, in place.

    Args:
        params: ``model.state_dict()``, or a list of tensors or of pairs of a name and a tensor.
        root_rank: The source.

    Raises:
        InvalidArgumentError: ``root_rank`` is not a rank, or a parameter is a shard.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    listed = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    named = [one if isinstance(one, tuple) else ("", one) for one in listed]
    Call("broadcast_parameters", None, {}).broadcast_(named, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: nn.Module | None = None
) -> None:
    """Copies the state and the settings of one rank's optimizer to all ranks.

    Args:
        optimizer: An optimizer of the same parameters on all ranks.
        root_rank: The source.
        model: Horovod's argument; not needed.

    Raises:
        InvalidArgumentError: As for :func:`broadcast_parameters`.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    call = Call("broadcast_optimizer_state", None, {})
    call.agree(calls.checked_root(root_rank))
    call.run(models.broadcast_optimizer_state, optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: Name = None, **others: NoReturn) -> Any:
    """Returns one rank's object on all ranks. The object is sent by pickle.

    Args:
        obj: The object; only the one of ``root_rank`` matters.
        root_rank: The source.
        name: As in :func:`allreduce`.
        others: As in :func:`allreduce`.

    Raises:
        InvalidArgumentError: ``root_rank`` is not a rank.
        tersor.Error: As :func:`allreduce`.

    Example:
        >>> epoch = hvd.broadcast_object(epoch)
    """
    call = Call("broadcast_object", name, others)
    call.agree(calls.checked_root(root_rank))
    gathered = [obj]
    call.run(dist.broadcast_object_list, gathered, group_src=root_rank)
    return gathered[0]


def barrier(**others: NoReturn) -> None:
    """Waits until all ranks have called ``barrier``.

    Args:
        others: As in :func:`allreduce`.

    Raises:
        InvalidArgumentError: ``init`` was not called.
        TransportError: A rank made another call, failed or is late.

    Example:
        >>> hvd.barrier()
    """
    Call("barrier", None, others).agree()


@renamed_keywords(group="process_group", least_ranks="min_ranks")
def DistributedOptimizer(  # noqa: N802  # as Horovod spells it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: _Codec = Compression.none,
    backward_passes_per_step: int = 1,
    op: Reduction = Average,
    *,
    rules: Rules | None = None,
    process_group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    elastic: bool = False,
    min_ranks: int = 0,
    on_loss: OnLoss = "raise",
    unsupported: Unsupported = "warn",
    advanced: AdvancedOptions | None = None,
    sparse_as_dense: bool = False,
    **others: NoReturn,
) -> TersorOptimizer:
    """Returns a :class:`tersor.torch.DistributedOptimizer`.

    The gradients of several backward passes are summed. ``fp16`` applies to all parameters. Other
    codecs apply to the parameters that a codec without ``rules`` applies to.
    :class:`tersor.torch.DistributedOptimizer` describes the arguments from ``rules`` to
    ``advanced``.

    Args:
        optimizer: An optimizer of PyTorch.
        named_parameters: ``model.named_parameters()``.
        compression: The codec.
        backward_passes_per_step: Number of backward passes per step.
        op: ``hvd.Average`` or ``hvd.Sum``.
        rules: Codecs by parameter name, which replace ``compression``.
        process_group: The ranks that take part. Default: all ranks.
        timeout: Seconds after which a missing rank raises TransportError.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        weighted: True if gradients are weighted by ``samples``.
        transactional: True if ``discard_step`` can restore the residuals.
        elastic: True if the remaining ranks may continue after the loss of a rank.
        min_ranks: The minimum number of ranks to continue.
        on_loss: ``"raise"`` or ``"continue"``.
        unsupported: ``"warn"`` or ``"error"``.
        advanced: Further options, without ``reduction``.
        sparse_as_dense: Horovod's argument, without an effect: sparse gradients become dense.
        others: Further arguments of Horovod, which raise InvalidArgumentError.

    Returns:
        The wrapped optimizer.

    Raises:
        InvalidArgumentError: An option is invalid or not available, or ``init`` was not called.
        TypeError: An argument has a wrong type.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.int8)
    """
    given: dict[str, Any] = dict(others)
    Call("DistributedOptimizer", None, {n: given.pop(n) for n in calls.ADVICE.keys() & given})
    codec, reduction = _spec(compression), calls.reduction_of(op)
    if codec == Compression.fp16.spec and rules is None:
        rules = [("*", codec)]
    advanced = AdvancedOptions() if advanced is None else advanced
    expect(advanced, AdvancedOptions, "advanced must be AdvancedOptions(...)")
    if advanced.reduction not in ("mean", reduction):
        raise InvalidArgumentError(
            "hvd.DistributedOptimizer takes no reduction in advanced: use op="
        )
    advanced = dataclasses.replace(advanced, reduction=reduction)
    return TersorOptimizer(
        optimizer, named_parameters, codec=codec, rules=rules, process_group=process_group,
        timeout=timeout, residual_dtype=residual_dtype, weighted=weighted,
        transactional=transactional, elastic=elastic, min_ranks=min_ranks, on_loss=on_loss,
        backward_passes_per_step=backward_passes_per_step, unsupported=unsupported,
        advanced=advanced, **given,
    )  # fmt: skip


def _spec(compression: _Codec) -> str:
    wanted = "compression must be hvd.Compression.none, .fp16, .int8 or .spec(…)"
    expect(compression, _Codec, wanted)
    return compression.spec
