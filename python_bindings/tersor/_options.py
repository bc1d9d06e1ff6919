"""Checks of arguments. Messages name the argument, the value and the remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tersor._core import InvalidArgumentError
from tersor._renamed import Arguments, Function, Keywords, converting, deprecated

if TYPE_CHECKING:
    from typing_extensions import Self as Self
    from typing_extensions import Unpack as Unpack
else:  # for annotations alone: a program with NumPy may lack typing_extensions
    Self = Unpack = None

Options = TypeVar("Options")

#: What to do instead of an option that the other entry points have.
_REMEDIES = {
    ("OptimizerOptions", "weighted"): "set optimizer.samples before step(), on all ranks",
    ("OptimizerOptions", "transactional"): "only step() sends gradients, so leave the option out",
    ("OptimizerOptions", "reduction"): "the ranks' mean moves the weights, so leave the option out",
    ("AdvancedOptions", "weighted"): "set samples before step(), with straggler_timeout=",
    ("AdvancedOptions", "transactional"): "leave the option out",
}
_REMOVED = ("elastic", "missing", "progress")  # former options without an effect


def fill(options: Options, keywords: Mapping[str, object]) -> Options:
    """Sets an attribute of ``options`` for each keyword, and returns ``options``. Raises
    InvalidArgumentError for an unknown keyword or an invalid value, and TypeError for a value of a
    wrong type."""
    for key, value in keywords.items():
        warn_of_lanes(value)
        if not hasattr(options, key):
            known = ", ".join(name for name in dir(options) if not name.startswith("_"))
            raise InvalidArgumentError(f"there is no option {key!r}; the options are: {known}")
        try:
            setattr(options, key, value)
        except TypeError:
            raise TypeError(_type_message(key, getattr(options, key), value)) from None
    return options


def warn_of_lanes(value: object) -> None:
    """Warns of the former option in a spec, or in a list with specs."""
    if isinstance(value, str | list | tuple) and re.search(r"intsum:[^+']*\blanes=", str(value)):
        deprecated('"intsum:lanes="', 'use "intsum:bits="')


_KINDS = {str: "a string", bool: "True or False", int: "an integer", float: "a number"}
_OBJECTS = {"state": "a FeedbackState", "workspace": "a Workspace", "tuner": "a Tuner"}


def _type_message(key: str, default: object, value: object) -> str:
    """Returns the message for a value of a wrong type."""
    if key == "rules":
        return f"rules must be a list of pairs, such as [('*', 'int8')], not {value!r}"
    if type(default) is int and isinstance(value, int) and not isinstance(value, bool):
        return f"{key} is {value}: give {'0 or more' if value < 0 else 'a smaller number'}"
    kind = _OBJECTS.get(key) or _KINDS.get(type(default), "a list")
    return f"{key} must be {kind}, not {described(value)}"


def takes_advanced(kind: type[Any] | Callable[[Any], type[Any]]) -> Callable[[Function], Function]:
    """Makes a decorator for a function that also accepts fields of its ``advanced=`` as plain
    keywords, for one release. Each plain keyword warns once. An unknown keyword raises
    InvalidArgumentError. ``kind``: the dataclass of ``advanced``, or a function from the first
    argument to the dataclass."""

    def convert(function: Any, arguments: Arguments, keywords: Keywords) -> Arguments:
        first, *own = inspect.signature(function).parameters
        plain = {k: keywords.pop(k) for k in list(keywords) if k not in (first, *own)}
        if plain:
            owner = arguments[0] if arguments else keywords.get(first)
            fields = kind if isinstance(kind, type) else kind(owner)
            name = function.__qualname__.removesuffix(".__init__")
            keywords["advanced"] = _merge(name, own, fields, keywords.get("advanced"), plain)
        return arguments

    return converting(convert)


def _merge(
    name: str, own: list[str], kind: type[Any], advanced: object, plain: Mapping[str, object]
) -> object:
    """Returns ``advanced`` with the fields of the plain keywords."""
    known = {one.name: one.default for one in dataclasses.fields(kind)}
    for key, value in plain.items():
        if key in known and getattr(advanced, key, known[key]) not in (known[key], value):
            raise TypeError(
                f"{name}() got {key}= and advanced={kind.__name__}({key}=...): leave {key}= out"
            )
        if key == "elastic" and value:
            raise InvalidArgumentError(
                f"elastic=True: the process group of {name} does not survive the loss of a rank; "
                "use DistributedOptimizer, CompressedAdamW, CompressedMuon, CompressedSGD, DiLoCo "
                "or torchft around your training"
            )
        if remedy := _REMEDIES.get((kind.__name__, key)):
            raise InvalidArgumentError(f"{name}: there is no option {key!r}: {remedy}")
        if key not in (*known, *_REMOVED):
            raise InvalidArgumentError(
                f"{name}: there is no option {key!r}; the options are: {', '.join(own)}; and in "
                f"advanced={kind.__name__}(...): {', '.join(known)}"
            )
        use = f"use advanced={kind.__name__}({key}=...)"
        deprecated(f"{name}({key}=)", "leave the option out" if key in _REMOVED else use, name)
    changed = {key: value for key, value in plain.items() if key in known}
    return dataclasses.replace(cast(Any, kind() if advanced is None else advanced), **changed)


@contextlib.contextmanager
def needs(module: str, message: str) -> Iterator[None]:
    """Tells how to install an optional package if the imports within do not find ``module``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(message, name=module) from error


def expect(value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raises TypeError with the message ``wanted``, if ``value`` is of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{wanted}, not {described(value)}")


def described(value: object) -> str:
    """Returns a short value itself, otherwise the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__
