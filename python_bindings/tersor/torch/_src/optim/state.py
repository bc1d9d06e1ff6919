"""The state of a ``CompressedOptimizer``: common moments as PyTorch's, each rank's own beside.

What is each rank's own stands under ``"tersor"`` in the first parameter group, where PyTorch's
``get_optimizer_state_dict`` leaves it: moments, with the residuals of ``checkpoint.residuals``,
and in the same two modes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from tersor._core import InvalidArgumentError
from tersor.collectives import allreduce
from tersor.torch._src.checkpoint.residuals import (
    Mode,
    load_reducer,
    own_row,
    refusing_damage,
    save_reducer,
    side_by_side,
)
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.parameters.selection import local_shard

# What may be each rank's own: a moment, and the entry that has those of all parameters.
OWN = {"exp_avg_sq": "variances", "momentum_buffer": "momenta"}


@dataclass(frozen=True)
class Kept:
    """What an optimizer keeps."""

    moments: Mapping[str, dict[str, Tensor]]  #: of each parameter, by its name; changed in place
    groups: Sequence[Sequence[str]]  #: the names in each parameter group, frozen ones too
    own: Mapping[str, str]  #: which moment is each rank's own, of parameters that have one
    exchange: TensorExchange
    group: dist.ProcessGroup
    who: str  #: the optimizer's class


def save(kept: Kept, packed: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """``packed``: as PyTorch's optimizers have it. Moments go by the names of parameters."""
    own = save_reducer(kept.exchange.reducer, kept.group, mode)
    own["order"] = list(range(len(own["parameters"])))  # before the first step, too
    common = {
        name: {key: value for key, value in moments.items() if key != kept.own.get(name)}
        for name, moments in kept.moments.items()
    }
    (first, *others) = packed["param_groups"]
    for name, value in _own_moments(kept, mode):
        own.setdefault(OWN[kept.own[name]], {})[name] = value
    first = {**first, "tersor": own}
    return {**packed, "state": common, "param_groups": [first, *others]}


def plain_groups(saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameter groups, as PyTorch's optimizers have them; parameters by their place."""
    return [
        {key: value for key, value in group.items() if key != "tersor"}
        | {"params": list(range(len(group["params"])))}
        for group in saved["param_groups"]
    ]


def check_groups(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError if a group lacks an option, or has another type than the
    default."""
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for name in own.keys() & optimizer.defaults.keys():
            if not _alike(group.get(name), optimizer.defaults[name]):
                raise InvalidArgumentError(f"the state's {name} of a group is {group.get(name)!r}")


def _alike(found: Any, value: Any) -> bool:
    if isinstance(value, tuple | list):
        same = isinstance(found, tuple | list) and len(found) == len(value)
        return same and all(map(_alike, found, value))
    if isinstance(value, bool | str):
        return isinstance(found, type(value))
    if value is None and not isinstance(found, int | float | Tensor):
        return found is None
    return isinstance(found, int | float | Tensor) and math.isfinite(found)


def _own(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty where there is none. Versions before had it beside the groups."""
    (first, *_) = saved["param_groups"] or [{}]
    own: Mapping[str, Any] = first.get("tersor", saved.get("tersor", {}))
    return own


def load(kept: Kept, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Moments and residuals; all of them or, after an InvalidArgumentError, nothing."""
    with refusing_damage():
        _check(kept, saved)
        check_groups(optimizer, saved)
        values = list(_values(kept, saved))
    load_reducer(kept.exchange.reducer, kept.group, _own(saved))
    for target, value in values:
        target.copy_(value.reshape(target.shape))


def _own_moments(kept: Kept, mode: Mode) -> Iterator[tuple[str, Tensor]]:
    """Each rank's side by side, or the mean; in the same order on all ranks."""
    seconds = kept.exchange.options["timeout"]
    ranks = kept.exchange.channel() if kept.exchange.elastic else kept.exchange.transport
    mesh = DeviceMesh.from_group(kept.group, "cpu") if mode == "exact" else None
    for name, moments in kept.moments.items():
        if name in kept.own:
            own = local_shard(moments[kept.own[name]]).detach().flatten()
            if mesh is not None:
                yield name, side_by_side(own.cpu().clone(), mesh)
                continue
            mean = own.clone()
            allreduce(ranks, mean, codec="none", reduction="mean", timeout=seconds)
            yield name, mean.cpu()


def _check(kept: Kept, saved: Mapping[str, Any]) -> None:
    own = _own(saved)
    if "parameters" not in own:
        raise InvalidArgumentError(
            f'the state is not that of a {kept.who}: it has no parameters under "tersor"'
        )
    if (found := _class_of(saved)) != kept.who:
        raise InvalidArgumentError(f"the state is that of a {found}, not of a {kept.who}")
    if others := sorted(set(own["parameters"]) ^ set(kept.moments)):
        raise InvalidArgumentError(f"the state is of other parameters: {', '.join(others)}")
    if [len(group["params"]) for group in saved["param_groups"]] != list(map(len, kept.groups)):
        raise InvalidArgumentError("the state is of other parameter groups")
    if own["mode"] == "exact" and own["ranks"] != (ranks := kept.group.size()):
        raise InvalidArgumentError(
            f"the state is the exact one of {own['ranks']} ranks, but there are {ranks}: "
            f'save it with mode="portable" in a run of {own["ranks"]} ranks'
        )


def _class_of(saved: Mapping[str, Any]) -> str:
    options = {key for group in saved["param_groups"] for key in group}
    if "use_muon" in options:
        return "CompressedMuon"
    return "CompressedSGD" if "sent_momentum" in options else "CompressedAdamW"


def _values(kept: Kept, saved: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Where it goes, and what was saved."""
    state = saved["state"]
    if not state.keys() <= kept.moments.keys():  # PyTorch's functions for states put numbers
        names = list(chain.from_iterable(kept.groups))
        state = {names[int(key)]: one for key, one in state.items() if str(key).isdecimal()}
    for name, moments in kept.moments.items():
        entry = dict(state.get(name, {}))
        if key := kept.own.get(name):
            own = _own(saved)
            entry[key] = found = own.get(OWN[key], {}).get(name)  # None: of a codec without +ef
            if own["mode"] == "exact" and found is not None:
                entry[key] = own_row(found, dist.get_rank(kept.group))
        for key, target in moments.items():
            mine, value = local_shard(target), entry.get(key)
            value = None if value is None else local_shard(value)
            if value is None or value.numel() != mine.numel() or value.is_complex():
                found = "none" if value is None else f"{value.numel()} values"
                raise InvalidArgumentError(
                    f"{key} of {name} has {mine.numel()} values, the state {found}: it is of "
                    "another codec or other parameters"
                )
            yield mine, value
