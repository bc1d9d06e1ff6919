"""The residuals of a group of torchft: discarded steps, other ranks, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tersor
import tersor.local
from tersor import _core, collectives
from tersor.torch._src.ft.residuals import Positions, World

COUNT = 5000
WAYS = [("int4+ef", "two-shot"), ("topk:density=0.1+ef", "one-shot")]


class Replica:
    """The steps of a rank, with a tensor per step."""

    def __init__(self, codec: str, algorithm: str, fragments: int = 1) -> None:
        self.own = {"codec": codec, "algorithm": algorithm}
        self.step = self.quorum = 0
        self.places = Positions(self.own, fragments, lambda: self.step)

    def exchange(self, transport: Any, seed: int, commits: bool = True) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * transport.rank + seed)
        values = torch.randn(COUNT, generator=generator)
        state = self.places.take(
            values, World(transport.rank, transport.ranks, self.quorum), "sum"
        )()
        collectives.allreduce(transport, values, reduction="sum", state=state, **self.own)
        self.places.end_step()
        self.step += commits
        return values

    def owed(self, key: str = "0.0") -> torch.Tensor:
        return self.places.state_dict()[key]


@pytest.mark.parametrize(("codec", "algorithm"), WAYS)
def test_discarded_step_leaves_residuals_unchanged(codec: str, algorithm: str) -> None:
    def rank(transport: tersor.Transport) -> None:
        with_void, without = Replica(codec, algorithm), Replica(codec, algorithm)
        for seed in range(3):
            with_void.exchange(transport, seed)
            without.exchange(transport, seed)
        with_void.exchange(transport, 50, commits=False)
        assert torch.equal(with_void.owed(), without.owed())
        with_void.exchange(transport, 51, commits=False)
        found = with_void.exchange(transport, 3), without.exchange(transport, 3)
        assert torch.equal(*found)
        assert torch.equal(with_void.owed(), without.owed())

    tersor.local.run(3, rank)


@pytest.mark.parametrize(("codec", "algorithm"), WAYS)
def test_remaining_ranks_keep_their_residuals(codec: str, algorithm: str) -> None:
    replicas = [Replica(codec, algorithm) for _ in range(4)]
    tersor.local.run(4, lambda ranks: [replicas[ranks.rank].exchange(ranks, i) for i in range(3)])
    owed = torch.stack([one.owed() for one in replicas[:3]]).sum(0)
    assert owed.norm() > 0
    found = tersor.local.run(3, lambda ranks: replicas[ranks.rank].exchange(ranks, 3))
    sent = sum(
        torch.randn(COUNT, generator=torch.Generator().manual_seed(100 * rank + 3))
        for rank in range(3)
    )
    left = torch.stack([one.owed() for one in replicas[:3]]).sum(0)
    torch.testing.assert_close(found[0] + left, sent + owed, atol=1e-4, rtol=1e-4)


def test_missing_calls_in_a_step_warn_once(recwarn: pytest.WarningsRecorder) -> None:
    step = 0
    places = Positions({"codec": "int4+ef"}, 2, lambda: step)

    def calls(count: int) -> None:
        for _ in range(count):
            places.take(torch.ones(COUNT), World(0, 2, 0), "sum")
        places.end_step()

    for count in (2, 3, 2, 3):  # of two fragments
        calls(count)
        step += 1
    calls(1)  # a discarded step
    calls(2)
    step += 1
    assert [str(one.message) for one in recwarn] == []
    for count in (1, 2, 1, 2):
        calls(count)
        step += 1
    (found,) = recwarn
    assert "a step had 1 calls, and the first step 3" in str(found.message)


@pytest.mark.parametrize("codec", ["int4+ef", "hadamard:bits=1+ef"])
def test_restarted_rank_rejoins_with_zero_residuals(codec: str) -> None:
    replicas = [Replica(codec, "two-shot") for _ in range(2)]

    def rank(transport: tersor.Transport) -> list[torch.Tensor]:
        return [replicas[transport.rank].exchange(transport, seed) for seed in range(5)]

    tersor.local.run(2, rank)
    owed, step = replicas[0].owed(), replicas[0].step
    replicas[1] = Replica(codec, "two-shot")
    replicas[1].step = step
    for one in replicas:
        one.quorum = 1
    found = tersor.local.run(2, lambda ranks: replicas[ranks.rank].exchange(ranks, 9))
    assert torch.equal(*found)
    sent = sum(
        torch.randn(COUNT, generator=torch.Generator().manual_seed(100 * rank + 9))
        for rank in range(2)
    )
    left = replicas[0].owed() + replicas[1].owed()
    torch.testing.assert_close(found[0] + left, sent + owed, atol=1e-4, rtol=1e-4)


def test_each_fragment_has_separate_residuals() -> None:
    def rank(transport: tersor.Transport) -> list[str]:
        replica = Replica("int4+ef", "two-shot", fragments=2)
        for seed in range(5):
            replica.exchange(transport, seed)
        return sorted(replica.places.state_dict())

    assert tersor.local.run(2, rank) == [["0.0", "1.0"]] * 2


def test_checkpoint_restores_residuals() -> None:
    def rank(transport: tersor.Transport) -> None:
        first, again = Replica("int4+ef", "two-shot"), Replica("int4+ef", "two-shot")
        for seed in range(3):
            first.exchange(transport, seed)
        again.places.load_state_dict(first.places.state_dict())
        torch.testing.assert_close(again.owed(), first.owed())
        once_more = Replica("int4+ef", "two-shot")
        once_more.places.load_state_dict(again.places.state_dict())
        assert torch.equal(again.exchange(transport, 3), once_more.exchange(transport, 3))
        again.places.clear()
        assert again.places.state_dict() == {}

    tersor.local.run(2, rank)


def test_tensor_of_a_different_size_starts_with_fresh_residuals() -> None:
    places = Positions({"codec": "int4+ef", "algorithm": "two-shot"}, 1, lambda: 0)
    places.take(torch.zeros(COUNT), World(0, 2, 0), "sum")()
    places.end_step()
    with pytest.warns(UserWarning, match="had 5000 values on cpu and has 4999"):
        places.take(torch.zeros(COUNT - 1), World(0, 2, 0), "sum")
    assert len(places.state_dict()["0.0"]) == COUNT - 1
    places.load_state_dict({"0.0": torch.ones(7)})
    places.end_step()
    with pytest.warns(UserWarning, match="had 7 values in the loaded state and has 5000"):
        places.take(torch.zeros(COUNT), World(0, 2, 0), "sum")


def test_fold_owner_adds_to_the_owned_range() -> None:
    options = _core.CallOptions()
    options.codec = "int8+ef"
    count = _core.owned_count(COUNT, 1, 2, options)
    residual = torch.zeros(COUNT)
    _core.fold_owner(torch.ones(count), residual, 1, 2, options)
    assert residual.sum() == count
    assert residual[-count:].sum() == count
    with pytest.raises(tersor.InvalidArgumentError, match=f"rank 1 of 2 ranks owns {count}"):
        _core.fold_owner(torch.ones(count + 1), residual, 1, 2, options)
    with pytest.raises(tersor.InvalidArgumentError, match="float32 values in host memory"):
        _core.fold_owner(torch.ones(count, dtype=torch.bfloat16), residual, 1, 2, options)
    with pytest.raises(tersor.InvalidArgumentError):
        _core.fold_owner(torch.ones(count), residual, 2, 2, options)
