"""Copies and files of compressed models train without Tersor."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_models import gradients, inputs, mean_gradients, mlp, wrap
from sharded_models import make_model, shard
from torch import nn
from torch.optim.swa_utils import AveragedModel

import ranks
import tersor
import tersor.torch
from tersor.torch._src.ddp.copies import CopiedHookState

SCALER = torch.amp.GradScaler("cpu")


def by_compress(model: nn.Module) -> Any:
    return tersor.torch.compress(model, codec="int4+ef", scaler=SCALER)


def by_hook(model: Any) -> Any:
    state = tersor.torch.HookState(model, codec="int4+ef")
    model.register_comm_hook(state, tersor.torch.hook)
    return state


def backward(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    model.zero_grad()
    model(inputs(rank, step)).square().mean().backward()
    return gradients(model)


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    tersor.torch._src.process_group.connections.close_all()  # what is loaded needs none of it
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def averaged(model: nn.Module) -> nn.Module:
    found: nn.Module = AveragedModel(model).module
    return found


Make = Callable[[nn.Module], Any]


@pytest.mark.parametrize("make", [by_compress, by_hook])
@pytest.mark.parametrize("way", [copy.deepcopy, averaged, saved])
@pytest.mark.parametrize("steps", [0, 2])
@ranks.on(2)
def test_copies_of_ddp_models_send_uncompressed_gradients(
    rank: int, count: int, make: Make, way: Make, steps: int
) -> None:
    model = wrap(mlp())
    handle = make(model)
    for step in range(steps):
        backward(model, rank, step)
    before = handle.state_dict() if steps else None
    copied = way(model)
    for step in range(2):  # as DDP without a hook
        torch.testing.assert_close(backward(copied, rank, step), mean_gradients(count, step))
    if way is saved:
        return
    if before is not None:
        after = handle.state_dict()
        for name, row in before["residuals"].items():
            assert torch.equal(row.to_local(), after["residuals"][name].to_local())
    assert not torch.equal(backward(model, rank, 0), mean_gradients(count, 0))  # is still encoded
    again = tersor.torch.compress(copied, codec="int8")
    backward(copied, rank, 0)
    assert again.totals().steps == 1


@ranks.on(1)
def test_copied_handle_is_a_copied_hook_state(rank: int, count: int) -> None:
    handle = by_compress(wrap(mlp()))
    for copied in (copy.deepcopy(handle), copy.copy(handle), pickle.loads(pickle.dumps(handle))):
        assert isinstance(copied, CopiedHookState)


def test_copied_hook_state_raises_on_use() -> None:
    copied = CopiedHookState()
    for name in ("state_dict", "reducer", "reset", "explain"):
        with pytest.raises(tersor.InvalidArgumentError, match=rf"{name}: .*uncompressed"):
            getattr(copied, name)
    assert isinstance(copy.deepcopy(copied), CopiedHookState)


def handles(count: int) -> dict[str, Any]:
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "ShardedHandle": tersor.torch.compress(shard(make_model(), count)),
        "DistributedOptimizer": tersor.torch.DistributedOptimizer(sgd),
        "CompressedAdamW": tersor.torch.CompressedAdamW(mlp().named_parameters()),
        "CompressedMuon": tersor.torch.CompressedMuon(mlp().named_parameters()),
        "DiLoCo": tersor.torch.DiLoCo(mlp()),
    }


@ranks.on(2)
def test_copying_other_handles_raises(rank: int, count: int) -> None:
    for name, handle in handles(count).items():
        for way in (
            copy.deepcopy,
            copy.copy,
            pickle.dumps,
            lambda it: torch.save(it, io.BytesIO()),
        ):
            with pytest.raises(tersor.InvalidArgumentError, match=rf"{name} .*state_dict\(\)"):
                way(handle)


@ranks.on(2)
def test_models_of_other_handles_are_copied(rank: int, count: int) -> None:
    """Models of other handles are copied and saved, and the copies send nothing."""
    for way in (copy.deepcopy, saved):
        model = mlp()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = tersor.torch.DistributedOptimizer(sgd, codec="int8+ef")
        outer = tersor.torch.DiLoCo(model, sync_every=1)
        adamw = tersor.torch.CompressedAdamW(model.named_parameters())
        backward(model, rank, 0)
        optimizer.step()
        adamw.step()
        outer.step()
        copied = way(model)
        if rank == 0:
            backward(copied, rank, 1)
        dist.barrier()
