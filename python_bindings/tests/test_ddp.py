"""Compressed gradients under DistributedDataParallel: processes over gloo, at least 6 buckets."""

from __future__ import annotations

import copy
import time
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ddp_models import (
    gradients,
    inputs,
    mean_gradients,
    mlp,
    relative_error,
    train,
    wrap,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor
import tersor.torch
from tersor.torch._src.parameters.selection import Names

LARGEST_ERRORS = {"none": 1e-6, "bf16": 4e-3, "int8": 0.02, "int4": 0.2}


def losses_of(rank: int, _: int, codec: str | None, steps: int) -> list[float]:
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec=codec) if codec else None
    losses = list(train(model, rank, range(steps)))
    if handle:
        handle.close()
    return losses


@pytest.mark.parametrize("count", [2, 3])
def test_codec_none_losses_equal_ddp(count: int) -> None:
    wanted = ranks.run(losses_of, count, None, 6)
    found = ranks.run(losses_of, count, "none", 6)
    if count == 2:
        assert found == wanted  # bit for bit
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def mean_errors(rank: int, count: int, codec: str) -> list[float]:
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec=codec)
    errors = []
    for step in range(4):
        model.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        errors.append(relative_error(gradients(model), mean_gradients(count, step)))
    buckets = model._get_ddp_logging_data()["rebuilt_bucket_sizes"].count(",") + 1
    assert buckets >= 6, buckets
    assert {one.steps for one in handle.statistics()} == {4}
    handle.close()
    return errors


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("codec", LARGEST_ERRORS)
def test_gradients_are_the_mean_over_ranks(codec: str, count: int) -> None:
    for errors in ranks.run(mean_errors, count, codec):
        assert max(errors) < LARGEST_ERRORS[codec]


def final_gradients(rank: int, _: int, options: dict[str, Any], ddp: dict[str, Any]) -> Tensor:
    model = wrap(mlp(), **ddp)
    tersor.torch.compress(model, **options)
    for _ in train(model, rank, range(4)):
        pass
    return gradients(model)


@pytest.mark.parametrize("codec", ["int8+ef", "topk:density=0.05+ef"])
def test_all_ranks_end_with_the_same_bits(codec: str) -> None:
    found = ranks.run(final_gradients, 3, {"codec": codec}, {})
    for one in found:
        assert torch.equal(one, found[0])


@pytest.mark.parametrize(
    "ddp",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 100},
    ],
    ids=lambda options: next(iter(options)),
)
def test_ddp_bucket_options_change_no_bits(ddp: dict[str, Any]) -> None:
    # Each weight has a separate message. Messages therefore do not depend on the order.
    options = {
        "rules": [("*.weight", "int4+ef"), ("*", "none")],
        "advanced": tersor.AdvancedOptions(bucket_bytes=1),
    }
    wanted = ranks.run(final_gradients, 2, options, {})
    found = ranks.run(final_gradients, 2, options, ddp)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def feedback_error(rank: int, count: int, codec: str) -> float:
    """Returns the error of the mean of a gradient, sent 12 times over rebuilt buckets."""
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec=codec)
    total = torch.zeros(())
    for _ in range(12):
        model.zero_grad()
        model(inputs(rank, 0)).square().mean().backward()
        total = total + gradients(model)
    handle.close()
    return relative_error(total / 12, mean_gradients(count, 0))


def test_residuals_stay_with_their_parameters_when_buckets_are_rebuilt() -> None:
    with_feedback = ranks.run(feedback_error, 3, "int4+ef")
    without = ranks.run(feedback_error, 3, "int4")
    for one, other in zip(with_feedback, without, strict=True):
        assert one < 0.25 * other


def accumulated(rank: int, _: int, codec: str | None) -> Tensor:
    model = wrap(mlp())
    if codec:
        tersor.torch.compress(model, codec=codec)
    for step in range(3):
        model.zero_grad()
        with model.no_sync():
            model(inputs(rank, 2 * step)).square().mean().backward()
        model(inputs(rank, 2 * step + 1)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return gradients(model)


def test_accumulated_and_clipped_gradients_equal_ddp() -> None:
    wanted = ranks.run(accumulated, 2, None)
    for one, other in zip(ranks.run(accumulated, 2, "none"), wanted, strict=True):
        assert torch.equal(one, other)
        assert float(one.norm()) == pytest.approx(0.01, rel=1e-3)


class Branches(nn.Module):
    """Two layers, each used on demand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(96, 96)
        self.first = nn.Linear(96, 96)
        self.second = nn.Linear(96, 96)

    def forward(self, x: Tensor, branch: str) -> Tensor:
        x = self.trunk(x)
        return self.first(x) if branch == "first" else self.second(x)


def unused(rank: int, _: int) -> tuple[list[float], bool, float]:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    handle = tersor.torch.compress(model, rules=[("*", "topk:density=0.1+ef")])

    def residual() -> float:
        return next(
            one.residual_norm
            for one in handle.statistics(residual_norms=True)
            if one.name == "second.weight"
        )

    model(inputs(rank, 0), "second").sum().backward()
    norms = [residual()]
    model.zero_grad()
    model(inputs(rank, 1), "first").sum().backward()  # second is unused on both ranks
    norms.append(residual())
    none_there = model.module.second.weight.grad is None
    model.zero_grad()
    model(inputs(rank, 2), "second" if rank == 0 else "first").sum().backward()
    norms.append(residual())
    return norms, none_there, float(model.module.second.weight.grad.norm())


def test_unused_parameter_keeps_its_residual() -> None:
    (norms, none_there, used), (others, _, received) = ranks.run(unused, 2)
    assert norms[0] > 0
    assert norms[1] == norms[0]
    assert others[1] == others[0]
    assert none_there
    assert norms[2] != norms[1]
    assert others[2] == others[1]
    assert used == received > 0


def joined(rank: int, _: int) -> list[float]:
    model = wrap(mlp())
    tersor.torch.compress(model, codec="none")
    found = []
    with model.join():
        for step in range(2 + 2 * rank):
            model.zero_grad()
            model(inputs(rank, step)).square().mean().backward()
            found.append(float(gradients(model).norm()))
    return found


def alone(rank: int, _: int) -> list[float]:
    norms = []
    for step in range(2, 4):
        module = mlp()
        module(inputs(1, step)).square().mean().backward()
        norms.append(float(gradients(module).norm()) / 2)  # rank 0 brought zeros
    return norms


def test_ranks_with_fewer_inputs_join_with_zeros() -> None:
    shorter, longer = ranks.run(joined, 2)
    assert len(shorter) == 2
    assert len(longer) == 4
    assert longer[2:] == pytest.approx(ranks.run(alone, 1)[0], rel=1e-5)


def channels_last(rank: int, _: int, compressed: bool) -> list[Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    model = DistributedDataParallel(module.to(memory_format=torch.channels_last))
    if compressed:
        tersor.torch.compress(model, rules=[("*", "none")])
    images = torch.randn(4, 8, 12, 12, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        model.zero_grad()
        model(images.to(memory_format=torch.channels_last)).square().mean().backward()
    return [one.grad for one in module.parameters()]


def test_channels_last_gradients_equal_ddp() -> None:
    for found, wanted in zip(
        ranks.run(channels_last, 2, True), ranks.run(channels_last, 2, False), strict=True
    ):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


def built_by_others(rank: int, _: int, named: bool) -> tuple[Tensor, list[str]]:
    module = mlp()
    state = tersor.torch.HookState(module if named else None, codec="int8+ef")
    model = wrap(module)
    model.register_comm_hook(state, tersor.torch.hook)
    for _ in train(model, rank, range(4)):
        pass
    return gradients(model), [one.name for one in state.statistics()]


@pytest.mark.parametrize("named", [True, False])
def test_communication_hook_matches_compress(named: bool) -> None:
    wanted = ranks.run(final_gradients, 2, {"codec": "int8+ef"}, {})
    for (found, names), other in zip(ranks.run(built_by_others, 2, named), wanted, strict=True):
        assert torch.equal(found, other)
        assert names[:2] == (["0.weight", "0.bias"] if named else ["parameter.0", "parameter.1"])


def different_paces(rank: int, count: int) -> float:
    model = wrap(mlp())
    tersor.torch.compress(model, codec="int8+ef")
    largest = 0.0
    for step in range(5):
        model.zero_grad()
        time.sleep(0.02 * ((rank + step) % count))
        loss = model(inputs(rank, step)).square().mean()
        mine = torch.full((1000,), float(rank))
        dist.all_reduce(mine)  # the trainer's own, in between
        loss.backward()
        assert mine[0] == sum(range(count))
        pending = dist.all_reduce(mine, async_op=True)
        largest = max(largest, relative_error(gradients(model), mean_gradients(count, step)))
        pending.wait()
    return largest


def test_uneven_ranks_with_interleaved_collectives() -> None:
    for error in ranks.run(different_paces, 3):
        assert error < 0.03


def compiled(rank: int, count: int, codec: str, inside: bool) -> tuple[float, list[str]]:
    module = mlp()
    wrapped = torch.compile(module, backend="aot_eager") if inside else module
    model = DistributedDataParallel(wrapped)
    handle = tersor.torch.compress(model, codec=codec)
    called = model if inside else torch.compile(model, backend="aot_eager")
    for step in range(3):
        model.zero_grad()
        called(inputs(rank, step)).square().mean().backward()
    error = relative_error(gradients(module), mean_gradients(count, 2))
    return error, [one.name for one in handle.statistics()]


@pytest.mark.parametrize("inside", [True, False])
def test_compiled_models(inside: bool) -> None:
    for error, names in ranks.run(compiled, 2, "int8", inside):
        assert error < LARGEST_ERRORS["int8"]
        assert names[:2] == ["0.weight", "0.bias"]


def sum_of_gradients(model: nn.Module, rank: int, steps: range) -> Tensor:
    total = torch.zeros(())
    for _ in train(model, rank, steps):
        total = total + gradients(model)
    return total


def resumed(rank: int, _: int, codec: str, mode: Any) -> tuple[Tensor, Tensor]:
    """Returns the results of a run and a copy after step 3. Without a ``mode``, the copy has no
    residuals."""
    model = wrap(mlp())
    advanced = tersor.AdvancedOptions(seed=3)
    handle = tersor.torch.compress(model, codec, advanced=advanced)
    list(train(model, rank, range(3)))
    weights = copy.deepcopy(model.module.state_dict())
    state = handle.state_dict(mode) if mode else None
    wanted = sum_of_gradients(model, rank, range(3, 6))
    other = wrap(mlp())
    other.module.load_state_dict(weights)
    fresh = tersor.torch.compress(other, codec, advanced=advanced)
    fresh.load_state_dict(state)
    return wanted, sum_of_gradients(other, rank, range(3, 6))


def test_portable_residuals_reduce_error_after_resume() -> None:
    codec = "topk:density=0.05+ef"
    kept, lost = (ranks.run(resumed, 2, codec, mode) for mode in ("portable", None))
    for (wanted, found), (_, without) in zip(kept, lost, strict=True):
        assert relative_error(found, wanted) < 0.3 * relative_error(without, wanted)


def removed(rank: int, count: int) -> tuple[float, float]:
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec="int4")
    errors = []
    for step in range(2):
        model.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        errors.append(relative_error(gradients(model), mean_gradients(count, step)))
        handle.remove()
    handle.close()
    return errors[0], errors[1]


def test_gradients_are_uncompressed_after_remove() -> None:
    for compressed, plain in ranks.run(removed, 2):
        assert compressed > 0.01
        assert plain < 1e-6


def looks_at_parameters(rank: int, _: int) -> list[int]:
    """Returns how often a step asked for the names of a bucket's parameters."""
    model = wrap(mlp())
    tersor.torch.compress(model, codec="int8")
    counts = []
    for step in range(4):
        with mock.patch.object(Names, "of", autospec=True, side_effect=Names.of) as names:
            list(train(model, rank, range(step, step + 1)))
        counts.append(names.call_count)
    return counts


def test_parameter_names_are_looked_up_only_for_new_buckets() -> None:
    for first, rebuilt, *later in ranks.run(looks_at_parameters, 2):
        assert first > 0
        assert rebuilt > first
        assert later == [0, 0]
