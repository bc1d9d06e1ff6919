"""1-bit Adam of the benchmark, over gloo processes: the sent bits and the weights."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

import ranks
from tersor.bench import hooks
from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import Sender
from tersor.bench.optimizers import BETA2, SignExchange, decoded, packed_signs

SIZES = [3, 17, 1, 8]  # borders of tensors within bytes and within ranks' parts


def own_values(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(100 * rank + step))


def test_eight_signs_pack_into_one_byte() -> None:
    values = torch.tensor([[1.0, -2.0, 0.0, -0.5, 3.0, 4.0, 5.0, -6.0]])
    signs = packed_signs(values)
    assert signs.tolist() == [[0b10001010]]
    tensor_of = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    assert decoded(signs, torch.tensor([2.0, 3.0]), tensor_of).tolist() == [
        [2, -2, 2, -2, 3, 3, 3, -3]
    ]


def exchange_once(rank: int, world: int) -> tuple[list[float], float]:
    sender = Sender()
    exchange = SignExchange(SIZES, torch.device("cpu"), sender)
    return exchange.mean(own_values(rank)).tolist(), sender.sent_bytes


def signs_of(values: torch.Tensor) -> torch.Tensor:
    """By the words: the sign of each, times the mean magnitude; 0 where there is nothing."""
    negative = torch.where(values < 0, -1.0, 1.0)
    return negative * values.abs().mean() if len(values) else values


def mean_by_the_words(world: int) -> torch.Tensor:
    """Each tensor of each rank by itself, then each tensor's share of each owner's part."""
    sent = [torch.cat([signs_of(t) for t in own_values(r).split(SIZES)]) for r in range(world)]
    mean = sum(sent) / world
    part = -(-sum(SIZES) // (8 * world)) * 8
    borders = sorted({0, *torch.tensor(SIZES).cumsum(0).tolist(), *range(0, len(mean), part)})
    pieces = mean.split([b - a for a, b in itertools.pairwise(borders)])
    return torch.cat([signs_of(piece) for piece in pieces])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_mean_of_one_exchange(world: int) -> None:
    values, sent = zip(*ranks.run(exchange_once, world), strict=True)
    assert all(one == values[0] for one in values)  # to the bit
    torch.testing.assert_close(torch.tensor(values[0]), mean_by_the_words(world))
    part_bytes = -(-sum(SIZES) // (8 * world))
    scale_bytes = 4 * (len(SIZES) + 1)
    assert set(sent) == {2 * (world - 1) * (part_bytes + scale_bytes)}


def exchange_often(rank: int, world: int, times: int) -> float:
    exchange = SignExchange(SIZES, torch.device("cpu"), Sender())
    arrived = sum(exchange.mean(own_values(rank)) for _ in range(times)) / times
    mean = own_values(rank)
    dist.all_reduce(mean)
    return float((arrived - mean / world).abs().max())


def test_error_feedback_recovers_the_mean() -> None:
    """The unsent rest stays bounded. The share of the rest in the received sum therefore
    vanishes."""
    few, many = (max(ranks.run(exchange_often, 2, times)) for times in (50, 400))
    assert many < 0.05
    assert many < few / 4


def train(rank: int, world: int, dense_steps: int, steps: int) -> list[float]:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size)) for size in SIZES]
    hook = hooks.attach(torch.nn.ParameterList(weights), f"onebit-adam={dense_steps}")
    plain = torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer = hook.optimizer(plain)
    for step in range(steps):
        for weight, gradient in zip(weights, own_values(rank, step).split(SIZES), strict=True):
            weight.grad = gradient
        optimizer.step()
    return [*torch.cat([one.detach() for one in weights]).tolist(), hook.traffic(steps).sent_bytes]


def train_adamw(rank: int, world: int, steps: int) -> list[float]:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size)) for size in SIZES]
    optimizer = torch.optim.AdamW(weights, lr=0.01, betas=(0.9, BETA2), weight_decay=0.1)
    for step in range(steps):
        mean = own_values(rank, step)
        dist.all_reduce(mean)
        for weight, gradient in zip(weights, (mean / world).split(SIZES), strict=True):
            weight.grad = gradient
        optimizer.step()
    return torch.cat([one.detach() for one in weights]).tolist()


def test_dense_steps_match_adamw() -> None:
    *weights, sent_bytes = ranks.run(train, 2, 5, 5)[0]
    expected = ranks.run(train_adamw, 2, 5)[0]
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(expected))
    assert sent_bytes == 5 * 4 * sum(SIZES)


def test_sign_steps_use_the_frozen_variance() -> None:
    after, before = ([torch.tensor(r[:-1]) for r in ranks.run(train, 2, 5, n)] for n in (6, 5))
    assert torch.equal(after[0], after[1])
    decayed = before[0] * (1 - 0.01 * 0.1)
    means = [torch.stack([own_values(r, step) for r in range(2)]).mean(0) for step in range(5)]
    variance = sum((1 - BETA2) * BETA2 ** (4 - n) * mean**2 for n, mean in enumerate(means))
    scale = (decayed - after[0]) * (variance / (1 - BETA2**5)).sqrt() * (1 - 0.9**6) / 0.01
    for piece in scale[:16].split([3, 13]):  # the first owner's
        torch.testing.assert_close(piece.abs(), piece.abs()[:1].expand_as(piece), rtol=1e-3, atol=0)


def train_late(rank: int, world: int) -> list[list[float]]:
    """Trains two values. The second value has a gradient only after the dense steps."""
    weight = torch.nn.Parameter(torch.ones(2))
    hook = hooks.attach(torch.nn.ParameterList([weight]), "onebit-adam=3")
    optimizer = hook.optimizer(torch.optim.AdamW([weight], lr=0.01, weight_decay=0))
    seen = []
    for step in range(6):
        weight.grad = torch.tensor([1.0, float(step >= 3)])
        optimizer.step()
        seen.append(weight.tolist())
    return seen


def test_value_without_variance_is_unchanged() -> None:
    (*_, last), _ = ranks.run(train_late, 2)
    assert last[0] < 0.96
    assert last[1] == 1  # a gradient for which nothing was learnt to divide by


@pytest.mark.parametrize("name", ["onebit-adam", "onebit-adam=50"])
def test_valid_hooks(name: str) -> None:
    hooks.check(name)


@pytest.mark.parametrize("name", ["onebit-adam=0", "onebit-adam=", "onebit-adam:int8"])
def test_invalid_hooks(name: str) -> None:
    with pytest.raises(BenchmarkError, match="onebit-adam"):
        hooks.check(name)


def test_onebit_adam_requires_adamw() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3))]
    hook = hooks.attach(torch.nn.ParameterList(weights), "onebit-adam=5")
    with pytest.raises(BenchmarkError, match="needs AdamW"):
        hook.optimizer(torch.optim.SGD(weights))
