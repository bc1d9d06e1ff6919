"""The states of optimizers over ranks: PyTorch's state, plus each rank's own values.

The own values are under ``"tersor"`` in the first parameter group, because PyTorch's
``get_optimizer_state_dict`` keeps parameter groups. The own values are residuals and the moments of
a ``CompressedOptimizer`` with differences between ranks. Residuals have the format of
``checkpoint.residuals``, and moments have the same two modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.collectives import allreduce
from tersor.torch._src.checkpoint import residuals as checkpoint
from tersor.torch._src.checkpoint.residuals import Mode, own_row, reject_damage
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.parameters.selection import local_shard

# Moments with possible differences between ranks, and the entry for all parameters' moments.
OWN = {"exp_avg_sq": "variances", "momentum_buffer": "momenta"}


def with_residuals(packed: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch's state of an optimizer, with each rank's own values."""
    (first, *others) = packed["param_groups"]
    return {**packed, "param_groups": [{**first, "tersor": own}, *others]}


@reject_damage()
def residuals_of(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Each rank's own values, possibly empty. Earlier versions had the values at the top level."""
    (first, *_) = saved["param_groups"] or [{}]
    own: Mapping[str, Any] = first.get("tersor", saved.get("tersor", {}))
    return own


def plain_groups(saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameter groups in the format of PyTorch's optimizers."""
    return [{k: v for k, v in one.items() if k != "tersor"} for one in saved["param_groups"]]


@reject_damage()
def plain_state(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The state in PyTorch's format. Distributed checkpoints turn keys into strings."""
    check_groups(optimizer, saved)
    state = {int(k) if str(k).isdecimal() else k: one for k, one in saved["state"].items()}
    return {**saved, "state": state, "param_groups": plain_groups(saved)}


@reject_damage()
def tensors_of(saved: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a state of PyTorch's optimizers, in the same order on all ranks."""
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    entries = [sorted(saved["state"].get(key, {}).items()) for key in keys]
    return [one for entry in entries for _, one in entry if isinstance(one, Tensor)]


def load_with(
    reducer: _core.GradientReducer,
    group: dist.ProcessGroup,
    residuals: Mapping[str, Any],
    load: Callable[[], None],
    common: Iterable[Tensor] = (),
) -> None:
    """Loads residuals and calls ``load``. An InvalidArgumentError leaves all values unchanged.

    ``common``: as in ``load_reducer``.
    """
    before = reducer.save_state()
    checkpoint.load_reducer(reducer, group, residuals, common)
    try:
        with reject_damage():
            load()
    except InvalidArgumentError:
        reducer.load_state(before)
        raise


@dataclass(frozen=True)
class StateView:
    """The saved values of a ``CompressedOptimizer``."""

    moments: Mapping[str, dict[str, Tensor]]  #: per parameter name; loading writes to the tensors
    groups: Sequence[Sequence[str]]  #: the names per group, including frozen parameters
    own: Mapping[str, str]  #: the moment that differs between ranks, by parameter name
    exchange: TensorExchange
    group: dist.ProcessGroup
    name: str  #: the optimizer's class
    check_group: Callable[[Mapping[str, Any]], None]  #: raises for options out of range


def save(view: StateView, packed: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """The state, with moments per parameter name. ``packed`` is PyTorch's state."""
    own = checkpoint.save_reducer(view.exchange.reducer, view.group, mode)
    if others := sorted(view.moments.keys() - own["parameters"]):
        raise InvalidArgumentError(
            f"the state of {', '.join(others)}, first trained after remove(), cannot be saved: "
            "call remove() after the first step with all parameters"
        )
    own["order"] = list(range(len(own["parameters"])))  # before the first step, too
    own["shapes"] = [_shape_of(view.moments[name]) for name in own["parameters"]]
    common = {
        name: {key: one.clone() for key, one in moments.items() if key != view.own.get(name)}
        for name, moments in view.moments.items()
    }
    for name, value in _own_moments(view, mode):
        own.setdefault(OWN[view.own[name]], {})[name] = value
    # PyTorch's state functions know positions, and names of the model, but no default names.
    unnamed = {f"parameter.{i}": i for i in range(sum(map(len, view.groups)))}
    state = {unnamed.get(name, name): moments for name, moments in common.items()}
    return with_residuals({**packed, "state": state}, own)


def _shape_of(moments: Mapping[str, Tensor]) -> str:
    """The shape of a parameter's moments, of all shards: "64 x 128"."""
    return " x ".join(map(str, next(v for k, v in moments.items() if k != "step").shape))


def check_groups(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError if a group's option is missing or has another type than the
    default."""
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for name in own.keys() & optimizer.defaults.keys():
            if not _compatible(group.get(name), optimizer.defaults[name]):
                raise InvalidArgumentError(f"the state's {name} of a group is {group.get(name)!r}")


def _compatible(found: Any, value: Any) -> bool:
    if isinstance(value, tuple | list):
        same = isinstance(found, tuple | list) and len(found) == len(value)
        return same and all(map(_compatible, found, value))
    takes_numbers = isinstance(value, int | float | Tensor | None) and not isinstance(value, bool)
    if takes_numbers and isinstance(found, int | float | Tensor):
        return math.isfinite(found) or found == value
    return isinstance(found, type(value))


def load(view: StateView, optimizer: Optimizer, saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Loads moments and residuals. An InvalidArgumentError leaves all values unchanged.

    Returns parameter groups for PyTorch's optimizers to load without a state.
    """
    with reject_damage():
        _check(view, saved)
        check_groups(optimizer, saved)
        for one in saved["param_groups"]:
            view.check_group(one)
        values = list(_values(view, saved))
    common = [value for _, value, is_common in values if is_common]
    checkpoint.load_reducer(view.exchange.reducer, view.group, residuals_of(saved), common)
    for target, value, _ in values:
        target.copy_(value.reshape(target.shape))
    return [{**one, "params": list(range(len(one["params"])))} for one in plain_groups(saved)]


def _own_moments(view: StateView, mode: Mode) -> Iterator[tuple[str, Tensor]]:
    """The rows of all ranks (``exact``) or the mean, in the same order on all ranks."""
    seconds = view.exchange.options["timeout"]
    ranks = view.exchange.channel() if view.exchange.elastic else view.exchange.transport
    mesh = DeviceMesh.from_group(view.group, "cpu") if mode == "exact" else None
    for name, key in view.own.items():
        own = local_shard(view.moments[name][key]).detach().flatten().clone()
        if mesh is None:
            allreduce(ranks, own, codec="none", reduction="mean", timeout=seconds)
        yield name, own.cpu() if mesh is None else checkpoint.stack_rows(own.cpu(), mesh)


def _check(view: StateView, saved: Mapping[str, Any]) -> None:
    own = residuals_of(saved)
    if "parameters" not in own:
        raise InvalidArgumentError(
            f'the state is not that of a {view.name}: it has no parameters under "tersor"'
        )
    if (found := _class_of(saved)) != view.name:
        raise InvalidArgumentError(f"the state is that of a {found}, not of a {view.name}")
    if others := sorted(set(own["parameters"]) ^ set(view.moments)):
        raise InvalidArgumentError(f"the state is of other parameters: {', '.join(others)}")
    if [len(group["params"]) for group in saved["param_groups"]] != list(map(len, view.groups)):
        raise InvalidArgumentError("the state is of other parameter groups")
    shapes = zip(own["parameters"], own.get("shapes", ()), strict=False)  # none in former states
    for name, shape in shapes:
        if shape != (wanted := _shape_of(view.moments[name])):
            raise InvalidArgumentError(f"{name} has the shape {wanted}, in the state {shape}")
    if own["mode"] == "exact":
        checkpoint.check_ranks(own["ranks"], view.group.size())


def _class_of(saved: Mapping[str, Any]) -> str:
    options = {key for group in saved["param_groups"] for key in group}
    if "use_muon" in options:
        return "CompressedMuon"
    return "CompressedSGD" if "sent_momentum" in options else "CompressedAdamW"


def _values(view: StateView, saved: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Each tensor to write, the saved values, and True for values that are equal on all ranks."""
    state, own = saved["state"], residuals_of(saved)
    if not state.keys() <= view.moments.keys():  # PyTorch's state functions put other keys
        keys = chain.from_iterable(group["params"] for group in saved["param_groups"])
        names: dict[str, str] = {}
        for i, (key, name) in enumerate(zip(keys, chain.from_iterable(view.groups), strict=True)):
            names |= {str(i): name, str(key): name}
        state = {names[str(key)]: one for key, one in state.items() if str(key) in names}
    for name, moments in view.moments.items():
        entry = dict(state.get(name, {}))
        if key := view.own.get(name):
            entry[key] = found = own.get(OWN[key], {}).get(name)  # None: a codec without +ef
            if own["mode"] == "exact" and found is not None:
                entry[key] = own_row(found, dist.get_rank(view.group))
        for key, target in moments.items():
            local, value = local_shard(target), entry.get(key)
            if value is None or (value := local_shard(value)).numel() != local.numel():
                found = "none" if value is None else f"{value.numel()} values"
                raise InvalidArgumentError(
                    f"{key} of {name} has {local.numel()} values, the state {found}: the state "
                    "is of another codec or other parameters"
                )
            whole = value.view(local.shape) if value.dim() == 1 else value  # own moments are rows
            yield local, checked_moment(key, whole, local, name), key != view.own.get(name)


def checked_moment(key: str, value: Any, like: Tensor, name: str) -> Tensor:
    """The saved moment or step of a parameter, in the dtype of ``like``.

    Raises InvalidArgumentError for another shape, and for values that cannot be a moment's.
    """
    what = f"{key} of {name}"
    found = checkpoint.checked_like(value, like, what).to(like.dtype)
    checkpoint.checked_finite(found, what)
    if key == "exp_avg_sq" and (found < 0).any():
        raise InvalidArgumentError(f"the state's {what} has values below 0")
    if key == "step":
        steps = float(found)
        checkpoint.checked_int(int(steps) if steps.is_integer() else steps, what)
    return found
