"""What moves the weights that ranks have in common, in DiLoCo and local SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tersor._options import described

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
            "outer_optimizer makes an optimizer of a list of parameters, as nesterov or "
            "functools.partial(torch.optim.SGD, lr=0.7) do; it is not "
            f"{described(outer_optimizer)}"
        )
