"""Compressed gradients for trainers that use PyTorch, over the process group that they have.

::

    model = DistributedDataParallel(model)                               # or fully_shard(model)
    handle = tersor.torch.compress(model, codec="topk:density=0.01+ef")  # and train on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

try:
    from torch import nn
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "tersor.torch needs PyTorch: pip install 'torch>=2.11'", name="torch"
    ) from error

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from tersor import _renamed
from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor.reducer import ReducerOptions
from tersor.torch import _compat, diloco, fsdp, optim, pipeline
from tersor.torch._src.checkpoint.distributed import load_checkpoint
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
from tersor.torch._src.statistics.handles import log_statistics
from tersor.torch._src.statistics.records import ParameterStatistics
from tersor.torch.diloco import DiLoCo
from tersor.torch.fsdp import ShardedHandle, ShardedOptions
from tersor.torch.optim import CompressedAdamW, CompressedMuon, CompressedSGD, DistributedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "CompressedAdamW",
    "CompressedMuon",
    "CompressedSGD",
    "DiLoCo",
    "DistributedOptimizer",
    "ElasticOptions",
    "FeedbackState",
    "Gossip",
    "HookState",
    "ParameterClient",
    "ParameterServer",
    "ParameterStatistics",
    "ReducerOptions",
    "ShardedHandle",
    "ShardedOptions",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "allocate",
    "broadcast",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "close",
    "compress",
    "diloco",
    "fsdp",
    "gather",
    "hook",
    "load_checkpoint",
    "log_statistics",
    "optim",
    "pipeline",
    "reduce",
    "reduce_scatter",
    "scatter",
    "transport",
]

# By the name of the class, since some are of packages that need not be there.
_REFUSED = {
    "DataParallel": "torch.nn.DataParallel is one process and sends no gradients: start a process "
    "for each GPU (torchrun) and use DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel is FSDP1: use fully_shard, FSDP2 "
    "(fsdp_version 2 of Accelerate and transformers)",
    "DeepSpeedEngine": "DeepSpeed sends gradients by itself: use fully_shard in place of ZeRO, or "
    "its own ZeRO++ and 1-bit Adam",
}


@overload
def compress(
    model: DistributedDataParallel,
    *,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    **options: Unpack[ReducerOptions],
) -> HookState: ...
@overload
def compress(
    model: nn.Module,
    *,
    weights: str | None = None,
    scaler: Scaler | None = None,
    unsupported: Unsupported = "warn",
    **options: Unpack[ReducerOptions],
) -> HookState | ShardedHandle: ...
def compress(model: nn.Module, **options: Any) -> HookState | ShardedHandle:
    """Has a model send its gradients encoded from now on.

    ``model``: of DistributedDataParallel (``tersor.torch.ReducerOptions`` has the options), or with
    modules that went through ``fully_shard`` (``tersor.torch.fsdp.compress``). A collective call,
    before the first backward pass. Raises InvalidArgumentError for anything else, and for options
    that are wrong.
    """
    uncompiled = _compat.uncompiled(model)
    expect(
        uncompiled,
        nn.Module,
        "compress() needs a model of DistributedDataParallel or fully_shard (pass an optimizer to "
        "tersor.torch.DistributedOptimizer)",
    )
    if isinstance(uncompiled, DistributedDataParallel):
        return _compress_ddp(uncompiled, **options)
    for one in type(uncompiled).__mro__:
        if one.__name__ in _REFUSED:
            raise InvalidArgumentError(
                f"{_REFUSED[one.__name__]} (docs/reference/compatibility.md)"
            )
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return fsdp.compress(model, **options)
    raise InvalidArgumentError(
        f"{type(model).__name__} sends no gradients: wrap it in DistributedDataParallel or call "
        "fully_shard(model) first, or use tersor.torch.DistributedOptimizer"
    )


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return _renamed.attribute(__name__, name)
