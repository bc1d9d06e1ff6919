"""A training under DDP continues from a checkpoint like a training without a stop."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch
from tersor.torch._src.process_group import connections as group

FIRST, LAST = 4, 8  # steps before the checkpoint, and all of them


class Training:
    """One rank's model, optimizer and handle, with data of step and rank."""

    def __init__(self, codec: str, width: int = 96) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(80, width), nn.Tanh(), nn.Linear(width, 70))
        self.model = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.handle = tersor.torch.compress(self.model, codec=codec)

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(1000 * dist.get_rank() + number)
        values = torch.randn(16, 80, generator=generator)
        loss = (self.model(values) - values[:, :70]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def steps(self, first: int, last: int) -> list[float]:
        return [self.step(number) for number in range(first, last)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "tersor": self.handle.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.handle.load_state_dict(state.get("tersor"))


def finished(result: Any) -> Any:
    """Once no rank needs another any more: ends the connections."""
    dist.barrier()
    group.close()
    return result


def train_and_save(rank: int, count: int, codec: str, folder: str) -> list[float]:
    """Returns the losses after a checkpoint of each kind, in a training without a stop."""
    training = Training(codec)
    training.steps(0, FIRST)
    torch.save(training.state_dict(), f"{folder}/rank{rank}.pt")
    saved = training.state_dict()
    dcp.save({**saved, "tersor": training.handle}, checkpoint_id=f"{folder}/exact")
    saved["tersor"] = training.handle.state_dict(mode="portable")
    if rank == 0:
        torch.save(saved, f"{folder}/portable.pt")
    return finished(training.steps(FIRST, LAST))


def resume_without(rank: int, count: int, codec: str, folder: str) -> tuple[list[float], int]:
    """Returns the losses without residuals, and the number of warnings."""
    training = Training(codec)
    saved = torch.load(f"{folder}/rank{rank}.pt", weights_only=True)
    del saved["tersor"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.load_state_dict(saved)
    warned = sum("residual" in str(one.message) for one in caught)
    return finished((training.steps(FIRST, LAST), warned))


def test_missing_residuals_warn_once_and_change_losses(tmp_path: pathlib.Path) -> None:
    codec = "topk:density=0.05+ef"
    wanted = ranks.run(train_and_save, 2, codec, str(tmp_path))
    for (losses, warned), with_residuals in zip(
        ranks.run(resume_without, 2, codec, str(tmp_path)), wanted, strict=True
    ):
        assert warned == 1
        assert losses[0] == with_residuals[0]  # before anything was sent
        assert losses[2:] != with_residuals[2:]


def resume_on_other_ranks(rank: int, count: int, codec: str, folder: str) -> float:
    """How much is kept for later, at first."""
    training = Training(codec)
    training.load_state_dict(torch.load(f"{folder}/portable.pt", weights_only=True))
    norm = training.handle.totals(residual_norms=True).residual_norm
    training.steps(FIRST, LAST)
    return finished(norm)


def test_portable_residuals_load_on_another_rank_count(tmp_path: pathlib.Path) -> None:
    codec = "topk:density=0.05+ef"
    ranks.run(train_and_save, 2, codec, str(tmp_path))
    saved = torch.load(tmp_path / "portable.pt", weights_only=True)["tersor"]
    kept = torch.cat(list(saved["residuals"].values())) / saved["ranks"]  # of a mean
    for norm in ranks.run(resume_on_other_ranks, 3, codec, str(tmp_path)):
        assert norm == pytest.approx(float(kept.norm()), rel=1e-4)


def layer(kind: str) -> nn.Module:
    if kind == "wide":
        return nn.Linear(80, 96, bias=False)
    if kind == "high":
        return nn.Linear(96, 80, bias=False)
    made = nn.Conv2d(16, 32, 3, bias=False)
    return made.to(memory_format=torch.channels_last) if kind == "channels last" else made


def refused(rank: int, count: int, before: str, after: str, mode: str) -> str:
    """Returns the error of a model that loads the state of another model."""
    states = []
    for kind in (before, after):
        model = DistributedDataParallel(layer(kind))
        handle = tersor.torch.compress(model, rules=[("*", "int4+ef")])
        shape = (
            (2, 16, 6, 6) if kind in ("plain", "channels last") else (2, model.module.in_features)
        )
        model(torch.ones(shape)).sum().backward()
        if kind == before:
            states.append(handle.state_dict(mode=mode))
    with pytest.raises(tersor.InvalidArgumentError) as caught:
        handle.load_state_dict(states[0])
    return finished(str(caught.value))


@pytest.mark.parametrize("mode", ["exact", "portable"])
def test_layout_mismatch_is_rejected(mode: str) -> None:
    for text in ranks.run(refused, 2, "wide", "high", mode):
        assert text == (
            "the state's shapes has [96, 80] for weight, but the parameter has [80, 96]"
        )
    for text in ranks.run(refused, 2, "plain", "channels last", mode):
        assert "memory_orders has [0, 1, 2, 3] for weight" in text


def numbered_residuals(rank: int, count: int, unused: bool) -> list[float]:
    """Returns the residuals' norms after a first pass of a hook without a model."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    state = tersor.torch.HookState(rules=[("*", "int4+ef")])
    model = DistributedDataParallel(module, find_unused_parameters=unused, bucket_cap_mb=0.02)
    model.register_comm_hook(state, tersor.torch.hook)
    model(torch.ones(2, 64)).square().sum().backward()
    named = state.state_dict(mode="portable")["residuals"]
    return finished([float(named[f"parameter.{i}"].norm()) for i in range(4)])


def test_parameter_numbers_do_not_depend_on_buckets() -> None:
    for one, other in zip(
        ranks.run(numbered_residuals, 2, False), ranks.run(numbered_residuals, 2, True), strict=True
    ):
        assert one == pytest.approx(other)
