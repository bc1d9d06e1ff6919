"""Models and steps of training for the tests of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 96


def mlp(layers: int = 14) -> nn.Module:
    """Equal on all ranks; of f32."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])


def wrap(module: nn.Module, **options: Any) -> DistributedDataParallel:
    """In DDP with at least 6 buckets from the second step on."""
    return DistributedDataParallel(module, **{"bucket_cap_mb": 0.04, **options})


def inputs(rank: int, step: int, rows: int = 16) -> Tensor:
    """Returns inputs that differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(rows, WIDTH, generator=generator)


def gradients(module: nn.Module) -> Tensor:
    """Returns all gradients in a single tensor."""
    return torch.cat(
        [one.grad.flatten().float() for one in module.parameters() if one.grad is not None]
    )


def train(model: nn.Module, rank: int, steps: range, rate: float = 0.01) -> Iterator[float]:
    """Steps of SGD; the loss of each on this rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in steps:
        optimizer.zero_grad()
        loss = model(inputs(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item()


def mean_gradients(ranks: int, step: int) -> Tensor:
    """Returns the mean over ranks for a new ``mlp()``, computed by one process."""
    total = torch.zeros(())
    for rank in range(ranks):
        module = mlp()
        module(inputs(rank, step)).square().mean().backward()
        total = total + gradients(module)
    return total / ranks


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Returns the relative error of Euclidean norms."""
    return float((found - wanted).norm() / wanted.norm())
