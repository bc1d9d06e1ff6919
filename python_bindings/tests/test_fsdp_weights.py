"""The all-gather of weights by a codec, under FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import INPUTS, fsdp_modules, sharded_model, train, weights
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import ranks
from tersor.torch import fsdp
from tersor.torch._src.fsdp import weights as sharded_weights

NONE: dict[str, Any] = {"rules": [("*", "none")]}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-9))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("codec", "error"), [("int8", 0.01), ("hadamard:bits=4", 0.2)])
@ranks.on("count")
def test_weights_codec_compresses_gathered_weights(
    rank: int, count: int, codec: str, error: float
) -> None:
    ours, reference = sharded_model(count), sharded_model(count)
    fsdp.compress(ours, weights_codec=codec, **NONE)
    inputs = torch.randn(8, INPUTS, generator=torch.Generator().manual_seed(3))
    found = ours(inputs).detach()
    assert 1e-4 < relative(found, reference(inputs).detach()) < error
    for module in fsdp_modules(ours) + fsdp_modules(reference):
        module.reshard()
    assert torch.equal(weights(ours), weights(reference))  # the shards themselves are as they were
    others = [torch.empty_like(found) for _ in range(count)]
    dist.all_gather(others, found)
    assert all(torch.equal(one, found) for one in others)  # computed with the same weights
    train(ours, rank, range(3))


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the weights in the computation of each rank."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            for own, values in module.named_parameters(prefix=name):
                if not isinstance(values, DTensor):  # of another module, not gathered with this one
                    found[own] = values.detach().clone()
            module.reshard()
    return found


def energies_lost(rank: int, count: int, codec: str, dtype: torch.dtype) -> dict[str, float]:
    """Returns the squared error of each parameter's all-gather."""
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    ours, reference = (sharded_model(count, policy) for _ in range(2))
    fsdp.compress(ours, weights_codec=codec, **NONE)
    exact = whole_weights(reference)
    assert set(exact) == {name for name, _ in ours.named_parameters()}
    return {
        name: relative(values.float(), exact[name].float()) ** 2
        for name, values in whole_weights(ours).items()
    }


@pytest.mark.parametrize(("count", "dtype"), [(2, torch.float32), (3, torch.bfloat16)])
@pytest.mark.parametrize(
    ("codec", "lost"),
    # Weights are uniform in an interval, which suits int4: normal weights lose 0.014.
    [("int8", 1.6e-5), ("int4", 0.005), ("hadamard:bits=4", 0.0113), ("hadamard", 0.118)],
)
def test_weight_error_matches_the_codec_of_each_parameter(
    count: int, dtype: torch.dtype, codec: str, lost: float
) -> None:
    for found in ranks.run(energies_lost, count, codec, dtype):
        for name, energy in found.items():
            if name in ("0.weight", "2.weight"):
                assert energy == pytest.approx(lost, rel=0.15, abs=2**-17), name
            else:  # small ones go as bf16, whatever stands beside them
                assert energy < 2**-16, name


@ranks.on(2)
def test_stochastic_rounding_of_weights_differs_between_steps(rank: int, count: int) -> None:
    model = sharded_model(count)
    fsdp.compress(model, weights_codec="int8:rounding=stochastic", **NONE)
    inputs = torch.randn(8, INPUTS, generator=torch.Generator().manual_seed(3))
    first, again = model(inputs), model(inputs)
    assert torch.equal(first, again)  # as long as the weights may not have changed
    again.square().mean().backward()  # which no optimizer uses
    later = model(inputs)
    assert 1e-3 < relative(later.detach(), first.detach()) < 0.2


@ranks.on(4)
def test_fewer_ranks_gather_the_weights_of_the_forward_pass(rank: int, count: int) -> None:
    mesh = init_device_mesh("cpu", (count,))
    layer = fully_shard(torch.nn.Linear(64, 64, bias=False), mesh=mesh, reshard_after_forward=2)
    model = fully_shard(torch.nn.Sequential(layer), mesh=mesh)
    fsdp.compress(model, weights_codec="hadamard:bits=4", **NONE)
    inputs = torch.eye(64, requires_grad=True)
    outputs = model(inputs)
    outputs.backward(torch.eye(64))
    assert inputs.grad is not None
    assert torch.equal(inputs.grad, outputs.detach().T)


@ranks.on(2)
def test_byte_gathers_pass_through_unchanged(rank: int, count: int) -> None:
    kept_model = sharded_model(count)
    gradients = fsdp.compress(kept_model)._gradients[0]
    gather = sharded_weights.WeightExchange("int8", gradients._sender, gradients)
    output = torch.zeros(5 * count, dtype=torch.uint8)
    own = output[5 * rank : 5 * rank + 5]  # as FSDP does: the input lies in the output
    own.copy_(torch.arange(5) + 10 * rank)
    gather(output, own, dist.group.WORLD)  # type: ignore[arg-type]
    assert output.view(count, 5).tolist() == [[10 * r + i for i in range(5)] for r in range(count)]
