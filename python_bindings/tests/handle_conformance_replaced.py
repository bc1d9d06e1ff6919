"""Tests for all handles, of parameters that a program replaces (handle_conformance.py).

A handle follows the new tensor, or raises an error with the name of the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from handles import (
    EXACT,
    HANDLES,
    SGD,
    Ddp,
    Distributed,
    Training,
    batch,
    equal,
    equal_on_ranks,
    own,
)
from torch import nn

import ranks
import tersor
import tersor.torch
from tersor.torch._src.collectives.models import broadcast_model


class Neighbours(Training):
    """Two ranks mix half of each other's weights."""

    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        self.handle = tersor.torch.Gossip(self.layers, codec="none", step_size=1.0)

    def end_step(self) -> None:
        self.optimizer.step()
        self.handle.step()


EVERY: dict[str, type[Training]] = {**HANDLES, "Gossip": Neighbours}
OPTIMIZERS = ["DistributedOptimizer", "CompressedAdamW", "CompressedMuon", "CompressedSGD"]


def values(training: Training) -> dict[str, torch.Tensor]:
    """Returns new values, equal on all ranks."""
    generator = torch.Generator().manual_seed(5)
    state = training.layers.state_dict()
    found = {name: torch.randn(own(one).shape, generator=generator) for name, one in state.items()}
    return {name: found[name] * 0.1 for name in state}


def in_place(training: Training) -> None:
    with torch.no_grad():
        for name, one in values(training).items():
            own(training.layers.get_parameter(name)).copy_(one)


def by_assign(training: Training) -> None:
    new = {name: nn.Parameter(one) for name, one in values(training).items()}
    if isinstance(training, HANDLES["FSDP2"]):
        state = training.layers.state_dict()
        for name, one in values(training).items():
            state[name] = state[name].clone()
            state[name].to_local().copy_(one)
        new = state
    training.layers.load_state_dict(new, assign=True)


def by_data(training: Training) -> None:
    for name, one in values(training).items():
        training.layers.get_parameter(name).data = one


def with_new_inner_optimizer(training: Training, replace: Callable[[Training], None]) -> None:
    replace(training)
    if training.handle is not training.optimizer:
        training.optimizer = torch.optim.SGD(training.layers.parameters(), **SGD)


def check_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def check_equal_on_ranks(training: Training) -> None:
    """To the bit; among neighbours to a rounding."""
    for one in training.weights().values():
        first = one.clone()
        dist.broadcast(first, 0)
        rounding = torch.finfo(one.dtype).eps if isinstance(training, Neighbours) else 0
        torch.testing.assert_close(one, first, rtol=rounding, atol=rounding)


def trained(name: str, rank: int, replace: Callable[[Training], None]) -> dict[str, torch.Tensor]:
    training = EVERY[name](EXACT)
    training.steps(rank, range(2))
    with_new_inner_optimizer(training, replace)
    training.steps(rank, range(2, 5))
    check_equal_on_ranks(training)
    return training.weights()


ASSIGNED_IS_AN_ERROR = {"DDP", *OPTIMIZERS}


@pytest.mark.parametrize("name", EVERY)
@ranks.on(2)
def test_replaced_parameters_are_tracked_or_rejected(rank: int, count: int, name: str) -> None:
    wanted = trained(name, rank, in_place)
    if name in ASSIGNED_IS_AN_ERROR:
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"0\.weight was replaced in the model"
        ):
            trained(name, rank, by_assign)
    else:
        check_equal(trained(name, rank, by_assign), wanted)
    if name != "FSDP2":  # PyTorch gathers from the former memory
        check_equal(trained(name, rank, by_data), wanted)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "FSDP2"])
@ranks.on(2)
def test_cast_parameters_are_tracked_or_rejected(rank: int, count: int, name: str) -> None:
    """FSDP2 itself refuses a module with a cast parameter."""
    training = EVERY[name]()
    training.steps(rank, range(2))
    training.layers.bfloat16()
    training.optimizer.zero_grad()
    if name not in ("DiLoCo", "Gossip"):
        with pytest.raises(tersor.InvalidArgumentError, match=r"[02]\.(weight|bias)"):
            step_in_bfloat16(training, rank)
        return
    before = training.weights()
    for _ in range(3):
        step_in_bfloat16(training, rank)
    after = training.weights()
    assert all(not torch.equal(after[name], before[name]) for name in after)
    check_equal_on_ranks(training)


def step_in_bfloat16(training: Training, rank: int) -> None:
    training.optimizer.zero_grad()
    inputs, targets = batch(rank, 7)
    (training.model(inputs.bfloat16()) - targets).square().mean().backward()
    training.end_step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@ranks.on(2)
def test_assigned_groups_and_state_are_tracked(rank: int, count: int, name: str) -> None:
    """Assigns new parameters to the groups and the model, then a state without moments."""
    ours, reference = EVERY[name](EXACT), EVERY[name](EXACT)
    for one in (ours, reference):
        one.steps(rank, range(2))
        with_other_parameters(one) if one is ours else in_place(one)
        one.optimizer.state = defaultdict(dict)
        one.steps(rank, range(2, 5))
    assert equal(ours.weights(), reference.weights())
    assert equal_on_ranks(ours.weights())
    ours.optimizer.state_dict()
    named = [one.name for one in ours.handle.statistics()]
    assert named == [one.name for one in reference.handle.statistics()]
    with_other_parameters(ours, width=66)
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"0\.weight was replaced .* another shape"
    ):
        ours.end_step()


def with_other_parameters(training: Training, width: int = 65) -> None:
    first, last = nn.Linear(90, width), nn.Linear(width, 3)
    new = nn.Sequential(first, nn.Tanh(), last)
    if width == 65:
        new.load_state_dict(values(training))
    other = dict(zip(training.layers.parameters(), new.parameters(), strict=True))
    training.layers[0], training.layers[2] = first, last
    training.optimizer.param_groups = [
        {**group, "params": [other[one] for one in group["params"]]}
        for group in training.optimizer.param_groups
    ]


class Buffered(nn.Module):
    """On each rank other values: of a frozen parameter and of buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        rank = float(dist.get_rank())
        self.trained = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.full((3,), rank), requires_grad=False)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("wide", torch.full((2,), rank).double(), persistent=False)
        self.register_buffer("steps", torch.tensor(int(rank)))
        self.norm.running_mean.fill_(rank)


@ranks.on(2)
def test_diloco_broadcasts_frozen_parameters_and_buffers_from_rank_0(rank: int, count: int) -> None:
    model = Buffered()
    tersor.torch.DiLoCo(model)
    for one in (model.frozen, model.norm.running_mean, model.wide, model.steps):
        assert not one.any()
    assert equal_on_ranks(dict(model.named_parameters()))
    again = Buffered()
    broadcast_model(again, None, 60)
    assert not any(bool(one.any()) for one in (again.frozen, again.wide, again.steps))


@ranks.on(2)
def test_functional_call_of_a_ddp_model_skips_replacement_check(rank: int, count: int) -> None:
    training = Ddp()
    training.steps(rank, range(2))
    other = {name: one * 2 for name, one in training.layers.state_dict().items()}
    inputs, _ = batch(rank, 0)
    with torch.no_grad():
        named = {f"module.{name}": nn.Parameter(one) for name, one in other.items()}
        evaluated = torch.func.functional_call(training.model, named, (inputs,))
    training.layers.load_state_dict(other)
    assert torch.equal(evaluated, training.model(inputs))


@ranks.on(1)
def test_removing_a_parameter_from_the_model_is_allowed(rank: int, count: int) -> None:
    training = Distributed(EXACT)
    training.step(rank, 0)
    training.layers.append(nn.Linear(3, 3))  # of no optimizer
    del training.layers[2].bias
    training.layers[2].register_parameter("bias", None)
    training.step(rank, 1)
