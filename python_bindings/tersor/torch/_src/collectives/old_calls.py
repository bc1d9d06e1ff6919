"""The argument orders and keywords of the last release. This file ends with the next release."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from tersor._renamed import deprecated, move_keywords

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def accept_group_ranks(
    word: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Accepts ``root=``, and a positional rank beside ``group=``: both are ranks of the group.

    Args:
        word: The new keyword, ``"src"`` or ``"dst"``, of a rank of all ranks.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        position = list(inspect.signature(function).parameters).index(word)
        new_names = {"root": f"group_{word}", "group": "process_group"}

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> _Result:
            if "group" in options and isinstance((*args, None, None, None)[position], int):
                args, options["root"] = args[:position], args[position]
            move_keywords(function, options, new_names)
            return function(*args, **options)

        return call

    return decorate


def accept_tensors(
    *names: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Accepts two tensors and a root by position, ``input=``, ``group=`` and ``root=``.

    Args:
        names: The present keywords of the two tensors, in the former order.
    """
    former = [{"tensor": "input"}.get(name, name) for name in names]

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        name = function.__name__
        order = f"{name}({', '.join(former)}, root)"

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> _Result:
            is_former = len(args) > 2 or (len(args) == 2 and isinstance(args[1], Tensor))
            if is_former:
                if len(args) > 3:
                    raise TypeError(f"{name}() takes one tensor; the former order is {order}")
                deprecated(order, f"use {name}(tensor, output=output, dst=dst)")
                options |= dict(zip((*names, "root"), args, strict=False))
                args = ()
            new_names = {"input": "tensor"}
            if is_former:
                new_names |= {"root": "group_dst", "group": "process_group"}
            move_keywords(function, options, new_names, warns=not is_former)
            return function(*args, **options)

        return call

    return decorate


def accept_without_output(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Accepts ``all_to_all_single(input, output_splits, input_splits, ...)``, without an output."""
    names = ("input", "output_split_sizes", "input_split_sizes", "codec", "backward_codec", "group")
    new_names = {
        "output_splits": "output_split_sizes",
        "input_splits": "input_split_sizes",
        "group": "process_group",
    }

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Tensor:
        second = args[1] if len(args) > 1 else options.get("input") if args else None
        has_output = "output" in options or isinstance(second, Tensor)
        if not has_output:
            old = "all_to_all_single(input, output_splits, input_splits)"
            new = "use all_to_all_single(output, input, output_split_sizes, input_split_sizes)"
            deprecated(old, new)
            options |= dict(zip(names, args, strict=False))
            args = ()
        move_keywords(function, options, new_names, warns=has_output)
        if not has_output:
            options["output"] = rows = options.setdefault("input", None)
            if isinstance(rows, Tensor) and rows.dim() > 0:
                received = options.get("output_split_sizes")
                count = sum(received) if received else len(rows)
                options["output"] = rows.new_empty((count, *rows.shape[1:]))
        return function(*args, **options)

    return call
