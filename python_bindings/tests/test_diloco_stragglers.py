"""DiLoCo with late ranks: no rank waits for a late rank, and a late rank loses nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from diloco_models import equal_on_ranks, flat, make_model, mean_of_ranks, move

import ranks
import tersor
import tersor.torch
from tersor.torch.diloco import DiLoCo, averaging

LONG = 120.0  # nobody is late
EXACT: dict[str, Any] = {"rules": [("*", "none")], "outer_optimizer": averaging}


def common(outer: DiLoCo) -> torch.Tensor:
    return torch.cat([one.reshape(-1) for one in outer.common_parameters().values()])


def step_late(outer: DiLoCo, *, changes: bool = True) -> None:
    """Makes a step after the thread has completed an exchange, possibly called by other ranks."""
    common(outer)
    assert outer.step() == changes


def moved_by(seed: int) -> torch.Tensor:
    model = make_model()
    before = flat(model)
    move(model, seed)
    return flat(model) - before


def close_to(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@ranks.on(3)
def test_synchronous_ranks_match_plain_diloco_bit_for_bit(rank: int, count: int) -> None:
    found = []
    for grace in (None, LONG):
        model = make_model()
        outer = DiLoCo(
            model, sync_every=2, codec="int4+ef", error_decay=0.9, straggler_timeout=grace
        )
        changed = []
        for step in range(6):
            move(model, seed=10 * step + rank)
            dist.barrier()
            changed.append(outer.step())
        outer.synchronize()
        assert changed == 3 * [False, True]
        found.append((flat(model), common(outer), outer.reducer.residual_norms()))
        outer.close()
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


@pytest.mark.parametrize("samples", [None, 5.0])
@ranks.on(2)
def test_differences_are_weighted_by_steps_or_samples(
    rank: int, count: int, samples: float | None
) -> None:
    model = make_model()
    start = flat(model)
    outer = DiLoCo(model, sync_every=3, straggler_timeout=LONG, **EXACT)
    if samples and rank == 1:
        outer.samples = samples
    steps = 3 if rank == 0 else 1  # rank 0 calls, rank 1 joins
    moves = sum(moved_by(10 * step + rank) for step in range(steps))
    for step in range(steps):
        move(model, seed=10 * step + rank)
        outer.step()
    outer.synchronize()
    weights = [3.0, samples or 1.0]
    mean = count * mean_of_ranks(weights[rank] * moves) / sum(weights)
    close_to(flat(model), start + mean)
    assert torch.equal(flat(model), common(outer))
    outer.close()


def late(outer: DiLoCo, model: torch.nn.Module, rank: int, plan: list[bool]) -> list[torch.Tensor]:
    """Trains in rounds, and returns the common weights after each round.

    In a late round, rank 0 makes two steps and exchanges alone, then rank 1 makes a step. In all
    other rounds, each rank makes a step, and both ranks synchronize.
    """
    starts = []
    for turn, is_late in enumerate(plan):
        move(model, seed=10 * turn + rank)
        if rank == 0:
            assert not outer.step()
            if is_late:
                move(model, seed=10 * turn + 2)
                assert outer.step()
        dist.barrier()
        if rank == 1:
            step_late(outer, changes=is_late)
        dist.barrier()
        if not is_late:
            outer.synchronize()
        starts.append(common(outer))
        dist.barrier()
    return starts


@pytest.mark.parametrize("plan", [[True, False], [False, True, True, False], [True, True, True]])
@ranks.on(2)
def test_late_rank_receives_common_weights_and_keeps_its_progress(
    rank: int, count: int, plan: list[bool]
) -> None:
    model = make_model()
    expected = flat(model)
    outer = DiLoCo(model, sync_every=100 if rank else 2, straggler_timeout=0, **EXACT)
    starts = late(outer, model, rank, plan)
    held, steps = torch.zeros_like(expected), 0  # rank 1's
    for turn, is_late in enumerate(plan):
        held, steps = held + moved_by(10 * turn + 1), steps + 1
        if is_late:
            expected += moved_by(10 * turn) + moved_by(10 * turn + 2)
        else:
            expected += (moved_by(10 * turn) + steps * held) / (1 + steps)
            held, steps = torch.zeros_like(held), 0
        close_to(starts[turn], expected)
        assert equal_on_ranks(starts[turn])
    close_to(flat(model) - common(outer), held if rank else torch.zeros_like(held))
    outer.synchronize()
    close_to(flat(model), expected + held)
    assert torch.equal(flat(model), common(outer))
    assert equal_on_ranks(flat(model))
    outer.close()


@ranks.on(2)
def test_residuals_change_only_on_participating_ranks(rank: int, count: int) -> None:
    model = make_model()
    outer = DiLoCo(
        model,
        "int4+ef",
        sync_every=100 if rank else 2,
        straggler_timeout=0,
        error_decay=0.5,
        advanced=tersor.AdvancedOptions(algorithm="one-shot"),
    )
    late(outer, model, rank, [False])
    before = outer.reducer.residual_norms()
    late(outer, model, rank, [True])
    assert (outer.reducer.residual_norms() == before) == (rank == 1)
    outer.close()


def resumed(rank: int, mode: str) -> tuple[torch.Tensor, list[float]]:
    """Rank 1 is late in the second round. With ``mode``, a new DiLoCo continues from the state
    after this round."""
    model = make_model()
    options: dict[str, Any] = {
        "sync_every": 100 if rank else 1,  # rank 0 exchanges without rank 1
        "straggler_timeout": 0,
        "codec": "int4+ef",
        "advanced": tersor.AdvancedOptions(seed=1),
    }
    outer = DiLoCo(model, **options)
    move(model, seed=rank)
    outer.synchronize()
    move(model, seed=10 + rank)
    if rank == 0:
        assert outer.step()
    dist.barrier()
    if mode:
        weights, state = flat(model), outer.state_dict(mode)
        assert torch.equal(flat(model), weights)
        outer.close()
        torch.nn.utils.vector_to_parameters(torch.zeros_like(weights), model.parameters())
        model = make_model(seed=5)
        outer = DiLoCo(model, **options)
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        outer.load_state_dict(state)
    if rank == 1:
        step_late(outer)
    outer.synchronize()
    outer.close()
    return flat(model), outer.reducer.residual_norms()


@ranks.on(2)
def test_training_resumes_from_the_state_of_a_late_rank(rank: int, count: int) -> None:
    model, norms = resumed(rank, "")
    again, norms_again = resumed(rank, "exact")
    assert torch.equal(model, again)
    assert norms == norms_again
    portable, _ = resumed(rank, "portable")
    torch.testing.assert_close(portable, model, rtol=0, atol=2e-2)
    assert equal_on_ranks(portable)


@ranks.on(2)
def test_state_of_a_late_rank_requires_straggler_timeout(rank: int, count: int) -> None:
    outer = DiLoCo(make_model(), codec="none")
    state = outer.state_dict()
    moved = {"0.weight": torch.zeros(70, 80)}
    with pytest.raises(tersor.InvalidArgumentError, match="load it with straggler_timeout"):
        outer.load_state_dict({**state, "grace": {"steps": 1, "samples": 1.0, "moved": moved}})
    outer.load_state_dict({**state, "grace": {"steps": 0, "samples": 0.0, "moved": {}}})


@ranks.on(2)
def test_unfrozen_layer_is_exchanged_when_all_ranks_participate(rank: int, count: int) -> None:
    model = make_model()
    model[2].requires_grad_(False)
    frozen = [one.clone() for one in model[2].parameters()]
    outer = DiLoCo(model, sync_every=100 if rank else 1, straggler_timeout=0, **EXACT)

    def trained(seed: int) -> None:
        move(model if model[2].weight.requires_grad else model[0], seed)

    trained(rank)
    outer.synchronize()
    assert all(map(torch.equal, frozen, model[2].parameters()))
    model[2].requires_grad_(True)
    trained(10 + rank)
    own = torch.cat([one.detach().flatten() for one in model[2].parameters()])
    dist.barrier()
    if rank == 0:
        outer.step()  # rank 1 is late: the layer stays each rank's own
    dist.barrier()
    assert len(outer.common_parameters()) == 2
    if rank == 1:
        step_late(outer)
    assert torch.equal(own, torch.cat([one.detach().flatten() for one in model[2].parameters()]))
    outer.synchronize()
    assert len(outer.common_parameters()) == 4
    found = torch.cat([one.detach().flatten() for one in model[2].parameters()])
    close_to(found, mean_of_ranks(own))
    assert equal_on_ranks(flat(model))
    outer.close()


def goes_on(rank: int, count: int, victim: int, on_loss: str) -> list[float]:
    model = make_model()
    outer = DiLoCo(
        model,
        sync_every=2,
        straggler_timeout=LONG,
        elastic=True,
        on_loss=on_loss,
        codec="int8+ef",
        min_ranks=1,
    )
    told = 0
    for step in range(10):
        move(model, seed=10 * step + rank)
        if rank == victim and step == 5:  # the others wait for it
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            outer.step()
        except tersor.RanksLostError as lost:
            told += lost.members == outer.members
            outer.resume()
    outer.synchronize()
    assert outer.members == [one for one in range(count) if one != victim]
    assert told == (on_loss == "raise")
    assert torch.equal(flat(model), common(outer))
    with pytest.raises(tersor.InvalidArgumentError, match="portable"):
        outer.state_dict()
    outer.load_state_dict(outer.state_dict("portable"))
    outer.close()
    return flat(model).tolist()


@pytest.mark.parametrize(("victim", "on_loss"), [(0, "continue"), (2, "raise")])
def test_killed_rank_is_excluded(victim: int, on_loss: str) -> None:
    found = ranks.outcomes(goes_on, 3, victim, on_loss)
    others = [one for rank, one in enumerate(found) if rank != victim]
    for one in others:
        assert one.error is None, one.traceback
        assert one.value == others[0].value
    assert found[victim].value is None


def disagrees(rank: int, count: int) -> None:
    outer = DiLoCo(make_model(), straggler_timeout=LONG, codec="none")
    with pytest.raises(tersor.InvalidArgumentError, match="other ranks make another call"):
        outer.state_dict() if rank else outer.synchronize()
    outer.synchronize()
    outer.close()
    outer.close()
    outer.state_dict()
    for call in (outer.step, outer.synchronize):
        with pytest.raises(tersor.InvalidArgumentError, match="was closed"):
            call()


def test_call_mismatch_raises_on_all_ranks() -> None:
    ranks.run(disagrees, 2)


def ends_with_a_thread(rank: int, count: int) -> None:
    outer = DiLoCo(make_model(), straggler_timeout=LONG, codec="none")
    outer.synchronize()


def test_interpreter_exits_with_a_live_thread() -> None:
    for one in ranks.outcomes(ends_with_a_thread, 2, fresh=True, close=False):
        assert one.error is None, one.traceback
        assert one.exit_code == 0, one.output


@ranks.on(1)
def test_invalid_arguments_raise(rank: int, count: int) -> None:
    for grace in (-0.1, float("inf"), float("nan")):
        with pytest.raises(tersor.InvalidArgumentError, match="seconds, 0 or more"):
            DiLoCo(make_model(), straggler_timeout=grace)
    for options in ({"fragments": 2}, {"fragment_sync_delay": 1}):
        with pytest.raises(tersor.InvalidArgumentError, match="leave out straggler_timeout"):
            DiLoCo(make_model(), straggler_timeout=1, sync_every=4, **options)
    with pytest.raises(TypeError, match="straggler_timeout must be a number of seconds"):
        DiLoCo(make_model(), straggler_timeout="1")
    outer = DiLoCo(make_model(), straggler_timeout=1, codec="none")
    outer.samples = -1
    with pytest.raises(tersor.InvalidArgumentError, match="samples=-1"):
        outer.step()
    outer.samples = 1
    with pytest.raises(tersor.InvalidArgumentError, match="no rank was lost"):
        outer.resume()
    assert not outer.step()
    outer.close()
