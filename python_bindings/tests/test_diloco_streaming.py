"""Streaming DiLoCo: fragments under way during the training, over gloo processes."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
from signal import SIGKILL
from typing import Any

import pytest
import torch
import torch.distributed as dist
from diloco_models import equal_on_ranks, flat, make_model, mean_of_ranks, move, quantised

import ranks
import tersor
from tersor.torch._src.diloco.fragments import SyncSchedule, divide
from tersor.torch.diloco import DiLoCo, averaging

STOCHASTIC = [("*.weight", "int4:rounding=stochastic+ef"), ("*", "bf16")]


@pytest.mark.parametrize(
    ("every", "fragments", "delay"), [(1, 1, 0), (5, 1, 4), (20, 4, 4), (10, 3, 3), (4, 4, 0)]
)
def test_each_fragment_is_sent_once_per_round(every: int, fragments: int, delay: int) -> None:
    table = SyncSchedule(every, fragments, delay)
    turns = [(step, table.fragment_at(step)) for step in range(1, 3 * every + 1)]
    sent = [(step, turn) for step, turn in turns if turn is not None]
    assert [turn for _, turn in sent] == 3 * list(range(fragments))
    assert sent[fragments - 1][0] == every
    steps = [step for step, _ in sent]
    assert all(later - step >= delay for step, later in itertools.pairwise(steps))


@pytest.mark.parametrize("counts", [[1], [0, 0, 0], [1, 1, 9], [9, 1, 1, 1], [5] * 12, [0, 7, 0]])
def test_fragments_have_similar_sizes(counts: list[int]) -> None:
    named = {str(number): count for number, count in enumerate(counts)}
    for fragments in range(1, len(counts) + 1):
        divided = divide(named, fragments)
        assert [name for one in divided for name in one] == list(named)
        assert len(divided) == fragments
        assert all(divided)
        largest = max(sum(named[name] for name in one) for one in divided)
        assert largest <= sum(counts) / fragments + max(counts)


MISTAKES: dict[str, dict[str, Any]] = {
    "fragment_sync_delay=5: with sync_every=20 and fragments=4 .* at most 4": {
        "fragments": 4,
        "fragment_sync_delay": 5,
    },
    "fragment_sync_delay=20: .* at most 19": {"fragment_sync_delay": 20},
    "fragment_sync_delay=-1: give at least 0": {"fragment_sync_delay": -1},
    "fragments=0: give at least 1": {"fragments": 0},
    "fragments=21 with sync_every=20": {"fragments": 21},
    "fragments=5: give at most 4": {"fragments": 5},
    "fragment_update_alpha=1: give a number from 0": {"fragment_update_alpha": 1},
    "fragment_update_alpha=-0.1: give a number from 0": {"fragment_update_alpha": -0.1},
    "fragment_update_alpha=nan": {"fragment_update_alpha": float("nan")},
}


@ranks.on(1)
def test_invalid_arguments_raise(rank: int, count: int) -> None:
    model = make_model()
    for message, options in MISTAKES.items():
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            DiLoCo(model, sync_every=20, **options)
    for name in ("fragments", "fragment_sync_delay", "fragment_update_alpha"):
        with pytest.raises(TypeError, match=rf"{name} must be .*, not '2'"):
            DiLoCo(model, sync_every=20, **{name: "2"})


class Two(torch.nn.Module):
    """A model with numbers for sums by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))


# Rank 0 adds 1 in each step, rank 1 adds 3. `a` is sent after steps 2 and 6, `b` after step 4; a
# step later a rank keeps half of its own and takes half of the mean.
A = {0: [1, 2, 3.5, 4.5, 5.5, 6.5, 9.25], 1: [3, 6, 6.5, 9.5, 12.5, 15.5, 14.75]}
B = {0: [1, 2, 3, 4, 6.5, 7.5, 8.5], 1: [3, 6, 9, 12, 11.5, 14.5, 17.5]}
COMMON = [(0, 0), (0, 0), (4, 0), (4, 0), (4, 8), (4, 8), (11, 8)]


@pytest.mark.parametrize("progress", ["thread", "caller"])
@ranks.on(2)
def test_delay_and_alpha_match_hand_computed_values(rank: int, count: int, progress: Any) -> None:
    model = Two()
    outer = DiLoCo(
        model,
        sync_every=4,
        fragments=2,
        fragment_sync_delay=1,
        outer_optimizer=averaging,
        rules=[("*", "none")],
        progress=progress,
    )
    assert outer.fragment_update_alpha == 0.5
    arrived = []
    for step in range(7):
        with torch.no_grad():
            for one in model.parameters():
                one += 1 + 2 * rank
        arrived.append(outer.step())
        common = outer.common_parameters()
        for own, mean, number in ((model.a, common["a"], 0), (model.b, common["b"], 1)):
            assert own.tolist() == [(A, B)[number][rank][step]] * 4, step
            assert mean.tolist() == [COMMON[step][number]] * 4, step
    assert arrived == [False, False, True, False, True, False, True]
    outer.synchronize()
    assert model.a.tolist() == [(9.25 + 14.75) / 2] * 4
    assert model.b.tolist() == [(8.5 + 17.5) / 2] * 4


def half_in_bf16() -> torch.nn.Sequential:
    model = make_model()
    model[2].to(torch.bfloat16)
    return model


@pytest.mark.parametrize(("delay", "mix"), [(0, 0.0), (1, 0.0), (2, 0.25), (2, 0.75)])
@ranks.on(3)
def test_common_parameters_are_equal_on_all_ranks_at_every_step(
    rank: int, count: int, delay: int, mix: float
) -> None:
    model = half_in_bf16()
    named = dict(model.named_parameters())
    outer = DiLoCo(
        model,
        sync_every=6,
        fragments=2,
        fragment_sync_delay=delay,
        fragment_update_alpha=mix,
        rules=STOCHASTIC,
    )
    assert named.keys() == outer.common_parameters().keys()
    before = outer.common_parameters()
    before = {name: one.clone() for name, one in before.items()}
    for step in range(1, 20):
        move(model, seed=10 * step + rank)
        own = {name: one.detach().clone() for name, one in named.items()}
        arrived = outer.step()
        assert arrived == (step > 2 + delay and (step - delay) % 3 == 0)
        common = outer.common_parameters()
        assert equal_on_ranks(torch.cat([one.float().flatten() for one in common.values()]))
        moved = {name for name, one in common.items() if not torch.equal(one, before[name])}
        assert bool(moved) == arrived
        assert len(moved) < len(named)
        for name, one in named.items():
            wanted = mix * own[name].float() + (1 - mix) * common[name].float()
            wanted = wanted if name in moved else own[name].float()
            torch.testing.assert_close(one.float(), wanted, rtol=1e-2, atol=1e-6)
            if name in moved and mix == 0:
                assert torch.equal(one, common[name])
        before = {name: one.clone() for name, one in common.items()}
    assert equal_on_ranks(flat(model)) == (rank == 0)
    outer.synchronize()
    assert equal_on_ranks(flat(model))


@ranks.on(2)
def test_residuals_decay_only_when_their_fragment_is_sent(rank: int, count: int) -> None:
    """SparseLoCo's recipe, by fragments."""
    codec = "blocktopk:density=0.03,values=int4"
    model = make_model()
    named = dict(model.named_parameters())
    starts = {name: one.detach().clone() for name, one in named.items()}
    residuals = {name: torch.zeros_like(one) for name, one in starts.items()}
    outer = DiLoCo(
        model,
        sync_every=2,
        fragments=2,
        outer_optimizer=functools.partial(torch.optim.SGD, lr=0.8),
        error_decay=0.5,
        rules=[("*", codec + "+ef")],
        algorithm="one-shot",
    )
    divided = divide({name: one.numel() for name, one in named.items()}, 2)
    for step in range(8):
        move(model, seed=10 * step + rank)
        for name in divided[step % 2]:
            wanted = 0.5 * residuals[name] + (starts[name] - named[name].detach())
            sent = quantised(tersor.Codec(codec), wanted)
            residuals[name] = wanted - sent
            starts[name] -= 0.8 * mean_of_ranks(sent)
        assert outer.step()
        for name, one in outer.common_parameters().items():
            torch.testing.assert_close(one, starts[name], rtol=0, atol=1e-7)
        norms = outer.reducer.residual_norms()
        for norm, name in zip(norms, named, strict=True):
            assert norm == pytest.approx(float(residuals[name].norm()), rel=1e-3, abs=1e-6)


class Run:
    """A training of rank and step with two fragments, each under way for 3 steps.

    The first fragment is sent after step 4.
    """

    def __init__(self, **options: Any) -> None:
        self.model = make_model()
        told = {
            "sync_every": 8,
            "fragments": 2,
            "fragment_sync_delay": 3,
            "error_decay": 0.9,
            **options,
        }
        self.outer = DiLoCo(self.model, rules=STOCHASTIC, **told)

    def steps(self, numbers: range) -> None:
        for number in numbers:
            move(self.model, seed=100 * number + dist.get_rank())
            self.outer.step()

    def save(self, path: str, mode: Any = "exact") -> None:
        state = {"model": self.model.state_dict(), "outer": self.outer.state_dict(mode)}
        torch.save(state, path)

    def load(self, path: str) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.outer.load_state_dict(state["outer"])

    def weights(self) -> torch.Tensor:
        common = self.outer.common_parameters().values()
        return torch.cat([flat(self.model), *(one.flatten() for one in common)])


@pytest.mark.parametrize("last", [3, 4, 5, 6, 7, 8, 13])
@ranks.on(2)
def test_training_resumes_bit_for_bit_with_a_fragment_in_flight(
    rank: int, count: int, last: int, tmp_path: pathlib.Path
) -> None:
    quiet, saving, again = Run(), Run(), Run()
    path = str(tmp_path / f"{rank}.pt")
    quiet.steps(range(1, last + 1))
    saving.steps(range(1, last + 1))
    saving.save(path)
    assert torch.equal(saving.weights(), quiet.weights())
    again.steps(range(1, 5))  # it has one under way itself
    again.load(path)
    for number in range(last + 1, last + 14):
        for run in (quiet, saving, again):
            run.steps(range(number, number + 1))
        assert torch.equal(saving.weights(), quiet.weights()), number
        assert torch.equal(again.weights(), quiet.weights()), number
    for run in (quiet, saving, again):
        run.outer.synchronize()  # nobody leaves with a fragment under way
    assert torch.equal(again.weights(), quiet.weights())


def saves(rank: int, count: int, path: str) -> list[torch.Tensor]:
    """Returns the common parameters before and after the fragment arrives, and the sums of
    residuals."""
    run = Run()
    run.steps(range(1, 15))
    state = run.outer.state_dict("portable")
    if rank == 0:
        torch.save({"model": run.model.state_dict(), "outer": state}, path)
    run.steps(range(15, 16))
    return [flat_of(run.outer), *state["residuals"]["residuals"].values()]


def flat_of(outer: DiLoCo) -> torch.Tensor:
    return torch.cat([one.flatten() for one in outer.common_parameters().values()])


def goes_on(rank: int, count: int, path: str, options: dict[str, Any]) -> list[torch.Tensor]:
    run = Run(**options)
    run.load(path)
    residuals = run.outer.state_dict("portable")["residuals"]["residuals"].values()
    run.steps(range(15, 16))
    arrived = flat_of(run.outer)
    run.steps(range(16, 40))
    run.outer.synchronize()
    assert equal_on_ranks(flat(run.model))
    return [arrived, *residuals]


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (3, {}),
        (2, {"fragments": 4, "fragment_sync_delay": 1}),
        (2, {"fragments": 1, "fragment_sync_delay": 0}),
    ],
)
def test_fragment_in_flight_arrives_after_a_change_of_ranks_or_schedule(
    count: int, options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    path = str(tmp_path / "state.pt")
    wanted = ranks.run(saves, 2, path)[0]
    for found in ranks.run(goes_on, count, path, options):
        assert torch.equal(found[0], wanted[0])
        for residual, of_two in zip(found[1:], wanted[1:], strict=True):  # of a mean over ranks
            torch.testing.assert_close(residual, of_two * count / 2, rtol=1e-5, atol=1e-7)


def die(*_: object) -> None:
    """Kills this rank after the other rank has sent its difference."""
    dist.barrier()
    os.kill(os.getpid(), SIGKILL)


def loses_a_rank(rank: int, count: int) -> tuple[str, bool]:
    run = Run()
    run.steps(range(1, 4))
    if rank == 1:
        run.outer.reducer.ready_flat = die  # type: ignore[method-assign]
    run.steps(range(4, 5))
    dist.barrier()
    run.steps(range(5, 7))  # to when it is waited for
    before = run.weights()
    for _ in range(2):
        with pytest.raises(tersor.TransportError) as raised:
            run.outer.step()
    return str(raised.value), torch.equal(run.weights(), before)


def test_error_at_fragment_wait_names_killed_rank() -> None:
    survivor, killed = ranks.outcomes(loses_a_rank, 2)
    assert not killed.finished
    assert survivor.error is None, survivor.traceback
    message, unchanged = survivor.value
    assert "rank 1" in message
    assert unchanged


@ranks.on(2)
def test_unfrozen_layer_joins_a_fragment(rank: int, count: int) -> None:
    model = make_model()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    outer = DiLoCo(model, sync_every=4, fragments=2, fragment_sync_delay=1, codec="int8+ef")
    for step in range(1, 21):
        if step == 7:
            model[0].requires_grad_(True)
        move(model if step >= 7 else model[2], seed=10 * step + rank)
        outer.step()
        assert torch.equal(model[0].weight, frozen) == (step < 7)
        assert ("0.weight" in outer.common_parameters()) == (step >= 11)
    assert equal_on_ranks(flat_of(outer))
    outer.synchronize()
    assert equal_on_ranks(flat(model))


@ranks.on(2)
def test_explain_reports_fragment_sync_delay(rank: int, count: int) -> None:
    run = Run()
    assert "delay" not in run.outer.explain()
    run.steps(range(1, 9))
    assert "fragment_sync_delay=3: " in run.outer.explain()
    assert "delay" not in DiLoCo(make_model()).explain()


@ranks.on(2)
def test_closing_with_a_fragment_in_flight_keeps_other_handles_working(
    rank: int, count: int
) -> None:
    model = make_model()
    first = DiLoCo(model, "int8+ef", sync_every=1)
    second = DiLoCo(model, "int8+ef", sync_every=2, fragment_sync_delay=1)
    for step in range(2):
        move(model, 2 * step + rank)
        second.step()
    if rank == 0:
        second.close()
        del second
    first.step()
