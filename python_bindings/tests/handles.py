"""The handles over PyTorch, each as a training of a small model, for handle_conformance.py.

A training has a model of two layers, separate data on each rank, and an optimizer with momentum and
decay. The optimizer also moves parameters with a gradient of zeros.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from signal import SIGKILL
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import tersor.torch

FIRST, SECOND = ("0.weight", "0.bias"), ("2.weight", "2.bias")  # the parameters of each layer
EXACT = [("0.weight", "none+ef"), ("*", "none")]  # nothing is lost
FEW_BITS = [("0.weight", "int4+ef"), ("*", "bf16")]
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}

Rules = Sequence[tuple[str, str]]


def make_model(width: int = 65) -> nn.Sequential:
    """Equal on all ranks; the first weight is long enough for any codec."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(90, width), nn.Tanh(), nn.Linear(width, 3))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(16, 90, generator=torch.Generator().manual_seed(100 * step + rank))
    return inputs, torch.sin(inputs[:, :3] * 2)


class Training:
    """The common part of all trainings. ``frozen``: the first layer is frozen at first. ``unused``:
    a step may leave out the first layer. ``shards``: the mesh of the sharded model."""

    optimizer: Any
    handle: Any  #: which tells what was sent

    def __init__(
        self,
        rules: Rules = FEW_BITS,
        *,
        frozen: bool = False,
        unused: bool = False,
        width: int = 65,
        shards: DeviceMesh | None = None,
        **options: Any,
    ) -> None:
        self.layers = make_model(width)
        self.unused = unused
        if shards is not None:
            fully_shard(self.layers, mesh=shards)
        self.freeze(frozen)
        self.model: nn.Module = self.layers
        self.wrap({"rules": rules, **options})

    def wrap(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def freeze(self, frozen: bool = True) -> None:
        """Freezes the first layer, or unfreezes the layer. Removes the gradients of the layer."""
        for parameter in self.layers[0].parameters():
            parameter.requires_grad_(not frozen)
            parameter.grad = None

    def loss(self, rank: int, step: int) -> Tensor:
        inputs, targets = batch(rank, step)
        return mse_loss(self.model(inputs), targets)

    def backward(self, rank: int, step: int, scale: float = 1.0) -> None:
        (self.loss(rank, step) * scale).backward()

    def step(self, rank: int, step: int) -> None:
        self.compute(rank, step)
        self.exchange(rank, step)

    def compute(self, rank: int, step: int) -> None:
        """Computes the local part of a step, before the exchange."""
        self.optimizer.zero_grad()

    def exchange(self, rank: int, step: int) -> None:
        """Exchanges, and ends the step."""
        self.backward(rank, step)
        self.end_step()

    def end_step(self) -> None:
        self.optimizer.step()

    def steps(self, rank: int, steps: range) -> None:
        for step in steps:
            self.step(rank, step)

    def scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.step(self.optimizer)

    def die_in_the_next_step(self) -> None:
        """When gradients of the second layer are under way."""
        self.layers[1].register_full_backward_pre_hook(lambda *_: os.kill(os.getpid(), SIGKILL))

    def gradients(self) -> dict[str, Tensor]:
        """This rank's own."""
        named = self.layers.named_parameters()
        return {name: own(one.grad) for name, one in named if one.grad is not None}

    def moments(self) -> dict[str, Tensor]:
        """Returns the moments of the optimizer that an exchange changes."""
        return {}

    def weights(self) -> dict[str, Tensor]:
        """Returns copies of the whole weights. A collective call for sharded weights."""
        named = self.layers.named_parameters()
        return {name: whole(one).detach().clone() for name, one in named}

    def state(self, mode: str = "exact") -> dict[str, Any]:
        """Returns the handle's state for a checkpoint."""
        found: dict[str, Any] = self.handle.state_dict(mode)
        return found

    def load(self, state: dict[str, Any]) -> None:
        self.handle.load_state_dict(state)

    def residuals(self) -> dict[str, Tensor]:
        """This rank's, by name of the parameter, an owner's too."""
        return {
            f"{name} {entry}": rows.to_local().clone()
            for entry in ("residuals", "owners")
            for name, rows in self.kept().get(entry, {}).items()
        }

    def kept(self) -> dict[str, Any]:
        """Returns the residuals in the state."""
        return self.state()

    def save(self) -> Any:
        """Returns the complete state of a run."""
        saved = {"model": self.layers.state_dict(), "handle": self.state()}
        if not isinstance(self, (Compressed, Distributed)):  # handles with all in one state
            saved["optimizer"] = self.optimizer.state_dict()
        return copy.deepcopy(saved)

    def resume(self, saved: Any) -> None:
        self.layers.load_state_dict(saved["model"])
        if "optimizer" in saved:
            self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.load(saved["handle"])


class Ddp(Training):
    def wrap(self, options: dict[str, Any]) -> None:
        self.model = DistributedDataParallel(self.layers, find_unused_parameters=self.unused)
        self.handle = tersor.torch.compress(self.model, **options)
        self.optimizer = torch.optim.SGD(self.layers.parameters(), **SGD)

    def kept(self) -> dict[str, Any]:
        """Returns the residuals without owner residuals, because DDP discards the results with
        owner residuals."""
        return {"residuals": self.state()["residuals"]}


class Fsdp(Training):
    def wrap(self, options: dict[str, Any]) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (self.layers[0], self.layers[2], self.layers):
            # Weights stay gathered, so that no collective of PyTorch's own misses a rank.
            fully_shard(part, mesh=mesh, reshard_after_forward=False)
        self.handle = tersor.torch.compress(self.layers, **options)
        self.optimizer = torch.optim.SGD(self.layers.parameters(), **SGD)


class Distributed(Training):
    def scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        self.handle.synchronize()
        with self.handle.skip_synchronize():
            scaler.step(self.handle)

    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = self.handle = tersor.torch.DistributedOptimizer(
            torch.optim.SGD(self.layers.named_parameters(), **SGD),
            self.layers.named_parameters(),
            **options,
        )

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["param_groups"][0]["tersor"]
        return found


class Compressed(Training):
    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = self.handle = tersor.torch.CompressedAdamW(
            self.layers.named_parameters(), lr=0.01, weight_decay=0.1, **options
        )

    def die_in_the_next_step(self) -> None:
        die_in_the_middle(self.handle.reducer)

    def moments(self) -> dict[str, Tensor]:
        found = enumerate(self.handle.state.values())
        return {f"{i} {key}": one.clone() for i, kept in found for key, one in kept.items()}

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["param_groups"][0]["tersor"]
        return found


class Muon(Compressed):
    """Muon with the first weight as the hidden matrix, as in the rules of the test."""

    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = self.handle = tersor.torch.CompressedMuon(
            self.layers.named_parameters(), lr=0.02, **{"hidden": "^0", **options}
        )


class Sgd(Compressed):
    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = self.handle = tersor.torch.CompressedSGD(
            self.layers.named_parameters(), lr=0.1, **options
        )


class Local(Training):
    """DiLoCo with an exchange after each step."""

    def wrap(self, options: dict[str, Any]) -> None:
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1, weight_decay=0.01)
        self.handle = tersor.torch.DiLoCo(self.layers, **{"sync_every": 1, **options})

    def die_in_the_next_step(self) -> None:
        """All is handed over at once."""
        self.handle.reducer.ready_flat = lambda *_: os.kill(os.getpid(), SIGKILL)

    def compute(self, rank: int, step: int) -> None:
        self.optimizer.zero_grad()
        self.backward(rank, step)
        self.optimizer.step()

    def exchange(self, rank: int, step: int) -> None:
        self.handle.step()

    def end_step(self) -> None:
        self.optimizer.step()
        self.handle.step()

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["residuals"]
        return found


HANDLES: dict[str, type[Training]] = {
    "DDP": Ddp,
    "FSDP2": Fsdp,
    "DistributedOptimizer": Distributed,
    "CompressedAdamW": Compressed,
    "CompressedMuon": Muon,
    "CompressedSGD": Sgd,
    "DiLoCo": Local,
}


def whole(values: Tensor) -> Tensor:
    return values.full_tensor() if isinstance(values, DTensor) else values


def die_in_the_middle(reducer: Any) -> None:
    """Of a step: when the first gradient was handed over."""
    ready = reducer.ready

    def first_ready(*gradient: Any) -> None:
        ready(*gradient)
        os.kill(os.getpid(), SIGKILL)

    reducer.ready = first_ready


def own(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        torch.equal(one, wanted[name]) for name, one in found.items()
    )


def equal_on_ranks(weights: dict[str, Tensor]) -> bool:
    flat = torch.cat([one.flatten() for one in weights.values()])
    first = flat.clone()
    dist.broadcast(first, 0)
    return torch.equal(first, flat)
