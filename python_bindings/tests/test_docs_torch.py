"""The programs of pages that use PyTorch alone run as they stand there, on two ranks."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from pages import programs

import ranks

torch = pytest.importorskip("torch")

PAGES = tuple(
    f"docs/{page}.md" for page in ("python", "adopt", "diloco", "elastic", "muon", "server")
)
RANKS = 2


def surroundings(rank: int, folder: str) -> dict[str, Any]:
    """What the page says is the reader's own, and what its programs import."""
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.tensorboard import SummaryWriter

    import tersor.torch

    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10))

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    random = torch.Generator().manual_seed(rank)
    images = torch.randn(4, 16, 32, generator=random)
    return {
        "DistributedDataParallel": DistributedDataParallel,
        "SummaryWriter": SummaryWriter,
        "batches": [(one, one[:, :10].argmax(1)) for one in images],
        "dist": dist,
        "folder": folder,
        "fully_shard": fully_shard,
        "loss_of": loss_of,
        "network": network,
        "tersor": tersor,
        "torch": torch,
    }


def weights_of(found: dict[str, Any]) -> list[Any]:
    """What a program leaves behind that all ranks have: parameters, their gradients among them."""
    if "model" not in found:
        return [found[name] for name in ("gradient",) if name in found]
    from torch.distributed.tensor import DTensor

    tensors = [one for p in found["model"].parameters() for one in (p.detach(), p.grad)]
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in tensors]


def run_program(rank: int, _: int, program: str, folder: str) -> list[Any]:
    found = surroundings(rank, folder)
    exec(program, found)
    return weights_of(found)


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(programs(page, "torch")))],
)
def test_a_program_runs_and_ranks_agree(page: str, number: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    program = programs(page, "torch")[number]
    first, second = ranks.run(run_program, RANKS, program, str(tmp_path))
    # These have gradients of their own on each rank, and equal parameters.
    own_gradients = ("DiLoCo", "torch.Compressed", "torch.allocate", "ParameterClient")
    step = 2 if any(name in program for name in own_gradients) else 1
    for one, other in zip(first[::step], second[::step], strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()
