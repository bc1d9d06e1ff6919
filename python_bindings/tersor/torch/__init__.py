"""Compresses the communication of training with PyTorch, over PyTorch's process groups.

::

    model = DistributedDataParallel(model)                               # or fully_shard(model)
    handle = tersor.torch.compress(model, codec="topk:density=0.01+ef")  # then train as usual
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from tersor._options import expect, needs, takes_advanced

with needs("torch", "tersor.torch needs PyTorch: pip install 'torch>=2.11'"):
    from torch import nn

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from tersor import _renamed
from tersor._core import InvalidArgumentError
from tersor.reducer import AdvancedOptions, ReducerOptions, ResidualDtype, Rules, ShardedOptions
from tersor.torch import _compat, diloco, fsdp, optim, pipeline
from tersor.torch._src.checkpoint.residuals import load_checkpoint
from tersor.torch._src.collectives.models import broadcast_optimizer_state, broadcast_parameters
from tersor.torch._src.collectives.rows import all_to_all_single
from tersor.torch._src.collectives.tensors import (
    FeedbackState,
    all_gather,
    all_reduce,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from tersor.torch._src.ddp.hook import HookState, hook
from tersor.torch._src.ddp.hook import compress as _compress_ddp
from tersor.torch._src.gossip import Gossip
from tersor.torch._src.gradients.allocation import allocate
from tersor.torch._src.gradients.exchange import ElasticOptions
from tersor.torch._src.gradients.loss_scale import Scaler
from tersor.torch._src.parameters.selection import Unsupported
from tersor.torch._src.process_group.connections import close, transport
from tersor.torch._src.server import ParameterClient, ParameterServer
from tersor.torch._src.statistics.handles import Handle, log_statistics
from tersor.torch._src.statistics.records import ParameterStatistics
from tersor.torch.diloco import DiLoCo
from tersor.torch.fsdp import ShardedHandle
from tersor.torch.optim import CompressedAdamW, CompressedMuon, CompressedSGD, DistributedOptimizer

__all__ = [
    "AdvancedOptions", "CompressedAdamW", "CompressedMuon", "CompressedSGD", "DiLoCo",
    "DistributedOptimizer", "ElasticOptions", "FeedbackState", "Gossip", "Handle", "HookState",
    "ParameterClient", "ParameterServer", "ParameterStatistics", "ReducerOptions", "ShardedHandle",
    "ShardedOptions", "all_gather", "all_reduce", "all_to_all_single", "allocate", "broadcast",
    "broadcast_optimizer_state", "broadcast_parameters", "close", "compress", "diloco", "fsdp",
    "gather", "hook", "load_checkpoint", "log_statistics", "optim", "pipeline", "reduce",
    "reduce_scatter", "scatter", "transport",
]  # fmt: skip
__dir__ = __all__.copy

# Names of classes, because their packages may be absent.
_REFUSED = {
    "DataParallel": "torch.nn.DataParallel is one process and sends no gradients: start a process "
    "for each GPU (torchrun) and use DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel is FSDP1: use fully_shard, FSDP2 "
    "(fsdp_version 2 of Accelerate and transformers)",
    "DeepSpeedEngine": "DeepSpeed sends gradients by itself: use fully_shard in place of ZeRO, or "
    "its own ZeRO++ and 1-bit Adam",
}


def _is_ddp(model: object) -> bool:
    return isinstance(_compat.uncompiled(cast(nn.Module, model)), DistributedDataParallel)


@overload
def compress(
    model: DistributedDataParallel,
    codec: str = "bf16",
    *,
    rules: Rules | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    advanced: AdvancedOptions | None = None,
) -> HookState: ...
@overload
def compress(
    model: FSDPModule,
    codec: str = "bf16",
    *,
    rules: Rules | None = None,
    weights_codec: str | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    advanced: ShardedOptions | None = None,
) -> ShardedHandle: ...
@overload
def compress(  # of a kind that the type checker does not know: the options of both kinds
    model: nn.Module,
    codec: str = "bf16",
    *,
    rules: Rules | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
) -> HookState | ShardedHandle: ...
@_renamed.renamed_keywords(weights="weights_codec")
@takes_advanced(lambda model: AdvancedOptions if _is_ddp(model) else ShardedOptions)
def compress(
    model: nn.Module | FSDPModule,
    codec: str = "bf16",
    *,
    rules: Rules | None = None,
    weights_codec: str | None = None,
    timeout: float | None = None,
    residual_dtype: ResidualDtype = "f32",
    weighted: bool = False,
    transactional: bool = False,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    advanced: AdvancedOptions | ShardedOptions | None = None,
) -> HookState | ShardedHandle:
    """Compresses the gradients that a model exchanges.

    A collective call, before the first backward pass. Without ``rules``, a lossy codec is not used
    for 1-D parameters and parameters with fewer than 4,096 values. Tersor sends these as bf16.

    Args:
        model: A ``DistributedDataParallel``, or a model on which ``fully_shard`` was called. Type
            checkers need the result of ``fully_shard`` for options that DDP does not have.
        codec: Spec of the codec, such as ``"int8"`` or ``"topk:density=0.01+ef"``, or ``"auto"``.
            Default: ``"bf16"``.
        rules: Tuples ``(pattern, codec)`` or ``(pattern, codec, step)`` with shell patterns of
            parameter names. The first matching rule applies; a parameter without a matching rule
            is an error. Several rules with one pattern form a schedule; each rule applies from
            ``step`` on.
        weights_codec: ``fully_shard`` only: codec of the all-gather of weights, see
            ``tersor.torch.fsdp.compress``.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals of error feedback, ``"f32"`` or ``"bf16"``.
        weighted: True if gradients are weighted by ``handle.samples``. By default, every rank has
            the same weight.
        transactional: True if ``handle.discard_step`` can restore the residuals from before the
            last step. Residuals then take twice the memory.
        scaler: The training's ``GradScaler``, if any. Residuals follow its scale.
        unsupported: ``"warn"`` sends unsupported gradients (sparse, complex, float64, …)
            uncompressed and warns once with their names; ``"error"`` raises.
        advanced: Further options: ``AdvancedOptions`` for DDP, ``fsdp.ShardedOptions`` for
            ``fully_shard``.

    Returns:
        The handle: statistics, state for checkpoints, and ``remove``.

    Raises:
        InvalidArgumentError: The model sends no gradients or has a communication hook already, or
            an option is invalid.
        TypeError: An argument has a wrong type.

    Example::

        model = DistributedDataParallel(model)
        handle = tersor.torch.compress(model, "int8")
    """
    options: dict[str, Any] = {**locals()}
    del options["model"], options["weights_codec"]
    model = cast(nn.Module, model)
    uncompiled = _compat.uncompiled(model)
    wanted = (
        "compress() needs a model of DistributedDataParallel or fully_shard (pass an optimizer to "
        "tersor.torch.DistributedOptimizer)"
    )
    expect(uncompiled, nn.Module, wanted)
    if isinstance(uncompiled, DistributedDataParallel):
        if weights_codec is not None:
            raise InvalidArgumentError(
                f"weights_codec={weights_codec!r}: DistributedDataParallel gathers no weights; "
                "leave the option out"
            )
        return _compress_ddp(uncompiled, **options)
    for one in type(uncompiled).__mro__:
        if one.__name__ in _REFUSED:
            raise InvalidArgumentError(
                f"{_REFUSED[one.__name__]} (docs/reference/compatibility.md)"
            )
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return fsdp.compress(model, weights_codec=weights_codec, **options)
    raise InvalidArgumentError(
        f"{type(model).__name__} sends no gradients: wrap it in DistributedDataParallel or call "
        "fully_shard(model) first, or use tersor.torch.DistributedOptimizer"
    )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return _renamed.attribute(__name__, name)
