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
        "tersor.torch needs PyTorch: pip install torch", name="torch"
    ) from error

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from tersor._core import InvalidArgument
from tersor._options import expect
from tersor.torch import ddp, pipeline
from tersor.torch.allocation import allocate
from tersor.torch.collectives import (
    FeedbackState,
    all_gather,
    all_to_all_single,
    allreduce,
    broadcast,
    broadcast_optimizer_state,
    broadcast_parameters,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from tersor.torch.compressed_adamw import CompressedAdamW
from tersor.torch.compressed_muon import CompressedMuon
from tersor.torch.compressed_sgd import CompressedSGD
from tersor.torch.ddp import HookState, hook
from tersor.torch.diloco import DiLoCo
from tersor.torch.distributed_checkpoint import load_checkpoint
from tersor.torch.fsdp import ShardedHandle
from tersor.torch.fsdp import compress as _compress_sharded
from tersor.torch.neighbours import Gossip
from tersor.torch.optimizer import DistributedOptimizer
from tersor.torch.parameters import Unsupported
from tersor.torch.scaler import Scaler
from tersor.torch.server import ParameterClient, ParameterServer
from tersor.torch.statistics import log_statistics

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tersor.reducer import ReducerOptions

__all__ = [
    "CompressedAdamW",
    "CompressedMuon",
    "CompressedSGD",
    "DiLoCo",
    "DistributedOptimizer",
    "FeedbackState",
    "Gossip",
    "HookState",
    "ParameterClient",
    "ParameterServer",
    "ShardedHandle",
    "all_gather",
    "all_to_all_single",
    "allocate",
    "allreduce",
    "broadcast",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress",
    "gather",
    "hook",
    "load_checkpoint",
    "log_statistics",
    "pipeline",
    "reduce",
    "reduce_scatter",
    "scatter",
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

    ``model``: of DistributedDataParallel (``tersor.torch.ddp.compress`` has the options), or with
    modules that went through ``fully_shard`` (``tersor.torch.fsdp.compress``). A collective call,
    before the first backward pass. Raises InvalidArgument for anything else, and for options that
    are wrong.
    """
    uncompiled = getattr(model, "_orig_mod", model)
    expect(
        uncompiled,
        nn.Module,
        "compress() needs a model of DistributedDataParallel or fully_shard (pass an optimizer to "
        "tersor.torch.DistributedOptimizer)",
    )
    if isinstance(uncompiled, DistributedDataParallel):
        return ddp.compress(uncompiled, **options)
    for one in type(uncompiled).__mro__:
        if one.__name__ in _REFUSED:
            raise InvalidArgument(f"{_REFUSED[one.__name__]} (docs/adopt.md)")
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return _compress_sharded(model, **options)
    raise InvalidArgument(
        f"{type(model).__name__} sends no gradients: wrap it in DistributedDataParallel or call "
        "fully_shard(model) first, or use tersor.torch.DistributedOptimizer"
    )
