"""tersor.torch.allocate: rules within a budget, on one rank and on several ranks."""

from __future__ import annotations

import pytest
import torch
from ddp_models import WIDTH, inputs, mlp, train, wrap
from torch import nn
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
import tersor.torch

Rules = list[tuple[str, str]]


def with_gradients(rank: int = 0, layers: int = 2) -> nn.Module:
    model = mlp(layers)
    model(inputs(rank, 0)).square().mean().backward()
    return model


def lost(model: nn.Module, rules: Rules) -> tuple[float, float]:
    """Bits a value and energy lost, encoded anew; of codecs with frames."""
    named = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    sent = energy = 0.0
    for name, gradient in named.items():
        codec = tersor.Codec(dict(rules)[name].removesuffix("+ef"))
        payload = codec.encode(gradient)
        sent += len(payload) - HEADER_BYTES
        energy += float((codec.decode(payload) - gradient.flatten()).square().sum())
    return 8 * sent / sum(one.numel() for one in named.values()), energy


HEADER_BYTES = 64
FRAMED = ["none", "int8", "hadamard:bits=4+ef", "hadamard:bits=2+ef", "hadamard:bits=1+ef"]


def test_rules_respect_the_budget_and_lose_less_with_more_bits() -> None:
    model = with_gradients()
    found = [lost(model, tersor.torch.allocate(model, b, codecs=FRAMED)) for b in (2, 4, 8, 32)]
    for bits, (sent, _) in zip((2, 4, 8, 32), found, strict=True):
        assert sent <= bits
    energies = [energy for _, energy in found]
    assert energies == sorted(energies, reverse=True)
    assert energies[0] > energies[-1] == 0


def test_each_gradient_gets_a_rule_and_the_rest_a_default() -> None:
    model = with_gradients()
    model.register_parameter("late", nn.Parameter(torch.zeros(3)))
    rules = tersor.torch.allocate(model, 3)
    assert [name for name, _ in rules] == ["0.weight", "0.bias", "1.weight", "1.bias", "*"]
    assert rules[-1] == ("*", "bf16")


def test_low_rank_gradient_uses_lowrank_codec() -> None:
    model = nn.Linear(256, 256, bias=False)
    model.weight.grad = torch.outer(torch.arange(256.0), torch.ones(256))
    assert tersor.torch.allocate(model, 0.2)[0][1].startswith("lowrank:rank=1")
    model.weight.grad = torch.zeros(256, 256)
    with pytest.warns(UserWarning, match="all gradients of weight are zeros"):
        tersor.torch.allocate(model, 8)


def test_invalid_arguments_raise() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="after backward"):
        tersor.torch.allocate(mlp(1), 2)
    model = with_gradients()
    with pytest.raises(tersor.InvalidArgumentError, match="give at least 8"):
        tersor.torch.allocate(model, 2, codecs=["int8"])
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        tersor.torch.allocate(model, 2, codecs=["int9"])
    next(model.parameters()).grad.fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(tersor.InvalidArgumentError, match=r'"0\.weight" contains a NaN'):
        tersor.torch.allocate(model, 2)


def on_ranks(rank: int, count: int) -> tuple[Rules, list[str]]:
    model = with_gradients(rank)
    if rank == 1:  # a parameter that only rank 0 used, and a layer that matters
        model[0].bias.grad = None
        model[1].weight.grad *= 1000
    rules = tersor.torch.allocate(model, 3)
    ddp = wrap(model)
    handle = tersor.torch.compress(ddp, rules=rules)
    list(train(ddp, rank, range(2)))
    return rules, [one.codec for one in handle.statistics()]


def test_ranks_sum_energies_and_train_with_the_same_rules() -> None:
    found = ranks.run(on_ranks, 2)
    assert found[0] == found[1]
    rules, codecs = found[0]
    assert sorted(codecs) == sorted(codec for _, codec in rules[:-1])
    alone = tersor.torch.allocate(with_gradients(0), 3)
    assert dict(alone)["1.weight"] != dict(rules)["1.weight"]


def with_one_broken(rank: int, count: int) -> str:
    model = with_gradients(rank)
    if rank == 1:
        model[0].bias.grad[3] = torch.inf
    with pytest.raises(tersor.InvalidArgumentError) as raised:
        tersor.torch.allocate(model, 3)
    return str(raised.value)


def test_nonfinite_gradient_on_one_rank_raises_on_all_ranks() -> None:
    for message in ranks.run(with_one_broken, 2):
        assert message.startswith('rank 1: the gradient of "0.bias" contains')


def sharded(rank: int, count: int) -> Rules:
    model = fully_shard(mlp(2))
    model(inputs(rank, 0)).square().mean().backward()
    rules = tersor.torch.allocate(model, 3)
    again = fully_shard(mlp(2))
    tersor.torch.compress(again, rules=rules)
    again(inputs(rank, 0)).square().mean().backward()
    return rules


def test_sharded_parameters_get_equal_rules_on_all_ranks() -> None:
    found = ranks.run(sharded, 2)
    assert found[0] == found[1]
    assert [name for name, _ in found[0]] == ["0.weight", "0.bias", "1.weight", "1.bias", "*"]
    assert WIDTH * WIDTH >= 4096


@ranks.on(2)
def test_error_on_one_rank_does_not_block_a_gather(rank: int, count: int) -> None:
    model = mlp(2)
    fully_shard(model[1])
    model(inputs(rank, 0)).square().mean().backward()
    if rank == 1:
        model[0].bias.grad[3] = torch.inf
    with pytest.raises(tersor.InvalidArgumentError, match=r'rank 1: the gradient of "0.bias"'):
        tersor.torch.allocate(model, 3)
