"""CompressedAdamW over gloo processes: the arithmetic, and the use by trainers.

Tests of properties of CompressedMuon and CompressedSGD run for all three.
"""

from __future__ import annotations

import copy
import functools
import gc
import math
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor
from tersor.torch import CompressedAdamW, CompressedMuon, CompressedSGD

FEW_BITS = ["hadamard:bits=1+ef", "topk:density=0.02+ef"]
EXACT = [("0.weight", "none+ef"), ("*", "none")]  # nothing is lost


Kind = type[CompressedAdamW] | type[CompressedMuon] | type[CompressedSGD]
every_kind = pytest.mark.parametrize("kind", [CompressedAdamW, CompressedMuon, CompressedSGD])


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(90, 65), torch.nn.Tanh(), torch.nn.Linear(65, 3))


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(16, 90, generator=generator)
    return mse_loss(model(inputs), torch.sin(inputs[:, :3] * 2))


def wrap(
    model: torch.nn.Module,
    codec: str = FEW_BITS[0],
    kind: Kind = CompressedAdamW,
    **options: Any,
) -> Any:
    """Makes an optimizer. The hidden matrix of Muon is the first matrix, which also has
    feedback."""
    if kind is CompressedMuon:
        options.setdefault("hidden", "^0")
    return kind(model.named_parameters(), lr=0.01, codec=codec, **options)


def train(model: torch.nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def own_moments(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Returns the moments, also the common moments of parameters without feedback."""
    entries = [("momentum_buffer" in one, one) for one in optimizer.state.values()]
    moments = [one["momentum_buffer" if muon else "exp_avg_sq"] for muon, one in entries]
    return torch.cat([one.reshape(-1) for one in moments])


def mean_of_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the mean like DistributedDataParallel: the sum of values times 1/n."""
    mean = values / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def evaluated(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, rank, step)
    loss.backward()
    return loss


@ranks.on(2)
def test_updates_without_feedback_equal_adamw(rank: int, count: int) -> None:
    """Of parameters without feedback: groups, schedules and closures as in torch.optim.AdamW."""
    ours, reference = make_model(), make_model()
    groups = [
        [
            {"params": list(one[0].named_parameters("0")), "lr": 0.02, "weight_decay": 0.3},
            {"params": list(one[2].named_parameters("2")), "betas": (0.8, 0.9), "eps": 1e-5},
        ]
        for one in (ours, reference)
    ]
    rules = [("no such", "none+ef"), ("*", "none")]
    optimizer = CompressedAdamW(groups[0], lr=0.01, rules=rules)
    by_hand = torch.optim.AdamW(groups[1], lr=0.01)
    schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (optimizer, by_hand)]
    for step in range(5):
        optimizer.step(functools.partial(evaluated, ours, optimizer, rank, step))
        evaluated(reference, by_hand, rank, step)
        for one in reference.parameters():
            one.grad = mean_of_ranks(one.grad)
        by_hand.step()
        for schedule in schedules:
            schedule.step()
        assert torch.equal(flat(ours), flat(reference))
    assert [one["lr"] for one in optimizer.param_groups] == [0.005, 0.0025]


class ByHand:
    """The formula in the module's text, in float64, with exact means."""

    def __init__(self, model: torch.nn.Module) -> None:
        zeros = [torch.zeros_like(one, dtype=torch.float64) for one in model.parameters()]
        self.variances, self.momenta = zeros, copy.deepcopy(zeros)
        self.model, self.steps = model, 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for number, weights in enumerate(self.model.parameters()):
            gradient, variance = weights.grad.double(), self.variances[number]
            whole = weights.dim() > 1 and weights.numel() >= 4096
            gradient = gradient if whole else mean_of_ranks(gradient)
            variance.mul_(0.999).add_(0.001 * gradient**2)
            root = (variance / (1 - 0.999**self.steps)).sqrt() + 1e-8
            momentum = 0.9 * self.momenta[number] + 0.1 * gradient / root
            if not whole:  # plain AdamW, whose momentum is of gradients
                momentum = 0.9 * self.momenta[number] + 0.1 * gradient
            self.momenta[number] = mean_of_ranks(momentum)
            moved = self.momenta[number] if whole else self.momenta[number] / root
            weights.mul_(1 - 0.01 * 0.01).sub_(0.01 * moved / (1 - 0.9**self.steps))


def parted(rank: int, passes: int, *trainings: tuple[torch.nn.Module, Any]) -> float:
    """Returns the distance of two models after six steps of accumulated and clipped gradients."""
    for step in range(6):
        for model, optimizer in trainings:
            for part in range(passes):
                loss_of(model, rank, passes * step + part).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            model.zero_grad()
    ours, reference = (flat(model) for model, _ in trainings)
    return float((ours - reference).abs().max())


def follows_the_recipe(rank: int, count: int, passes: int) -> float:
    ours, reference = make_model(), make_model()
    optimizer, by_hand = wrap(ours, rules=EXACT), ByHand(reference)
    return parted(rank, passes, (ours, optimizer), (reference, by_hand))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("passes", [1, 2])
def test_updates_match_reference_with_accumulation_and_clipping(count: int, passes: int) -> None:
    assert max(ranks.run(follows_the_recipe, count, passes)) < 1e-5


@ranks.on(2)
def test_deleted_optimizer_is_freed_without_garbage_collection(rank: int, count: int) -> None:
    gc.disable()
    try:
        model = make_model()
        optimizer = wrap(model)
        train(model, optimizer, rank, range(2))
        kept = weakref.ref(optimizer)
        del optimizer
        assert kept() is None
    finally:
        gc.enable()


def learns(rank: int, count: int, codec: str, options: dict[str, Any]) -> Any:
    model = make_model()
    optimizer = wrap(model, codec, **options)
    before = float(loss_of(model, rank, 0))
    for step in range(80):
        train(model, optimizer, rank, range(step % 4, step % 4 + 1))
    return before, float(loss_of(model, rank, 0)), flat(model), optimizer.totals()


@pytest.mark.parametrize("codec", FEW_BITS)
@pytest.mark.parametrize("options", [{"warmup_steps": 10}, {"residual_dtype": "bf16"}])
def test_training_learns_and_ranks_stay_equal(codec: str, options: dict[str, Any]) -> None:
    found = ranks.run(learns, 3, codec, options)
    for before, after, weights, totals in found:
        assert after < before / 3
        assert torch.equal(weights, found[0][2])
        assert totals.steps == 80


def starts_dense(rank: int, count: int, kind: Kind) -> tuple[list[float], list[str]]:
    model, dense = make_model(), make_model()
    rules = [("0.weight", "hadamard:bits=1+ef"), ("*", "none")]
    optimizer = wrap(model, kind=kind, rules=rules, warmup_steps=3, warmup_codec="none")
    reference = wrap(dense, kind=kind, rules=EXACT)
    sent = []
    for step in range(6):
        train(model, optimizer, rank, range(step, step + 1))
        train(dense, reference, rank, range(step, step + 1))
        assert torch.equal(flat(model), flat(dense)) == (step < 3)
        sent.append(optimizer.totals().sent_bytes)
    assert [one.steps for one in optimizer.statistics()] == [6] * 4
    each = [after - before for before, after in zip([0.0, *sent], sent, strict=False)]
    return each, optimizer.explain().splitlines()


@every_kind
def test_warmup_steps_use_the_warmup_codec(kind: Kind) -> None:
    for each, explained in ranks.run(starts_dense, 2, kind):
        assert each[1] == each[2] > 8 * each[4]
        assert each[4] == each[5]
        assert "hadamard:bits=1+ef" in explained[0]


def skips(rank: int, count: int, kind: Kind, way: str) -> tuple[float, int]:
    """A step with an overflow on one rank leaves no trace on any rank."""
    model, quiet = make_model(), make_model()
    optimizer, reference = wrap(model, kind=kind), wrap(quiet, kind=kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=way != "without a scaler")
    train(quiet, reference, rank, range(4))
    for step in [0, 1, -1, 2, 3]:
        loss = loss_of(model, rank, step)
        if step < 0 and rank == 1:
            loss = loss * math.inf
        scaler.scale(loss).backward()
        if way == "unscaled":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert torch.equal(flat(model), flat(quiet))
    assert torch.equal(own_moments(optimizer), own_moments(reference))
    kept, wanted = (one.state_dict()["param_groups"][0] for one in (optimizer, reference))
    for key, saved in wanted["tersor"]["residuals"].items():
        found = kept["tersor"]["residuals"][key]
        assert torch.equal(found.to_local(), saved.to_local())
    return scaler.get_scale(), optimizer.skipped_steps


@every_kind
@pytest.mark.parametrize(
    ("way", "scales"),
    [("scaled", (1024, 512)), ("unscaled", (1024, 512)), ("without a scaler", (1, 1))],
)
def test_overflow_on_one_rank_leaves_all_ranks_unchanged(
    kind: Kind, way: str, scales: tuple[int, int]
) -> None:
    assert ranks.run(skips, 2, kind, way) == [(one, 1) for one in scales]


@every_kind
@ranks.on(1)
def test_nonfinite_gradient_warns_and_skips_the_step(rank: int, count: int, kind: Kind) -> None:
    """Also for finite gradients with an infinite sum."""
    model = make_model()
    optimizer = wrap(model, kind=kind)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e38)
    optimizer.step()
    assert optimizer.skipped_steps == 0
    model[2].weight.grad[0, 1] = math.nan
    before = flat(model)
    with pytest.warns(UserWarning, match=r"gradient of 2.weight is not finite: all ranks skip"):
        optimizer.step()
    assert optimizer.skipped_steps == 1
    assert torch.equal(flat(model), before)


@every_kind
@pytest.mark.parametrize("again", ["a scaled step", "a plain step"])
@pytest.mark.parametrize("error", [tersor.TransportError, tersor.RanksLostError])
@ranks.on(1)
def test_a_step_after_an_error_has_its_own_scale(
    rank: int, count: int, kind: Kind, again: str, error: type[tersor.Error]
) -> None:
    model, quiet = make_model(), make_model()
    optimizer, reference = wrap(model, kind=kind), wrap(quiet, kind=kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(model, rank, 0)).backward()

    def fail(*_: Any) -> None:
        raise error("a rank is lost")

    real, optimizer._exchange.run_elastic = optimizer._exchange.run_elastic, fail
    with pytest.raises(error):
        scaler.step(optimizer)
    optimizer._exchange.run_elastic = real
    if error is tersor.TransportError:
        optimizer.zero_grad()
        loss = loss_of(model, rank, 0)
        (loss if again == "a plain step" else scaler.scale(loss)).backward()
    if again == "a plain step":
        optimizer.step()
    else:
        scaler.step(optimizer)
    train(quiet, reference, rank, range(1))
    assert torch.equal(own_moments(optimizer), own_moments(reference))
    assert torch.equal(flat(model), flat(quiet))


def scales_in_float64(rank: int, count: int) -> int:
    """Makes the step under another default dtype, which a program may set."""
    model = make_model()
    optimizer = wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(loss_of(model, rank, 0)).backward()
    torch.set_default_dtype(torch.float64)
    try:
        scaler.step(optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    return optimizer.skipped_steps


def test_scaler_works_with_default_dtype_float64() -> None:
    assert ranks.run(scales_in_float64, 2) == [0, 0]


def trained_around(rank: int, count: int, kind: Kind, wrapped: str) -> torch.Tensor:
    model = make_model()
    optimizer = wrap(model, kind=kind)
    if wrapped == "ddp":
        ddp = DistributedDataParallel(model)
        for step in range(3):
            with ddp.no_sync():
                loss_of(ddp, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        used = torch.compile(model, backend="eager") if wrapped == "compiled" else model
        train(used, optimizer, rank, range(3))
    return flat(model)


@every_kind
def test_no_sync_ddp_and_compiled_models_train_like_plain_models(kind: Kind) -> None:
    wanted = ranks.run(trained_around, 2, kind, "plain")
    for wrapped in ("ddp", "compiled"):
        again = ranks.run(trained_around, 2, kind, wrapped)
        for found, of_plain in zip(again, wanted, strict=True):
            assert torch.equal(found, of_plain)


def goes_without_gradients(rank: int, count: int, kind: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank 0 omits the first layer in odd steps, or has a gradient of zeros in these steps."""
    weights = []
    for zeros in (False, True):
        model = make_model()
        optimizer = wrap(model, kind=kind)
        for step in range(4):
            loss = loss_of(model, rank, step)
            if rank == 0 and step % 2:
                loss = model[2](torch.ones(1, 65)).sum()
                loss = loss + 0 * sum(one.sum() for one in model[0].parameters()) if zeros else loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(flat(model))
    return weights[0], weights[1]


@every_kind
def test_missing_gradients_count_as_zeros(kind: Kind) -> None:
    found = ranks.run(goes_without_gradients, 2, kind)
    for missing, zeros in found:
        assert torch.equal(missing, zeros)
        assert torch.equal(missing, found[0][0])


def trains_bfloat16(rank: int, count: int, kind: Kind) -> tuple[torch.Tensor, set[torch.dtype]]:
    model = make_model().to(torch.bfloat16)
    optimizer = wrap(model, kind=kind)
    for step in range(40):
        inputs = torch.randn(16, 90, generator=torch.Generator().manual_seed(step % 4))
        loss = mse_loss(model(inputs.bfloat16()).float(), torch.sin(inputs[:, :3]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(loss.detach()) < 0.2
    return flat(model), {one.dtype for one in optimizer.state[model[0].weight].values()}


@every_kind
def test_moments_of_16_bit_parameters_are_float32(kind: Kind) -> None:
    (first, dtypes), (second, _) = ranks.run(trains_bfloat16, 2, kind)
    assert torch.equal(first, second)
    assert dtypes == {torch.float32}


def trains_on_a_part(rank: int, count: int) -> torch.Tensor:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = make_model()
    train(model, wrap(model, group=groups[rank // 2]), rank, range(3))
    return flat(model)


def test_subgroups_train_independently() -> None:
    found = ranks.run(trains_on_a_part, 4)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])
