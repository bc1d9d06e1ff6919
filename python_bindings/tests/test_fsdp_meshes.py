"""Modules of FSDP2 on separate meshes, and replicated modules."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from sharded_models import INPUTS, backward, gradients, make_model, weights
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
from tersor.torch import fsdp

NONE: dict[str, Any] = {"rules": [("*", "none")]}
PLACEMENTS = "torch.distributed.fsdp._fully_shard._fsdp_common"


def with_experts(count: int) -> nn.Sequential:
    """The first layer differs on each half of the ranks."""
    model = make_model()
    halves = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("expert", "shard"))
    fully_shard(model[0], mesh=halves["shard"])
    return fully_shard(model, mesh=init_device_mesh("cpu", (count,)))  # type: ignore[return-value]


@ranks.on(4)
def test_modules_may_be_on_meshes_of_their_own(rank: int, count: int) -> None:
    ours, plain = with_experts(count), with_experts(count)
    fsdp.compress(ours, **NONE)
    for step in range(2):
        for model in (ours, plain):
            model.zero_grad()
            backward(model, rank, step)
        torch.testing.assert_close(gradients(ours), gradients(plain))


@ranks.on(4)
def test_states_of_several_meshes_are_each_ranks_own(rank: int, count: int) -> None:
    models, handles = [], []
    for _ in range(2):
        models.append(with_experts(count))
        handles.append(fsdp.compress(models[-1], codec="int4+ef"))
        backward(models[-1], rank, 0)
    with pytest.raises(tersor.InvalidArgumentError, match=r'2 meshes.*"exact"'):
        handles[0].state_dict("portable")
    state = handles[0].state_dict()
    for row in state["residuals"].values():
        assert row.shape[0] == count  # each rank's own
    handles[1].load_state_dict(None)
    handles[1].load_state_dict(state)
    for model in models:
        model.zero_grad()
        backward(model, rank, 1)
    assert torch.equal(gradients(models[0]), gradients(models[1]))
    assert torch.equal(weights(models[0]), weights(models[1]))


def replicated(count: int) -> nn.Module:
    return replicate(nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)))


def in_part(count: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS))
    replicate(model[0])
    return fully_shard(model)


@ranks.on(2)
def test_replicated_modules_are_refused_by_name(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"\(root\) went through replicate\(\)"):
        tersor.torch.compress(replicated(count))
    with pytest.raises(tersor.InvalidArgumentError, match=r"module 0 went through replicate\(\)"):
        tersor.torch.compress(in_part(count))


def on_two_meshes(rank: int, count: int) -> None:
    placements = importlib.import_module(PLACEMENTS)
    halves = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("expert", "shard"))
    half = placements.FSDPMeshInfo(halves["shard"], shard_mesh_dim=0)
    model = nn.Linear(INPUTS, INPUTS)

    def place(parameter: nn.Parameter) -> Any:
        return placements.ShardPlacementResult(None, half) if parameter.dim() == 1 else None

    fully_shard(model, mesh=init_device_mesh("cpu", (count,)), shard_placement_fn=place)
    assert len(model._get_fsdp_state()._fsdp_param_groups) == 2
    with pytest.raises(tersor.InvalidArgumentError, match=r"\(root\) has .* 2 meshes.*\"tersor\""):
        tersor.torch.compress(model)


def test_a_module_on_two_meshes_is_refused_by_name() -> None:
    if not hasattr(pytest.importorskip(PLACEMENTS), "ShardPlacementResult"):
        pytest.skip("this PyTorch has one mesh a module")
    ranks.run(on_two_meshes, 4)
