"""Checkpoints of CompressedAdamW, CompressedMuon and CompressedSGD over gloo processes."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_compressed_adamw import (
    FEW_BITS,
    Kind,
    every_kind,
    flat,
    make_model,
    own_moments,
    train,
    wrap,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import ranks
import tersor
from tersor.torch import CompressedAdamW, CompressedMuon, CompressedSGD, load_checkpoint

OPTIONS: dict[str, dict[str, Any]] = {
    "few bits": {"codec": FEW_BITS[0]},
    "in the dense start": {"codec": FEW_BITS[1], "warmup_steps": 4},
}


def own_part(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["param_groups"][0]["tersor"]
    return found


def saves(rank: int, count: int, options: dict[str, Any], folder: str) -> torch.Tensor:
    """Three steps, a checkpoint of each kind, and what the three steps after it bring."""
    model = make_model()
    optimizer = wrap(model, **options)
    optimizer.param_groups[0]["lr"] = 0.02
    train(model, optimizer, rank, range(3))
    states = {"exact": optimizer.state_dict(), "portable": optimizer.state_dict("portable")}
    for mode, state in states.items():
        saved = {"model": model.state_dict(), "optimizer": state}
        torch.save(saved, f"{folder}/{mode}{rank}.pt")
        dcp.save(saved, checkpoint_id=f"{folder}/{mode}")
    train(model, optimizer, rank, range(3, 6))
    return flat(model)


def resumed(
    rank: int, options: dict[str, Any], folder: str, mode: str, way: str, file: int
) -> tuple[torch.nn.Module, CompressedAdamW]:
    model = make_model()
    optimizer = wrap(model, **options)
    saved = torch.load(f"{folder}/{mode}{file}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    if way == "torch.load":
        optimizer.load_state_dict(saved["optimizer"])
    elif way == "dcp.load":
        train(model, optimizer, rank, range(1))  # what is loaded lies in the optimizer's own
        model.load_state_dict(saved["model"])
        dcp.load({"optimizer": optimizer}, checkpoint_id=f"{folder}/{mode}")
    else:
        load_checkpoint(optimizer, f"{folder}/{mode}", key="optimizer")
    assert optimizer.param_groups[0]["lr"] == 0.02
    return model, optimizer


def resumes(rank: int, count: int, options: dict[str, Any], folder: str) -> list[torch.Tensor]:
    found = []
    for way in ("torch.load", "dcp.load", "load_checkpoint"):
        model, optimizer = resumed(rank, options, folder, "exact", way, rank)
        train(model, optimizer, rank, range(3, 6))
        found.append(flat(model))
    dist.barrier()
    return found


@every_kind
def test_training_resumes_bit_for_bit_from_warmup(kind: Kind, tmp_path: pathlib.Path) -> None:
    options = {**OPTIONS["in the dense start"], "kind": kind}
    wanted = ranks.run(saves, 3, options, str(tmp_path))
    found = ranks.run(resumes, 3, options, str(tmp_path))
    for of_rank in found:
        assert [torch.equal(one, wanted[0]) for one in of_rank] == [True] * 3


@every_kind
@ranks.on(2)
def test_state_dict_is_a_copy(rank: int, count: int, kind: Kind) -> None:
    """Later steps change neither a saved state nor a loaded state."""
    model = make_model()
    optimizer = wrap(model, kind=kind)
    train(model, optimizer, rank, range(2))
    state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
    before = copy.deepcopy(state["state"])
    found = []
    for _ in range(2):
        train(model, optimizer, rank, range(2, 4))
        found.append(flat(model))
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    assert torch.equal(*found)
    for name, moments in before.items():
        for key, value in moments.items():
            assert torch.equal(state["state"][name][key], value), (name, key)


def resumes_by_pytorch(rank: int, count: int, kind: Kind, folder: str, full: bool) -> None:
    """By ``get_state_dict`` and ``set_state_dict``, also through a distributed checkpoint."""
    options = StateDictOptions(full_state_dict=full)
    model, other = make_model(), make_model()
    optimizer, again = wrap(model, kind=kind), wrap(other, kind=kind)
    train(model, optimizer, rank, range(3))
    model_state, state = get_state_dict(model, optimizer, options=options)
    model_state = copy.deepcopy(model_state)
    if not full:
        dcp.save({"optimizer": state}, checkpoint_id=folder)
        state = get_optimizer_state_dict(other, again)
        dcp.load({"optimizer": state}, checkpoint_id=folder)
    set_state_dict(
        other, again, model_state_dict=model_state, optim_state_dict=state, options=options
    )
    for one, of_one in ((model, optimizer), (other, again)):
        train(one, of_one, rank, range(3, 6))
    assert torch.equal(flat(model), flat(other))


@every_kind
@pytest.mark.parametrize("full", [False, True])
def test_pytorch_state_functions_save_and_restore(
    kind: Kind, full: bool, tmp_path: pathlib.Path
) -> None:
    ranks.run(resumes_by_pytorch, 2, kind, str(tmp_path), full)


def resumes_elsewhere(
    rank: int, count: int, options: dict[str, Any], folder: str
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The first matrix's moments as loaded, its own and the common, and all weights after a step;
    by each way of loading."""
    found = []
    for way in ("torch.load", "load_checkpoint"):
        model, optimizer = resumed(rank, options, folder, "portable", way, 0)
        state = {
            key: one.flatten().clone() for key, one in optimizer.state[model[0].weight].items()
        }
        common = state.get("exp_avg", torch.zeros(0))
        train(model, optimizer, rank, range(3, 4))
        found.append((state.get("momentum_buffer", state.get("exp_avg_sq")), common, flat(model)))
    dist.barrier()
    return found


@ranks.on(2)
def test_pytorch_state_functions_accept_unnamed_parameters(rank: int, count: int) -> None:
    model, other = make_model(), make_model()
    layers = [[{"params": list(one[i].parameters())} for i in (2, 0)] for one in (model, other)]
    optimizer, again = (CompressedAdamW(groups, lr=0.01) for groups in layers)
    train(model, optimizer, rank, range(2))
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, again, get_optimizer_state_dict(model, optimizer))
    for one, of_one in ((model, optimizer), (other, again)):
        train(one, of_one, rank, range(2, 4))
    assert torch.equal(flat(model), flat(other))
    again.load_state_dict(optimizer.state_dict("portable"))
    former = optimizer.state_dict()  # as earlier versions saved it
    former["state"] = {f"parameter.{key}": one for key, one in former["state"].items()}
    again.load_state_dict(former)


@every_kind
@pytest.mark.parametrize("count", [1, 3])
def test_portable_moments_load_on_any_number_of_ranks(
    kind: Kind, count: int, tmp_path: pathlib.Path
) -> None:
    options = {**OPTIONS["few bits"], "kind": kind}
    ranks.run(saves, 2, options, str(tmp_path))
    exact = [torch.load(tmp_path / f"exact{rank}.pt")["optimizer"] for rank in range(2)]
    if kind is CompressedSGD:  # all is common
        whole = [one["state"]["0.weight"]["momentum_buffer"].flatten() for one in exact]
    else:
        entry = "momenta" if kind is CompressedMuon else "variances"
        whole = [own_part(one)[entry]["0.weight"].to_local()[0] for one in exact]
    assert torch.equal(whole[0], whole[1]) == (kind is CompressedSGD)
    momentum = exact[0]["state"]["0.weight"].get("exp_avg", torch.zeros(0)).flatten()
    for of_rank in ranks.run(resumes_elsewhere, count, options, str(tmp_path)):
        for own, common, weights in of_rank:
            torch.testing.assert_close(own, (whole[0] + whole[1]) / 2)
            assert torch.equal(common, momentum)
            assert weights.isfinite().all()


def refuses(rank: int, count: int, folder: str) -> None:
    """Whatever does not fit is named, and changes nothing."""
    model = make_model()
    optimizer = wrap(model)
    train(model, optimizer, rank, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    saved = torch.load(f"{folder}/exact0.pt", weights_only=True)["optimizer"]
    other = CompressedAdamW(torch.nn.Linear(70, 80).named_parameters(), lr=0.01)
    adam = torch.optim.AdamW(model.parameters())
    muon, sgd = (wrap(make_model(), kind=kind) for kind in (CompressedMuon, CompressedSGD))
    topk = wrap(make_model(), FEW_BITS[1]).state_dict()
    plain = wrap(make_model(), rules=[("none", "int8+ef"), ("*", "none")]).state_dict()
    two = [{"params": [one]} for one in make_model().named_parameters()]
    halves = CompressedAdamW(two).state_dict()  # type: ignore[arg-type]
    for message, state in {
        "exact state of 3 ranks, but there are 2.*portable": saved,
        "other parameters: 0.bias, 0.weight, 2.bias, 2.weight, bias, weight": other.state_dict(),
        "not that of a CompressedAdamW": adam.state_dict(),
        "that of a CompressedMuon, not of a CompressedAdamW": muon.state_dict(),
        "that of a CompressedSGD, not of a CompressedAdamW": sgd.state_dict(),
        "0.weight.*topk": topk,
        "0.weight.*another codec": plain,
        "other parameter groups": halves,
    }.items():
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            optimizer.load_state_dict(state)
    with pytest.raises(
        tersor.InvalidArgumentError, match="of a CompressedAdamW, not of a CompressedM"
    ):
        muon.load_state_dict(before)
    with pytest.raises(tersor.InvalidArgumentError, match="exact, portable"):
        optimizer.state_dict("whole")  # type: ignore[arg-type]
    after = optimizer.state_dict()
    assert torch.equal(own_moments(optimizer), own_moments(wrap_loaded(before)))
    for key, row in own_part(before)["residuals"].items():
        assert torch.equal(row.to_local(), own_part(after)["residuals"][key].to_local())


def wrap_loaded(state: dict[str, Any]) -> CompressedAdamW:
    optimizer = wrap(make_model())
    optimizer.load_state_dict(state)
    return optimizer


def test_mismatched_state_is_rejected_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    ranks.run(saves, 3, OPTIONS["few bits"], str(tmp_path))
    ranks.run(refuses, 2, str(tmp_path))


@ranks.on(2)
def test_state_dict_rejects_parameters_first_trained_after_remove(rank: int, count: int) -> None:
    model = make_model()
    model[2].requires_grad_(False)
    optimizer = wrap(model)
    train(model, optimizer, rank, range(1))
    optimizer.remove()
    optimizer.load_state_dict(optimizer.state_dict())
    model[2].requires_grad_(True)
    train(model, optimizer, rank, range(1, 2))
    with pytest.raises(tersor.InvalidArgumentError, match=r"2\.weight, first trained after"):
        optimizer.state_dict()


@pytest.mark.parametrize("mode", ["exact", "portable"])
@ranks.on(3)
def test_state_loads_with_another_result_codec(rank: int, count: int, mode: Any) -> None:
    model, other = make_model(), make_model()
    optimizer, again = wrap(model, FEW_BITS[0]), wrap(other, "hadamard:bits=1,result=int8+ef")
    train(model, optimizer, rank, range(2))
    other.load_state_dict(model.state_dict())
    again.load_state_dict(optimizer.state_dict(mode))
    sums = [own_part(one.state_dict("portable"))["residuals"] for one in (optimizer, again)]
    for name, residual in sums[0].items():
        torch.testing.assert_close(sums[1][name], residual)
    train(other, again, rank, range(2, 3))
    again.load_state_dict(optimizer.state_dict(mode))


@ranks.on(1)
def test_state_in_another_order_is_rejected(rank: int, count: int) -> None:
    named = list(make_model().named_parameters())
    state = CompressedAdamW(named).state_dict("portable")
    words = "in another order: 0.weight, 0.bias, 2.weight, 2.bias"
    with pytest.raises(tersor.InvalidArgumentError, match=words):
        CompressedAdamW(named[::-1]).load_state_dict(state)


@ranks.on(1)
def test_state_with_transposed_shapes_is_rejected(rank: int, count: int) -> None:
    """Linear and Conv1D of Transformers have transposed weights under one name."""
    for one, other in ((64, 128), (128, 64)):
        model = torch.nn.Linear(one, other, bias=False)
        saved = CompressedAdamW(model.named_parameters()).state_dict()
        transposed = torch.nn.Linear(other, one, bias=False)
        optimizer = CompressedAdamW(transposed.named_parameters())
        words = f"weight has the shape {one} x {other}, in the state {other} x {one}"
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            optimizer.load_state_dict(saved)
