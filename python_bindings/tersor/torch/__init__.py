"""Compressed gradients for trainers that use PyTorch, over the process group that they have.

::

    model = DistributedDataParallel(model)
    handle = tersor.torch.compress(model, codec="topk:density=0.01+ef")  # and train on
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tersor._core import InvalidArgument
from tersor.torch import ddp
from tersor.torch.ddp import HookState, hook
from tersor.torch.distributed_checkpoint import load_checkpoint
from tersor.torch.statistics import log_statistics

__all__ = ["HookState", "compress", "hook", "load_checkpoint", "log_statistics"]


def compress(model: nn.Module, **options: Any) -> HookState:
    """Has a model send its gradients encoded from now on.

    ``model``: of DistributedDataParallel (``tersor.torch.ddp.compress`` has the options). A
    collective call, before the first backward pass. Raises InvalidArgument for anything else, and
    for options that are wrong.
    """
    uncompiled = getattr(model, "_orig_mod", model)
    if isinstance(uncompiled, DistributedDataParallel):
        return ddp.compress(uncompiled, **options)
    raise InvalidArgument(
        f"{type(model).__name__} sends no gradients: wrap it in DistributedDataParallel first"
    )
