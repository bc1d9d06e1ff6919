"""DiLoCo and local SGD over gloo processes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diloco_models import equal_on_ranks, flat, make_model, mean_of_ranks, move, quantised

import ranks
import tersor
import tersor.torch
from tersor.torch.diloco import DiLoCo, averaging, nesterov


def begins_equal(rank: int, count: int) -> bool:
    model = make_model(seed=rank)
    outer = DiLoCo(model, sync_every=1, codec="none")
    assert rank != 0 or torch.equal(flat(model), flat(make_model(0)))
    assert outer.sync_every == 1
    with pytest.raises(AttributeError):  # the schedule does not change
        outer.sync_every = 2  # type: ignore[misc]
    return equal_on_ranks(flat(model))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_ranks_start_with_the_parameters_of_rank_0(count: int) -> None:
    assert all(ranks.run(begins_equal, count))


def averages(rank: int, count: int, codec: str) -> float:
    model = make_model()
    outer = DiLoCo(model, sync_every=2, outer_optimizer=averaging, rules=[("*", codec)])
    move(model, seed=rank)
    assert not outer.step()
    before = flat(model)
    assert outer.step()
    expected = mean_of_ranks(before)
    assert equal_on_ranks(flat(model))
    return float((flat(model) - expected).norm() / (before - expected).norm())


@pytest.mark.parametrize(("codec", "error"), [("none", 1e-4), ("int8", 0.02), ("int4", 0.25)])
@pytest.mark.parametrize("count", [2, 4])
def test_local_sgd_averages_the_ranks(count: int, codec: str, error: float) -> None:
    for found in ranks.run(averages, count, codec):
        assert found < error
        assert found > error / 1000 or codec == "none"


@ranks.on(2)
def test_outer_optimizer_receives_the_mean_difference(rank: int, count: int) -> None:
    model = make_model()
    reference = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    reference_optimizer = nesterov(reference)
    outer = DiLoCo(model, sync_every=1, codec="none", rules=[("*", "none")])
    for step in range(4):
        move(model, seed=10 * step + rank)
        for start, now in zip(reference, model.parameters(), strict=True):
            start.grad = mean_of_ranks(start.detach() - now.detach())
        reference_optimizer.step()
        outer.step()
        for start, now in zip(reference, model.parameters(), strict=True):
            torch.testing.assert_close(now, start, rtol=0, atol=1e-7)


@ranks.on(2)
def test_decaying_residuals_match_reference(rank: int, count: int) -> None:
    codec = "blocktopk:density=0.03,values=int4"
    model = make_model()
    starts = [p.detach().clone() for p in model.parameters()]
    residuals = [torch.zeros_like(start) for start in starts]
    outer = DiLoCo(
        model,
        sync_every=1,
        outer_optimizer=functools.partial(torch.optim.SGD, lr=0.8),
        error_decay=0.5,
        rules=[("*", codec + "+ef")],
        algorithm="one-shot",
    )
    for step in range(4):
        move(model, seed=10 * step + rank)
        for start, residual, now in zip(starts, residuals, model.parameters(), strict=True):
            wanted = 0.5 * residual + (start - now.detach())
            sent = quantised(tersor.Codec(codec), wanted)
            residual.copy_(wanted - sent)
            start -= 0.8 * mean_of_ranks(sent)
        outer.step()
        for start, now in zip(starts, model.parameters(), strict=True):
            torch.testing.assert_close(now, start, rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"straggler_timeout": 120.0}])
@ranks.on(2)
def test_state_dict_is_a_copy(rank: int, count: int, options: dict[str, Any]) -> None:
    """Later steps change neither a saved state nor a loaded state."""
    model = make_model()
    outer = DiLoCo(model, sync_every=1, **options)

    def steps(numbers: range) -> None:
        for number in numbers:
            move(model, seed=10 * number + rank)
            outer.step()

    steps(range(2))
    state, weights = outer.state_dict(), copy.deepcopy(model.state_dict())
    before = copy.deepcopy(state["outer_optimizer"])
    steps(range(2, 4))
    found = []
    for _ in range(2):
        model.load_state_dict(weights)
        outer.load_state_dict(state)
        steps(range(2, 4))
        found.append(flat(model))
    assert torch.equal(*found)
    for key, moments in before["state"].items():
        momentum = state["outer_optimizer"]["state"][key]["momentum_buffer"]
        assert torch.equal(momentum, moments["momentum_buffer"])
    outer.close()


def nan_in(values: torch.Tensor) -> None:
    values.view(-1)[0] = float("nan")


@ranks.on(1)
def test_damaged_state_is_rejected_and_changes_nothing(rank: int, count: int) -> None:
    model = make_model()
    outer = DiLoCo(model, sync_every=1)
    for step in range(2):
        move(model, seed=step)
        outer.step()
    state = outer.state_dict()
    damages: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
        r"momentum_buffer of 0 is \(3,\)": lambda _, one: one.update(
            momentum_buffer=torch.zeros(3)
        ),
        "momentum_buffer of 0 has values that are not": lambda _, one: nan_in(
            one["momentum_buffer"]
        ),
        "0.weight has values that are not finite": lambda all_, _: nan_in(
            all_["start"]["0.weight"]
        ),
    }
    for message, damage in damages.items():
        damaged = copy.deepcopy(state)
        damage(damaged, damaged["outer_optimizer"]["state"][0])
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            outer.load_state_dict(damaged)
    after = outer.outer_optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(after, state["outer_optimizer"]["state"][0]["momentum_buffer"])


@ranks.on(2)
def test_frozen_parameters_keep_the_values_of_rank_0(rank: int, count: int) -> None:
    model = make_model(seed=rank)
    model[0].weight.requires_grad_(False)
    outer = DiLoCo(model, sync_every=1, codec="none")
    frozen = make_model(seed=0)[0].weight  # rank 0's
    move(model[2], seed=rank)
    outer.step()
    assert torch.equal(model[0].weight, frozen)
    assert equal_on_ranks(model[2].weight.detach())


@ranks.on(1)
def test_invalid_arguments_raise(rank: int, count: int) -> None:
    model = make_model()
    with pytest.raises(tersor.InvalidArgumentError, match="sync_every=0"):
        DiLoCo(model, sync_every=0)
    with pytest.raises(tersor.InvalidArgumentError, match="'weighted': set samples before step"):
        DiLoCo(model, **{"weighted": True})
    for factor in (-0.1, 1.1, float("nan")):
        with pytest.raises(tersor.InvalidArgumentError, match="error_decay"):
            DiLoCo(model, error_decay=factor)
    with pytest.raises(tersor.InvalidArgumentError, match="requires a gradient"):
        DiLoCo(torch.nn.ReLU())
