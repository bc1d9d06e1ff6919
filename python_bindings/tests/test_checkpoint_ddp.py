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


def test_without_residuals_training_goes_on_elsewhere(tmp_path: pathlib.Path) -> None:
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


def test_the_sum_of_residuals_goes_to_other_ranks(tmp_path: pathlib.Path) -> None:
    codec = "topk:density=0.05+ef"
    ranks.run(train_and_save, 2, codec, str(tmp_path))
    saved = torch.load(tmp_path / "portable.pt", weights_only=True)["tersor"]
    kept = torch.cat(list(saved["residuals"].values())) / saved["ranks"]  # of a mean
    for norm in ranks.run(resume_on_other_ranks, 3, codec, str(tmp_path)):
        assert norm == pytest.approx(float(kept.norm()), rel=1e-4)
