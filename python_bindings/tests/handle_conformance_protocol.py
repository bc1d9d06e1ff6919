"""All handles of gradients satisfy ``tersor.torch.Handle``. DiLoCo sends no gradients.

What holds for DiLoCo too is in handle_conformance.py.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from handles import EXACT, FEW_BITS, HANDLES, Training, equal, equal_on_ranks

import ranks
import tersor
import tersor.torch

GRADIENT_HANDLES = [name for name in HANDLES if name != "DiLoCo"]
COMPRESSED = ("CompressedAdamW", "CompressedMuon", "CompressedSGD")  # which exchange in step()

every_handle = pytest.mark.parametrize("name", GRADIENT_HANDLES)


@every_handle
@ranks.on(2)
def test_handles_satisfy_the_protocol_and_report_statistics(
    rank: int, count: int, name: str
) -> None:
    training = HANDLES[name]()
    assert isinstance(training.handle, tersor.torch.Handle)
    training.steps(rank, range(2))
    handle: tersor.torch.Handle = training.handle
    assert {one.name for one in handle.statistics()} == {
        name for name, _ in training.layers.named_parameters()
    }
    assert sum(one.sent_bytes for one in handle.reducer_statistics()) > 0
    assert {one.steps for one in handle.reducer_statistics() if one.steps} == {2}
    for text in (handle.table(), handle.explain()):
        assert "0.weight" in text
    training.handle.reset_statistics()
    assert {one.steps for one in handle.reducer_statistics()} == {0}


def test_module_is_not_a_handle() -> None:
    assert not isinstance(torch.nn.Linear(2, 2), tersor.torch.Handle)


@every_handle
@ranks.on(2)
def test_reset_reconnects_ranks_after_an_error(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](timeout=20)
    training.steps(rank, range(2))
    assert any(bool(one.any()) for one in training.residuals().values())
    dist.barrier()
    if rank == 0:
        tersor.torch.transport().abort("a test says so")
    dist.barrier()
    with pytest.raises(tersor.TransportError, match="a test says so"):
        training.step(rank, 2)
    dist.barrier()
    before, moments = training.weights(), training.moments()
    training.handle.reset()
    assert not any(bool(one.any()) for one in training.residuals().values())
    assert equal(training.moments(), moments)
    training.optimizer.zero_grad()
    training.steps(rank, range(3, 5))
    assert equal_on_ranks(training.weights())
    assert not equal(training.weights(), before)
    assert any(bool(one.any()) for one in training.residuals().values())


@every_handle
@ranks.on(2)
def test_gradients_are_uncompressed_after_remove(rank: int, count: int, name: str) -> None:
    training, exact = HANDLES[name](), HANDLES[name](EXACT)
    training.handle.samples = exact.handle.samples = None
    if name in ("DDP", "FSDP2"):  # which make their reducers in a first pass
        exact.optimizer.param_groups[0]["lr"] = training.optimizer.param_groups[0]["lr"] = 0.0
        exact.step(rank, 0)
        training.step(rank, 0)
        exact.optimizer.param_groups[0]["lr"] = training.optimizer.param_groups[0]["lr"] = 0.1
        exact.optimizer.state.clear()
        training.optimizer.state.clear()
    training.handle.remove()
    sent = sum(one.sent_bytes for one in training.handle.reducer_statistics())
    for step in range(1, 4):
        training.step(rank, step)
        exact.step(rank, step)
    assert sum(one.sent_bytes for one in training.handle.reducer_statistics()) == sent
    assert equal_on_ranks(training.weights())
    wanted = exact.weights()
    for parameter, one in training.weights().items():
        torch.testing.assert_close(one, wanted[parameter], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", COMPRESSED)
@ranks.on(2)
def test_training_resumes_from_state_of_a_removed_optimizer(
    rank: int, count: int, name: str
) -> None:
    training = HANDLES[name]()
    training.step(rank, 0)
    training.handle.remove()
    training.step(rank, 1)
    again = HANDLES[name]()
    again.resume(training.save())
    again.handle.remove()
    for one in (training, again):
        one.step(rank, 2)
    assert equal(again.weights(), training.weights())


@every_handle
@ranks.on(2)
def test_discarded_gradients_leave_residuals_unchanged(rank: int, count: int, name: str) -> None:
    options = {} if name in COMPRESSED else {"transactional": True}
    training = HANDLES[name](**options)
    training.steps(rank, range(2))
    before = training.residuals()
    training.compute(rank, 2)
    training.backward(rank, 2)
    training.handle.discard_step()
    training.optimizer.zero_grad()
    assert equal(training.residuals(), before)
    training.step(rank, 3)
    assert not equal(training.residuals(), before)


@every_handle
@ranks.on(2)
def test_a_rank_without_samples_has_no_influence(rank: int, count: int, name: str) -> None:
    options: dict[str, Any] = {} if name in COMPRESSED else {"weighted": True}
    found = []
    for other in (0, 50):  # rank 1 has other data
        training = HANDLES[name](EXACT, **options)
        for step in range(3):
            training.compute(rank, step)
            training.handle.samples = 16 if rank == 0 else 0
            training.exchange(rank, step + (other if rank else 0))
            assert training.handle.samples is None
        found.append(training.weights())
    assert equal(*found)


@every_handle
@ranks.on(2)
def test_portable_state_round_trips(rank: int, count: int, name: str) -> None:
    training = HANDLES[name]()
    training.steps(rank, range(3))
    kept = training.state("portable")
    saved = {**training.save(), "handle": kept}
    again = HANDLES[name]()
    again.resume(saved)
    assert equal(flat_tensors(again.state("portable")), flat_tensors(kept))


def flat_tensors(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {path: state.detach().clone()}
    children: Any = enumerate(state) if isinstance(state, list) else ()
    if isinstance(state, dict):
        children = state.items()
    return {k: v for key, one in children for k, v in flat_tensors(one, f"{path}/{key}").items()}


@ranks.on(2)
def test_a_wrapped_optimizer_saves_residuals_on_request(rank: int, count: int) -> None:
    training = HANDLES["DistributedOptimizer"](FEW_BITS)
    training.steps(rank, range(2))
    optimizer = training.handle
    plain, exact = optimizer.state_dict(), copy.deepcopy(optimizer.state_dict("exact"))
    assert "tersor" not in plain["param_groups"][0]
    assert "tersor" in exact["param_groups"][0]
    residuals = training.residuals()
    training.step(rank, 2)
    moved = training.residuals()
    optimizer.load_state_dict(plain)  # as of versions before, or of another optimizer
    assert equal(training.residuals(), moved)
    optimizer.load_state_dict(exact)
    assert equal(training.residuals(), residuals)
    with pytest.raises(tersor.InvalidArgumentError, match="mode must be one of exact, portable"):
        optimizer.state_dict("whole")


@ranks.on(1)
def test_wrapper_drops_residuals_loaded_by_the_inner_optimizer(rank: int, count: int) -> None:
    model = torch.nn.Linear(8, 8)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    wrapped = tersor.torch.DistributedOptimizer(first, codec="int4+ef")
    second.load_state_dict(wrapped.state_dict("exact"))
    assert "tersor" in second.param_groups[0]
    again = tersor.torch.DistributedOptimizer(second, codec="int4+ef")
    assert "tersor" not in again.state_dict()["param_groups"][0]


@ranks.on(2)
def test_state_with_a_damaged_group_raises_and_keeps_residuals(rank: int, count: int) -> None:
    training = HANDLES["DistributedOptimizer"](FEW_BITS)
    training.steps(rank, range(2))
    state = copy.deepcopy(training.handle.state_dict("exact"))
    training.step(rank, 2)
    before = training.residuals()
    state["param_groups"][0]["params"] = [0]
    with pytest.raises(tersor.InvalidArgumentError, match="the state is damaged"):
        training.handle.load_state_dict(state)
    assert equal(training.residuals(), before)


@ranks.on(2)
def test_deprecated_residual_state_dict_still_loads(rank: int, count: int) -> None:
    training: Training = HANDLES["DistributedOptimizer"](FEW_BITS)
    training.steps(rank, range(2))
    with pytest.warns(DeprecationWarning, match=r"use state_dict\(mode\)"):
        saved = copy.deepcopy(training.handle.residual_state_dict())
    residuals = training.residuals()
    training.step(rank, 2)
    with pytest.warns(DeprecationWarning, match=r"use load_state_dict\(state\)"):
        training.handle.load_residual_state_dict(saved)
    assert equal(training.residuals(), residuals)


@ranks.on(2)
def test_remove_during_a_step_raises(rank: int, count: int) -> None:
    training = HANDLES["DistributedOptimizer"](FEW_BITS)
    training.compute(rank, 0)
    training.backward(rank, 0)
    with pytest.raises(tersor.InvalidArgumentError, match=r"call remove\(\) after step\(\)"):
        training.handle.remove()
    training.end_step()


OLD_NAMES: dict[str, dict[str, Any]] = {
    "DistributedOptimizer": {"group": None, "least_ranks": 1},
    "CompressedAdamW": {"group": None, "dense_steps": 2, "dense_codec": "bf16"},
    "CompressedMuon": {"group": None, "dense_steps": 2, "dense_codec": "bf16"},
    "DiLoCo": {"group": None, "delay": 0, "mix": 0.0, "residual_factor": 1.0, "grace": None},
}


def old_keywords(rank: int, count: int, name: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            HANDLES[name](elastic=True, **OLD_NAMES[name])
            HANDLES[name](elastic=True, on_loss="go on")
    texts = [str(one.message) for one in told if one.category is DeprecationWarning]
    for old in OLD_NAMES[name]:
        assert sum(f"({old}=) is deprecated" in text for text in texts) == 1, old
    assert sum('on_loss="go on" is deprecated' in text for text in texts) == 1


@pytest.mark.parametrize("name", OLD_NAMES)
def test_deprecated_keywords_warn_once(name: str) -> None:
    ranks.run(old_keywords, 1, name)
