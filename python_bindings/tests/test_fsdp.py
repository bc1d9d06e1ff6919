"""Compressed reduce-scatters of FSDP2, over gloo processes."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from sharded_models import (
    INPUTS,
    OUTPUTS,
    Branches,
    Step,
    backward,
    fsdp_modules,
    gradients,
    local,
    plain_step,
    sharded_model,
    train,
    weights,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import ranks
import tersor
from tersor.torch import fsdp
from tersor.torch._src.fsdp.layout import ModuleLayout

NONE: dict[str, Any] = {"rules": [("*", "none")]}
POLICIES = {
    "f32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    "bf16 reduced as f32": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
    "f16": MixedPrecisionPolicy(reduce_dtype=torch.float16),
}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def shard_whole(model: torch.nn.Module, count: int, **options: Any) -> Any:
    return fully_shard(model, mesh=init_device_mesh("cpu", (count,)), **options)


def accumulating_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    for module in fsdp_modules(model):
        module.set_requires_gradient_sync(False, recurse=False)
    backward(model, rank, 2 * step)
    for module in fsdp_modules(model):
        module.set_requires_gradient_sync(True, recurse=False)
    plain_step(model, optimizer, rank, 2 * step + 1)


def clipping_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    backward(model, rank, step)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    optimizer.zero_grad()


def equals_pytorch(rank: int, count: int, policy: str, step: Step) -> None:
    ours, reference = (sharded_model(count, POLICIES[policy]) for _ in range(2))
    handle = fsdp.compress(ours, **NONE)
    train(ours, rank, range(4), step)
    train(reference, rank, range(4), step)
    sent = sum(int(one.gradient_bytes) for one in handle.statistics())
    assert sent > 0 or count == 1
    if count <= 2:
        assert torch.equal(weights(ours), weights(reference))
    tolerance = 1e-5 if policy.endswith("f32") else 1e-2
    torch.testing.assert_close(weights(ours), weights(reference), rtol=0, atol=tolerance)


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_training_without_a_codec_matches_pytorch(count: int, policy: str) -> None:
    ranks.run(equals_pytorch, count, policy, plain_step)


@pytest.mark.parametrize("step", [accumulating_step, clipping_step])
def test_accumulation_and_clipping_match_pytorch(step: Step) -> None:
    ranks.run(equals_pytorch, 2, "f32", step)


def relative_error(rank: int, count: int, codec: str, policy: str) -> float:
    ours, reference = (sharded_model(count, POLICIES[policy]) for _ in range(2))
    fsdp.compress(ours, codec=codec)
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    return relative(gradients(ours), gradients(reference))


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(("codec", "error"), [("bf16", 0.006), ("int8", 0.02), ("int4", 0.3)])
def test_gradient_error_matches_the_codec(
    count: int, codec: str, error: float, policy: str
) -> None:
    for found in ranks.run(relative_error, count, codec, policy):
        assert found < error
        assert found > error / 100 or codec == "bf16"


@pytest.mark.parametrize("count", [2, 4])
@ranks.on("count")
def test_each_parameter_has_a_codec_and_statistics(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, codec="int8")
    train(model, rank, range(3))
    found = {one.name: one for one in handle.statistics()}
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert {one.steps for one in found.values()} == {3}
    assert found["0.weight"].codec == "int8"
    assert found["2.weight"].codec == "int8"
    small = {"0.bias", "1.weight", "1.bias", "2.bias", "4.weight", "4.bias"}
    assert {name for name, one in found.items() if one.codec == "bf16"} == small
    raw, sent = (found["0.weight"][key] for key in ("gradient_bytes", "sent_bytes"))
    padded = -(-71 // count) * count * INPUTS  # rows in equal shards
    assert raw == 3 * 4 * padded
    assert raw * (count - 1) / count / 4 < sent < raw * (count - 1) / count / 2  # heads included
    text = handle.explain()
    assert "0.weight: int8 (the codec for all)" in text
    assert "0.bias: bf16 (fewer than 4096 values)" in text


def sums_over_steps(rank: int, count: int, options: dict[str, Any], policy: str) -> float:
    """The same gradient ten times: the results' sum against ten times the mean."""
    ours, reference = (sharded_model(count, POLICIES[policy]) for _ in range(2))
    handle = fsdp.compress(ours, codec="topk:density=0.1+ef", **options)
    for _ in range(10):
        backward(ours, rank, 0)  # gradients add up
        backward(reference, rank, 0)
    assert set(handle.feedback) == {"0.weight", "2.weight"}
    for kept in handle.feedback.values():
        rounded = kept.residual.to(torch.bfloat16).float()
        assert torch.equal(kept.residual, rounded) == ("residual_dtype" in options)
    return relative(gradients(ours), gradients(reference))


@pytest.mark.parametrize("options", [{}, {"residual_dtype": "bf16"}])
@pytest.mark.parametrize("policy", ["f32", "f16"])
def test_feedback_sends_residuals_in_later_steps(options: dict[str, Any], policy: str) -> None:
    for found in ranks.run(sums_over_steps, 2, options, policy):
        assert 0 < found < 0.3  # 0.7 without feedback


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
@ranks.on(2)
def test_gradient_divide_factor_is_applied(rank: int, count: int, factor: float) -> None:
    ours, reference = sharded_model(count), sharded_model(count)
    fsdp.compress(ours, **NONE)
    for module in fsdp_modules(ours):
        module.set_gradient_divide_factor(factor)
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    torch.testing.assert_close(gradients(ours) * factor, gradients(reference) * count)


@ranks.on(2)
def test_parameters_may_be_sharded_along_columns(rank: int, count: int) -> None:
    def place(parameter: torch.nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.ndim == 2 and parameter.shape[1] % count == 0 else None

    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 72), torch.nn.Linear(72, OUTPUTS))
        models.append(shard_whole(model, count, shard_placement_fn=place))
    ours, reference = models
    handle = fsdp.compress(ours, rules=[("*", "int8")])
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    assert 1e-4 < relative(gradients(ours), gradients(reference)) < 0.02
    layout = handle._gradients[0].layout
    assert [one.dimension for one in layout.expected()] == [0, 0, 1, 0]


def backward_of_branches(model: torch.nn.Module, rank: int, both: bool) -> None:
    inputs = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(rank))
    model(inputs, both=both).square().sum().backward()


@ranks.on(2)
def test_frozen_parameters_are_left_out(rank: int, count: int) -> None:
    ours, reference = (Branches() for _ in range(2))
    for model in (ours, reference):
        model.first.weight.requires_grad_(False)
        shard_whole(model, count)
    handle = fsdp.compress(ours, codec="int8")
    for model in (ours, reference):
        backward_of_branches(model, rank, both=True)
    found = local(ours.second.weight.grad)
    assert 1e-4 < relative(found, local(reference.second.weight.grad)) < 0.02
    assert {one.name for one in handle.statistics()} == {
        "first.bias",
        "second.weight",
        "second.bias",
    }


@ranks.on(2)
def test_steps_without_a_parameter_keep_its_residual(rank: int, count: int) -> None:
    ours, reference = (shard_whole(Branches(), count) for _ in range(2))
    handle = fsdp.compress(ours, codec="topk:density=0.1+ef")
    for both in (True, False, True):
        kept = handle.feedback["first.weight"].residual.clone() if not both else None
        for model in (ours, reference):
            model.zero_grad()
            backward_of_branches(model, rank, both)
        if not both:
            found = local(ours.second.weight.grad)
            assert relative(found, local(reference.second.weight.grad)) > 0.1  # by its codec
            assert torch.equal(handle.feedback["first.weight"].residual, kept)
    steps = {one.name: one.steps for one in handle.statistics()}
    assert (steps["first.weight"], steps["second.weight"]) == (2, 3)
    assert len(handle._reducers) == 1


class Unseen(ModuleLayout):
    """As where PyTorch does not show the borders."""

    known = False  # type: ignore[assignment]

    def parameters(self, shard_count: int) -> None:
        return None


def sees_no_borders(rank: int, count: int) -> str:
    ours, reference = sharded_model(count), sharded_model(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tersor.torch._src.fsdp.compression.ModuleLayout", Unseen)
        handle = fsdp.compress(ours, codec="int8")
    backward(ours, rank, 0)
    backward(reference, rank, 0)
    assert 1e-4 < relative(gradients(ours), gradients(reference)) < 0.02
    return handle.explain()


def test_message_without_parameter_borders_is_one_tensor() -> None:
    for text in ranks.run(sees_no_borders, 2):
        assert text.count("borders of parameters are not known") == 3
        assert text.startswith("(root): bf16")  # fewer than 4096 values
        assert "\n0: int8" in text


@ranks.on(2)
def test_remove_restores_uncompressed_training(rank: int, count: int) -> None:
    ours, reference = sharded_model(count), sharded_model(count)
    handle = fsdp.compress(ours, codec="int4+ef", weights_codec="int4")
    backward(ours, rank, 0)
    ours.zero_grad()
    kept = [weakref.ref(one.core) for one in handle._reducers]
    handle.remove()
    assert len(kept) == 1
    assert kept[0]() is None  # with its thread
    assert handle.state_dict()["residuals"] == handle.feedback == {}
    assert handle.statistics() == []
    train(ours, rank, range(2))
    train(reference, rank, range(2))
    assert torch.equal(weights(ours), weights(reference))
    fsdp.compress(ours, codec="int8")  # again is no mistake


@ranks.on(2)
def test_weights_are_prefetched_until_the_handle_is_removed(rank: int, count: int) -> None:
    model = sharded_model(count)
    default = torch.distributed.fsdp._fully_shard._fsdp_collectives.DefaultAllGather
    plain, asked = default.__call__, []

    def told(self: object, *tensors: Any, async_op: bool = False, **options: Any) -> Any:
        asked.append(async_op)
        return plain(self, *tensors, async_op=async_op, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "__call__", told)
        handle = fsdp.compress(model, **NONE)
        backward(model, rank, 0)
        assert set(asked) == {True}
        asked.clear()
        handle.remove()
        backward(model, rank, 0)
        assert set(asked) == {False}


@ranks.on(2)
def test_setting_samples_after_remove_raises(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, codec="none", weighted=True)
    handle.samples = 2 + rank
    backward(model, rank, 0)
    handle.remove()
    backward(model, rank, 0)
    handle.samples = None
    with pytest.raises(tersor.InvalidArgumentError, match=r"samples=3 after remove\(\)"):
        handle.samples = 3


@ranks.on(2)
def test_scale_residuals_scales_residual_norms(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, codec="int4+ef")
    backward(model, rank, 0)
    before = [one.residual_norm for one in handle.statistics(residual_norms=True)]
    handle.scale_residuals(0.5)
    after = [one.residual_norm for one in handle.statistics(residual_norms=True)]
    assert max(before) > 0
    assert after == pytest.approx([0.5 * norm for norm in before])
