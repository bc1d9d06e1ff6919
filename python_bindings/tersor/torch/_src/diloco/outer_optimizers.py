"""What moves the weights that ranks have in common, in DiLoCo and local SGD, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.torch._src.checkpoint.residuals import (
    as_mapping,
    like,
    load_reducer,
    number,
    refusing_damage,
)
from tersor.torch._src.diloco.stragglers import Grace, check_state
from tersor.torch._src.optim.state import check_groups

OuterOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of the DiLoCo paper (section 3.1): rate 0.7, Nesterov momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of local SGD: every rank goes on from the mean of all."""
    return torch.optim.SGD(parameters, lr=1.0)


def check_outer(outer_optimizer: object) -> None:
    """Raises TypeError for what makes no optimizer."""
    if not callable(outer_optimizer):
        raise TypeError(
            "outer_optimizer must be a function of a list of parameters, such as nesterov or "
            "functools.partial(torch.optim.SGD, lr=0.7), not "
            f"{described(outer_optimizer)}"
        )


@refusing_damage()
def check_all(
    state: Mapping[str, Any],
    start: Mapping[str, Tensor],
    names: Collection[str],
    grace: Grace | None,
    outer: torch.optim.Optimizer,
) -> None:
    """Raises InvalidArgumentError for another model, or an entry that no DiLoCo saves.

    ``start``: the parameters that take part; ``names``: of all parameters.
    """
    state = as_mapping(state)
    if state["start"].keys() != start.keys():
        other = sorted(state["start"].keys() ^ start.keys())
        raise InvalidArgumentError(f"the state is of another model: {', '.join(other)}")
    under_way, late = state.get("under_way"), check_state(state.get("grace"), grace)
    for tensors in (state["start"], under_way["mean"] if under_way else {}, late["moved"]):
        for name, one in tensors.items():
            like(one, start[name], name)
    if under_way:
        number(under_way["due"], "due step")
        if not 0 <= under_way["mix"] < 1:
            raise InvalidArgumentError(
                f"the state's mix is {under_way['mix']}: expected 0 to below 1"
            )
    if not 0 <= late["samples"] < math.inf:
        raise InvalidArgumentError(f"the state's samples are {late['samples']}: expected 0 or more")
    number(late["steps"], "steps of grace")
    number(state["steps"], "steps")
    as_mapping(state["residuals"])
    if unknown := set(state.get("somewhere", [])) - set(names):
        raise InvalidArgumentError(f"the state is of another model: {', '.join(map(str, unknown))}")
    check_groups(outer, state["outer_optimizer"])


def load_all(
    reducer: _core.GradientReducer,
    group: dist.ProcessGroup,
    outer: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> None:
    """Residuals and the outer optimizer's state; both or, after an InvalidArgumentError, none."""
    before = reducer.save_state()
    load_reducer(reducer, group, state["residuals"])
    try:
        with refusing_damage():
            outer.load_state_dict(state["outer_optimizer"])
    except InvalidArgumentError:
        reducer.load_state(before)
        raise
