"""Keyword arguments as the options of the library; what else is handed in is told in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tersor._core import InvalidArgumentError

Options = TypeVar("Options")


def fill(options: Options, keywords: Mapping[str, object]) -> Options:
    """``options`` with an attribute set for each keyword; those it has not are an error."""
    for key, value in keywords.items():
        if not hasattr(options, key):
            known = ", ".join(name for name in dir(options) if not name.startswith("_"))
            raise InvalidArgumentError(f"there is no option {key!r}; the options are: {known}")
        try:
            setattr(options, key, value)
        except TypeError:
            raise TypeError(_wanted(key, getattr(options, key), value)) from None
    return options


_KINDS = {str: "a string", bool: "True or False", int: "an integer", float: "a number"}


def _wanted(key: str, default: object, value: object) -> str:
    """What is wrong with an option's type."""
    if key == "rules":
        return f"rules must be a list of pairs, such as [('*', 'int8')], not {value!r}"
    if type(default) is int and isinstance(value, int) and not isinstance(value, bool):
        return f"{key} is {value}: give {'0 or more' if value < 0 else 'a smaller number'}"
    return f"{key} must be {_KINDS.get(type(default), 'a list')}, not {described(value)}"


def expect(value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raises TypeError, "``wanted``, not …", where the value is of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{wanted}, not {described(value)}")


def described(value: object) -> str:
    """A short value itself, else its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__
