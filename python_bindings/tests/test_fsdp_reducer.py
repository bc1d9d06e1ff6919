"""FSDP2 with features of the reducer: late results, discarded steps, a choice of codecs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sharded_models import (
    INPUTS,
    Branches,
    backward,
    fsdp_modules,
    gradients,
    local,
    make_model,
    plain_step,
    shard,
    sharded_model,
    train,
    weights,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.reductions import StorageWeakRef

import ranks
import tersor
from tersor.reducer import GradientReducer
from tersor.torch import fsdp
from tersor.torch._src.fsdp.exchange import Sender

FEEDBACK: dict[str, Any] = {"rules": [("*.weight", "int4+ef"), ("*", "bf16")]}
LATE = {
    "f32": MixedPrecisionPolicy(),
    "bf16 reduced as f32": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
}
CAST = {
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    "f16": MixedPrecisionPolicy(reduce_dtype=torch.float16),
}


def counts_late_results(rank: int, count: int, policy: MixedPrecisionPolicy) -> list[int]:
    """Counts the late results of a first pass, and of a pass that adds to gradients."""
    late = 0
    with pytest.MonkeyPatch.context() as patch:

        def defer(sender: Sender, output: torch.Tensor) -> None:
            nonlocal late
            late += 1
            sender._deferred.append(output)

        patch.setattr(Sender, "defer", defer)
        model = sharded_model(count, policy)
        fsdp.compress(model, codec="int8")
        found = []
        for step in range(2):
            backward(model, rank, step)
            found.append(late)
            assert bool(torch.isfinite(gradients(model)).all())
        return found


@pytest.mark.parametrize("policy", list(LATE))
def test_results_arrive_late_if_fsdp_only_creates_views(policy: str) -> None:
    assert ranks.run(counts_late_results, 2, LATE[policy]) == [[3, 3]] * 2


@pytest.mark.parametrize("policy", list(CAST))
def test_results_never_arrive_late_if_fsdp_casts_them(policy: str) -> None:
    assert ranks.run(counts_late_results, 2, CAST[policy]) == [[0, 0]] * 2


@ranks.on(2)
def test_gradient_hooks_receive_reduced_gradients(rank: int, count: int) -> None:
    ours, reference = sharded_model(count), sharded_model(count)
    fsdp.compress(ours, rules=[("*", "none")])
    seen: list[torch.Tensor] = []
    for model in (ours, reference):
        model[0].weight.register_post_accumulate_grad_hook(
            lambda one: seen.append(local(one.grad).clone())
        )
        backward(model, rank, 0)
    assert torch.equal(seen[0], seen[1])


def test_message_size_does_not_change_the_weights() -> None:
    found = ranks.run(trained, 2, FEEDBACK)
    small = fsdp.ShardedOptions(bucket_bytes=1, chunk_count=512)
    wanted = ranks.run(trained, 2, {**FEEDBACK, "advanced": small})
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def trained(rank: int, count: int, options: dict[str, Any]) -> torch.Tensor:
    model = sharded_model(count)
    fsdp.compress(model, **options)
    train(model, rank, range(3))
    return weights(model)


@ranks.on(2)
def test_pass_frees_unsharded_gradients(rank: int, count: int) -> None:
    taken: list[StorageWeakRef] = []
    ready_sharded = GradientReducer.ready_sharded

    def noticed(
        reducer: GradientReducer, names: list[str], gradients: list[torch.Tensor], shards: Any
    ) -> Any:
        taken.extend(StorageWeakRef(one.untyped_storage()) for one in gradients)
        return ready_sharded(reducer, names, gradients, shards)

    model = sharded_model(count)
    fsdp.compress(model, **FEEDBACK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientReducer, "ready_sharded", noticed)
        backward(model, rank, 0)
    assert len(taken) == 8
    assert all(one.expired() for one in taken)


def expects_what_is_asked(rank: int, count: int, replicas: int, setting: str) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16) if setting == "f16" else None
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (replicas, count // replicas), mesh_dim_names=names)
    model = shard(make_model(), count, policy, mesh=mesh if replicas > 1 else mesh["shard"])
    for module in fsdp_modules(model):
        if setting.startswith("factor"):
            module.set_gradient_divide_factor(float(setting.split()[1]))
        elif setting == "sums":
            module.set_force_sum_reduction_for_comms(True)
    if setting == "own group":
        model.set_separate_reduce_scatter_group()  # type: ignore[operator]
    handle = fsdp.compress(model, **FEEDBACK)
    handle._sender.prepare()
    expected = handle._reducers
    assert len(expected) == (1 if replicas == 1 else 2)
    backward(model, rank, 0)
    assert handle._reducers == expected


@pytest.mark.parametrize("setting", ["", "f16", "factor 2", "factor 3", "sums", "own group"])
@pytest.mark.parametrize(("count", "replicas"), [(2, 1), (4, 2)])
def test_pass_uses_the_prepared_reducers(count: int, replicas: int, setting: str) -> None:
    if setting == "own group" and not hasattr(FSDPModule, "set_separate_reduce_scatter_group"):
        pytest.skip("PyTorch 2.15 has it")
    ranks.run(expects_what_is_asked, count, replicas, setting)


def test_pass_of_a_single_rank_uses_the_prepared_reducers() -> None:
    ranks.run(expects_what_is_asked, 1, 1, "")


@ranks.on(2)
def test_float16_sum_overflow_is_not_finite(rank: int, count: int) -> None:
    layer = torch.nn.Linear(64, 128, bias=False)
    fully_shard(layer, mesh=init_device_mesh("cpu", (count,)), mp_policy=CAST["f16"])
    layer.set_gradient_divide_factor(1.0)  # a sum, and no division
    fsdp.compress(layer, codec="int8")
    for size, finite in ((30_000, True), (40_000, False)):
        (layer(torch.ones(1, 64)).sum() * size).backward()
        assert bool(local(layer.weight.grad).isfinite().all()) is finite
        layer.weight.grad = None


@ranks.on(2)
def test_totals_cover_all_parameters(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(
        model,
        transactional=True,
        advanced=fsdp.ShardedOptions(measure_error=True),
        **FEEDBACK,
    )
    train(model, rank, range(3))
    handle.discard_step()
    parameters, totals = handle.statistics(), handle.totals()
    assert totals.steps == 3
    assert totals.steps_discarded == 1
    assert totals.overflows == 0
    assert totals.exposed_seconds > 0
    for field in ("hidden_seconds", "exposed_seconds", "wire_seconds"):
        assert getattr(totals, field) == sum(getattr(one, field) for one in parameters)
    errors = [one.relative_error for one in parameters if one.relative_error is not None]
    assert totals.relative_error == max(errors) > 0


@ranks.on(2)
def test_discard_step_requires_the_transactional_option(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, **FEEDBACK)
    backward(model, rank, 0)
    with pytest.raises(tersor.InvalidArgumentError, match="needs the option transactional"):
        handle.discard_step()


@ranks.on(2)
def test_skipped_scaler_step_leaves_residuals_unchanged(rank: int, count: int) -> None:
    """A skipped step leaves nothing in the residuals."""
    ours, reference = sharded_model(count), sharded_model(count)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(()))  # makes its scale
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.0)
    handle = fsdp.compress(ours, scaler=scaler, transactional=True, **FEEDBACK)
    fsdp.compress(reference, **FEEDBACK)
    for step, loss_scale in ((0, 64.0), (1, 64.0), (9, torch.inf)):  # the last step is skipped
        backward(ours, rank, step, loss_scale)
        if step < 9:
            backward(reference, rank, step)
        scaler.step(optimizer)
        scaler.update()
        for model in (ours, reference):
            model.zero_grad()
    assert scaler.get_scale() == 32.0
    backward(ours, rank, 2, scaler.get_scale())
    backward(reference, rank, 2)
    torch.testing.assert_close(gradients(ours) / scaler.get_scale(), gradients(reference))
    assert handle.skipped_steps == 1


def chooses(rank: int, count: int) -> str:
    model = sharded_model(count)
    handle = fsdp.compress(model, "auto", advanced=fsdp.ShardedOptions(auto_codecs=["int8"]))
    train(model, rank, range(2))
    assert all(one.codec in ("none", "bf16", "int8") for one in handle.statistics())
    return handle.explain()


def test_auto_choices_match_on_all_ranks() -> None:
    texts = ranks.run(chooses, 2)
    for text in texts:
        assert "0.weight: " in text
        assert "auto)" in text
        assert "auto: 2 ranks" in text
    choices = [[one for one in text.splitlines() if "weight: " in one] for text in texts]
    assert choices[0] == choices[1]


def settles(rank: int, count: int) -> str:
    model = sharded_model(count)
    handle = fsdp.compress(model, "auto", advanced=fsdp.ShardedOptions(auto_codecs=["int8"]))
    train(model, rank, range(1))
    assert not handle.settled()
    for step in range(1, 200):
        train(model, rank, range(step, step + 1))
        if handle.settled():
            break
    return handle.explain()


def test_handles_report_settled_auto_choices() -> None:
    assert all("settled after" in text for text in ranks.run(settles, 2))


@ranks.on(2)
def test_unused_modules_skip_the_step_and_keep_residuals(rank: int, count: int) -> None:
    """Modules outside of a step keep their residuals, and hold up no rank."""
    models = []
    for _ in range(2):
        model = Branches()
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (count,)))
        models.append(model)
    ours, reference = models
    handle = fsdp.compress(ours, codec="topk:density=0.1+ef")
    for both in (True, False, True):
        before = {name: one.residual for name, one in handle.feedback.items()}
        for model in models:
            model.zero_grad()
            inputs = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(rank))
            model(inputs, both=both).square().sum().backward()
        assert (ours.first.weight.grad is None) == (reference.first.weight.grad is None)
        if not both:
            after = handle.feedback["first.weight"].residual
            assert torch.equal(after, before["first.weight"])
    steps = {one.name: one.steps for one in handle.statistics()}
    assert (steps["first.weight"], steps["second.weight"]) == (2, 3)


@ranks.on(2)
def test_parameters_may_be_unfrozen(rank: int, count: int) -> None:
    """The layer's residuals move to the reducer of the next step."""
    ours, reference = (Branches() for _ in range(2))
    ours.first.weight.requires_grad_(False)
    handles = []
    for model in (ours, reference):
        fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
        handles.append(fsdp.compress(model, rules=[("second.weight", "int4+ef"), ("*", "none")]))
    for step in range(3):
        for model in (ours, reference):
            model.zero_grad()
            inputs = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(rank))
            model(inputs).square().sum().backward()
        for name, parameter in ours.named_parameters():
            if step > 0 or name != "first.weight":
                wanted = reference.get_parameter(name).grad
                assert torch.equal(local(parameter.grad), local(wanted)), (name, step)
        ours.first.weight.requires_grad_(True)
    names = {name for name, _ in ours.named_parameters()}
    assert {one.name for one in handles[0].statistics()} == names
    found, wanted = (handle.state_dict()["residuals"] for handle in handles)
    assert found.keys() == wanted.keys() == {"second.weight"}
    assert torch.equal(found["second.weight"].to_local(), wanted["second.weight"].to_local())


@ranks.on(2)
def test_moved_residual_counts_once_in_the_norm(rank: int, count: int) -> None:
    """A module with additional parameters within a step leaves the common reducer."""
    model = Branches()
    model.second.bias.requires_grad_(False)
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (count,)))
    handle = fsdp.compress(model, **FEEDBACK)
    inputs = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(rank))
    model(inputs).square().sum().backward()
    wanted = handle.scalars(residual_norms=True)["tersor/residual_norm"]
    model.second.bias.requires_grad_(True)
    reducers, (before,) = handle._sender.reducers, handle._sender.reducers.all()
    before._ready.add("first.weight")
    (second,) = [one for one in handle._gradients if one.name == "second"]
    assert reducers.reducer_for(second, second.expected_kind()) is not before
    before._ready.clear()
    assert len(reducers.all()) == 2
    assert handle.scalars(residual_norms=True)["tersor/residual_norm"] == pytest.approx(wanted)


@ranks.on(2)
def test_statistics_report_times_and_errors(rank: int, count: int) -> None:
    model = sharded_model(count)
    handle = fsdp.compress(model, "int8", advanced=fsdp.ShardedOptions(measure_error=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain_step(model, optimizer, rank, 0)
    found = {one.name: one for one in handle.statistics()}["0.weight"]
    assert found.wire_seconds > 0
    assert found.hidden_seconds + found.exposed_seconds > 0
    error = found.relative_error
    assert error is not None
    assert 1e-4 < error < 0.02
