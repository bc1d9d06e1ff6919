"""The common part of Horovod's calls: the check of all ranks' arguments, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor._core import Error, InvalidArgumentError, TransportError
from tersor._options import expect
from tersor.collectives import Reduction
from tersor.torch import _compat
from tersor.torch._src.collectives import models
from tersor.torch._src.collectives.tensors import all_reduce
from tersor.torch._src.hvd.launcher import SOME_RANKS, local_rank_and_size
from tersor.torch._src.parameters.selection import DTYPES
from tersor.torch._src.process_group import connections

Op = Reduction | None
Function = Callable[[Tensor], Tensor]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WRAP = 2.0**64  # the error of an int64 sum that overflows
_WAITING = "the call without async: the call waits (hvd.DistributedOptimizer does not)"
_BACKEND = "torch.distributed.get_backend_config()"
_REDUCTION = "op=hvd.Average or op=hvd.Sum"
_REPLACEMENTS = {
    "Adasum reduction": _REDUCTION,
    "HorovodInternalError": "tersor.TransportError",
    "Min Max Product": "torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.…)",
    "ProcessSet global_process_set add_process_set remove_process_set process_set": SOME_RANKS,
    "SyncBatchNorm": "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    "allgather_async grouped_allgather_async broadcast_async broadcast_async_": _WAITING,
    "allgather_object": "torch.distributed.all_gather_object",
    "allreduce_async allreduce_async_ grouped_allreduce_async grouped_allreduce_async_": _WAITING,
    "alltoall_async reducescatter_async grouped_reducescatter_async poll synchronize": _WAITING,
    "codec": "compression=hvd.Compression.spec(codec)",
    "cross_rank cross_size is_homogeneous": "hvd.rank() and hvd.local_size()",
    "elastic": "torchrun --max-restarts, and checkpoints",
    "gradient_predivide_factor": 'compression=hvd.Compression.spec("bf16") if float16 overflows',
    "grouped_allgather grouped_allreduce_ grouped_reducescatter": "the call for each tensor",
    "join": "as many batches on each rank, as torch.utils.data.DistributedSampler gives",
    "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built": _BACKEND,
    "nccl_built ddl_built ccl_built cuda_built rocm_built": _BACKEND,
    "num_groups groups": "bucket_bytes= in advanced=tersor.AdvancedOptions(…)",
    "prescale_factor postscale_factor": "tensor * factor, before or afterwards",
    "run": "torchrun",
    "sparse sparse_allreduce_async": "tensor.to_dense(), as hvd.DistributedOptimizer does",
    "start_timeline stop_timeline": 'trace="file.json" in advanced= of hvd.DistributedOptimizer',
}
ADVICE = {name: advice for names, advice in _REPLACEMENTS.items() for name in names.split()}
_FACTORS = ("prescale_factor", "postscale_factor", "gradient_predivide_factor")
# The values of arguments without an effect. The value is None for all other arguments.
_NO_EFFECT = {"num_groups": 0, "sparse": False, **dict.fromkeys(_FACTORS, 1.0)}


class Call:
    """A call on this rank. Ranks compare calls, because calls are not matched by name."""

    def __init__(self, function: str, name: str | None, others: Mapping[str, Any]) -> None:
        """Raises InvalidArgumentError for unsupported ``others``, and before ``init``."""
        local_rank_and_size()
        self.call, self._name = f"hvd.{function}", name
        for other, value in others.items():
            if other not in ADVICE:
                raise InvalidArgumentError(f"{self.call} has no argument {other!r}")
            if value != _NO_EFFECT.get(other):
                raise InvalidArgumentError(f"{self.call} takes no {other}: use {ADVICE[other]}")

    def agree(self, *like: object, own: Sequence[int] = ()) -> list[Sequence[int]]:
        """Returns ``own`` of each rank. If a rank makes another call, all ranks raise
        TransportError."""
        named = [f"name={self._name!r}"] if self._name else []
        here = f"{self.call}({', '.join([*named, *map(str, like)])})"
        calls: list[Any] = [None] * dist.get_world_size()
        self.run(dist.all_gather_object, calls, (here, own))
        for rank, (call, _) in enumerate(calls):
            if call != calls[0][0]:
                raise TransportError(
                    f"rank 0 calls {calls[0][0]}, and rank {rank} {call}: all ranks make the same "
                    "calls in the same order"
                )
        return [numbers for _, numbers in calls]

    def run(self, function: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
        """Calls a function of PyTorch, and raises its RuntimeError as TransportError."""
        try:
            function(*arguments, **keywords)
        except Error:
            raise
        except RuntimeError as error:
            raise TransportError(f"{self.call} failed: {error}") from error

    def checked(self, tensor: Tensor, *, rows: bool = False) -> Tensor:
        """Returns the tensor without autograd history. Raises InvalidArgumentError if the backends
        cannot send the tensor."""
        expect(tensor, Tensor, f"{self.call} takes a tensor")
        models.refuse_shard(f"a tensor of {self.call}", tensor)
        if tensor.device.type not in _devices() or tensor.layout != torch.strided:
            raise InvalidArgumentError(
                f"{self.call} takes dense tensors on {' or '.join(_devices())}, not a "
                f"tensor of {tensor.layout} on {tensor.device}"
            )
        if rows and tensor.dim() == 0:
            raise InvalidArgumentError(f"{self.call}: a scalar has no rows: pass tensor.reshape(1)")
        return tensor.detach()

    def reduce_(self, tensor: Tensor, reduction: Reduction, codec: str) -> Tensor:
        """Reduces over all ranks, in place. Raises InvalidArgumentError if Horovod lacks the dtype,
        or a sum of integers overflows."""
        is_integer = tensor.dtype in _INTEGERS
        if not (is_integer or tensor.dtype in (*DTYPES, torch.float64)):
            raise InvalidArgumentError(
                f"{self.call} of {tensor.dtype}: convert the tensor with .int() or .float()"
            )
        if codec.endswith("+ef"):
            raise InvalidArgumentError(
                f"{self.call} has no residuals: leave out +ef, or use hvd.DistributedOptimizer"
            )
        self.agree(tensor.dtype, list(tensor.shape), reduction, codec)
        if tensor.dtype in DTYPES:
            all_reduce(tensor, codec=codec, reduction=reduction)
            return tensor
        kind = torch.int64 if is_integer else tensor.dtype
        found = tensor.to(kind, copy=True, memory_format=torch.contiguous_format)
        self.run(dist.all_reduce, found)
        if tensor.dtype == torch.int64:
            approximate = tensor.double()
            self.run(dist.all_reduce, approximate)
            if ((approximate - found.double()).abs() > _WRAP / 2).any():
                raise InvalidArgumentError(f"{self.call}: a sum is too large: use .double()")
        if reduction == "mean":
            found = found.div(dist.get_world_size(), rounding_mode="trunc" if is_integer else None)
        if is_integer and not found.equal(found.to(tensor.dtype)):
            raise InvalidArgumentError(
                f"{self.call}: a sum is too large for {tensor.dtype}: use .long()"
            )
        return tensor.copy_(found)

    def broadcast_(self, named: list[tuple[str, Tensor]], root_rank: int) -> None:
        tensors = [self.checked(one) for _, one in named]
        kinds = [(one.dtype, list(one.shape)) for one in tensors]
        self.agree(checked_root(root_rank), [name for name, _ in named], kinds)
        self.run(models.broadcast_all, tensors, root_rank, None)


def reduction_of(op: Op, average: bool | None = None) -> Reduction:
    """Returns the reduction. Raises InvalidArgumentError for invalid or both arguments."""
    if average is not None and (op is not None or not isinstance(average, bool)):
        raise InvalidArgumentError(f"average={average!r}: pass only op=hvd.Average or op=hvd.Sum")
    if op not in (None, "mean", "sum"):
        raise InvalidArgumentError(f"op={op!r} is neither hvd.Average nor hvd.Sum")
    return "sum" if average is False else op or "mean"


def checked_root(rank: int) -> str:
    """Returns the text for comparisons. Raises InvalidArgumentError for an invalid rank."""
    if rank not in range(dist.get_world_size()):
        raise InvalidArgumentError(
            f"root_rank={rank!r}: give a rank from 0 to {dist.get_world_size() - 1}"
        )
    return f"root_rank={rank}"


def _devices() -> list[str]:
    return sorted(one.type for one in _compat.device_types(connections.as_group(None)))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, function: Function, gradient: Function) -> Tensor:
        ctx.gradient = gradient
        return function(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient(gradients[0]), None, None


def differentiable(tensor: Tensor, function: Function, gradient: Function) -> Tensor:
    """Returns ``function(tensor)``; ``gradient`` computes gradients."""
    result: Tensor = _Differentiable.apply(tensor, function, gradient)
    return result


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the bytes, because gloo does not support all dtypes; a view if contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)
