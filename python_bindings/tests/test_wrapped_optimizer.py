"""DistributedOptimizer as a subclass of the wrapped optimizer's class, and the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy
import pytest
import torch
from handles import equal_on_ranks
from test_optimizer import loss_of, make_model, plainly, same_weights, wrap

import ranks
import tersor
import tersor.torch
from tersor.torch import DistributedOptimizer
from tersor.torch._src.gradients.copies import SentGradients
from tersor.torch._src.optim.state import check_groups

T = TypeVar("T")


def clamp(gradient: torch.Tensor) -> None:
    gradient.data.clamp_(-1e-4, 1e-4)


def negate(gradient: torch.Tensor) -> None:
    gradient.data.neg_()


def halve(gradient: torch.Tensor) -> None:
    gradient.data.view(-1).mul_(0.5)


def halve_as_an_array(gradient: torch.Tensor) -> None:
    numpy.multiply(gradient.numpy(), 0.5, out=gradient.numpy())


def change_one(gradient: torch.Tensor) -> None:
    gradient.detach().numpy()[1, 1] += 1


def replace(gradient: torch.Tensor) -> None:
    gradient.data = gradient.data * 0.5


def replace_by_another_type(gradient: torch.Tensor) -> None:
    gradient.data = gradient.data.bfloat16()


EDITS: list[Callable[[torch.Tensor], None]] = [
    clamp,
    negate,
    halve,
    halve_as_an_array,
    change_one,
    replace,
    replace_by_another_type,
]


@ranks.on(2)
def test_untracked_gradient_edits_raise_and_are_not_sent(rank: int, count: int) -> None:
    model, reference = make_model(), make_model()
    optimizer, unedited = wrap(model), wrap(reference)
    for step, edit in enumerate(EDITS):
        loss_of(model, rank, step).backward()
        loss_of(reference, rank, step).backward()
        edit(model[2].weight.grad)
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"2\.weight was changed while it was"
        ):
            optimizer.step()
        unedited.synchronize()
        names = ["0.weight", "0.bias", "2.bias"]
        means = {name: model.get_parameter(name).grad for name in names}
        for name, mean in means.items():
            assert torch.equal(mean, reference.get_parameter(name).grad), (edit.__name__, name)
        assert equal_on_ranks(means)
        optimizer.zero_grad()
        unedited.zero_grad()
    assert same_weights(model, reference)
    plainly(model, optimizer, rank, 9)  # it is usable all the same
    assert equal_on_ranks(dict(model.named_parameters()))


@ranks.on(2)
def test_gradients_stay_local_until_synchronize(rank: int, count: int) -> None:
    model, alone = make_model(), make_model()
    optimizer = wrap(model)
    loss_of(model, rank, 0).backward()
    loss_of(alone, rank, 0).backward()
    for ours, own in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours.grad, own.grad)
    optimizer.synchronize()
    assert not torch.equal(model[0].weight.grad, alone[0].weight.grad)
    assert equal_on_ranks({name: one.grad for name, one in model.named_parameters()})


@ranks.on(2)
def test_gradient_aliases_contain_the_mean(rank: int, count: int) -> None:
    model = make_model()
    optimizer = wrap(model)
    array = numpy.zeros(model[2].weight.shape, numpy.float32)
    model[2].weight.grad = torch.from_numpy(array)
    model[0].bias.grad = torch.zeros_like(model[0].bias).share_memory_()
    for step in range(3):
        loss_of(model, rank, step).backward()
        gradients = {name: one.grad for name, one in model.named_parameters()}
        alias = numpy.from_dlpack if step == 1 else torch.Tensor.detach
        seen = {"0.weight": alias(gradients["0.weight"]), "2.bias": gradients["2.bias"].numpy()}
        address = gradients["0.bias"].data_ptr()
        optimizer.synchronize()
        for name, one in {**seen, "2.weight": array}.items():
            assert torch.equal(torch.as_tensor(one), model.get_parameter(name).grad), name
        assert model[0].bias.grad.data_ptr() == address
        assert all(one.grad is gradients[name] for name, one in model.named_parameters())
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)


class Counting(torch.optim.SGD):
    """An optimizer with additional attributes, properties and methods."""

    speed = 1.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.speed, self.optimizer, self._group = 2.0, "its own", "its own"

    @property
    def rate(self) -> float:
        return self.param_groups[0]["lr"] * self.speed

    @rate.setter
    def rate(self, rate: float) -> None:
        self.param_groups[0]["lr"] = rate / self.speed

    def twice(self, closure: Callable[[], Any]) -> None:
        for _ in range(2):
            closure()
            self.step()

    @torch.no_grad()
    def step(self, closure: Any = None, factor: float = 1.0) -> Any:
        for group in self.param_groups:
            group["lr"] *= factor
        return super().step(closure)


def wrapped(model: torch.nn.Module) -> tuple[Any, Any]:
    inner = Counting(model.parameters(), lr=0.1, momentum=0.9)
    return inner, DistributedOptimizer(inner, model.named_parameters(), rules=[("*", "none")])


@ranks.on(2)
def test_attributes_and_methods_delegate_to_the_wrapped_optimizer(rank: int, count: int) -> None:
    model = make_model()
    inner, outer = wrapped(model)
    assert isinstance(outer, Counting)
    assert isinstance(outer, DistributedOptimizer)
    assert (outer.speed, outer.rate, outer.optimizer) == (2.0, 0.2, inner)
    outer.rate, outer.note = 0.4, "new"
    assert (inner.param_groups[0]["lr"], inner.note) == (0.2, "new")
    inner.note = "newer"
    assert outer.note == "newer"
    assert not hasattr(outer, "nothing_of_the_kind")
    outer.twice(lambda: loss_of(model, rank, 0).backward())  # its step() exchanges
    assert equal_on_ranks(dict(model.named_parameters()))
    loss_of(model, rank, 1).backward()
    outer.step(factor=0.5)
    assert inner.param_groups[0]["lr"] == 0.1
    with pytest.raises(
        tersor.InvalidArgumentError, match="CompressedSGD exchanges in its own step"
    ):
        DistributedOptimizer(tersor.torch.CompressedSGD(model.named_parameters(), lr=0.1))


class GenericSgd(torch.optim.SGD, Generic[T]):
    """An optimizer class with a base after ``Optimizer``."""


@ranks.on(1)
def test_generic_optimizer_classes_are_wrapped(rank: int, count: int) -> None:
    model = make_model()
    inner: GenericSgd[int] = GenericSgd(model.parameters(), lr=0.5)
    optimizer = DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, GenericSgd)
    assert isinstance(optimizer, tersor.torch.Handle)
    before = model[0].weight.detach().clone()
    loss_of(model, rank, 0).backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


@ranks.on(2)
def test_assigned_state_and_groups_take_effect(rank: int, count: int) -> None:
    model, reference = make_model(), make_model()
    (inner, outer), (_, by_hand) = wrapped(model), wrapped(reference)
    plainly(model, outer, rank, 0)
    plainly(reference, by_hand, rank, 0)
    outer.state = type(inner.state)(dict, {one: {} for one in model.parameters()})
    by_hand.state.clear()
    outer.param_groups = [{**group, "lr": 0.3} for group in outer.param_groups]
    by_hand.param_groups[0]["lr"] = 0.3
    assert inner.state is outer.state
    assert inner.param_groups is outer.param_groups
    for step in (1, 2):
        plainly(model, outer, rank, step)
        plainly(reference, by_hand, rank, step)
    assert same_weights(model, reference)
    assert equal_on_ranks(dict(model.named_parameters()))


@ranks.on(2)
def test_hooks_run_once_and_schedulers_keep_the_exchange(rank: int, count: int) -> None:
    model = make_model()
    outer: Any = wrap(model)
    inner, called = outer.optimizer, list[str]()
    outer.register_step_pre_hook(lambda *_: called.append("before"))
    inner.register_step_post_hook(lambda *_: called.append("after"))
    outer.register_state_dict_pre_hook(lambda *_: called.append("saved"))
    schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (inner, outer)]
    for step in range(2):
        plainly(model, outer, rank, step)
        for schedule in schedules:
            schedule.step()
    outer.load_state_dict(outer.state_dict())
    assert called == ["before", "after"] * 2 + ["saved"]
    plainly(model, outer, rank, 2)
    assert called[5:] == ["before", "after"]
    del called[5:]
    assert inner.param_groups[0]["lr"] == 0.1 / 16
    assert equal_on_ranks(dict(model.named_parameters()))
    outer.zero_grad = lambda *_: called.append("replaced")
    outer.zero_grad()
    inner.zero_grad()
    del outer.zero_grad
    outer.zero_grad()
    assert called[5:] == ["replaced"]


def test_device_gradient_edit_is_reported_one_step_later() -> None:
    """Over host tensors; only the transfer of the flags needs a device."""
    weight = torch.nn.Parameter(torch.zeros(33))
    sent = SentGradients(torch.device("cuda"))
    reports = []
    for step in range(4):
        weight.grad = torch.randn(33)
        sent.add("weight", weight.grad, sent.copy("weight", weight.grad))
        if step == 1:
            weight.grad.data.mul_(0.5)
        if step == 2:
            weight.grad.mul_(0.5)  # the version counter shows this edit at once
        reports.append(sent.changed({"weight": weight}))
        assert len(sent.end()) == (0 if step == 2 else 1)
    assert reports == [[], [], ["weight", "weight"], []]


class Clipped(torch.optim.SGD):
    """An optimizer with options other than finite numbers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.defaults.update(largest=float("inf"), schedule={"warmup": 5}, rule=torch.sign)
        self.param_groups[0].update(self.defaults)


def test_check_groups_accepts_valid_and_rejects_invalid_options() -> None:
    optimizer = Clipped([torch.nn.Parameter(torch.zeros(2))])
    check_groups(optimizer, optimizer.state_dict())
    for name, wrong in {"largest": float("nan"), "schedule": 5, "lr": float("inf")}.items():
        state = optimizer.state_dict()
        state["param_groups"][0][name] = wrong
        with pytest.raises(tersor.InvalidArgumentError, match=f"the state's {name} of a group"):
            check_groups(optimizer, state)
