"""The models for tests of FSDP2: small, with uneven shapes, sharded over gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

INPUTS, HIDDEN, OUTPUTS = 65, 71, 3  # no multiples of the numbers of ranks


def make_model() -> torch.nn.Sequential:
    """Two layers with weights large enough for a codec, and small parameters."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN),
        torch.nn.LayerNorm(HIDDEN),
        torch.nn.Linear(HIDDEN, INPUTS),
        torch.nn.Tanh(),
        torch.nn.Linear(INPUTS, OUTPUTS),
    )


class Branches(torch.nn.Module):
    """Two layers side by side. A step may use only one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = (torch.nn.Linear(INPUTS, HIDDEN) for _ in range(2))

    def forward(self, inputs: torch.Tensor, *, both: bool = True) -> torch.Tensor:
        outputs: torch.Tensor = self.second(inputs)
        return outputs + self.first(inputs) if both else outputs


def shard(
    model: torch.nn.Sequential,
    ranks: int,
    policy: MixedPrecisionPolicy | None = None,
    **options: Any,
) -> torch.nn.Sequential:
    """Two layers by themselves, the rest with the root."""
    mesh = options.pop("mesh", None) or init_device_mesh("cpu", (ranks,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy(), **options)
    return model


def sharded_model(ranks: int, policy: MixedPrecisionPolicy | None = None) -> torch.nn.Sequential:
    return shard(make_model(), ranks, policy)


def backward(model: torch.nn.Module, rank: int, step: int, loss_scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, INPUTS, generator=generator)
    outputs = model(inputs).float()
    loss = torch.nn.functional.mse_loss(outputs, torch.sin(2 * inputs[:, :OUTPUTS]))
    (loss * loss_scale).backward()


Step = Callable[[torch.nn.Module, torch.optim.Optimizer, int, int], None]


def plain_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    backward(model, rank, step)
    optimizer.step()
    optimizer.zero_grad()


def train(model: torch.nn.Module, rank: int, steps: range, step: Step = plain_step) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in steps:
        step(model, optimizer, rank, number)


def local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """Returns all shards of this rank in order, as f32."""
    return torch.cat([local(one.grad).reshape(-1).float() for one in model.parameters()])


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([local(one.detach()).reshape(-1).float() for one in model.parameters()])


def fsdp_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [one for one in model.modules() if isinstance(one, FSDPModule)]
