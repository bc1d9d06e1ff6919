"""Modules of FSDP2 on separate meshes, and replicated modules."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import INPUTS, backward, gradients, make_model, weights
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

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
def test_modules_may_use_separate_meshes(rank: int, count: int) -> None:
    ours, plain = with_experts(count), with_experts(count)
    fsdp.compress(ours, **NONE)
    for step in range(2):
        for model in (ours, plain):
            model.zero_grad()
            backward(model, rank, step)
        torch.testing.assert_close(gradients(ours), gradients(plain))


@ranks.on(4)
def test_several_meshes_require_an_exact_state(rank: int, count: int) -> None:
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


@ranks.on(5)
def test_portable_state_round_trips_on_part_of_the_ranks(rank: int, count: int) -> None:
    """Rank 4 is outside of the mesh, as the ranks of another pipeline stage."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("replicate", "shard"))
    if rank == 4:
        return
    models = [fully_shard(nn.Linear(INPUTS, INPUTS), mesh=mesh) for _ in range(2)]
    handles = [tersor.torch.compress(model, "int4+ef", timeout=20) for model in models]
    models[1](torch.ones(2, INPUTS) + rank).sum().backward()
    state = handles[1].state_dict("portable")
    assert state["ranks"] == handles[1].state_dict()["residuals"]["weight"].shape[0] == 4
    assert float(state["residuals"]["weight"].norm()) > 0
    handles[0].load_state_dict(state)
    found = handles[0].state_dict("portable")["residuals"]["weight"]
    torch.testing.assert_close(found, state["residuals"]["weight"])
    assert handles[0]._group is handles[1]._group


@ranks.on(4)
def test_pipeline_stages_have_separate_states(rank: int, count: int) -> None:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("stage", "replicate", "shard"))
    model = fully_shard(nn.Linear(INPUTS, INPUTS), mesh=mesh["replicate", "shard"])
    handle = tersor.torch.compress(model, "int4+ef")
    model(torch.randn(2, INPUTS, generator=torch.Generator().manual_seed(rank))).sum().backward()
    total = handle.feedback["weight"].residual.clone()
    dist.all_reduce(total, group=mesh["shard"].get_group())
    state = handle.state_dict("portable")["residuals"]["weight"]
    assert float(state.norm()) > 0
    torch.testing.assert_close(state.flatten(), total[: state.numel()])


@ranks.on(4)
def test_tensor_parallel_shards_require_an_exact_state(rank: int, count: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(INPUTS, 2 * INPUTS))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    handle = tersor.torch.compress(model, "int4+ef")
    model(torch.ones(2, INPUTS)).sum().backward()
    with pytest.raises(tersor.InvalidArgumentError, match=r'tensor parallelism .*"exact"'):
        handle.state_dict("portable")
    assert handle.state_dict()["residuals"]["0.weight"].shape[0] == count


def replicated(count: int) -> nn.Module:
    return replicate(nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)))


def in_part(count: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS))
    replicate(model[0])
    return fully_shard(model)


@ranks.on(2)
def test_replicated_modules_are_rejected_by_name(rank: int, count: int) -> None:
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


def test_module_on_two_meshes_is_rejected_by_name() -> None:
    if not hasattr(pytest.importorskip(PLACEMENTS), "ShardPlacementResult"):
        pytest.skip("this PyTorch has one mesh a module")
    ranks.run(on_two_meshes, 4)
