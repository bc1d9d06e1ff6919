"""Keyword arguments as the options of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tersor._core import InvalidArgument

Options = TypeVar("Options")


def fill(options: Options, keywords: Mapping[str, object]) -> Options:
    """``options`` with an attribute set for each keyword; those it has not are an error."""
    for key, value in keywords.items():
        if not hasattr(options, key):
            known = ", ".join(name for name in dir(options) if not name.startswith("_"))
            raise InvalidArgument(f"there is no option {key!r}; there are: {known}")
        setattr(options, key, value)
    return options
