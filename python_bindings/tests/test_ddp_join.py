"""DDP's ``join`` with compressed gradients, for ranks with fewer inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch

WIDTH, RANKS = 96, 3
CODECS = ["none", "int8+ef", "topk:density=0.1+ef", "hadamard:bits=1+ef"]
PASSES = [2, 0, 5]  #: of each rank
WAYS = ["compress", "HookState"]


class Model(nn.Module):
    """A model. ``odd``: the second layer is float64. A pass may leave out the third layer."""

    def __init__(self, *, odd: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        if odd:
            self.second = self.second.double()

    def forward(self, inputs: Tensor, *, third: bool = True) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).to(self.second.weight.dtype)).float()
        return self.third(outputs) if third else outputs


def wrap(way: str, *, odd: bool = False, **options: Any) -> tuple[DistributedDataParallel, Any]:
    unused = options.pop("find_unused_parameters", False)
    model = DistributedDataParallel(
        Model(odd=odd), bucket_cap_mb=0.04, find_unused_parameters=unused
    )
    if way == "DDP":
        return model, None
    if way == "compress":
        return model, tersor.torch.compress(model, **options)
    state = tersor.torch.HookState(**options)
    model.register_comm_hook(state, tersor.torch.hook)
    return model, state


def inputs(rank: int, step: int, rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def flat(model: nn.Module) -> Tensor:
    found = [one.grad for one in model.parameters() if one.grad is not None]
    return torch.cat([one.flatten().double() for one in found])


def joined(
    rank: int, way: str, options: dict[str, Any], *, divides: bool = True, third: bool = True
) -> list[Tensor]:
    """Returns the gradients of each pass of this rank, weighted if ``options`` has ``weighted``."""
    model, handle = wrap(way, find_unused_parameters=not third, **options)
    found = []
    with model.join(divide_by_initial_world_size=divides):
        for step in range(PASSES[rank]):
            model.zero_grad()
            if options.get("weighted"):
                handle.samples = rank + 1
            used = third or step % 2 == 0
            model(inputs(rank, step, rank + 1), third=used).square().mean().backward()
            found.append(flat(model))
    if handle is not None:
        assert handle.reducer.statistics().steps == max(PASSES)
    return found


def mean_of(step: int, weights: list[float], *, odd: bool = False) -> Tensor:
    """Returns the mean over ranks with inputs, by weight."""
    mean = torch.zeros(())
    for rank, weight in enumerate(weights):
        if step < PASSES[rank]:
            model = Model(odd=odd)
            model(inputs(rank, step, rank + 1)).square().mean().backward()
            mean = mean + weight * flat(model)
    return mean


def alike(rank: int, _: int, way: str, codec: str) -> None:
    plain = joined(rank, "DDP", {})
    found = joined(rank, way, {"codec": codec})
    for step, (one, other) in enumerate(zip(found, plain, strict=True)):
        torch.testing.assert_close(other, mean_of(step, [1 / RANKS] * RANKS), rtol=1e-4, atol=1e-6)
        if codec == "none":
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        else:
            assert torch.cosine_similarity(one, other, dim=0) > 0.3


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("way", WAYS)
def test_finished_ranks_contribute_zeros(way: str, codec: str) -> None:
    ranks.run(alike, RANKS, way, codec)


def owes(rank: int, _: int, codec: str) -> None:
    """All given gradients arrive in the end. The residuals of a finished rank are neither lost nor
    sent twice."""
    model, handle = wrap("compress", codec=codec)
    given, arrived = torch.zeros(()), torch.zeros(())
    with model.join():
        for step in range(2 + 40 * (rank != 1)):
            model.zero_grad()
            model(inputs(rank, step % 2, 8)).square().mean().backward()
            arrived = arrived + flat(model)
    norm = handle.reducer.residual_norms()
    assert all(one < 1e3 for one in norm)
    if rank == 1:
        return
    for step in range(42):
        for one in range(RANKS):
            if one != 1 or step < 2:
                alone = Model()
                alone(inputs(one, step % 2, 8)).square().mean().backward()
                given = given + flat(alone) / RANKS
    assert (arrived - given).norm() < 0.15 * given.norm()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_residuals_of_finished_ranks_arrive(codec: str) -> None:
    ranks.run(owes, RANKS, codec)


def weighed(rank: int, _: int, way: str, divides: bool, odd: bool) -> None:
    options = {"codec": "none", "weighted": True, "odd": odd}
    for step, found in enumerate(joined(rank, way, options, divides=divides)):
        samples = [one + 1.0 if step < PASSES[one] else 0.0 for one in range(RANKS)]
        wanted = mean_of(step, [one / sum(samples) for one in samples], odd=odd)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*uncompressed")
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_finished_ranks_have_no_sample_weight(way: str, divides: bool, odd: bool) -> None:
    ranks.run(weighed, RANKS, way, divides, odd)


def refused(rank: int, _: int, way: str, codec: str) -> None:
    with pytest.raises(tersor.Error, match="divide_by_initial_world_size=False"):
        joined(rank, way, {"codec": codec}, divides=False)


@pytest.mark.parametrize("way", WAYS)
def test_mean_over_remaining_ranks_requires_weights(way: str) -> None:
    ranks.run(refused, RANKS, way, "int8+ef")


def unused(rank: int, _: int, weighted: bool) -> None:
    options: dict[str, Any] = {"codec": "none", "weighted": weighted}
    found = joined(rank, "compress", options, divides=True, third=False)
    plain = joined(rank, "DDP", {}, third=False)
    if not weighted:
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_unused_parameters(weighted: bool) -> None:
    ranks.run(unused, RANKS, weighted)


# Outside of join nothing has changed for a pass that forgets, and static graphs are in a pass.
@ranks.on(2)
def test_static_graph_uses_samples(rank: int, count: int) -> None:
    model = DistributedDataParallel(Model(), static_graph=True, bucket_cap_mb=0.04)
    handle = tersor.torch.compress(model, codec="none", weighted=True)
    for step in range(3):
        model.zero_grad()
        handle.samples = 1 + 2 * rank
        model(inputs(rank, step, rank + 1)).square().mean().backward()
        parts = []
        for one in range(count):
            alone = Model()
            alone(inputs(one, step, one + 1)).square().mean().backward()
            parts.append(flat(alone) * (1 + 2 * one) / 4)
        torch.testing.assert_close(flat(model), sum(parts), rtol=1e-4, atol=1e-6)
    with pytest.raises(tersor.InvalidArgumentError, match="set samples before"):
        model(inputs(rank, 3, 1)).square().mean().backward()
