"""DistributedOptimizer over gloo processes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

import ranks
import tersor
from tersor.torch import DistributedOptimizer
from tersor.torch._src.parameters import selection as parameters


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(90, 65), torch.nn.Tanh(), torch.nn.Linear(65, 3))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(16, 90, generator=generator)
    return inputs, torch.sin(inputs[:, :3] * 2)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return mse_loss(model(inputs), targets)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def average_by_hand(model: torch.nn.Module) -> None:
    """Computes the mean like DistributedDataParallel: the sum of gradients times 1/n."""
    for parameter in model.parameters():
        some_rank_has_one = torch.tensor(float(parameter.grad is not None))
        dist.all_reduce(some_rank_has_one)
        if not some_rank_has_one:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(1 / dist.get_world_size())
        dist.all_reduce(parameter.grad)


def wrap(model: torch.nn.Module, codec: str = "none", **options: object) -> DistributedOptimizer:
    rules = [("*", codec)]
    return DistributedOptimizer(
        sgd(model),
        model.named_parameters(),
        rules=rules,
        **options,  # type: ignore[arg-type]
    )


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


Train = Callable[[torch.nn.Module, torch.optim.Optimizer, int, int], None]


def plainly(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    loss_of(model, rank, step).backward()
    if not isinstance(optimizer, DistributedOptimizer):
        average_by_hand(model)
    optimizer.step()
    optimizer.zero_grad()


def clipped(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    loss_of(model, rank, step).backward()
    if not isinstance(optimizer, DistributedOptimizer):
        average_by_hand(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    else:
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.zero_grad()


def closed(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        if not isinstance(optimizer, DistributedOptimizer):
            average_by_hand(model)
        return loss

    assert optimizer.step(closure) is not None  # type: ignore[arg-type]
    optimizer.zero_grad()


def sometimes_without_gradient(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    """Rank 0 does not use the first layer in odd steps."""
    used = model[2:] if rank == 0 and step % 2 else model  # type: ignore[index]
    inputs, targets = batch(rank, step)
    mse_loss(used(inputs[:, :65] if used is not model else inputs), targets).backward()
    if not isinstance(optimizer, DistributedOptimizer):
        average_by_hand(model)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("train", [plainly, clipped, closed, sometimes_without_gradient])
@ranks.on("count")
def test_steps_match_a_manual_gradient_mean(rank: int, count: int, train: Train) -> None:
    ours, reference = make_model(), make_model()
    optimizer, by_hand = wrap(ours), sgd(reference)
    for step in range(5):
        train(ours, optimizer, rank, step)
        train(reference, by_hand, rank, step)
        if count <= 2:
            assert same_weights(ours, reference)
    for ours_one, reference_one in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours_one, reference_one)


@ranks.on(2)
def test_accumulated_passes_match_a_manual_gradient_mean(rank: int, count: int) -> None:
    ours, reference = make_model(), make_model()
    optimizer, by_hand = wrap(ours, backward_passes_per_step=2), sgd(reference)
    for step in range(4):
        for model in (ours, reference):
            loss_of(model, rank, 2 * step).backward()
            loss_of(model, rank, 2 * step + 1).backward()
        average_by_hand(reference)
        optimizer.step()
        by_hand.step()
        optimizer.zero_grad()
        by_hand.zero_grad()
    assert same_weights(ours, reference)


@ranks.on(2)
def test_schedulers_and_scalers_work(rank: int, count: int) -> None:
    """Schedulers and scalers treat the wrapper as the wrapped optimizer."""
    ours, reference = make_model(), make_model()
    optimizer, by_hand = wrap(ours), sgd(reference)
    schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (optimizer, by_hand)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        scaler.scale(loss_of(ours, rank, step)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        plainly(reference, by_hand, rank, step)
        for schedule in schedules:
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8
    for ours_one, reference_one in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours_one, reference_one)


@ranks.on(1)
def test_invalid_arguments_and_calls_raise(rank: int, count: int) -> None:
    model = make_model()
    optimizer = wrap(model)
    loss_of(model, rank, 0).backward()
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"computed again.*backward_passes_per_step"
    ):
        loss_of(model, rank, 0).backward()
    with pytest.raises(tersor.InvalidArgumentError, match="changed while it was being sent"):
        optimizer.step()
    optimizer.zero_grad()
    plainly(model, optimizer, rank, 1)  # it is usable all the same
    with pytest.raises(tersor.InvalidArgumentError, match=r"4 parameters.*names for 2"):
        DistributedOptimizer(sgd(model), model[0].named_parameters())
    twice = [("same", parameter) for parameter in model.parameters()]
    with pytest.raises(tersor.InvalidArgumentError, match="called 'same'"):
        DistributedOptimizer(sgd(model), twice)
    with pytest.raises(tersor.InvalidArgumentError, match="backward_passes_per_step=0"):
        wrap(model, backward_passes_per_step=0)


@ranks.on(2)
def test_gradients_must_not_change_while_they_are_sent(rank: int, count: int) -> None:
    model = make_model()
    optimizer = wrap(model)
    state = optimizer.state_dict("exact")
    loss_of(model, rank, 0).backward()
    with (
        optimizer.skip_synchronize(),
        pytest.raises(tersor.InvalidArgumentError, match="within skip_synchronize"),
    ):
        optimizer.step()
    with pytest.raises(tersor.InvalidArgumentError, match=r"state_dict\(\) while gradients are"):
        optimizer.state_dict("exact")
    with pytest.raises(tersor.InvalidArgumentError, match=r"load_state_dict\(\) while gradients"):
        optimizer.load_state_dict(state)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    before = copy.deepcopy(model)
    with pytest.raises(tersor.InvalidArgumentError, match="changed while it was being sent"):
        optimizer.step()
    assert same_weights(model, before)
    optimizer.zero_grad()
    loss_of(model, rank, 0).backward()
    model[0].weight.grad = model[0].weight.grad * 2
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"0.weight was changed while it was being"
    ):
        optimizer.step()
    optimizer.zero_grad()
    plainly(model, optimizer, rank, 1)  # it is usable all the same
    assert not same_weights(model, before)


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, DistributedOptimizer):
        average_by_hand(model)
    optimizer.step()


@pytest.mark.parametrize("passes", [1, 2])
@ranks.on(2)
def test_gan_training_matches_manual_averaging(rank: int, count: int, passes: int) -> None:
    """The generator's pass leaves gradients in the discriminator. The optimizer discards these
    gradients."""
    found = []
    for by_hand in (False, True):
        discriminator, generator = models = make_model(), torch.nn.Linear(9, 90)
        with torch.no_grad():
            generator.weight.fill_(0.01)
        optimizers = [sgd(one) for one in models]
        if not by_hand:
            optimizers = [wrap(discriminator, backward_passes_per_step=passes), wrap(generator)]
        for step in range(4):
            discriminator.zero_grad()
            for part in range(passes):
                loss_of(discriminator, rank, passes * step + part).backward()
            step_of(discriminator, optimizers[0])
            generator.zero_grad()
            noise = torch.randn(4, 9, generator=torch.Generator().manual_seed(step + 7 * rank))
            discriminator(generator(noise)).square().mean().backward()
            step_of(generator, optimizers[1])
        found.append(models)
    for ours, reference in zip(*found, strict=True):
        assert same_weights(ours, reference)


@ranks.on(2)
def test_discarding_gradients_warns_or_raises(rank: int, count: int) -> None:
    model = make_model()
    optimizer = wrap(model, "int8+ef")
    loss_of(model, rank, 0).backward()
    with pytest.raises(tersor.InvalidArgumentError, match="transactional=True"):
        optimizer.zero_grad()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="transactional=True"):
        optimizer.zero_grad()
    optimizer = wrap(model)
    loss_of(model, rank, 0).backward()
    with pytest.raises(tersor.InvalidArgumentError, match="1 of 2 ranks discard"):
        optimizer.zero_grad() if rank == 0 else optimizer.step()


@ranks.on(2)
def test_state_loads_between_synchronize_and_zero_grad(rank: int, count: int) -> None:
    model = make_model()
    optimizer = wrap(model, "int4+ef", transactional=True)
    plainly(model, optimizer, rank, 0)
    state, norms = optimizer.state_dict("exact"), optimizer.reducer.residual_norms()
    loss_of(model, rank, 1).backward()
    optimizer.synchronize()
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    assert optimizer.reducer.residual_norms() == norms


@ranks.on(2)
def test_skipped_step_is_discarded_after_any_gradient_reset(rank: int, count: int) -> None:
    """After a step that a scaler skips, all programs continue with the same residuals."""
    found = []
    for clears in ("optimizer", "model", "by hand"):
        model = make_model()
        optimizer = wrap(model, "int4+ef", transactional=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=99)
        for step in range(5):
            loss = scaler.scale(loss_of(model, rank, step))
            if step == 2:  # of one parameter
                loss = loss + model[2].bias.sum() * math.inf
            loss.backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update(1.0)
            if clears == "by hand":
                for one in model.parameters():
                    one.grad = None
            else:
                (optimizer if clears == "optimizer" else model).zero_grad()
        assert optimizer.totals().steps_discarded == 1
        found.append((model, optimizer.reducer.residual_norms()))
    for other, norms in found[1:]:
        assert same_weights(other, found[0][0])
        assert norms == found[0][1]


@ranks.on(1)
def test_gradients_can_be_dropped_after_an_error(rank: int, count: int) -> None:
    """After an error within `synchronize`, the gradients are again the rank's gradients."""
    table = torch.nn.Embedding(70, 3, sparse=True)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1),
        table.named_parameters(),
        backward_passes_per_step=2,
        unsupported="error",
    )
    table(torch.tensor([rank])).sum().backward()
    with pytest.raises(tersor.InvalidArgumentError, match="sparse"):
        optimizer.synchronize()
    optimizer.zero_grad()
    assert table.weight.grad is None


class Odd(torch.nn.Module):
    """Parameters without a codec, and a sparse gradient, beside a supported layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(50, 90, sparse=True)
        self.layer = torch.nn.Linear(90, 65)
        self.scale = torch.nn.Parameter(torch.ones(65, dtype=torch.float64))
        self.phase = torch.nn.Parameter(torch.ones(65, dtype=torch.complex64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.layer(self.embedding(tokens)) * self.scale * self.phase).abs().square().mean()


def train_odd(ours: Odd, reference: Odd, rank: int) -> None:
    optimizer, by_hand = wrap(ours), sgd(reference)
    for step in range(2):
        tokens = torch.randint(50, (9,), generator=torch.Generator().manual_seed(step + rank))
        for model in (ours, reference):
            model(tokens).backward()
        reference.embedding.weight.grad = reference.embedding.weight.grad.to_dense()
        average_by_hand(reference)
        for one in (optimizer, by_hand):
            one.step()
            one.zero_grad()


def trains_odd_parameters(rank: int, count: int) -> list[str]:
    ours, reference = Odd(), Odd()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train_odd(ours, reference, rank)
    assert {one.filename for one in told} <= {parameters.__file__}
    assert same_weights(ours, reference)
    with pytest.raises(tersor.InvalidArgumentError, match=r"scale \(float64\)"):
        wrap(ours, unsupported="error")
    return [str(one.message) for one in told]


def test_unsupported_gradients_are_sent_uncompressed_and_listed_once() -> None:
    (mixed, sparse), later_rank = ranks.run(trains_odd_parameters, 2)
    assert "scale (float64), phase (complex64)" in mixed
    assert "embedding.weight (sparse" in sparse
    assert later_rank == []


@pytest.mark.filterwarnings("ignore:tersor sends these gradients")
@ranks.on(2)
def test_unsupported_gradients_support_sum_reduction(rank: int, count: int) -> None:
    model = Odd()
    optimizer = wrap(model, advanced=tersor.AdvancedOptions(reduction="sum"))
    model(torch.arange(9)).backward()
    own = [model.get_parameter(name).grad.clone() for name in ("scale", "phase", "layer.bias")]
    optimizer.synchronize()
    for name, one in zip(("scale", "phase", "layer.bias"), own, strict=True):
        torch.testing.assert_close(model.get_parameter(name).grad, 2 * one)
    with optimizer.skip_synchronize():
        optimizer.step()


@ranks.on(2)
def test_f16_sum_overflows_to_infinity(rank: int, count: int) -> None:
    model = torch.nn.Linear(64, 128, bias=False).half()
    optimizer = wrap(model, "int8", advanced=tersor.AdvancedOptions(reduction="sum"))
    large = torch.tensor([[6e4, -6e4]], dtype=torch.float16).repeat(128, 32)
    model(large[:1]).sum().backward()
    optimizer.synchronize()
    assert torch.equal(model.weight.grad, large * torch.inf)  # type: ignore[arg-type]


def takes_default_names(rank: int, count: int) -> str:
    model = make_model()
    optimizer = DistributedOptimizer(sgd(model), codec="int8")
    plainly(model, optimizer, rank, 0)
    assert [one.name for one in optimizer.statistics()][-1] == "parameter.3"
    return optimizer.explain()


def test_default_parameter_names() -> None:
    (text,) = ranks.run(takes_default_names, 1)
    assert "parameter.0" in text
    assert "parameter.3" in text
