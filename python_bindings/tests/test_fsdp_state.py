"""Residuals of sharded gradients in checkpoints, and under a gradient scaler."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded_models import (
    INPUTS,
    backward,
    fsdp_modules,
    gradients,
    local,
    make_model,
    shard,
    sharded_model,
    train,
    weights,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import ranks
import tersor
from tersor.torch import fsdp, load_checkpoint
from tersor.torch._src.fsdp.layout import ShardedParameter, from_flat, to_flat

FEEDBACK: dict[str, Any] = {"rules": [("*.weight", "int4+ef"), ("*", "bf16")]}


def copy_of(model: torch.nn.Module, count: int) -> torch.nn.Sequential:
    other = sharded_model(count)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    return other


SCHEDULE: dict[str, Any] = {
    "rules": [
        ("*.bias", "bf16"),
        ("*", "bf16"),
        ("*", "int4+ef", 2),
        ("*", "topk:density=0.05+ef", 4),
    ]
}


@ranks.on(2)
def test_schedule_without_residuals_resumes_at_its_step(rank: int, count: int) -> None:
    options: dict[str, Any] = {"rules": [("*", "bf16"), ("*", "int8", 2)]}
    model = sharded_model(count)
    handle = fsdp.compress(model, **options)
    train(model, rank, range(3))
    resumed_model = copy_of(model, count)
    resumed = fsdp.compress(resumed_model, **options)
    resumed.load_state_dict(handle.state_dict())
    assert resumed.state_dict()["step"] == 3


@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_schedule_resumes_at_its_step(rank: int, count: int) -> None:
    """The run continues over the change of codecs at step 4. A new handle would begin with the
    first codec."""
    whole = sharded_model(count)
    handle = fsdp.compress(whole, **SCHEDULE)
    train(whole, rank, range(3))
    part = copy_of(whole, count)
    resumed = fsdp.compress(part, **SCHEDULE)
    resumed.load_state_dict(handle.state_dict())
    train(whole, rank, range(3, 6))
    train(part, rank, range(3, 6))
    assert torch.equal(weights(whole), weights(part))
    for one in (handle, resumed):
        codecs = {str(each.name): each.codec for each in one.statistics()}
        assert codecs["0.weight"] == "topk:density=0.05+ef"
        assert codecs["0.bias"] == "bf16"


def saves_portably(rank: int, count: int, folder: str) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, **FEEDBACK)
    train(model, rank, range(3))
    state = handle.state_dict("portable")
    for name, parameter in model.named_parameters():
        if name in state["residuals"]:
            assert state["residuals"][name].shape == parameter.shape
            assert float(state["residuals"][name].norm()) > 0
    dcp.save({"tersor": state}, checkpoint_id=folder)


def loads_portably(rank: int, count: int, folder: str) -> dict[str, torch.Tensor]:
    """Returns the share of the residuals in the mean, independent of the number of ranks."""
    kept_model = sharded_model(count)
    handle = fsdp.compress(kept_model, **FEEDBACK)
    load_checkpoint(handle, folder)
    state = handle.state_dict("portable")
    return {name: total / count for name, total in state["residuals"].items()}


def test_portable_state_preserves_the_mean_for_any_rank_count(tmp_path: pathlib.Path) -> None:
    ranks.run(saves_portably, 3, str(tmp_path))
    (expected, *_) = ranks.run(loads_portably, 3, str(tmp_path))
    for count in (1, 2, 4):
        for found in ranks.run(loads_portably, count, str(tmp_path)):
            assert (
                found.keys() == expected.keys() == {"0.weight", "2.weight", "1.weight", "4.weight"}
            )
            for name, values in found.items():
                torch.testing.assert_close(values, expected[name])


F16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)


@ranks.on(4)
def test_portable_state_stores_a_unit_per_parameter(rank: int, count: int) -> None:
    """FSDP averages f32 gradients, and sums f16 gradients that it divides before and after."""
    half = init_device_mesh("cpu", (2, 2), mesh_dim_names=("half", "shard"))["shard"]
    handles, models = [], []
    for mesh in (init_device_mesh("cpu", (count,)), half):
        models.append(make_model())
        fully_shard(models[-1][0], mesh=mesh, mp_policy=F16)
        fully_shard(models[-1], mesh=mesh)
        handles.append(fsdp.compress(models[-1], **FEEDBACK))
    backward(models[0], rank, 0)
    state = handles[0].state_dict("portable")
    handles[1].load_state_dict(state)
    for name, found in handles[1].state_dict("portable")["residuals"].items():
        torch.testing.assert_close(found, state["residuals"][name] / 2)
    former = {key: value for key, value in state.items() if key != "units"}
    with pytest.raises(tersor.InvalidArgumentError, match="4 ranks has no units"):
        handles[1].load_state_dict(former)
    handles[0].load_state_dict(former)
    for name, found in handles[0].state_dict("portable")["residuals"].items():
        torch.testing.assert_close(found, state["residuals"][name])


def arrives(
    rank: int, count: int, replicas: int, policy: MixedPrecisionPolicy, factor: float | None
) -> None:
    """A portable state's residuals are in the next results, of whatever mesh."""
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (count,))
    if replicas:
        mesh = init_device_mesh("cpu", (replicas, count // replicas), mesh_dim_names=names)
    ours, reference = (shard(make_model(), count, policy, mesh=mesh) for _ in range(2))
    for module in fsdp_modules(ours) + fsdp_modules(reference):
        if factor is not None:
            module.set_gradient_divide_factor(factor)
    handle = fsdp.compress(ours, rules=[("2.weight", "int8+ef"), ("*", "none")])
    fsdp.compress(reference, codec="none")  # gloo lacks the reduction of a divide factor
    state = handle.state_dict("portable")
    (unit,) = state.get("units", [1 / count])
    whole = torch.ones_like(state["residuals"]["2.weight"]) / unit
    handle.load_state_dict({**state, "residuals": {"2.weight": whole}})
    found = handle.state_dict("portable")["residuals"]["2.weight"]
    torch.testing.assert_close(found, whole, rtol=1e-3, atol=0)
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    found = local(ours[2].weight.grad) - local(reference[2].weight.grad)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=0.05)


@pytest.mark.parametrize("factor", [None, 3.0])
@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), F16], ids=["f32", "f16"])
@pytest.mark.parametrize(("count", "replicas"), [(2, 0), (4, 2), (2, 2)])
def test_next_gradients_include_portable_residuals(
    count: int, replicas: int, policy: MixedPrecisionPolicy, factor: float | None
) -> None:
    ranks.run(arrives, count, replicas, policy, factor)


def saves_for_others(rank: int, count: int, folder: str) -> None:
    kept_model = sharded_model(count)
    handle = fsdp.compress(kept_model, **FEEDBACK)
    dcp.save({"tersor": handle.state_dict()}, checkpoint_id=folder)


def refuses_others(rank: int, count: int, folder: str) -> None:
    kept_model = sharded_model(count)
    handle = fsdp.compress(kept_model, **FEEDBACK)
    with pytest.raises(
        tersor.InvalidArgumentError, match="exact state of 2 ranks, but there are 3"
    ):
        load_checkpoint(handle, folder)
    state = handle.state_dict()
    with pytest.raises(tersor.InvalidArgumentError, match=r"weight: the state is of int8\+ef"):
        handle.load_state_dict({**state, "codecs": ["int8+ef"] * 4})
    with pytest.raises(tersor.InvalidArgumentError, match=r"only this model keeps residuals of"):
        handle.load_state_dict({**state, "parameters": ["0.weight"], "codecs": ["int4+ef"]})
    with pytest.raises(tersor.InvalidArgumentError, match="version 9"):
        handle.load_state_dict({**state, "version": 9})
    with pytest.raises(tersor.InvalidArgumentError, match="mode must be one of exact, portable"):
        handle.state_dict("whole")  # type: ignore[arg-type]


def test_mismatched_states_are_rejected(tmp_path: pathlib.Path) -> None:
    ranks.run(saves_for_others, 2, str(tmp_path))
    ranks.run(refuses_others, 3, str(tmp_path))


def keeps_what_it_has(
    handle: fsdp.ShardedHandle, state: dict[str, Any], message: str, before: dict[str, Any]
) -> None:
    """The state is refused before a write."""
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        handle.load_state_dict(state)
    after = handle.state_dict()
    assert after["steps"] == before["steps"]
    for name, row in before["residuals"].items():
        assert torch.equal(after["residuals"][name].to_local(), row.to_local())


def refuses_others_rows_and_shapes(rank: int, count: int, folder: str) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, **FEEDBACK)
    torch.save(handle.state_dict(), f"{folder}/{rank}")
    dist.barrier()
    train(model, rank, range(2))
    before, portable = handle.state_dict(), handle.state_dict("portable")
    others = torch.load(f"{folder}/{1 - rank}", weights_only=False)
    message = f"rank {1 - rank} of 2, this is rank {rank}"
    keeps_what_it_has(handle, others, message, before)
    own = torch.load(f"{folder}/{rank}", weights_only=False)
    last = own["parameters"][-1]
    for state, width in ((own, 1), (own, 7), ({**portable, "steps": own["steps"]}, 1)):
        cut = torch.zeros(count, width)  # a row of 1 would be broadcast
        state = {**state, "residuals": {**state["residuals"], last: cut}}
        keeps_what_it_has(handle, state, rf"{last}: the state has residuals of shape", before)


def test_rejected_exact_state_leaves_residuals_unchanged(tmp_path: pathlib.Path) -> None:
    ranks.run(refuses_others_rows_and_shapes, 2, str(tmp_path))


@ranks.on(2)
def test_exact_state_with_different_sharding_is_rejected(rank: int, count: int) -> None:
    """The numbers of values are equal."""
    layers, handles = [], []
    for inputs, outputs, dimension in ((64, 128, 0), (128, 64, 0), (64, 128, 1)):
        layers.append(torch.nn.Linear(inputs, outputs, bias=False))
        fully_shard(layers[-1], shard_placement_fn=lambda _, cut=dimension: Shard(cut))
        handles.append(fsdp.compress(layers[-1], "int4+ef"))
    state = handles[0].state_dict()
    for other, shape in (
        (handles[1], "64 x 128, cut along 0"),
        (handles[2], "128 x 64, cut along 1"),
    ):
        with pytest.raises(tersor.InvalidArgumentError, match=f"weight has the shape {shape}, in"):
            other.load_state_dict(state)
    former = {key: value for key, value in state.items() if key != "shapes"}
    handles[0].load_state_dict(former)


@ranks.on(2)
def test_missing_residuals_start_at_zero(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, **FEEDBACK)
    backward(model, rank, 0)
    with pytest.warns(UserWarning, match="those of 4 parameters start at zero"):
        handle.load_state_dict(None)
    assert all(one.residual_norm == 0 for one in handle.statistics(residual_norms=True))


@ranks.on(2)
def test_residuals_follow_the_loss_scale(rank: int, count: int) -> None:
    """With a scale of 2^k, all results equal the results without a scale, because a scaler's
    factors are powers of two."""
    plain, scaled = sharded_model(count), sharded_model(count)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scaler.scale(torch.ones(()))  # makes its scale
    fsdp.compress(plain, **FEEDBACK)
    handle = fsdp.compress(scaled, scaler=scaler, **FEEDBACK)
    for step in range(5):
        backward(plain, rank, step)
        backward(scaled, rank, step, scaler.get_scale())
        torch.testing.assert_close(gradients(scaled) / scaler.get_scale(), gradients(plain))
        for model in (plain, scaled):
            model.zero_grad()
        scaler.update(scaler.get_scale() * (2 if step < 3 else 0.25))
    assert handle.skipped_steps == 0  # a scale that the training itself changes skips none


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_flat_shards_contain_each_value_once(count: int, dimension: int) -> None:
    whole = torch.arange(24 * 7 if dimension else 5 * 7).float().view(-1, 24 if dimension else 7)
    shape = whole.shape
    rows = -(-shape[0] // count) if dimension == 0 else shape[0]
    shard = rows * shape[1] // (count if dimension else 1)
    parameter = ShardedParameter("w", shape, dimension, shard)
    flat = to_flat(whole, parameter, count)
    assert len(flat) == count * shard
    assert torch.equal(from_flat(flat, parameter, count), whole)
    assert sorted(flat[flat > 0].tolist()) == whole.reshape(-1)[1:].tolist()


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_flat_shards_match_fsdp_shards(rank: int, count: int, dimension: int) -> None:
    """A shard of `to_flat` equals the shard of fully_shard on the same rank."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(INPUTS + 1, 7, bias=False)
    whole = layer.weight.detach().clone()
    fully_shard(
        layer, mesh=init_device_mesh("cpu", (count,)), shard_placement_fn=lambda _: Shard(dimension)
    )
    local = layer.weight.to_local()  # type: ignore[operator]
    size = -(-7 // count) * (INPUTS + 1) if dimension == 0 else 7 * (INPUTS + 1) // count
    flat = to_flat(whole, ShardedParameter("w", whole.shape, dimension, size), count)
    own = flat[rank * size :][: local.numel()]
    assert torch.equal(own.view(local.shape), local)
    assert dist.get_world_size() == count
