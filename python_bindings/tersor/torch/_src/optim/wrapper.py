"""Wrappers of an optimizer, as subclasses of the optimizer's class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor.torch._src.statistics.handles import Reporting


def merged(wrapper: type, optimizer: torch.optim.Optimizer) -> Any:
    """A subclass of ``wrapper`` and the optimizer's class. Attributes of ``wrapper`` come first."""
    name = wrapper.__name__
    expect(
        optimizer, torch.optim.Optimizer, f"{name} needs an optimizer, such as torch.optim.SGD(…)"
    )
    if isinstance(optimizer, Reporting):
        raise InvalidArgumentError(
            f"a {type(optimizer).__name__} exchanges in its own step: use it without {name}"
        )
    return _subclass(wrapper, type(optimizer))  # type: ignore[arg-type]  # classes have hashes


@functools.cache
def _subclass(wrapper: type, wrapped: type) -> Any:
    options = {"__module__": wrapper.__module__, "__doc__": wrapper.__doc__, "__slots__": ()}
    return type(wrapper)(wrapper.__name__, (wrapper, wrapped), options)


class OwnMethod:
    """A method of a wrapper. Programs may replace the method on the wrapper or the optimizer.

    Both objects share one ``__dict__``, so ``_replaced`` keeps the wrapper's replacements.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(self, one: Any, of: type | None = None) -> Any:
        if one is None:
            return self._function
        replaced = one._replaced.get(self._function.__name__)
        return MethodType(self._function, one) if replaced is None else replaced

    def __set__(self, one: Any, value: Any) -> None:
        one._replaced[self._function.__name__] = value

    def __delete__(self, one: Any) -> None:
        del one._replaced[self._function.__name__]
