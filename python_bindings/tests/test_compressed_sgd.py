"""CompressedSGD over gloo processes: the arithmetic, and the sent share of the momentum.

The tests of CompressedAdamW cover the common properties.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_compressed_adamw import EXACT, evaluated, flat, loss_of, make_model, mean_of_ranks, train

import ranks
import tersor
from tersor.torch import CompressedSGD
from tersor.torch._src.optim.sgd import sent_share


@pytest.mark.parametrize(
    ("codec", "share"),
    [
        ("hadamard:bits=1+ef", 2 / math.pi),  # of the signs, times the mean of what they stand for
        ("int8+ef", 1.0),
        ("none+ef", 1.0),
        ("blocktopk:density=0.03+ef", 0.19),
        ("topk:density=0.01+ef", 0.084),  # the part of a normal variable beyond 2.58 deviations
    ],
)
def test_sent_share_of_codecs(codec: str, share: float) -> None:
    assert sent_share(codec) == pytest.approx(share, abs=0.005)


def test_split_momentum_equals_requested_momentum() -> None:
    """A step of the gradient arrives as by a momentum of 0.9, whatever share a step brings."""
    for codec in ("int8+ef", "hadamard:bits=1+ef", "blocktopk:density=0.03+ef"):
        share = sent_share(codec)
        sent_momentum = max(0.0, 1 - (1 - 0.9) / share)
        waits = common = 0.0
        for step in range(1, 30):
            proposed = sent_momentum * common + (1 - sent_momentum) * 1.0 + waits
            common = share * proposed
            waits = proposed - common
            assert common == pytest.approx(1 - 0.9**step, abs=1e-3)


def sent_of_ones(optimizer: CompressedSGD) -> float:
    """Returns the sent value for a gradient of ones, in a step with a common momentum of 0."""
    (part,) = optimizer._parts({"0.weight": torch.ones(65, 90)})
    (sent,) = part.rule.to_send(part)
    assert sent.min() == sent.max()
    return float(sent[0, 0])


@ranks.on(2)
def test_sent_momentum_depends_on_codec_and_options(rank: int, count: int) -> None:
    for codec, options, sent in (
        ("hadamard:bits=1+ef", {}, 0.1 / sent_share("hadamard:bits=1+ef")),
        ("blocktopk:density=0.01+ef", {}, 1.0),
        ("hadamard:bits=1+ef", {"sent_momentum": 0.3}, 0.7),
    ):
        model = make_model()
        named = model.named_parameters()
        optimizer = CompressedSGD(named, momentum=0.9, codec=codec, warmup_steps=1, **options)
        assert sent_of_ones(optimizer) == pytest.approx(0.1)  # a dense step
        optimizer.state[model[2].weight]["step"] += 1  # the first layer was frozen
        assert sent_of_ones(optimizer) == pytest.approx(sent)


class ByHand:
    """The formula in the module's text, in float64, with exact means."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self.momenta = [torch.zeros_like(one, dtype=torch.float64) for one in model.parameters()]
        self.model, self.decay = model, decay

    @torch.no_grad()
    def step(self) -> None:
        for weights, momentum in zip(self.model.parameters(), self.momenta, strict=True):
            gradient = mean_of_ranks(weights.grad.double()) + self.decay * weights
            momentum.mul_(0.9).add_(0.1 * gradient)
            weights.sub_(0.02 / (1 - 0.9) * momentum)


def follows_the_recipe(rank: int, count: int, decay: float) -> float:
    ours, reference = make_model(), make_model()
    optimizer = CompressedSGD(
        ours.named_parameters(), lr=0.02, momentum=0.9, weight_decay=decay, rules=EXACT
    )
    by_hand = ByHand(reference, decay)
    for step in range(6):
        for model, one in ((ours, optimizer), (reference, by_hand)):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            one.step()
    return float((flat(ours) - flat(reference)).abs().max())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_match_reference(count: int, decay: float) -> None:
    """The formula is also SGD's, and therefore covers parameters without feedback."""
    assert max(ranks.run(follows_the_recipe, count, decay)) < 1e-5


@ranks.on(2)
def test_updates_without_feedback_equal_sgd(rank: int, count: int) -> None:
    ours, reference = make_model(), make_model()
    options: dict[str, Any] = {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.3}
    rules = [("no such", "none+ef"), ("*", "none")]
    optimizer = CompressedSGD(ours.named_parameters(), rules=rules, **options)
    by_hand = torch.optim.SGD(reference.parameters(), **options)
    for step in range(5):
        train(ours, optimizer, rank, range(step, step + 1))
        evaluated(reference, by_hand, rank, step)
        for one in reference.parameters():
            one.grad = mean_of_ranks(one.grad)
        by_hand.step()
        assert torch.equal(flat(ours), flat(reference))


FEW = "blocktopk:density=0.03+ef"
UNCOMPRESSED = [
    pytest.param(1, {"codec": FEW}, id="alone"),
    pytest.param(2, {"codec": FEW}, id="after remove"),
    pytest.param(2, {"rules": [("*", "none", 0), ("*", FEW, 9)]}, id="before few bits"),
]


@pytest.mark.parametrize(("count", "options"), UNCOMPRESSED)
@ranks.on("count")
def test_uncompressed_steps_equal_sgd(rank: int, count: int, options: dict[str, Any]) -> None:
    """Without feedback, the whole momentum is in the exchanged values."""
    ours, reference = make_model(), make_model()
    optimizer = CompressedSGD(ours.named_parameters(), lr=0.02, **options)
    by_hand = torch.optim.SGD(reference.parameters(), lr=0.02, momentum=0.9)
    if count == 2 and "codec" in options:
        optimizer.remove()
    for step in range(6):
        train(ours, optimizer, rank, range(step, step + 1))
        evaluated(reference, by_hand, rank, step)
        for one in reference.parameters():
            one.grad = mean_of_ranks(one.grad)
        by_hand.step()
    torch.testing.assert_close(flat(ours), flat(reference), rtol=1e-5, atol=1e-6)


def distance(rank: int, count: int, ours: bool) -> tuple[float, torch.Tensor]:
    """Returns the distance from the minimum of 2 · |weights - wanted|², relative to the start. The
    steps are small for SGD."""
    wanted = torch.randn(80, 80, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = torch.nn.Linear(80, 80, bias=False)
    options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
    named, codec = model.named_parameters(), "hadamard:bits=1+ef"
    optimizer: torch.optim.Optimizer
    if ours:
        optimizer = CompressedSGD(named, codec=codec, **options)
    else:
        behind = torch.optim.SGD(model.parameters(), **options)
        optimizer = tersor.torch.DistributedOptimizer(behind, named, codec=codec)
    for _ in range(200):
        optimizer.zero_grad()
        (2 * (model.weight - wanted).square().sum()).backward()
        optimizer.step()
    off = (model.weight.detach() - wanted).norm() / wanted.norm()
    return float(off), flat(model)


def test_training_is_stable_unlike_sgd_with_momentum_after_feedback() -> None:
    (found, first), (_, second) = ranks.run(distance, 2, True)
    assert torch.equal(first, second)
    assert found < 0.1
    assert not ranks.run(distance, 2, False)[0][0] < 1


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("add [+]ef", {"codec": "hadamard:bits=1"}),
        ("lowrank.*: the share", {"codec": "lowrank:rank=4+ef"}),
        ("lowrank.*: the share", {"warmup_codec": "lowrank:rank=4+ef", "warmup_steps": 2}),
        ("momentum=1", {"momentum": 1.0}),
        ("sent_momentum=1.5", {"sent_momentum": 1.5}),
        ("lr=-1", {"lr": -1.0}),
    ],
)
@ranks.on(1)
def test_invalid_options_raise(
    rank: int, count: int, message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        CompressedSGD(make_model().named_parameters(), **options)


def by_samples(counts: list[int], rank: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Returns a model after a step of all ranks, and a model after a step with all samples on one
    machine."""
    torch.manual_seed(7)
    inputs, model, alone = torch.randn(sum(counts), 90), make_model(), make_model()
    own = inputs.split(counts)[rank]
    exact: dict[str, Any] = {"rules": [("*", "int8+ef")], "warmup_codec": "none", "warmup_steps": 9}
    optimizer = CompressedSGD(model.named_parameters(), lr=0.1, momentum=0.0, **exact)
    if len(own):
        model(own).square().mean().backward()
    optimizer.samples = len(own)
    optimizer.step()
    assert optimizer.samples is None
    alone(inputs).square().mean().backward()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    return model, alone


@pytest.mark.parametrize("counts", [[1, 2, 5], [4, 0, 3], [2, 2, 2]])
@ranks.on(3)
def test_mean_is_weighted_by_samples(rank: int, count: int, counts: list[int]) -> None:
    model, alone = by_samples(counts, rank)
    for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("told", "message"), [([3, None], "1 of 2 ranks set samples"), ([0, 0], "add up to 0.0")]
)
@ranks.on(2)
def test_invalid_samples_are_rejected(
    rank: int, count: int, told: list[int | None], message: str
) -> None:
    model = make_model()
    optimizer = CompressedSGD(model.named_parameters(), codec="int8+ef")
    before = flat(model)
    for wrong in (-1, math.nan, math.inf):
        optimizer.samples = wrong
        with pytest.raises(tersor.InvalidArgumentError, match=f"samples={wrong}"):
            optimizer.step()
    optimizer.samples = told[rank]
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        optimizer.step()
    assert torch.equal(flat(model), before)
    optimizer.step()  # and go on
