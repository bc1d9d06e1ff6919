"""Ranks are killed in a training by an optimizer or DiLoCo, and the other ranks continue."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import ranks
import tersor
import tersor.torch

RANKS, STEPS, LOST_STEP = 4, 6, 3
RATE = 0.1


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def named_weights() -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    shapes = {"matrix": (64, 96), "vector": (50,), "late": (7,)}
    weights = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    weights["late"].requires_grad_(False)
    return weights


def gradient_of(rank: int, step: int) -> float:
    return (rank + 1.0) * (step + 1.0) / 100


def backward(weights: Mapping[str, torch.nn.Parameter], rank: int, step: int) -> None:
    """Adds the same gradient to all values."""
    if step == STEPS - 1:
        weights["late"].requires_grad_(True)
    trained = [one for one in weights.values() if one.requires_grad]
    (gradient_of(rank, step) * sum(one.sum() for one in trained)).backward()


def zero(weights: Mapping[str, torch.nn.Parameter]) -> None:
    for one in weights.values():
        one.grad = None


def flat(weights: Mapping[str, torch.Tensor]) -> list[float]:
    return torch.cat([one.detach().flatten() for one in weights.values()]).tolist()


def survivors(body: Callable[..., Any], victim: int, *args: Any) -> list[Any]:
    """Returns the results of the remaining ranks."""
    found = ranks.outcomes(body, RANKS, victim, *args)
    others = [one for rank, one in enumerate(found) if rank != victim]
    for one in others:
        assert one.error is None, one.traceback
    assert found[victim].value is None
    return [one.value for one in others]


def train(
    optimizer: Any, weights: dict[str, torch.nn.Parameter], rank: int, victim: int, dies: str
) -> list[int]:
    """Returns the steps that RanksLostError discarded. The training repeats these steps. `dies`:
    "before" or "after" the victim's backward pass."""
    voided = []
    step = 0
    while step < STEPS:
        if (rank, step, dies) == (victim, LOST_STEP, "before"):
            killed()
        zero(weights)
        if hasattr(optimizer, "_samples") and optimizer._samples.weighted:
            optimizer.samples = rank + 1
        backward(weights, rank, step)
        if (rank, step) == (victim, LOST_STEP):
            killed()
        try:
            optimizer.step()
        except tersor.RanksLostError as lost:
            voided.append((step, lost.last_step, lost.members))
            optimizer.resume()
            continue
        step += 1
    left = [one for one in range(RANKS) if one != victim]
    assert optimizer.members == left
    assert voided in ([], [(LOST_STEP, LOST_STEP, left)])
    return [step for step, *_ in voided]


def by_sgd(rank: int, _: int, victim: int, dies: str, weighted: bool) -> list[float]:
    weights = named_weights()
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(weights.values(), lr=RATE),
        weights.items(),
        codec="none",
        elastic=True,
        weighted=weighted,
    )
    assert train(optimizer, weights, rank, victim, dies) == [LOST_STEP]
    with pytest.raises(tersor.InvalidArgumentError, match="portable"):
        optimizer.residual_state_dict()
    assert optimizer.residual_state_dict("portable")["ranks"] == RANKS - 1
    return flat(weights)


def mean_of(step: int, victim: int, weighted: bool = False) -> float:
    left = [one for one in range(RANKS) if step < LOST_STEP or one != victim]
    samples = {one: one + 1 if weighted else 1 for one in left}
    return sum(samples[one] * gradient_of(one, step) for one in left) / sum(samples.values())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("victim", [0, 2])
def test_sgd_continues_with_the_mean_of_the_remaining_ranks(
    victim: int, dies: str, weighted: bool
) -> None:
    found = survivors(by_sgd, victim, dies, weighted)
    assert all(one == found[0] for one in found)
    moved = torch.tensor(flat(named_weights())) - torch.tensor(found[0])
    *before, last = (RATE * mean_of(step, victim, weighted) for step in range(STEPS))
    expected = torch.full_like(moved, sum(before) + last)
    expected[-7:] = last  # what was unfrozen for the last step
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)


def by_compressed(rank: int, _: int, victim: int, kind: str, on_loss: str) -> list[float]:
    weights = named_weights()
    make = getattr(tersor.torch, kind)
    optimizer = make(
        weights.items(), lr=0.01, codec="hadamard:bits=1+ef", elastic=True, on_loss=on_loss
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        voided = train(optimizer, weights, rank, victim, "after")
    assert voided == ([LOST_STEP] if on_loss == "raise" else [])
    repeated = [one.filename for one in told if "is repeated" in str(one.message)]
    assert bool(repeated) == (on_loss == "continue")
    assert set(repeated) <= {__file__}  # the program's line, not a line of PyTorch
    assert int(optimizer.state[weights["matrix"]]["step"]) == STEPS
    with pytest.raises(tersor.InvalidArgumentError, match="portable"):
        optimizer.state_dict()
    state = optimizer.state_dict("portable")
    optimizer.load_state_dict(state)
    return flat(weights)


@pytest.mark.parametrize("on_loss", ["raise", "continue"])
@pytest.mark.parametrize("kind", ["CompressedAdamW", "CompressedMuon", "CompressedSGD"])
def test_compressed_optimizers_continue_equally_after_a_loss(kind: str, on_loss: str) -> None:
    found = survivors(by_compressed, 1, kind, on_loss)
    assert all(one == found[0] for one in found)


def by_sgd_that_goes_on(rank: int, _: int, victim: int) -> list[float]:
    weights = named_weights()
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(weights.values(), lr=RATE),
        weights.items(),
        codec="none",
        elastic=True,
        on_loss="continue",
    )
    with pytest.warns(UserWarning, match="The step is skipped"):
        assert train(optimizer, weights, rank, victim, "after") == []
    return flat(weights)


def test_sgd_with_on_loss_continue_skips_the_lost_step() -> None:
    found = survivors(by_sgd_that_goes_on, 1)
    assert all(one == found[0] for one in found)
    moved = torch.tensor(flat(named_weights())) - torch.tensor(found[0])
    taken = [step for step in range(STEPS) if step != LOST_STEP]
    expected = sum(RATE * mean_of(step, 1) for step in taken)
    assert float(moved[0]) == pytest.approx(expected, rel=1e-4)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, one in named_weights().items():
            self.register_parameter(name, one)


def by_diloco(
    rank: int, _: int, victim: int, options: dict[str, Any], on_loss: str
) -> tuple[int, list[float]]:
    model = Model()
    weights = dict(model.named_parameters())
    outer = tersor.torch.DiLoCo(
        model, sync_every=4, codec="int8+ef", elastic=True, on_loss=on_loss, **options
    )
    losses = 0
    for step in range(24):
        if step == 17:
            weights["late"].requires_grad_(True)
        with torch.no_grad():
            for one in weights.values():
                if one.requires_grad:
                    one.sub_(gradient_of(rank, step))
        if rank == victim and step == 9:
            killed()
        try:
            outer.step()
        except tersor.RanksLostError as lost:
            losses += victim not in lost.members
            outer.resume()
    outer.synchronize()
    assert len(outer.members) == RANKS - 1
    with pytest.raises(tersor.InvalidArgumentError, match="portable"):
        outer.state_dict()
    outer.load_state_dict(outer.state_dict("portable"))
    assert flat(outer.common_parameters()) == flat(weights)
    return losses, flat(weights)


def by_sgd_with_a_slow_first_step(rank: int, _: int, victim: int) -> list[int]:
    weights = named_weights()
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(weights.values(), lr=RATE),
        weights.items(),
        codec="none",
        elastic=True,
        on_loss="continue",
    )
    if rank == victim:
        killed()
    time.sleep(0 if rank == 3 else 7)  # an agreement takes up to 4 seconds
    backward(weights, rank, 0)
    optimizer.step()
    return optimizer.members


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is skipped")
def test_ranks_that_compute_before_the_first_step_remain_after_a_loss() -> None:
    found = survivors(by_sgd_with_a_slow_first_step, 2)
    assert found == [[0, 1, 3]] * 3


def by_optimizer_with_late_rank(rank: int, _: int, late: int, on_loss: str) -> list[float]:
    weights = named_weights()
    optimizer = tersor.torch.CompressedAdamW(
        weights.items(), lr=0.01, elastic=True, on_loss=on_loss, timeout=3.0
    )
    repeated = 0
    for step in range(STEPS):
        zero(weights)
        backward(weights, rank, step)
        if (rank, step) == (late, LOST_STEP):
            time.sleep(4)
        try:
            optimizer.step()
        except tersor.RanksLostError as lost:
            repeated += "a rank was late" in str(lost)
            optimizer.resume()
            optimizer.step()
    assert repeated == (on_loss == "raise")
    assert optimizer.members == list(range(RANKS))
    assert int(optimizer.state[weights["matrix"]]["step"]) == STEPS
    return flat(weights)


@pytest.mark.filterwarnings("ignore:.*is repeated")
@pytest.mark.parametrize("on_loss", ["raise", "continue"])
def test_step_with_a_late_rank_is_repeated(on_loss: str) -> None:
    found = ranks.run(by_optimizer_with_late_rank, RANKS, 1, on_loss)
    assert all(one == found[0] for one in found)


@pytest.mark.filterwarnings("ignore:.*is repeated")
@pytest.mark.parametrize("on_loss", ["raise", "continue"])
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "fragment_sync_delay": 1}])
def test_diloco_continues_equally_after_a_loss(options: dict[str, Any], on_loss: str) -> None:
    found = survivors(by_diloco, 1, options, on_loss)
    assert all(one == found[0] for one in found)
    assert found[0][0] == (on_loss == "raise")


def too_few(rank: int, _: int) -> str:
    weights = named_weights()
    optimizer = tersor.torch.CompressedAdamW(weights.items(), elastic=True)
    for step in range(2):
        backward(weights, rank, step)
        if step == 1 and rank in (0, 2, 3):
            killed()
        try:
            optimizer.step()
        except tersor.RanksLostError as lost:
            with pytest.raises(tersor.InvalidArgumentError, match="min_ranks"):
                optimizer.resume()
            return str(lost)
    return ""


def test_last_remaining_rank_cannot_resume() -> None:
    found = ranks.outcomes(too_few, RANKS)
    assert found[1].error is None, found[1].traceback
    assert "too few" in found[1].value


def wrong_options(rank: int, count: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    weights = named_weights()
    with pytest.raises(tersor.InvalidArgumentError, match="needs elastic=True"):
        tersor.torch.CompressedAdamW(weights.items(), on_loss="continue")
    with pytest.raises(tersor.InvalidArgumentError, match='"raise" or "continue"'):
        tersor.torch.CompressedAdamW(weights.items(), elastic=True, on_loss="stop")
    optimizer = tersor.torch.CompressedAdamW(weights.items(), elastic=True)
    with pytest.raises(tersor.InvalidArgumentError, match="no rank was lost"):
        optimizer.resume()
    double = {"double": torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))}
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        tersor.torch.DistributedOptimizer(
            torch.optim.SGD(double.values(), lr=RATE), double.items(), elastic=True
        )
    mesh = init_device_mesh("cpu", (1, count), mesh_dim_names=("between", "within"))
    shards = {"sharded": torch.nn.Parameter(distribute_tensor(torch.zeros(8, 8), mesh["within"]))}
    alone = mesh["between"].get_group()
    with pytest.raises(tersor.InvalidArgumentError, match="sharded is sharded"):
        tersor.torch.CompressedAdamW(shards.items(), process_group=alone, elastic=True)
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    with pytest.raises(tersor.InvalidArgumentError, match="torchft"):
        tersor.torch.compress(model, codec="int8", elastic=True)


def test_unsupported_elastic_options_raise() -> None:
    ranks.run(wrong_options, 2)


def dies_in(exchange: Any, rank: int, victim: int) -> None:
    """The victim dies in the next call of ``hold``, while a new parameter is taken in."""
    if rank == victim:
        exchange.register = lambda *_, **__: killed()


def by_optimizer_with_newcomer(rank: int, _: int, victim: int, kind: str) -> list[float]:
    weights = named_weights()
    weights["late"] = torch.nn.Parameter(torch.ones(7, 5), requires_grad=False)
    options: dict[str, Any] = {"elastic": True, "on_loss": "continue"}
    if kind == "DistributedOptimizer":
        optimizer: Any = tersor.torch.DistributedOptimizer(
            torch.optim.SGD(weights.values(), lr=RATE), weights.items(), codec="int8+ef", **options
        )
    else:
        optimizer = getattr(tersor.torch, kind)(weights.items(), lr=0.01, **options)
    for step in range(STEPS - 2, STEPS + 2):
        if step == STEPS - 1:
            dies_in(optimizer._exchange, rank, victim)
        backward(weights, rank, step)
        optimizer.step()
        optimizer.zero_grad()
    assert {one.name for one in optimizer.statistics()} == weights.keys()
    assert torch.all(weights["late"] != 1)
    return flat(weights)


@pytest.mark.filterwarnings("ignore:.*is (repeated|skipped)")
@pytest.mark.parametrize("kind", ["CompressedAdamW", "CompressedMuon", "DistributedOptimizer"])
def test_optimizers_add_a_new_parameter_despite_a_rank_loss(kind: str) -> None:
    found = survivors(by_optimizer_with_newcomer, 1, kind)
    assert all(one == found[0] for one in found)


def by_diloco_with_newcomer(rank: int, _: int, victim: int) -> list[float]:
    model = Model()
    weights = dict(model.named_parameters())
    outer = tersor.torch.DiLoCo(
        model, sync_every=1, codec="int8+ef", elastic=True, on_loss="continue"
    )
    for step in range(4):
        if step == 1:
            weights["late"].requires_grad_(True)
            dies_in(outer._exchange, rank, victim)
        with torch.no_grad():
            for one in weights.values():
                if one.requires_grad:
                    one.sub_(gradient_of(rank, step))
        outer.step()
    assert list(outer.common_parameters()) == list(weights)
    assert [one.name for one in outer.statistics()] == list(weights)
    return flat(weights)


@pytest.mark.filterwarnings("ignore:.*is repeated")
def test_diloco_adds_a_new_parameter_despite_a_rank_loss() -> None:
    found = survivors(by_diloco_with_newcomer, 1)
    assert all(one == found[0] for one in found)
