"""A model on each rank that moves by itself, for the tests of DiLoCo."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tersor


def make_model(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(80, 70), torch.nn.Tanh(), torch.nn.Linear(70, 3))


def move(model: torch.nn.Module, seed: int) -> None:
    """As an inner step would: every parameter moves a little, differently on each rank."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def mean_of_ranks(values: torch.Tensor) -> torch.Tensor:
    mean = values / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def equal_on_ranks(values: torch.Tensor) -> bool:
    first = values.clone()
    dist.broadcast(first, 0)
    return torch.equal(first, values)


def quantised(codec: tersor.Codec, values: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(values)
    codec.decode(codec.encode(values), out=found)
    return found
