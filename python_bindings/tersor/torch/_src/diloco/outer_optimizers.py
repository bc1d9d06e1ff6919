"""The outer optimizers of DiLoCo and local SGD, and checks of saved states."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.torch._src.checkpoint import residuals as checkpoint
from tersor.torch._src.diloco.stragglers import check_state
from tersor.torch._src.optim.state import check_groups, checked_moment, tensors_of

_MOMENTS = {"momentum_buffer", "exp_avg", "exp_avg_sq"}  # of PyTorch's optimizers

OuterOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the outer optimizer of the DiLoCo paper: SGD with rate 0.7, Nesterov momentum 0.9.

    Source: Douillard et al. 2023, arXiv:2311.08105, section 3.1.

    Args:
        parameters: The common parameters, from ``DiLoCo``.

    Returns:
        A ``torch.optim.SGD``.

    Example::

        outer = tersor.torch.DiLoCo(model, outer_optimizer=tersor.torch.diloco.nesterov)
    """
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the outer optimizer of local SGD: every rank continues from the mean of all ranks.

    Source: Stich 2018, arXiv:1805.09767.

    Args:
        parameters: The common parameters, from ``DiLoCo``.

    Returns:
        A ``torch.optim.SGD`` with rate 1.

    Example::

        outer = tersor.torch.DiLoCo(model, outer_optimizer=tersor.torch.diloco.averaging)
    """
    return torch.optim.SGD(parameters, lr=1.0)


def check_outer(outer_optimizer: object) -> None:
    """Raises TypeError for an object that cannot be called."""
    if not callable(outer_optimizer):
        raise TypeError(
            "outer_optimizer must be a function of a list of parameters, such as nesterov or "
            f"functools.partial(torch.optim.SGD, lr=0.7), not {described(outer_optimizer)}"
        )


@checkpoint.reject_damage()
def check_all(
    state: Mapping[str, Any],
    start: Mapping[str, Tensor],
    names: Collection[str],
    late: bool,
    outer: torch.optim.Optimizer,
) -> None:
    """Raises InvalidArgumentError for the state of another model, and for damaged entries.

    ``start``: the parameters that take part. ``names``: of all parameters. ``late``: True with a
    ``straggler_timeout``.
    """
    state = checkpoint.as_mapping(state)
    if state["start"].keys() != start.keys():
        other = sorted(state["start"].keys() ^ start.keys())
        raise InvalidArgumentError(f"the state is of another model: {', '.join(other)}")
    pending, straggler = state.get("under_way"), check_state(state.get("grace"), late)
    for tensors in (state["start"], pending["mean"] if pending else {}, straggler["moved"]):
        for name, one in tensors.items():
            checkpoint.checked_finite(checkpoint.checked_like(one, start[name], name), name)
    if pending:
        checkpoint.checked_int(pending["due"], "due step")
        if not 0 <= pending["mix"] < 1:
            raise InvalidArgumentError(
                f"the state's mix is {pending['mix']}: expected 0 to below 1"
            )
    if not 0 <= straggler["samples"] < math.inf:
        raise InvalidArgumentError(
            f"the state's samples are {straggler['samples']}: expected 0 or more"
        )
    checkpoint.checked_int(straggler["steps"], "steps of a late rank")
    checkpoint.checked_int(state["steps"], "steps")
    checkpoint.as_mapping(state["residuals"])
    if unknown := set(state.get("somewhere", [])) - set(names):
        raise InvalidArgumentError(f"the state is of another model: {', '.join(map(str, unknown))}")
    check_groups(outer, state["outer_optimizer"])
    _check_moments(outer, state["outer_optimizer"])


def common_tensors(state: Mapping[str, Any], names: Iterable[str]) -> Iterator[Tensor]:
    """The tensors of a checked state that are equal on all ranks. ``names``: of parameters."""
    yield from (state["start"][name] for name in names)
    yield from tensors_of(state["outer_optimizer"])


def _check_moments(outer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError for moments of another shape, and for values not finite."""
    parameters = [one for group in outer.param_groups for one in group["params"]]
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    for key, parameter in zip(keys, parameters, strict=True):
        for name, moment in saved["state"].get(key, {}).items():
            if name in _MOMENTS and moment is not None:
                checked_moment(name, moment, parameter, str(key))
