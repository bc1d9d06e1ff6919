"""FSDP2 modules with another set of layers in each step, equal on all ranks."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sharded_models import local
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
from tersor.torch import _compat, fsdp
from tersor.torch._src.fsdp.reducer import _MAX_FALLBACKS

LAYERS, WIDTH = 10, 24
NONE: dict[str, Any] = {"rules": [("*", "none")]}


class Net(nn.Module):
    """Residual layers of unequal sizes. A call uses the layers in ``keep``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH + one) for one in range(LAYERS))

    def forward(self, inputs: Tensor, keep: list[bool]) -> Tensor:
        for kept, layer in zip(keep, self.layers, strict=True):
            inputs = inputs + layer(inputs)[:, :WIDTH] if kept else inputs
        return inputs


def sets(count: int) -> Iterator[list[bool]]:
    """Yields all layers, then different sets without the first layer."""
    yield [True] * LAYERS
    for number in random.Random(1).sample(range(1, 1 << LAYERS), count - 1):
        yield [bool(number >> layer & 1) for layer in range(LAYERS)]


def sharded(mesh: Any) -> Net:
    model = Net()
    fully_shard(model, mesh=mesh)
    return model


def backward(model: nn.Module, rank: int, step: int, keep: list[bool]) -> None:
    model.zero_grad()
    inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * rank + step))
    model(inputs, keep).square().sum().backward()


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def some_gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else local(one.grad) for one in model.parameters()]


def goes_through(rank: int, count: int, steps: int, mesh_shape: tuple[int, ...]) -> None:
    """All sets have PyTorch's bits by ``none``, and share a reducer."""
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    ours, reference = sharded(mesh), sharded(mesh)
    handle = fsdp.compress(ours, **NONE)
    before: tuple[int, int] | None = None
    memory = 0
    for step, keep in enumerate(sets(steps)):
        compared = steps <= 100 or step % 10 == 0
        for model in (ours, reference) if compared else (ours,):
            backward(model, rank, step, keep)
        for one, other in zip(
            some_gradients(ours), some_gradients(reference if compared else ours), strict=True
        ):
            if len(mesh_shape) == 1:
                assert (one is None) == (other is None)
                assert one is None or other is None or torch.equal(one, other), (step, keep)
            elif one is not None:
                torch.testing.assert_close(one, other)
        if step == steps // 2:
            before, memory = held(), resident()
    # A leak holds at least one of either for each set.
    assert all(now < then + steps // 4 for now, then in zip(held(), before or (), strict=True))
    assert len(handle._reducers) == len(mesh_shape)
    assert resident() - memory < 4 << 20
    assert "had no gradient" not in handle.explain()
    (found, *_) = handle._reducers
    assert int(found.core.explain().split(" parameters in ")[1].split()[0]) < 64 + 4 * LAYERS + 2


@ranks.on(2)
def test_single_reducer_matches_pytorch_for_all_layer_sets(rank: int, count: int) -> None:
    goes_through(rank, count, 60, (2,))


@ranks.on(4)
def test_replicas_support_changing_layer_sets(rank: int, count: int) -> None:
    goes_through(rank, count, 12, (2, 2))


@pytest.mark.long
@ranks.on(2)
def test_thousand_layer_sets_use_bounded_resources(rank: int, count: int) -> None:
    goes_through(rank, count, 1000, (2,))


@ranks.on(2)
def test_layers_without_gradients_keep_their_residuals(rank: int, count: int) -> None:
    """The sent values and the residuals of each layer sum to the gradients, for all sets."""
    ours, reference = (sharded(init_device_mesh("cpu", (count,))) for _ in range(2))
    handle = fsdp.compress(ours, rules=[("*", "topk:density=0.1+ef")])
    names = [name for name, _ in ours.named_parameters()]
    sent = {name: torch.zeros(()) for name in names}
    wanted, steps = dict(sent), dict.fromkeys(names, 0)
    for step, keep in enumerate(sets(12)):
        before = {name: one.residual.clone() for name, one in handle.feedback.items()}
        for model in (ours, reference):
            backward(model, rank, step, keep)
        after = handle.feedback
        for name, one, other in zip(
            names, some_gradients(ours), some_gradients(reference), strict=True
        ):
            if one is None or other is None:
                assert torch.equal(after[name].residual, before[name]), (step, name)
                continue
            steps[name] += 1
            sent[name], wanted[name] = sent[name] + one, wanted[name] + other
    assert {one.name: one.steps for one in handle.statistics()} == steps
    for name, kept in handle.feedback.items():
        owed = kept.padded()
        torch.distributed.all_reduce(owed)
        shard = owed.view(count, -1)[rank][: sent[name].numel()].view_as(sent[name]) / count
        torch.testing.assert_close(sent[name] + shard, wanted[name])


@ranks.on(2)
def test_unknown_layer_sets_are_sent_uncompressed(rank: int, count: int) -> None:
    ours, reference = (sharded(init_device_mesh("cpu", (count,))) for _ in range(2))
    handle = fsdp.compress(ours, codec="int4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compat, "fsdp_message", tuple)
        for step, keep in enumerate(sets(2 * _MAX_FALLBACKS)):
            for model in (ours, reference):
                backward(model, rank, step, keep)
            if step:
                pairs = zip(some_gradients(ours), some_gradients(reference), strict=True)
                assert all(one is other or torch.equal(one, other) for one, other in pairs)  # type: ignore[arg-type]
    assert len(handle._reducers) == 1 + _MAX_FALLBACKS
    assert "PyTorch does not show which" in handle.explain()
