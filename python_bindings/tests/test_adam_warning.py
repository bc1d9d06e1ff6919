"""The warning where gradients of few bits meet Adam: hooks of DDP and FSDP2, the optimizer."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch

FEW_BITS = ["hadamard:bits=1+ef", "topk:density=0.01+ef"]
BARE = ["intsum", "lowrank+ef"]  # these add bare values, not over shards; nothing is told of them
ENOUGH = ["hadamard:bits=2+ef", "int4+ef", "topk:density=0.1+ef", "bf16", "auto"]


def make_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(90, 65), torch.nn.Linear(65, 70))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 90)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(way: str, optimizer: type[torch.optim.Optimizer], codec: str) -> None:
    model: torch.nn.Module = make_model()
    bystander = torch.optim.Adam(make_model().parameters(), lr=1e-4)
    if way == "optimizer":
        plain = optimizer(model.parameters(), lr=1e-4)  # type: ignore[call-arg]
        made: Any = tersor.torch.DistributedOptimizer(plain, model.named_parameters(), codec=codec)
    else:
        model = DistributedDataParallel(model) if way == "ddp" else fully_shard(model)
        tersor.torch.compress(model, codec=codec)
        made = optimizer(model.parameters(), lr=1e-4)  # type: ignore[call-arg]
    for _ in range(2):
        step(model, made)
        bystander.step()


def told(rank: int, count: int, way: str, optimizer: Any, codecs: list[str]) -> list[list[str]]:
    found = []
    for codec in codecs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(way, optimizer, codec)
        found.append([str(one.message) for one in caught if "under Adam" in str(one.message)])
    return found


@pytest.mark.parametrize("way", ["ddp", "fsdp", "optimizer"])
def test_few_bit_codecs_under_adam_warn_once(way: str) -> None:
    few = ranks.run(told, 1, way, torch.optim.AdamW, FEW_BITS)[0]
    for codec, messages in zip(FEW_BITS, few, strict=True):
        assert len(messages) == 1
        assert "CompressedAdamW" in messages[0]
        assert f"0.weight and 1 more use {codec}" in messages[0]


@pytest.mark.parametrize("way", ["ddp", "fsdp", "optimizer"])
def test_no_warning_for_more_bits_or_other_optimizers(way: str) -> None:
    enough = ENOUGH if way == "fsdp" else ENOUGH + BARE
    assert not any(ranks.run(told, 1, way, torch.optim.AdamW, enough)[0])
    assert not any(ranks.run(told, 1, way, torch.optim.SGD, FEW_BITS)[0])


def two_models(rank: int, count: int) -> int:
    """As of a generator and its critic, the second by a schedule."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        both = [DistributedDataParallel(make_model()) for _ in range(2)]
        tersor.torch.compress(both[0], codec=FEW_BITS[0])
        tersor.torch.compress(both[1], rules=[("*", "bf16"), ("*", FEW_BITS[1], 50)])
        for model in both:
            step(model, torch.optim.Adam(model.parameters(), lr=1e-4))
    return sum("under Adam" in str(one.message) for one in caught)


def test_two_models_warn_separately() -> None:
    assert ranks.run(two_models, 1) == [2]


def steps_in_reverse(rank: int, count: int) -> int:
    """Both models have as many parameters of few bits, and the second steps first."""
    both = [DistributedDataParallel(make_model()), DistributedDataParallel(torch.nn.Linear(80, 70))]
    both.append(DistributedDataParallel(torch.nn.Linear(90, 70)))
    for model in both:
        tersor.torch.compress(model, codec=FEW_BITS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, width in zip(reversed(both), (90, 80, 90), strict=True):
            model(torch.ones(2, width)).sum().backward()
            torch.optim.Adam(model.parameters(), lr=1e-4).step()
    return len(both)


def test_models_may_step_in_another_order() -> None:
    assert ranks.run(steps_in_reverse, 1) == [3]
