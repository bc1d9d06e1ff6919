"""The argument orders and keywords of the last release. This file ends with the next release."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tersor._renamed import Arguments, Function, Keywords, converting, deprecated, move_keywords


def _by_name(name: str, names: tuple[str, ...], args: Arguments, options: Keywords) -> Keywords:
    """Returns positional arguments by name. Raises TypeError if some are given twice or unknown."""
    if len(args) > len(names):
        raise TypeError(f"{name}() takes at most {len(names)} arguments by position")
    if duplicates := set(names[: len(args)]) & options.keys():
        raise TypeError(f"{name}() got multiple values for argument {min(duplicates)!r}")
    return dict(zip(names, args, strict=False))


def _have_equal_counts(first: Any, second: Any) -> bool:
    tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    return tensors and first.numel() == second.numel()


def accept_group_ranks(name: str) -> Callable[[Function], Function]:
    """Accepts ``root=``, and a positional rank beside ``group=``: both are ranks of the group.

    Args:
        name: The new keyword, ``"src"`` or ``"dst"``, of a rank of all ranks.
    """
    new_names = {"root": f"group_{name}", "group": "process_group"}

    def convert(function: Any, args: Arguments, options: Keywords) -> Arguments:
        if "group" in options:
            position = list(inspect.signature(function).parameters).index(name)
            if isinstance((*args, None, None, None)[position], int):
                if len(args) > position + 1:
                    raise TypeError(f"{function.__name__}() takes nothing after {name} by position")
                args, options["root"] = args[:position], args[position]
        move_keywords(function, options, new_names)
        return args

    return converting(convert)


def accept_tensors(*names: str) -> Callable[[Function], Function]:
    """Accepts two tensors and a root by position, ``input=``, ``group=`` and ``root=``.

    Args:
        names: The present keywords of the two tensors, in the former order.
    """

    def convert(function: Any, args: Arguments, options: Keywords) -> Arguments:
        new_names = {"input": "tensor"}
        is_former = len(args) > 2 or (len(args) == 2 and isinstance(args[1], Tensor))
        if is_former:
            name = function.__name__
            former = f"{name}({', '.join(names)}, root)".replace("tensor", "input")
            if len(args) > 3:
                raise TypeError(f"{name}() takes one tensor; the former order is {former}")
            if names == ("output", "tensor") and _have_equal_counts(*args[:2]):  # of one rank
                raise TypeError(f"{name}() takes one tensor by position: pass output= by keyword")
            deprecated(former, f"use {name}(tensor, output=output, dst=dst)")
            options |= _by_name(name, (*names, "root"), args, options)
            new_names |= {"root": "group_dst", "group": "process_group"}
            args = ()
        move_keywords(function, options, new_names, warns=not is_former)
        return args

    return converting(convert)


@converting
def accept_without_output(function: Any, args: Arguments, options: Keywords) -> Arguments:
    """Accepts ``all_to_all_single(input, output_splits, input_splits, ...)``, without an output."""
    names = ("input", "output_split_sizes", "input_split_sizes", "codec", "backward_codec", "group")
    old_names = ("output_splits", "input_splits", "group")
    second = args[1] if len(args) > 1 else options.get("input") if args else None
    has_output = "output" in options or isinstance(second, Tensor)
    if not has_output:
        old = "all_to_all_single(input, output_splits, input_splits)"
        new = "use all_to_all_single(output, input, output_split_sizes, input_split_sizes)"
        deprecated(old, new)
        options |= _by_name("all_to_all_single", names, args, options)
        args = ()
    new_names = (*names[1:3], "process_group")
    moved = dict(zip(old_names, new_names, strict=True))
    move_keywords(function, options, moved, warns=has_output)
    if not has_output:
        options["output"] = rows = options.setdefault("input", None)
        if isinstance(rows, Tensor) and rows.dim() > 0:
            received = options.get("output_split_sizes")
            count = sum(received) if received else len(rows)
            options["output"] = rows.new_empty((count, *rows.shape[1:]))
    return args
