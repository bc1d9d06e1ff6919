"""Damaged states, and saves of different steps on different ranks, for all handles."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import pytest
import torch
from handles import HANDLES, Training
from torch import Tensor
from torch.distributed.tensor import DTensor

import ranks
import tersor
from tersor.torch._src.ft.residuals import Places

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
def test_a_damaged_state_is_an_invalid_argument_and_changes_nothing(
    rank: int, count: int, name: str
) -> None:
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
def test_saves_of_different_steps_on_two_ranks_are_named(rank: int, count: int, name: str) -> None:
    options = {"sync_every": 1} if name == "DiLoCo" else {}
    error = load_mixed(rank, HANDLES[name](**options))
    assert "rank 0 loaded the exact state of step 1, rank 1 the exact state of step 3" in error


@pytest.mark.parametrize(
    "state",
    [{"0": torch.zeros(3)}, {"x.y": torch.zeros(3)}, {"0.-1": torch.zeros(3)}, {"0.0": None}, [1]],
)
def test_damaged_residuals_of_torchft_change_nothing(state: Any) -> None:
    kept = Places({}, 1, lambda: 0)
    kept.load_state_dict({"0.0": torch.ones(3)})
    for bad in (state, {"0.0": torch.tensor([1.0, torch.nan])}):
        with pytest.raises(tersor.InvalidArgumentError):
            kept.load_state_dict(bad)
        assert kept.state_dict()["0.0"].tolist() == [1, 1, 1]
