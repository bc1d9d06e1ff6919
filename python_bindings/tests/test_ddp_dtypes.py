"""Gradients without a codec under DistributedDataParallel pass through like DDP's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from ddp_models import inputs
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor
import tersor.torch


class Mixed(nn.Module):
    """Parameters of several dtypes, also a sparse parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(100, 32, sparse=True)
        self.first = nn.Linear(32, 128)
        self.second = nn.Linear(128, 128).bfloat16()
        self.third = nn.Linear(128, 8).double()

    def forward(self, words: Tensor) -> Tensor:
        x = self.first(self.words(words)).bfloat16()
        return self.third(self.second(x).double())


def mixed(rank: int, _: int, compressed: bool) -> tuple[dict[str, Tensor], list[str]]:
    model = DistributedDataParallel(Mixed())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if compressed:
            rules = [("*", "none")]
            tersor.torch.compress(model, rules=rules)
    for step in range(3):
        model.zero_grad()
        words = torch.randint(100, (16,), generator=torch.Generator().manual_seed(10 * step + rank))
        model(words).square().mean().backward()
    found = {name: one.grad.to_dense() for name, one in model.module.named_parameters()}
    return found, [str(one.message) for one in caught]


def test_unsupported_parameters_pass_through_and_warn_once() -> None:
    wanted = ranks.run(mixed, 2, False)
    results = ranks.run(mixed, 2, True)
    for (found, _), (other, _) in zip(results, wanted, strict=True):
        for name in other:
            assert torch.equal(found[name], other[name]), name
    for message in listed_on_rank_0([messages for _, messages in results]):
        assert "words.weight (sparse), third.weight (float64), third.bias (float64)" in message


def listed_on_rank_0(messages: list[list[str]]) -> list[str]:
    """Returns the only warning, on rank 0. Other ranks print no warning."""
    first, *others = [[one for one in own if "uncompressed" in one] for own in messages]
    assert (len(first), others) == (1, [[]] * (len(messages) - 1))
    return first


class Complex(nn.Module):
    """A complex parameter beside real parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(96, 96)
        self.turn = nn.Parameter(torch.randn(96, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) * self.turn).abs()


MODELS = {"mixed": Mixed, "complex": Complex}


def first_pass(rank: int, _: int, kind: str, hooked: bool) -> tuple[list[Tensor], list[str]]:
    model = DistributedDataParallel(MODELS[kind]())
    if hooked:
        state = tersor.torch.HookState(rules=[("*", "none")])
        model.register_comm_hook(state, tersor.torch.hook)
    words = torch.randint(100, (16,), generator=torch.Generator().manual_seed(rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(inputs(rank, 0) if kind == "complex" else words).square().mean().backward()
    return [one.grad.to_dense() for one in model.parameters()], [str(one.message) for one in caught]


@pytest.mark.parametrize("kind", MODELS)
def test_unsupported_parameters_are_averaged_from_the_first_pass(kind: str) -> None:
    wanted = ranks.run(first_pass, 2, kind, False)
    results = ranks.run(first_pass, 2, kind, True)
    for (found, _), (other, _) in zip(results, wanted, strict=True):
        for one, same in zip(found, other, strict=True):
            assert torch.equal(one, same)
    for message in listed_on_rank_0([messages for _, messages in results]):
        assert ("complex64" if kind == "complex" else "float64") in message


def only_doubles(rank: int, _: int, unsupported: str) -> tuple[list[str], list[str]]:
    """Messages of two passes: warnings, and errors."""
    model = DistributedDataParallel(nn.Linear(96, 96).double())
    state = tersor.torch.HookState(model, unsupported=unsupported)  # type: ignore[arg-type]
    model.register_comm_hook(state, tersor.torch.hook)
    errors = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            try:
                model(inputs(rank, step).double()).square().mean().backward()
            except tersor.InvalidArgumentError as error:
                errors.append(str(error))
    return [one for one in (str(each.message) for each in caught) if "uncompressed" in one], errors


@pytest.mark.parametrize("unsupported", ["warn", "error"])
def test_fully_unsupported_model_warns_or_raises(unsupported: str) -> None:
    for rank, (warned, raised) in enumerate(ranks.run(only_doubles, 2, unsupported)):
        wanted = (1 - rank, 0) if unsupported == "warn" else (0, 2)
        assert (len(warned), len(raised)) == wanted
        assert all("weight (float64), bias (float64)" in one for one in warned + raised)


def complex_steps(rank: int, _: int, compressed: bool) -> list[Tensor]:
    model = DistributedDataParallel(Complex())
    if compressed:
        tersor.torch.compress(model, rules=[("*", "none")])
    for step in range(3):
        model.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
    return [one.grad for one in model.parameters()]


def test_complex_parameters_pass_through() -> None:
    wanted = ranks.run(complex_steps, 2, False)
    for found, other in zip(ranks.run(complex_steps, 2, True), wanted, strict=True):
        for one, same in zip(found, other, strict=True):
            assert torch.equal(one, same)


def refuse_mixed(rank: int, _: int) -> str:
    model = DistributedDataParallel(Mixed())
    try:
        tersor.torch.compress(model, unsupported="error")
    except tersor.InvalidArgumentError as error:
        return str(error)
    return ""


def test_unsupported_error_option_raises() -> None:
    for message in ranks.run(refuse_mixed, 2):
        assert "words.weight (sparse)" in message
        assert "float64" in message


@ranks.on(2)
def test_a_sum_of_f16_overflows_to_infinity(rank: int, count: int) -> None:
    model = DistributedDataParallel(nn.Linear(64, 128, bias=False).half())
    advanced = tersor.AdvancedOptions(reduction="sum")
    tersor.torch.compress(model, rules=[("*", "int8")], advanced=advanced)
    large = torch.tensor([[6e4, -6e4]], dtype=torch.float16).repeat(128, 32)
    model(large[:1]).sum().backward()
    assert torch.equal(model.module.weight.grad, large * torch.inf)
