"""Parameters and gradients with another memory order than the order of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch

ROWS, COLUMNS = 128, 96
NONE: dict[str, Any] = {"rules": [("*", "none")]}
LOW_RANK: dict[str, Any] = {"rules": [("*", "lowrank:rank=1")]}


def of_rank_one(rank: int = 0) -> Tensor:
    """Returns a matrix without an error by ``lowrank:rank=1``."""
    generator = torch.Generator().manual_seed(rank)
    draw = [torch.randn(count, 1, generator=generator) for count in (ROWS, COLUMNS)]
    return draw[0] @ draw[1].t()


Lay = Callable[[Tensor], Tensor]


def rows_first(matrix: Tensor) -> Tensor:
    return matrix.contiguous()


def columns_first(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous().t()


def with_gaps(matrix: Tensor) -> Tensor:
    return torch.cat([matrix, matrix], dim=1)[:, : matrix.shape[1]]


def channels_last(matrix: Tensor) -> Tensor:
    """As the weights of a convolution."""
    weights = matrix.view(len(matrix), -1, 2, 2)
    return weights.contiguous(memory_format=torch.channels_last)


class One(nn.Module):
    """A parameter with the model's argument as the gradient."""

    def __init__(self, lay: Lay) -> None:
        super().__init__()
        self.weight = nn.Parameter(lay(torch.zeros(ROWS, COLUMNS)))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient.view(self.weight.shape)).sum()


def error_of(found: Tensor, wanted: Tensor) -> float:
    return float((found.reshape(wanted.shape) - wanted).norm() / wanted.norm())


LAYS = [rows_first, columns_first, with_gaps, channels_last]
SOME = pytest.mark.parametrize("lay", LAYS)


def under_ddp(rank: int, count: int, lay: Lay, bound: bool, options: dict[str, Any]) -> float:
    model = DistributedDataParallel(One(lay))
    if bound:
        tersor.torch.compress(model, **options)
    else:
        state = tersor.torch.HookState(model, **options)
        model.register_comm_hook(state, tersor.torch.hook)
    for _ in range(3):  # DDP rebuilds its buckets
        model.zero_grad()
        model(of_rank_one()).backward()
    assert model.module.weight.grad is not None
    return error_of(model.module.weight.grad, of_rank_one())


@SOME
@pytest.mark.parametrize("bound", [True, False])
def test_ddp_sends_matrices_in_memory_order(lay: Lay, bound: bool) -> None:
    assert max(ranks.run(under_ddp, 2, lay, bound, LOW_RANK)) < 1e-5


def lay_of(rank: int, first: Lay, second: Lay) -> Lay:
    return first if rank == 0 else second


def by_optimizer(rank: int, count: int, first: Lay, second: Lay, options: dict[str, Any]) -> float:
    """The parameter has the order ``first`` on all ranks. The gradient has the order ``second`` on
    other ranks."""
    model = One(first)
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **options
    )
    gradient = lay_of(rank, first, second)(of_rank_one()).view_as(model.weight)
    model.weight.grad = gradient
    optimizer.synchronize()
    assert model.weight.grad is gradient
    return error_of(model.weight.grad, of_rank_one())


def by_diloco(rank: int, count: int, first: Lay, second: Lay, options: dict[str, Any]) -> float:
    """The parameter itself lies otherwise on other ranks; rank 0's beginning is everybody's."""
    model = One(lay_of(rank, first, second))
    with torch.no_grad():
        model.weight += of_rank_one(rank).view_as(model.weight)
    outer = tersor.torch.DiLoCo(
        model, sync_every=1, outer_optimizer=tersor.torch.diloco.averaging, **options
    )
    begun = error_of(model.weight.detach(), of_rank_one())
    with torch.no_grad():
        model.weight -= of_rank_one(1).view_as(model.weight)
    outer.step()
    return begun + error_of(model.weight.detach(), of_rank_one() - of_rank_one(1))


def by_adamw(rank: int, count: int, first: Lay, second: Lay, options: dict[str, Any]) -> float:
    """Makes the first step of AdamW, which depends on the signs of the gradient."""
    model = One(lay_of(rank, first, second))
    optimizer = tersor.torch.CompressedAdamW(
        model.named_parameters(),
        lr=1.0,
        weight_decay=0.0,
        rules=[("weight", options["rules"][0][1] + "+ef")],
    )
    model(of_rank_one()).backward()
    optimizer.step()
    return error_of(model.weight.detach(), -of_rank_one().sign())


def by_allreduce(rank: int, count: int, first: Lay, second: Lay, options: dict[str, Any]) -> float:
    gradient = lay_of(rank, first, second)(of_rank_one())
    tersor.torch.all_reduce(gradient, codec="none", reduction="mean")
    return error_of(gradient, of_rank_one())


def by_broadcast(rank: int, count: int, first: Lay, second: Lay, options: dict[str, Any]) -> float:
    gradient = lay_of(rank, first, second)(of_rank_one(rank))
    tersor.torch.broadcast(gradient, src=1)
    return error_of(gradient, of_rank_one(1))


WAYS = pytest.mark.parametrize(
    "way", [by_optimizer, by_diloco, by_adamw, by_allreduce, by_broadcast]
)


def all_pairs(rank: int, count: int, way: Callable[..., float]) -> dict[str, float]:
    lays = LAYS[:2] if way is by_adamw else LAYS[:3]  # moments have no gaps
    return {
        f"{first.__name__}, {second.__name__}": way(rank, count, first, second, NONE)
        for first in lays
        for second in lays
    }


@WAYS
def test_ranks_may_use_different_memory_orders(way: Callable[..., float]) -> None:
    for errors in ranks.run(all_pairs, 2, way):
        assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("way", [by_optimizer, by_diloco, by_adamw])
@pytest.mark.parametrize("lay", [columns_first, channels_last])
def test_low_rank_matrices_stay_exact_in_any_memory_order(
    way: Callable[..., float], lay: Lay
) -> None:
    assert max(ranks.run(way, 2, lay, lay, LOW_RANK)) < 1e-4


@ranks.on(2)
def test_feedback_supports_different_memory_orders(rank: int, count: int) -> None:
    gradient = lay_of(rank, columns_first, with_gaps)(of_rank_one())
    state = tersor.torch.FeedbackState(gradient, codec="int8+ef", reduction="mean")
    total = torch.zeros_like(gradient)
    for step in range(20):
        one = gradient.clone(memory_format=torch.preserve_format)
        tersor.torch.all_reduce(one, codec="int8+ef", reduction="mean", state=state, step=step)
        total += one
    assert error_of(total / 20, of_rank_one()) < 1e-3
