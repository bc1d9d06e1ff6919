"""Features of PyTorch besides data parallelism work with compressed gradients.

Each feature trains without a codec. The weights equal the weights of PyTorch's own mean bit for bit
with two ranks. No gradient is lost, doubled or computed twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sharded_models import backward, make_model, shard
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch
from tersor.torch._src.parameters.selection import unwrapped

NONE: dict[str, Any] = {"rules": [("*", "none")]}
NAMES = [f"{index}.{kind}" for index in (0, 1, 2, 4) for kind in ("weight", "bias")]


@dataclasses.dataclass
class Training:
    """A model on several ranks, the optimizer, and Tersor's handle of a compressed model."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    handle: Any = None


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def with_ddp(module: nn.Sequential, **options: Any) -> Training:
    model = DistributedDataParallel(module)
    return Training(model, sgd(model), tersor.torch.compress(model, **options) if options else None)


def with_fsdp(module: nn.Sequential, **options: Any) -> Training:
    model = shard(module, 2)
    return Training(model, sgd(model), tersor.torch.compress(model, **options) if options else None)


def with_optimizer(module: nn.Sequential, **options: Any) -> Training:
    """The reference is DDP, which averages in the same order."""
    if not options:
        return with_ddp(module)
    optimizer = tersor.torch.DistributedOptimizer(sgd(module), module.named_parameters(), **options)
    return Training(module, optimizer, optimizer)


WAYS = [with_ddp, with_fsdp, with_optimizer]
Way = Callable[..., Training]


def train(training: Training, rank: int) -> Tensor:
    """Makes three steps. Returns this rank's weights in order."""
    for step in range(3):
        backward(training.model, rank, step)
        training.optimizer.step()
        training.optimizer.zero_grad()
    weights = [one.detach() for one in training.model.parameters()]
    return torch.cat(
        [(one.to_local() if isinstance(one, DTensor) else one).flatten() for one in weights]
    )


def both(make: Callable[..., Training], rank: int, around: Any = contextlib.nullcontext) -> Any:
    """Trains with and without Tersor, to equal weights; the handle."""
    ours, reference = make(**NONE), make()
    with around():
        assert torch.equal(train(ours, rank), train(reference, rank))
    return ours.handle


@pytest.mark.parametrize("way", WAYS)
@ranks.on(2)
def test_autocast(rank: int, count: int, way: Way) -> None:
    seen = []

    def make(**options: Any) -> Training:
        module = make_model()
        module[0].register_forward_hook(lambda *found: seen.append(found[-1].dtype))
        return way(module, **options)

    both(make, rank, lambda: torch.autocast("cpu", torch.bfloat16))
    assert set(seen) == {torch.bfloat16}


def checkpointed() -> nn.Sequential:
    module = make_model()
    apply_activation_checkpointing(module, check_fn=lambda one: isinstance(one, nn.Linear))
    return module


def recomputes(rank: int, _: int, way: Way) -> list[str]:
    handle = both(lambda **options: way(checkpointed(), **options), rank)
    return [one.name for one in handle.statistics()]


@pytest.mark.parametrize("way", WAYS)
def test_activation_checkpointing_keeps_parameter_names(way: Way) -> None:
    for names in ranks.run(recomputes, 2, way):
        assert sorted(names) == sorted(NAMES)


@ranks.on(2)
def test_zero_redundancy_optimizer(rank: int, count: int) -> None:
    def make(**options: Any) -> Training:
        training = with_ddp(make_model(), **options)
        parameters = training.model.parameters()
        training.optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)
        return training

    both(make, rank)


@ranks.on(2)
def test_cpu_offload_policy(rank: int, count: int) -> None:
    def make(**options: Any) -> Training:
        model = shard(make_model(), 2, offload_policy=CPUOffloadPolicy(pin_memory=False))
        handle = tersor.torch.compress(model, **options) if options else None
        return Training(model, sgd(model), handle)

    both(make, rank)


@pytest.mark.parametrize("way", [with_ddp, with_optimizer])
@ranks.on(2)
def test_rules_and_checkpoints_ignore_wrappers(rank: int, count: int, way: Way) -> None:
    options: dict[str, Any] = {"rules": [("0.weight", "int4+ef"), ("*", "none")]}
    first, second = way(checkpointed(), **options), way(make_model(), **options)
    train(first, rank)
    save = "residual_state_dict" if way is with_optimizer else "state_dict"
    state = getattr(first.handle, save)()
    getattr(second.handle, f"load_{save}")(state)
    told = second.handle.statistics(residual_norms=True)
    norms = {one.name: one.residual_norm for one in told}
    assert norms["0.weight"] > 0


def test_unwrapped_names_stay_unique() -> None:
    named = {"_orig_mod.0._checkpoint_wrapped_module.w": 1, "1._orig_mod.w": 2, "1.w": 3}
    assert unwrapped(named) == {"0.w": 1, "1._orig_mod.w": 2, "1.w": 3}
