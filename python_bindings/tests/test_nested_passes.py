"""Nested backward passes: reentrant checkpointing, under DistributedDataParallel and FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ddp_models import inputs, mlp, relative_error, wrap
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import ranks
import tersor
import tersor.torch
from tersor.torch._src.fsdp.exchange import Sender
from tersor.torch._src.gradients.backward import Passes

NONE: dict[str, Any] = {"rules": [("*", "none")]}
MIDDLE = 4  # of eight layers


class Nested(nn.Module):
    """Layers with separate backward passes, except the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(8)

    def forward(self, values: Tensor) -> Tensor:
        first, *others = self.layers.children()
        values = first(values)
        for layer in others:
            values = checkpoint(layer, values, use_reentrant=True)
        return values


class Whole(Nested):
    """All gradients are computed in a pass within the outer pass."""

    def forward(self, values: Tensor) -> Tensor:
        values = values.requires_grad_()
        return checkpoint(super().forward, values, use_reentrant=True)  # type: ignore[no-any-return]


def sharded(module: Nested) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in module.layers.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


Make = Callable[[Nested], nn.Module]
WAYS = pytest.mark.parametrize("make", [wrap, sharded])
MODELS = pytest.mark.parametrize("model", [Nested, Whole])


def layers_of(model: nn.Module) -> nn.Sequential:
    found = getattr(model, "module", model).layers
    assert isinstance(found, nn.Sequential)
    return found


def gradients(model: nn.Module) -> Tensor:
    found = [one.grad for one in model.parameters()]
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in found]
    return torch.cat([one.flatten() for one in parts if one is not None])


def one_backward(model: nn.Module, rank: int, step: int) -> BaseException | None:
    model.zero_grad()
    loss = model(inputs(rank, step)).square().mean()
    try:
        loss.backward()
    except tersor.Error as error:
        return error
    return None


@WAYS
@MODELS
@ranks.on(2)
def test_gradients_match_pytorch(rank: int, count: int, make: Make, model: type[Nested]) -> None:
    ours, plain = make(model()), make(model())
    tersor.torch.compress(ours, **NONE)
    for step in range(3):
        assert one_backward(ours, rank, step) is None
        assert one_backward(plain, rank, step) is None
        assert torch.equal(gradients(ours), gradients(plain))


def fails(rank: int, count: int, make: Make, model: type[Nested], layer: int) -> list[str]:
    """A rank's transport fails before the gradient of a layer. Then all ranks start again."""
    ours, plain = make(model()), make(model())
    handle = tersor.torch.compress(ours, codec="int8", timeout=20)
    for step in range(2):
        assert one_backward(ours, rank, step) is None
    dist.barrier()  # nobody is still in these steps
    transport = tersor.torch.transport()
    if rank == 0:
        hook = layers_of(ours)[layer].register_full_backward_pre_hook(
            lambda *_: transport.abort("a test says so")
        )
    errors = [one_backward(ours, rank, step) for step in (2, 3)]
    assert all(isinstance(one, tersor.TransportError) for one in errors), errors
    assert bool(gradients(ours).isnan().any())
    dist.barrier()
    if rank == 0:
        hook.remove()
    handle.reset()
    for step in range(4, 7):
        assert one_backward(ours, rank, step) is None
        assert one_backward(plain, rank, step) is None
        assert 1e-4 < relative_error(gradients(ours), gradients(plain)) < 0.03
    return [str(one) for one in errors]


@WAYS
@MODELS
@pytest.mark.parametrize("layer", [0, MIDDLE, 7])
def test_training_continues_after_errors(make: Make, model: type[Nested], layer: int) -> None:
    for messages in ranks.run(fails, 2, make, model, layer):
        assert all("a test says so" in one for one in messages)


def waits_once(rank: int, count: int) -> int:
    """Returns the number of waits of a pass for all sent gradients."""
    ours = sharded(Nested())
    tersor.torch.compress(ours, codec="int8")
    assert one_backward(ours, rank, 0) is None
    with mock.patch.object(
        Sender, "end_steps", autospec=True, side_effect=Sender.end_steps
    ) as wait:
        assert one_backward(ours, rank, 1) is None
    return wait.call_count


def test_fsdp_pass_waits_once() -> None:
    assert ranks.run(waits_once, 2) == [1, 1]


def test_foreign_error_ends_the_pass() -> None:
    ends: list[str] = []
    passes = Passes(lambda: ends.append("end"))
    weight = torch.ones(1, requires_grad=True)

    def begin(_: Tensor) -> None:
        passes.begin()
        passes.begin()  # of another model

    loss = weight * 2
    loss.register_hook(begin)
    loss.backward()  # type: ignore[no-untyped-call]
    assert ends == ["end"]

    def fail(_: Tensor) -> None:
        assert passes.active
        raise KeyError("a mistake of the trainer's")

    loss = weight * 2
    loss.register_hook(begin)
    loss.register_hook(fail)
    with pytest.raises(KeyError):
        loss.backward()  # type: ignore[no-untyped-call]
    assert not passes.active
    assert ends == ["end"]
