"""FSDP2 on a mesh of two dimensions: shards are all-reduced between replicas, by a codec too."""

from __future__ import annotations

import copy
import pathlib
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded_models import (
    INPUTS,
    Branches,
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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import ranks
import tersor
from tersor.torch import fsdp, load_checkpoint
from tersor.torch._src.fsdp.layout import ShardedParameter
from tersor.torch._src.fsdp.reducer import Kind, ReplicaReducer

NONE: dict[str, Any] = {"rules": [("*", "none")]}
FEEDBACK: dict[str, Any] = {"rules": [("*.weight", "int4+ef"), ("*", "bf16")]}
POLICIES = {
    "f32": MixedPrecisionPolicy(),
    "bf16 reduced as f32": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
    "f16": MixedPrecisionPolicy(reduce_dtype=torch.float16),
}


def mesh_of(count: int, replicas: int = 2) -> DeviceMesh:
    names = ("replicate", "shard")
    return init_device_mesh("cpu", (replicas, count // replicas), mesh_dim_names=names)


def replicated(count: int, policy: str = "f32", replicas: int = 2) -> torch.nn.Sequential:
    return shard(make_model(), count, POLICIES[policy], mesh=mesh_of(count, replicas))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def others(values: torch.Tensor, replicas: int = 2) -> list[torch.Tensor]:
    """Returns the values of all ranks with this rank's shards."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, values)
    return found[dist.get_rank() % (len(found) // replicas) :: len(found) // replicas]


def equals_pytorch(rank: int, count: int, policy: str, replicas: int) -> None:
    ours, reference = (replicated(count, policy, replicas) for _ in range(2))
    fsdp.compress(ours, **NONE)
    train(ours, rank, range(3))
    train(reference, rank, range(3))
    tolerance = 1e-5 if policy.endswith("f32") else 1e-2
    torch.testing.assert_close(weights(ours), weights(reference), rtol=0, atol=tolerance)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_training_without_a_codec_matches_pytorch(policy: str) -> None:
    ranks.run(equals_pytorch, 4, policy, 2)


def test_replicas_without_sharding_match_pytorch() -> None:
    ranks.run(equals_pytorch, 2, "f32", 2)


@ranks.on(4)
def test_replicas_use_the_codec_schedule_of_shards(rank: int, count: int) -> None:
    model = replicated(count)
    handle = fsdp.compress(model, rules=[("*", "bf16"), ("*", "int8", 1)])
    for step, codec in enumerate(("bf16", "int8")):
        train(model, rank, range(step, step + 1))
        assert {one.codec for one in handle.statistics()} == {codec}
        assert any(str(one.name).endswith(" (replicas)") for one in handle.statistics())


def errs_as_the_codec(rank: int, count: int, policy: str, codec: str) -> float:
    ours, reference = (replicated(count, policy) for _ in range(2))
    fsdp.compress(ours, codec=codec)
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    found = gradients(ours)
    assert all(torch.equal(one, found) for one in others(found))
    return relative(found, gradients(reference))


@pytest.mark.parametrize("policy", list(POLICIES))
def test_gradient_error_matches_the_codec_and_is_equal_on_replicas(policy: str) -> None:
    for found in ranks.run(errs_as_the_codec, 4, policy, "int8"):
        assert 2e-4 < found < 0.02


@ranks.on(4)
def test_shard_codec_follows_the_whole_parameter(rank: int, count: int) -> None:
    model = replicated(count)
    handle = fsdp.compress(model, codec="int8")
    train(model, rank, range(3))
    found = {one.name: one for one in handle.statistics()}
    names = {name for name, _ in model.named_parameters()}
    assert set(found) == names | {f"{name} (replicas)" for name in names}
    for name in names:
        scattered, reduced = found[name], found[f"{name} (replicas)"]
        assert (scattered.codec, scattered.reason) == (reduced.codec, reduced.reason)
        assert reduced.steps == 3
        assert reduced.gradient_bytes == scattered.gradient_bytes / (count / 2)
    raw, sent = (found["0.weight (replicas)"][key] for key in ("gradient_bytes", "sent_bytes"))
    assert raw == 3 * 4 * 36 * INPUTS  # 2,340 values: the whole parameter is what rules ask for
    assert found["0.weight (replicas)"].codec == "int8"
    assert raw / 5 < sent < raw / 3
    assert "all-reduce between replicas" not in handle.explain()


@ranks.on(4)
def test_names_with_wildcard_characters_match_literally(rank: int, count: int) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            for name in ("*", "[a]", "a", "b\\"):
                self.register_parameter(name, torch.nn.Parameter(torch.randn(70, 70)))

        def forward(self) -> torch.Tensor:
            return sum((one.square().sum() for one in self.parameters()), torch.zeros(()))

    model = Odd()
    fully_shard(model, mesh=mesh_of(count))
    rules = [("a", "int8"), ("[[]a[]]", "int4"), ("b*", "bf16"), ("*", "none")]
    handle = fsdp.compress(model, rules=rules)
    model().backward()
    found = {one.name: one.codec for one in handle.statistics()}
    assert {name: found[f"{name} (replicas)"] for name in ("*", "[a]", "a", "b\\")} == {
        "*": "none",
        "[a]": "int4",
        "a": "int8",
        "b\\": "bf16",
    }


def sums_over_steps(rank: int, count: int) -> float:
    """The same gradient ten times: the results' sum against ten times the mean."""
    ours, reference = (replicated(count) for _ in range(2))
    handle = fsdp.compress(ours, codec="topk:density=0.1+ef")
    for _ in range(10):
        backward(ours, rank, 0)  # gradients add up
        backward(reference, rank, 0)
    names = {"0.weight", "2.weight"}
    assert set(handle.feedback) == names | {f"{name} (replicas)" for name in names}
    return relative(gradients(ours), gradients(reference))


def test_feedback_sends_residuals_in_later_steps() -> None:
    for found in ranks.run(sums_over_steps, 4):
        assert 0 < found < 0.5


@ranks.on(4)
def test_replicas_may_exchange_less_often_than_shards(rank: int, count: int) -> None:
    """Replicas exchange in the last of three passes. The next pass adds to the gradients, and
    replicas exchange again."""
    ours, reference = (replicated(count) for _ in range(2))
    fsdp.compress(ours, **NONE)
    for model in (ours, reference):
        for step in range(3):
            for module in fsdp_modules(model):
                module.set_requires_all_reduce(step == 2, recurse=False)
            backward(model, rank, step)
    torch.testing.assert_close(gradients(ours), gradients(reference))
    backward(ours, rank, 3)
    backward(reference, rank, 3)
    torch.testing.assert_close(gradients(ours), gradients(reference))


@ranks.on(4)
def test_steps_may_skip_parameters(rank: int, count: int) -> None:
    ours, reference = Branches(), Branches()
    handle = None
    for model in (ours, reference):
        fully_shard(model, mesh=mesh_of(count))
        if model is ours:
            handle = fsdp.compress(model, codec="int4+ef")
        for both in (True, False):
            model.zero_grad()
            inputs = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(rank))
            model(inputs, both=both).square().sum().backward()
    assert handle is not None
    found, wanted = (local(one.second.weight.grad) for one in (ours, reference))
    assert 0.02 < relative(found, wanted) < 0.5  # by int4
    assert float(handle.feedback["second.weight (replicas)"].residual.norm()) > 0


def counts_late_results(rank: int, count: int) -> int:
    model = replicated(count)
    handle = fsdp.compress(model, codec="int8")
    late: list[torch.Tensor] = []
    defer = handle._sender.defer
    handle._sender.defer = lambda one: (late.append(one), defer(one))[1]  # type: ignore[method-assign]
    backward(model, rank, 0)
    found = len(late)
    backward(model, rank, 1)  # adds up: FSDP looks at results
    assert len(late) == found
    return found


def test_pass_overlaps_with_the_replica_exchange() -> None:
    assert ranks.run(counts_late_results, 4) == [3] * 4


def copy_of(model: torch.nn.Module, count: int, replicas: int) -> torch.nn.Sequential:
    other = replicated(count, replicas=replicas)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    return other


def resumes(rank: int, count: int, replicas: int, folder: str, way: str) -> None:
    """The same run goes on bit for bit."""
    first = replicated(count, replicas=replicas)
    handle = fsdp.compress(first, **FEEDBACK)
    train(first, rank, range(3))
    second = copy_of(first, count, replicas)
    again = fsdp.compress(second, **FEEDBACK)
    if way == "torch.save":
        torch.save(handle.state_dict(), f"{folder}/{rank}")
        again.load_state_dict(torch.load(f"{folder}/{rank}", weights_only=False))
    else:
        dcp.save({"tersor": handle}, checkpoint_id=folder)
        load_checkpoint(again, folder)
    assert again.feedback.keys() == handle.feedback.keys()
    assert {"0.weight", "0.weight (replicas)"} < set(again.feedback)
    assert ("0.weight (replicas, sums)" in again.feedback) == (replicas > 2)  # two send no sums on
    for name, one in handle.feedback.items():
        assert torch.equal(again.feedback[name].residual, one.residual)
    third = copy_of(first, count, replicas)
    without = fsdp.compress(third, **FEEDBACK)
    state = handle.state_dict()
    for name, row in state["residuals"].items():
        if "(replicas" in name:
            row.to_local().zero_()
    without.load_state_dict(state)
    for model in (first, second, third):
        train(model, rank, range(3, 6))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(third))  # those of replicas do matter here


@pytest.mark.parametrize("way", ["torch.save", "distributed checkpoint"])
@pytest.mark.parametrize(("count", "replicas"), [(4, 2), (3, 3)])
def test_exact_state_resumes_bit_for_bit(
    tmp_path: pathlib.Path, count: int, replicas: int, way: str
) -> None:
    ranks.run(resumes, count, replicas, str(tmp_path), way)


@ranks.on(4)
def test_exact_state_of_a_different_mesh_is_rejected(rank: int, count: int) -> None:
    kept_model = replicated(count)
    handle = fsdp.compress(kept_model, **FEEDBACK)
    whole_model = sharded_model(count)
    whole = fsdp.compress(whole_model, **FEEDBACK)
    with pytest.raises(tersor.InvalidArgumentError, match=r"only this model keeps .* \(replicas"):
        handle.load_state_dict(whole.state_dict())
    with pytest.warns(UserWarning, match="those of 4 parameters start at zero"):
        handle.load_state_dict(None)


def added(rank: int, count: int, replicas: int, folder: str, *, save: bool) -> dict[str, Any]:
    """Returns the share of the residuals in the mean, independent of mesh and number of ranks."""
    model = sharded_model(count) if replicas == 0 else replicated(count, replicas=replicas)
    handle = fsdp.compress(model, **FEEDBACK)
    if save:
        train(model, rank, range(3))
    else:
        load_checkpoint(handle, folder)
    state = handle.state_dict("portable")
    if save:
        dcp.save({"tersor": state}, checkpoint_id=folder)
    return {name: total / count for name, total in state["residuals"].items()}


def saves_portably(rank: int, count: int, replicas: int, folder: str) -> dict[str, Any]:
    return added(rank, count, replicas, folder, save=True)


def loads_portably(rank: int, count: int, replicas: int, folder: str) -> dict[str, Any]:
    return added(rank, count, replicas, folder, save=False)


@pytest.mark.parametrize("replicas", [0, 2])
def test_portable_state_loads_on_any_mesh(tmp_path: pathlib.Path, replicas: int) -> None:
    (expected, *_) = ranks.run(saves_portably, 4, replicas, str(tmp_path))
    assert set(expected) == {"0.weight", "1.weight", "2.weight", "4.weight"}
    assert all(float(one.norm()) > 0 for one in expected.values())
    for count, mesh in ((4, 2), (4, 0), (2, 0), (2, 2)):
        for found in ranks.run(loads_portably, count, mesh, str(tmp_path)):
            assert found.keys() == expected.keys()
            for name, values in found.items():
                torch.testing.assert_close(values, expected[name])


@ranks.on(4)
def test_remove_restores_uncompressed_training(rank: int, count: int) -> None:
    ours, reference = (replicated(count) for _ in range(2))
    handle = fsdp.compress(ours, codec="int8")
    backward(ours, rank, 0)
    ours.zero_grad()
    kept = [weakref.ref(one.core) for one in handle._reducers]
    handle.remove()
    assert [one() for one in kept] == [None, None]
    train(ours, rank, range(2))
    train(reference, rank, range(2))
    assert torch.equal(weights(ours), weights(reference))
    again = fsdp.compress(ours, codec="int8")
    handle.remove()  # once more is no mistake, and nothing to the other
    backward(ours, rank, 0)
    assert any("(replicas)" in one.name for one in again.statistics())


@ranks.on(4)
def test_discarded_pass_does_not_change_later_steps(rank: int, count: int) -> None:
    ours, reference = (replicated(count) for _ in range(2))
    handle = fsdp.compress(ours, transactional=True, **FEEDBACK)
    fsdp.compress(reference, **FEEDBACK)
    for model in (ours, reference):
        train(model, rank, range(2))
    backward(ours, rank, 9)
    ours.zero_grad()
    handle.discard_step()
    for model in (ours, reference):
        train(model, rank, range(2, 4))
    assert torch.equal(weights(ours), weights(reference))


def _refuse(*_: object) -> Any:
    raise RuntimeError("this rank alone")


@ranks.on(4)
def test_failing_rank_notifies_all_other_ranks(rank: int, count: int) -> None:
    """A rank's error reaches the ranks of the mesh, and the replicas of these ranks."""
    model = replicated(count)
    handle = fsdp.compress(model, codec="int8")
    backward(model, rank, 0)
    if rank == 0:
        handle._sender.reducers.all()[0].send = _refuse  # type: ignore[method-assign]
    with pytest.raises(Exception, match="this rank alone"):
        backward(model, rank, 1)
    assert bool(gradients(model).isnan().any())
    handle.remove()


@ranks.on(3)
def test_replica_residuals_follow_their_parameter(rank: int, count: int) -> None:
    """The owner of a part of a shard depends on the parameter's index."""
    kind = Kind(dist.group.WORLD, torch.device("cpu"), torch.float32, "mean")
    early, late = (ShardedParameter(f"{i}.weight", torch.Size([9000]), 0, 9000) for i in (0, 1))
    before = ReplicaReducer(kind, [late], FEEDBACK)
    shard = torch.randn(9000, generator=torch.Generator().manual_seed(rank))
    before.wait(before.send(["1.weight"], shard.view(1, -1), shard))
    before.finish()
    kept = before.sums()["1.weight"]
    after = ReplicaReducer(kind, [early, late], FEEDBACK)
    after.move_from([before])
    assert kept.norm() > 0
    torch.testing.assert_close(after.sums()["1.weight"], kept, rtol=0, atol=1e-6)
    assert not before.parameters
