"""Tests for all handles over PyTorch: DDP, FSDP2, the optimizers and DiLoCo.

handle_conformance_layers.py tests layers that come and go. Tests of a single handle are in the
handle's file.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from handles import EXACT, HANDLES, Training, equal, equal_on_ranks

import ranks
import tersor
from tersor.torch import load_checkpoint

STOCHASTIC = [("0.weight", "int4:rounding=stochastic+ef"), ("*", "bf16")]

every_handle = pytest.mark.parametrize("name", HANDLES)


class Stateful:
    """The state of a handle, for distributed checkpoints."""

    def __init__(self, training: Training) -> None:
        self.state_dict, self.load_state_dict = training.state, training.load


def resumed(name: str, way: str, saved: Any, folder: str, options: dict[str, Any]) -> Training:
    training = HANDLES[name](STOCHASTIC, **options)
    training.resume(saved)
    if way == "torch.save":
        training.load(torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=True))
    elif way == "dcp.load":
        dcp.load({"tersor": Stateful(training)}, checkpoint_id=f"{folder}/all")
    elif way == "load_checkpoint":
        load_checkpoint(Stateful(training), f"{folder}/all")
    else:
        with pytest.warns(UserWarning, match="start at zero"):
            training.load({})
    return training


def resumes(rank: int, count: int, name: str, folder: str) -> None:
    options = {"sync_every": 2, "error_decay": 0.95} if name == "DiLoCo" else {}
    training = HANDLES[name](STOCHASTIC, **options)
    training.steps(rank, range(5))  # in the middle of a round of DiLoCo's
    saved = training.save()
    torch.save(training.state(), f"{folder}/{rank}.pt")
    dcp.save({"tersor": Stateful(training)}, checkpoint_id=f"{folder}/all")
    training.steps(rank, range(5, 9))
    ways = ["torch.save", "dcp.load", "load_checkpoint"]
    if name in ("DDP", "FSDP2", "DistributedOptimizer"):
        ways.append("without residuals")
    for way in ways[:1] if name == "DiLoCo" else ways:  # whose state goes to a file of each rank
        again = resumed(name, way, saved, folder, options)
        again.steps(rank, range(5, 9))
        assert equal(again.weights(), training.weights()) == (way != "without residuals"), way
    dist.barrier()  # nobody reads the files any more


@every_handle
def test_training_resumes_bit_for_bit_from_a_checkpoint(name: str, tmp_path: pathlib.Path) -> None:
    ranks.run(resumes, 3, name, str(tmp_path))


@every_handle
@ranks.on(2)
def test_mismatched_state_is_rejected_and_keeps_residuals(rank: int, count: int, name: str) -> None:
    training = HANDLES[name]()
    training.steps(rank, range(2))
    kept = training.residuals()
    wider = HANDLES[name](width=70).state()
    others = HANDLES[name]([("0.weight", "int8+ef"), ("*", "bf16")]).state()
    for state in (wider, others):
        with pytest.raises(tersor.InvalidArgumentError, match=r"0\.weight"):
            training.load(state)
    with pytest.raises(tersor.InvalidArgumentError, match="mode must be one of exact, portable"):
        training.state("whole")
    assert equal(training.residuals(), kept)


def loses_a_rank(rank: int, count: int, name: str) -> tuple[str, bool]:
    training = HANDLES[name]()
    training.step(rank, 0)
    training.compute(rank, 1)
    before = {**training.weights(), **training.moments()}
    dist.barrier()
    if rank == 1:
        training.die_in_the_next_step()
    with pytest.raises(tersor.TransportError) as raised:
        training.exchange(rank, 1)
    if name == "FSDP2":  # its weights cannot be gathered any more
        return str(raised.value), True
    return str(raised.value), equal({**training.weights(), **training.moments()}, before)


@every_handle
def test_error_names_killed_rank_and_models_stay_unchanged(name: str) -> None:
    found = ranks.outcomes(loses_a_rank, 3, name)  # with a deadline below the timeout of 300 s
    assert [one.finished for one in found] == [True, False, True]
    for outcome in (found[0], found[2]):
        assert outcome.error is None, outcome.traceback
        message, unchanged = outcome.value
        assert "rank 1" in message
        assert unchanged


@every_handle
@ranks.on(2)
def test_codec_mismatch_raises_on_all_ranks_until_remove(rank: int, count: int, name: str) -> None:
    codec = "int8+ef" if rank == 1 else "int4+ef"
    training = HANDLES[name]([("0.weight", codec), ("*", "bf16")], timeout=20)
    for step in range(2):
        with pytest.raises(tersor.TransportError, match="rank"):
            training.step(rank, step)
    if not hasattr(training.handle, "remove"):
        return
    if name in ("DDP", "FSDP2"):  # which exchange in the backward pass
        assert all(bool(one.isnan().all()) for one in training.gradients().values())
    training.handle.remove()
    training.step(rank, 2)
    assert equal_on_ranks(training.weights())
    assert all(bool(one.isfinite().all()) for one in training.weights().values())


LEARNS: dict[str, list[str]] = {
    "DDP": ["int8", "topk:density=0.05+ef"],
    "FSDP2": ["int8", "int4+ef", "topk:density=0.05+ef"],
    "DistributedOptimizer": ["bf16", "int8", "topk:density=0.05+ef", "auto"],
    "CompressedAdamW": ["hadamard:bits=1+ef", "topk:density=0.02+ef"],
    "CompressedMuon": ["hadamard:bits=1+ef", "topk:density=0.02+ef"],
    "CompressedSGD": ["hadamard:bits=1+ef", "topk:density=0.02+ef"],
    "DiLoCo": ["none", "int8", "int4+ef"],
}


@every_handle
@ranks.on(3)
def test_training_learns_and_ranks_stay_equal(rank: int, count: int, name: str) -> None:
    for codec in LEARNS[name]:
        training = HANDLES[name](rules=(), codec=codec)
        before = float(training.loss(rank, 0))
        for step in range(40):
            training.step(rank, step % 4)
        assert float(training.loss(rank, 0)) < before / 2, codec
        assert equal_on_ranks(training.weights()), codec
        assert training.handle.totals().steps == 40


def overflows(rank: int, count: int, name: str) -> float:
    training = HANDLES[name]()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        training.optimizer.zero_grad()
        before = training.weights()
        infinite = step == 1 and rank == 1
        scale = float(scaler.scale(torch.ones(())))
        training.backward(rank, step, math.inf if infinite else scale)
        training.scaled_step(scaler)
        scaler.update()
        assert equal(training.weights(), before) == (step == 1)
        assert all(bool(one.isfinite().all()) for one in training.weights().values())
        assert equal_on_ranks(training.weights())
    return scaler.get_scale()


@pytest.mark.parametrize("name", ["DDP", "DistributedOptimizer"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(name: str) -> None:
    assert ranks.run(overflows, 2, name) == [512.0, 512.0]


@every_handle
@ranks.on(1)
def test_invalid_rules_and_options_raise_at_construction(rank: int, count: int, name: str) -> None:
    for message, options in {
        "int9": {"rules": [("*", "int9+ef")]},
        "no rule matches": {"rules": [("*.weight", "int8+ef")]},
        "no option 'bits'": {"bits": 1},
    }.items():
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            HANDLES[name](**options)  # type: ignore[arg-type]
    training = HANDLES[name](EXACT)
    training.step(rank, 0)
