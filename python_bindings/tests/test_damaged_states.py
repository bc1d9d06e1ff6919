"""Damaged states, and saves of different steps on different ranks, for all handles."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import pytest
import torch
from handles import HANDLES, Training, equal, equal_on_ranks
from torch import Tensor
from torch.distributed.tensor import DTensor

import ranks
import tersor
from tersor.torch._src.ft.residuals import Positions

MUTATIONS = int(os.environ.get("TERSOR_STATE_MUTATIONS", "40"))
every_handle = pytest.mark.parametrize("name", HANDLES)

BAD: list[Any] = [None, "x", -1, 2**32, 2**70, 1.5, float("nan"), [], {}, [7], [0], [None] * 4]
BAD += [torch.zeros(3), torch.full((2, 3), torch.nan), torch.zeros(1, 1, dtype=torch.complex64)]


def places(state: Any, seen: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each entry, at any depth."""
    items: Any = ()
    if isinstance(state, Mapping):
        items = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    for key, one in items:
        yield (*seen, key)
        yield from places(one, (*seen, key))


def damaged(state: Any, rng: random.Random) -> tuple[Any, str]:
    """Returns a copy with a changed or missing entry, and the name of the entry."""
    path = rng.choice(list(places(state)))
    changed = parent = copy.deepcopy(state)
    for key in path[:-1]:
        parent = parent[key]
    bad = rng.choice(BAD)
    key, what = path[-1], f"{path}: {bad}"
    if isinstance(parent, MutableMapping | MutableSequence) and rng.random() < 0.2:
        del parent[key]
        return changed, f"{path} is missing"
    if isinstance(parent, tuple):
        return bad, what
    if isinstance(parent[key], Tensor) and rng.random() < 0.5:
        value = parent[key]
        local = value.to_local() if isinstance(value, DTensor) else value
        if local.is_floating_point() and local.numel():
            local.view(-1)[rng.randrange(local.numel())] = rng.choice([torch.nan, torch.inf])
    else:
        parent[key] = bad
    return changed, what


def flat(state: Any) -> list[Any]:
    """Returns values for comparisons with ``==``."""
    found = []
    for path in places(state):
        one = state
        for key in path:
            one = one[key]
        if isinstance(one, DTensor):
            one = one.to_local()
        if not isinstance(one, Mapping | list | tuple):
            found.append((path, one.nan_to_num().tolist() if isinstance(one, Tensor) else one))
    return found


@every_handle
@ranks.on(1)
def test_damaged_state_is_rejected_and_changes_nothing(rank: int, count: int, name: str) -> None:
    training, rng = HANDLES[name](), random.Random(1)
    training.steps(rank, range(3))
    good = copy.deepcopy(training.state())
    before, refused = flat(good), 0
    for _ in range(MUTATIONS):
        state, what = damaged(good, rng)
        try:
            training.load(state)
        except tersor.InvalidArgumentError:
            refused += 1
            assert flat(training.state()) == before, what
        except Exception as error:
            raise AssertionError(what) from error
        else:
            training.load(copy.deepcopy(good))
    assert refused > MUTATIONS / 2
    for state in ([1], "x", 5, 0, ""):
        with pytest.raises(tersor.InvalidArgumentError):
            training.load(state)  # type: ignore[arg-type]
    training.step(rank, 3)


def with_value(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the state with another value."""
    changed = parent = copy.deepcopy(state)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return changed


def bad_moments(key: str, good: Tensor) -> Iterator[Tensor]:
    """Values that no moment or step of an optimizer can have."""
    yield from (torch.full_like(good, bad) for bad in (torch.nan, torch.inf))
    yield from (good.to(torch.int8), good.to(torch.bool))
    yield from [good.T.contiguous()] if good.dim() == 2 else []
    yield from [-good - 1] if key in ("exp_avg_sq", "step") else []
    yield from [good + 0.5, good + 2.0**40] if key == "step" else []


COMPRESSED = ("CompressedAdamW", "CompressedMuon", "CompressedSGD")
BAD_OPTIONS: dict[str, list[Any]] = {
    "lr": [-1, torch.nan, torch.inf, True, None],
    "weight_decay": [-1, True],
    "momentum": [1.9, -1, True, None],
    "sent_momentum": [1.5, True],
    "betas": [(0.9, 1.0), (0.9,)],
    "eps": [-1e-8],
    "ns_steps": [0, 1.5, True],
}


@pytest.mark.parametrize("mode", ["exact", "portable"])
@pytest.mark.parametrize("name", COMPRESSED)
@ranks.on(1)
def test_invalid_moments_and_options_are_rejected(
    rank: int, count: int, name: str, mode: str
) -> None:
    training = HANDLES[name]()
    training.steps(rank, range(3))
    good = copy.deepcopy(training.state(mode))
    before, bad = flat(good), []
    for path in places(good):
        value, own = good, path[:3] == ("param_groups", 0, "tersor")
        for key in path:
            value = value[key]
        if isinstance(value, Tensor) and path[0] == "state":
            bad += [(path, one) for one in bad_moments(path[-1], value)]
        elif isinstance(value, Tensor) and own and path[3] in ("variances", "momenta"):
            bad.append((path, value * torch.nan))
            bad += [(path, -1 - value)] if path[3] == "variances" else []
        elif path[0] == "param_groups" and path[-1] in BAD_OPTIONS:
            bad += [(path, one) for one in BAD_OPTIONS[path[-1]]]
    assert len(bad) > 30
    for path, value in bad:
        with pytest.raises(tersor.InvalidArgumentError):
            training.load(with_value(good, path, value))
    for group in (0, -1):
        state = copy.deepcopy(good)
        del state["param_groups"][group]["lr"]
        with pytest.raises(tersor.InvalidArgumentError):
            training.load(state)
    assert flat(training.state(mode)) == before


def load_mixed(rank: int, training: Training) -> str:
    """The error of the step after each rank has loaded the save of another step."""
    saves = []
    for step in range(3):
        training.step(rank, step)
        saves.append(copy.deepcopy(training.state()))
    training.load(saves[2 * rank])
    with pytest.raises(tersor.TransportError) as error:
        training.step(rank, 3)
    return str(error.value)


@every_handle
@ranks.on(2)
def test_error_names_states_of_different_steps(rank: int, count: int, name: str) -> None:
    options = {"sync_every": 1} if name == "DiLoCo" else {}
    error = load_mixed(rank, HANDLES[name](**options))
    assert "rank 0 loaded the exact state of step 1, rank 1 the exact state of step 3" in error


@pytest.mark.parametrize("mode", ["exact", "portable"])
@pytest.mark.parametrize("name", [*COMPRESSED, "DiLoCo", "DistributedOptimizer"])
@ranks.on(2)
def test_mixed_states_of_two_runs_are_rejected(rank: int, count: int, name: str, mode: str) -> None:
    runs = []
    for first in (0, 10):
        training = HANDLES[name]()
        training.steps(rank, range(first, first + 3))
        runs.append((copy.deepcopy(training.state(mode)), training))
    (other, _), (same, training) = runs
    weights, found = copy.deepcopy(training.layers.state_dict()), []
    for _ in range(2):
        training.layers.load_state_dict(weights)
        if name == "DiLoCo":
            training.optimizer.state.clear()
        training.load(copy.deepcopy(same))
        training.steps(rank, range(3, 5))
        assert equal_on_ranks(training.weights())
        found.append(training.weights())
    assert equal(*found)
    training.load(copy.deepcopy(same if rank else other))
    words = f"rank 0 loaded the {mode} state of step 3, rank 1 another {mode} state of step 3"
    with pytest.raises(tersor.TransportError, match=words):
        training.step(rank, 3)


@pytest.mark.parametrize(
    "state",
    [{"0": torch.zeros(3)}, {"x.y": torch.zeros(3)}, {"0.-1": torch.zeros(3)}, {"0.0": None}, [1]],
)
def test_damaged_torchft_residuals_are_rejected_and_change_nothing(state: Any) -> None:
    kept = Positions({}, 1, lambda: 0)
    kept.load_state_dict({"0.0": torch.ones(3)})
    for bad in (state, {"0.0": torch.tensor([1.0, torch.nan])}):
        with pytest.raises(tersor.InvalidArgumentError):
            kept.load_state_dict(bad)
        assert kept.state_dict()["0.0"].tolist() == [1, 1, 1]
