"""Ranks that begin with different weights. Without a check, the weights would stay different."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import pytest
import torch

import ranks
import tersor
import tersor.torch
from tersor.torch._src.gradients import exchange

KINDS = ["CompressedAdamW", "CompressedSGD", "CompressedMuon", "DistributedOptimizer"]


def optimizer_of(kind: str, model: torch.nn.Module) -> Any:
    named = model.named_parameters()
    if kind == "DistributedOptimizer":
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return tersor.torch.DistributedOptimizer(inner, named, codec="int8")
    return getattr(tersor.torch, kind)(named, lr=0.1)


def step(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 96)).square().sum().backward()
    optimizer.step()


def after_a_step(kind: str) -> tuple[torch.nn.Linear, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 64)
    optimizer = optimizer_of(kind, model)
    step(model, optimizer)
    return model, optimizer


def expect_difference(model: torch.nn.Module, optimizer: Any, names: str) -> None:
    before = [one.detach().clone() for one in model.parameters()]
    with pytest.raises(tersor.InvalidArgumentError, match=f"different values of {names}: load"):
        step(model, optimizer)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("kind", KINDS)
@ranks.on(2)
def test_ranks_with_different_weights_raise_in_the_first_step(
    rank: int, count: int, kind: str
) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Linear(96, 64)
    optimizer = optimizer_of(kind, model)
    expect_difference(model, optimizer, "bias, weight")
    tersor.torch.broadcast_parameters(model)
    step(model, optimizer)


@pytest.mark.parametrize(("order", "names"), [("rows", "bias, weight"), ("columns", "weight")])
@ranks.on(2)
def test_equal_weights_in_another_order_raise(
    rank: int, count: int, order: str, names: str
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 64)
    optimizer = optimizer_of("DistributedOptimizer", model)
    with torch.no_grad():
        if order == "rows":
            for one in model.parameters():
                one.copy_(one.roll(rank, 0))
        else:
            model.weight.copy_(model.weight.roll(rank, 1))
    expect_difference(model, optimizer, names)


@pytest.mark.parametrize("kind", KINDS[2:])
@ranks.on(2)
def test_other_weights_after_loading_a_state_raise(rank: int, count: int, kind: str) -> None:
    model, optimizer = after_a_step(kind)
    optimizer.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        model.bias[3] += rank * 1e-3
    expect_difference(model, optimizer, "bias")


@pytest.mark.parametrize("kind", KINDS[2:])
@ranks.on(2)
def test_other_values_of_an_unfrozen_parameter_raise(rank: int, count: int, kind: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 64)
    model.bias.requires_grad_(False)
    optimizer = optimizer_of(kind, model)
    step(model, optimizer)
    with torch.no_grad():
        model.bias.add_(rank)
    step(model, optimizer)  # the bias takes no part
    model.bias.requires_grad_(True)
    expect_difference(model, optimizer, "bias")


@pytest.mark.parametrize("kind", KINDS[2:])
@ranks.on(2)
def test_other_values_of_a_replaced_parameter_raise(rank: int, count: int, kind: str) -> None:
    model, optimizer = after_a_step(kind)
    former, model.bias = model.bias, torch.nn.Parameter(torch.full((64,), float(rank)))
    for group in optimizer.param_groups:
        group["params"] = [model.bias if one is former else one for one in group["params"]]
    if kind != "DistributedOptimizer":
        step(model, optimizer)  # notices the replacement
    with pytest.raises(tersor.InvalidArgumentError, match="different values of bias: load"):
        step(model, optimizer)


@pytest.mark.parametrize("kind", KINDS[2:])
@ranks.on(2)
def test_loading_a_state_on_one_rank_compares_on_all_ranks(
    rank: int, count: int, kind: str
) -> None:
    model, optimizer = after_a_step(kind)
    if rank == 1:
        optimizer._presence.compare_again()
    with torch.no_grad():
        model.bias[3] += rank * 1e-3
    expect_difference(model, optimizer, "bias")


@pytest.mark.parametrize("kind", KINDS[2:])
@ranks.on(2)
def test_different_learning_rates_are_warned_of(rank: int, count: int, kind: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 64)
    optimizer = optimizer_of(kind, model)
    for one in optimizer.param_groups:
        one["lr"] *= 1 + rank
    with mock.patch.object(exchange, "_STEPS_BETWEEN_CHECKS", 3):
        for _ in range(3):
            step(model, optimizer)
        with pytest.warns(UserWarning, match="have different values of bias, weight: a rank"):
            step(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(model, optimizer)


@ranks.on(2)
def test_dtypes_without_a_codec_are_compared_too(rank: int, count: int) -> None:
    model = torch.nn.ParameterDict({
        "wide": torch.zeros(3, dtype=torch.float64),
        "imaginary": torch.full((2,), rank * 1j),
        "plain": torch.zeros(300, 20),
    })  # fmt: skip
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tersor.torch.DistributedOptimizer(inner, model.named_parameters(), codec="int8")
    for one in model.values():
        one.grad = torch.ones_like(one)
    with pytest.raises(tersor.InvalidArgumentError, match="different values of imaginary: load"):
        optimizer.step()
