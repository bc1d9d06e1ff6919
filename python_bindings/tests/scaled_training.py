"""Trainings under a gradient scaler: weights and residuals add up to the sum of known gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import tersor.torch

CODEC = "topk:density=0.05+ef"
EXACT = 1e-5  # relative, of sums in f32
SHAPES = {"a": (96, 48), "b": (64, 80)}
SGD: Callable[..., torch.optim.Optimizer] = torch.optim.SGD

Inputs = dict[str, Tensor]


class Sums(nn.Module):
    """A model whose gradients equal the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(shape)) for shape in SHAPES.values())

    def forward(self, inputs: Inputs) -> Tensor:
        return (self.a * inputs["a"]).sum() + (self.b * inputs["b"]).sum()

    def loss(self, inputs: Inputs) -> Tensor:
        return (self.a * inputs["a"]).sum() + (self.b * inputs["b"]).sum()


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    return fully_shard(model)


def inputs(number: int, rank: int) -> Inputs:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


class Training:
    """SGD with a rate of 1.

    Attributes:
        wanted: The sum of the mean gradients of all steps that were not skipped.
    """

    def __init__(
        self,
        rank: int,
        model: nn.Module,
        groups: Sequence[str] = ("ab",),
        make: Callable[..., torch.optim.Optimizer] = SGD,
        **options: Any,
    ) -> None:
        """``groups``: the parameters of each optimizer. ``box``: compressed instead of ``model``,
        with ``net`` inside."""
        self.rank, self.model, self.groups = rank, model, groups
        init_scale = options.pop("init_scale", 1024.0)
        self.scaler = options.pop("scaler", None) or torch.amp.GradScaler(
            "cpu", init_scale=init_scale, growth_interval=3
        )
        box = options.pop("box", None)
        self.prefix = "" if box is None else "net."
        self.handle = tersor.torch.compress(
            box or model, codec=CODEC, scaler=self.scaler, **options
        )
        module = model.module if isinstance(model, DistributedDataParallel) else model
        self.parameters = dict(module.named_parameters())
        self.optimizers = [make([self.parameters[one] for one in group], 1.0) for group in groups]
        self.wanted = {name: torch.zeros(shape) for name, shape in SHAPES.items()}

    def backward(self, number: int, spoiled: str = "", loss: str = "forward") -> None:
        """``spoiled``: the parameters with an infinite gradient on rank 1."""
        given = inputs(number, self.rank)
        for name in spoiled if self.rank == 1 else "":
            given[name][0, 0] = torch.inf
        call = self.model if loss == "forward" else getattr(self.model, loss)
        self.scaler.scale(call(given)).backward()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def expect(self, number: int, skipped: str = "") -> None:
        """Adds the gradients of a pass to the expected weights, except for skipped optimizers."""
        for group in self.groups:
            if not set(group) & set(skipped):
                for name in group:
                    self.wanted[name] += sum(inputs(number, one)[name] for one in range(2)) / 2

    def step(
        self, number: int, spoiled: Mapping[int, str] | None = None, passes: int = 1, **how: Any
    ) -> None:
        """A step of every optimizer. ``spoiled``: the parameters of the pass within the step."""
        spoiled = spoiled or {}
        self.zero_grad()
        for one in range(passes):
            self.backward(10 * number + one, spoiled.get(one, ""), **how)
            self.expect(10 * number + one, "".join(spoiled.values()))
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def errors(self) -> dict[str, float]:
        """The wrong part of the sum of each parameter. A collective call."""
        kept = self.handle.state_dict("portable")["residuals"]
        found = {}
        for name, wanted in self.wanted.items():
            parameter = self.parameters[name].detach()
            weight = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            residual = kept[self.prefix + name].view(wanted.shape) / 2 / self.scaler.get_scale()
            found[name] = float((residual - weight - wanted).norm() / wanted.norm())
        return found

    def check(self, names: str = "ab") -> None:
        errors = self.errors()
        assert all(errors[name] < EXACT for name in names), errors
