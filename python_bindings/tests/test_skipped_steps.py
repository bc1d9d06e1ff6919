"""Steps skipped by a gradient scaler, and other changes of the scale: DDP and FSDP2."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scaled_training import CODEC, Training, ddp, fsdp
from scaled_training import Sums as Model
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

import ranks
import tersor.torch
from tersor.torch._src.gradients.loss_scale import LossScale

Wrap = Callable[[nn.Module], nn.Module]
WAYS = pytest.mark.parametrize("wrap", [ddp, fsdp])


@WAYS
@ranks.on(2)
def test_each_optimizer_skips_steps_independently(rank: int, count: int, wrap: Wrap) -> None:
    for transactional in (False, True):
        run = Training(rank, wrap(Model()), ("a", "b"), transactional=transactional)
        for step in range(8):
            run.step(step, {0: "a"} if step == 5 else {})
        run.check("ab" if transactional else "b")
        assert run.handle.skipped_steps == 1
    run = Training(rank, wrap(Model()), ("ab",), transactional=True)
    for step in range(8):
        run.step(step, {0: "a"} if step in (0, 1, 5) else {})
    run.check()
    assert run.handle.skipped_steps == 3
    assert run.handle.totals().steps_discarded == 3


@WAYS
@ranks.on(2)
def test_decreasing_scale_is_not_a_skipped_step(rank: int, count: int, wrap: Wrap) -> None:
    for transactional in (False, True):
        run = Training(rank, wrap(Model()), transactional=transactional)
        for step in range(8):
            run.step(step)
            if step == 4:
                run.scaler.update(16.0)
        run.check()
        assert run.handle.skipped_steps == 0


@WAYS
@ranks.on(2)
def test_skipped_step_is_detected_at_a_fixed_scale(rank: int, count: int, wrap: Wrap) -> None:
    run = Training(rank, wrap(Model()), transactional=True)
    for step in range(8):
        run.step(step, {0: "b"} if step == 5 else {})
        run.scaler.update(1024.0)  # a lower bound of the scale, for example
    run.check()
    assert run.handle.skipped_steps == 1


@WAYS
@ranks.on(2)
def test_all_passes_of_a_skipped_step_are_discarded(rank: int, count: int, wrap: Wrap) -> None:
    run = Training(rank, wrap(Model()), transactional=True)
    for step in range(8):
        run.step(step, {0: {0: "a"}, 5: {1: "b"}}.get(step, {}), passes=3)
    run.check()
    assert run.handle.skipped_steps == 2
    assert run.handle.totals().steps_discarded == 6


@WAYS
@ranks.on(2)
def test_an_optimizer_may_step_between_two_passes(rank: int, count: int, wrap: Wrap) -> None:
    run = Training(rank, wrap(Model()), ("a", "b"), transactional=True)
    first, second = run.optimizers
    for step in range(8):
        spoiled = {3: ("a", ""), 5: ("", "b")}.get(step, ("", ""))
        run.zero_grad()
        run.backward(10 * step, spoiled[0])
        run.scaler.step(first)
        run.backward(10 * step + 1, spoiled[1])
        run.scaler.step(second)
        run.scaler.update()
        for number in (10 * step, 10 * step + 1):
            run.expect(number, "".join(spoiled))
    run.check("b")
    assert run.handle.skipped_steps == 2


@WAYS
@ranks.on(2)
def test_two_models_share_a_scaler(rank: int, count: int, wrap: Wrap) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    runs = [
        Training(rank, wrap(Model()), scaler=scaler, transactional=True, make=fused)
        for _ in range(2)
    ]
    for step in range(8):
        for run, spoiled in zip(runs, ("", "a" if step == 5 else ""), strict=True):
            run.zero_grad()
            run.backward(step, spoiled)
            run.expect(step, spoiled)
        for run in runs:
            scaler.step(run.optimizers[0])
        scaler.update()
    for run in runs:
        run.check()
    assert [run.handle.skipped_steps for run in runs] == [0, 1]


def fused(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """GradScaler calls the optimizer's step() even for a gradient that is not finite."""
    if any(isinstance(one, torch.distributed.tensor.DTensor) for one in parameters):
        return torch.optim.SGD(parameters, lr)
    return torch.optim.SGD(parameters, lr, fused=True)


@WAYS
@ranks.on(2)
def test_training_loop_may_skip_steps_itself(rank: int, count: int, wrap: Wrap) -> None:
    run = Training(rank, wrap(Model()), transactional=True)
    (optimizer,) = run.optimizers
    for step in range(8):
        run.zero_grad()
        run.backward(step, spoiled := "a" if step == 5 else "")
        run.expect(step, spoiled)
        run.scaler.unscale_(optimizer)
        if not spoiled:
            optimizer.step()
        run.scaler.update()
    run.check()
    assert run.handle.skipped_steps == 1


@ranks.on(2)
def test_an_optimizer_may_have_copies_of_the_parameters(rank: int, count: int) -> None:
    run = Training(rank, ddp(Model()), transactional=True)
    copies = [nn.Parameter(one.detach().clone()) for one in run.parameters.values()]
    run.optimizers = [torch.optim.SGD(copies, 1.0)]
    for step in range(8):
        run.model.zero_grad()
        run.backward(step, spoiled := "a" if step == 5 else "")
        run.expect(step, spoiled)
        for own, one in zip(run.parameters.values(), copies, strict=True):
            one.grad = own.grad
        run.scaler.step(run.optimizers[0])
        run.scaler.update()
        for own, one in zip(run.parameters.values(), copies, strict=True):
            own.data.copy_(one)
    run.check()


@WAYS
@pytest.mark.parametrize("mode", ["exact", "portable"])
@ranks.on(2)
def test_a_loaded_state_is_not_discarded(rank: int, count: int, wrap: Wrap, mode: Any) -> None:
    """The state is saved after a skipped step. The scaler is restored, or begins with a lower
    scale."""
    for restored in (True, False):
        run = Training(rank, wrap(Model()), transactional=True)
        for step in range(4):
            run.step(step, {0: "a"} if step == 3 else {})
        state = run.handle.state_dict(mode)
        other = Training(rank, wrap(Model()), transactional=True, init_scale=64.0)
        other.model.load_state_dict(run.model.state_dict())
        other.wanted = run.wanted
        other.handle.load_state_dict(state)
        if restored:
            other.scaler.load_state_dict(run.scaler.state_dict())
        assert other.handle.skipped_steps == 1
        for step in range(4, 8):
            other.step(step)
        other.check()
        unscaled = wrap(Model())
        plain = tersor.torch.compress(unscaled, codec=CODEC)
        plain.load_state_dict(state)
        found, wanted = plain.state_dict("portable"), run.handle.state_dict("portable")
        scale = wanted["loss_scale"]
        for name, residual in wanted["residuals"].items():
            torch.testing.assert_close(found["residuals"][name] * scale, residual)


@ranks.on(2)
def test_residuals_follow_the_scale_in_every_forward_method(rank: int, count: int) -> None:
    for way in ("forward", "loss", "part"):
        model = fsdp(Model())
        register_fsdp_forward_method(model, "loss")
        run = Training(rank, model, box=nn.ModuleDict({"net": model}) if way == "part" else None)
        for step in range(8):
            run.step(step, loss="loss" if way == "loss" else "forward")
        assert run.scaler.get_scale() > 1024
        run.check()


class Recorder:
    """Records the calls of a LossScale."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def scale_residuals(self, factor: float) -> None:
        self.calls.append(factor)

    def discard_step(self, names: list[str] | None = None) -> None:
        self.calls.append(("discard", names))

    def accept_steps(self, names: list[str] | None = None) -> None:
        self.calls.append(("accept", names))


def watched(**options: Any) -> tuple[Any, torch.optim.Optimizer, LossScale, Recorder, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, **options)
    parameter = nn.Parameter(torch.ones(2))
    scale, found = LossScale(scaler, True), Recorder()

    def follow() -> list[Any]:
        scale.begin_step(found, lambda: {"p": parameter})
        calls, found.calls = found.calls, []
        return calls

    return scaler, torch.optim.SGD([parameter], 0.1), scale, found, follow


def train(scaler: Any, optimizer: torch.optim.Optimizer, factor: float) -> None:
    (parameter,) = optimizer.param_groups[0]["params"]
    optimizer.zero_grad()
    scaler.scale((parameter * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_scale_changes_are_detected_from_any_source() -> None:
    scaler, optimizer, _, _, follow = watched(growth_interval=1)
    assert follow() == [("accept", None)]
    train(scaler, optimizer, 1.0)
    assert follow() == [("accept", None), 2.0]
    scaler.load_state_dict({**scaler.state_dict(), "scale": 4.0})
    assert follow() == [0.25]
    with torch.device("meta"):  # the default device of a program
        train(scaler, optimizer, torch.inf)
    assert follow() == [("discard", ["p"]), ("accept", None), 0.5]


def test_copied_scaler_is_independent() -> None:
    scaler, optimizer, scale, _, follow = watched()
    train(scaler, optimizer, 1.0)
    follow()
    for copied in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        train(copied, optimizer, torch.inf)
        assert copied.get_scale() == 4.0
    train(scaler, optimizer, 1.0)
    assert follow() == [("accept", None)]
    assert scale.skipped_steps == 0


def test_disabled_scaler_reports_no_steps() -> None:
    scaler, optimizer, scale, _, follow = watched(enabled=False)
    for _ in range(2):
        train(scaler, optimizer, 1.0)
        assert follow() == []
    assert scale.skipped_steps == 0


def test_unknown_scaler_type_warns_about_skipped_steps() -> None:
    class Fixed:
        def get_scale(self) -> float:
            return 8.0

    with pytest.warns(UserWarning, match=r"this Fixed skips, call discard_step\(\)"):
        LossScale(Fixed(), True)


@ranks.on(2)
def test_second_manual_discard_raises(rank: int, count: int) -> None:
    run = Training(rank, ddp(Model()), transactional=True)
    run.step(0)
    for number, spoiled in ((10, ""), (11, "a")):
        run.backward(number, spoiled)
    run.handle.discard_step()
    with pytest.raises(tersor.InvalidArgumentError, match="no step to discard"):
        run.handle.discard_step()
    run.scaler.step(run.optimizers[0])
    run.scaler.update()
    run.step(2)
    run.check()
    assert run.handle.skipped_steps == 1
