"""Renamed modules, classes and keywords. The old name works for one release and warns once."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Convert = Callable[[Any, Arguments, Keywords], Arguments]

_PACKAGE = __file__.removesuffix("_renamed.py")
_IMPORTS = "<frozen importlib"

#: The old spellings with a past warning: the function's qualified name or "", and the spelling.
_warned: set[tuple[str, str]] = set()

_MOVED = {"flower": "federated.flower", "lanes": "federated.sums", "nvflare": "federated.nvflare"}
_MOVED["torch.collectives"] = "torch"

#: The module of each old name, and the public name for the warning.
_RENAMED = {f"tersor.{old}": (f"tersor.{new}", f"tersor.{new}") for old, new in _MOVED.items()}
_RENAMED |= {
    f"tersor.torch.{old}": (f"tersor.torch._src.{new}", f"tersor.torch{public}")
    for old, (new, public) in {
        "allocation": ("gradients.allocation", ".allocate"),
        "checkpoint": ("checkpoint.residuals", ""),
        "compressed_adamw": ("optim.adamw", ".optim"),
        "compressed_muon": ("optim.muon", ".optim"),
        "compressed_optimizer": ("optim.compressed", ".optim"),
        "compressed_sgd": ("optim.sgd", ".optim"),
        "copied": ("ddp.copies", ""),  # models saved whole refer to this module
        "ddp": ("ddp.hook", ""),
        "distributed_checkpoint": ("checkpoint.residuals", ".load_checkpoint"),
        "group": ("process_group.connections", ".close and tersor.torch.transport"),
        "neighbours": ("gossip", ".Gossip"),
        "optimizer": ("optim.distributed", ".optim"),
        "server": ("server", ""),
        "statistics": ("statistics.records", ""),
        "world": ("hvd.launcher", ".hvd"),
    }.items()
}

#: The old and new attributes of each package.
_ATTRIBUTES = {
    "tersor": {name: f"{name}Error" for name in ("InvalidArgument", "OutOfMemory", "RanksLost")},
    "tersor.torch": {"allreduce": "all_reduce"},
}

#: The names of other interfaces for functions of a package.
_EQUIVALENTS = {
    "tersor": {"all_gather": "allgather", "all_reduce": "allreduce"}
    | dict.fromkeys(("all_to_all_single", "alltoall"), "all_to_all"),
    "tersor.torch": {"all_gather_into_tensor": "all_gather", "allgather": "all_gather"}
    | dict.fromkeys(("all_to_all", "alltoall"), "all_to_all_single")
    | {"reduce_scatter_tensor": "reduce_scatter"},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a renamed module by the old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in _RENAMED else None

    def exec_module(self, module: types.ModuleType) -> None:
        _renamed(module.__name__)


def attribute(package: str, name: str) -> Any:
    """Returns a renamed module or class for a package's ``__getattr__``."""
    old = f"{package}.{name}"
    if (new := _ATTRIBUTES.get(package, {}).get(name)) is not None:
        deprecated(old, f"use {package}.{new}")
        found = getattr(sys.modules[package], new)
    elif old in _RENAMED:
        found = _renamed(old)
    else:
        equivalent = _EQUIVALENTS.get(package, {}).get(name)
        use = f": use {package}.{equivalent}" if equivalent else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{use}")
    setattr(sys.modules[package], name, found)
    return found


def renamed_keywords(**new_names: str) -> Callable[[Function], Function]:
    """Makes a decorator, such as ``@renamed_keywords(old="new")``, for a function that also accepts
    old keywords. Each old keyword warns once. A call with both keywords raises TypeError. The old
    keywords work at run time only: type checkers see the function's own signature."""

    def convert(function: Any, args: Arguments, options: Keywords) -> Arguments:
        move_keywords(function, options, new_names)
        return args

    return converting(convert)


def converting(convert: Convert) -> Callable[[Function], Function]:
    """Makes a decorator. ``convert`` returns the positional arguments and changes the keywords."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*convert(function, args, options), **options)

        return cast(Function, call)

    return decorate


def renamed_attribute(new: str) -> Any:
    """Returns a property for the attribute ``new``. Reading or setting the property warns once."""

    class Renamed:
        __doc__ = f"The old name of ``{new}``."

        def __set_name__(self, owner: type, name: str) -> None:
            self._owner, self._old = owner.__qualname__, f"{owner.__qualname__}.{name}"

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            deprecated(self._old, f"use .{new}", self._owner)
            return getattr(instance, new)

        def __set__(self, instance: Any, value: Any) -> None:
            deprecated(self._old, f"use .{new}", self._owner)
            setattr(instance, new, value)

    return Renamed()


def move_keywords(
    function: Callable[..., object],
    options: dict[str, Any],
    new_names: Mapping[str, str],
    warns: bool = True,
) -> None:
    """Replaces the old keywords of a call by the new keywords; see :func:`renamed_keywords`."""
    name = function.__qualname__.removesuffix(".__init__")
    for old in new_names.keys() & options.keys():
        new = new_names[old]
        if new in options:
            raise TypeError(f"{name}() got {new}= and {old}=, its old name: pass {new}=")
        if warns:
            deprecated(f"{name}({old}=)", f"use {new}=", f"{function.__module__}.{name}")
        options[new] = options.pop(old)


def deprecated(old: str, remedy: str, owner: str = "") -> None:
    """Warns of an old spelling of ``owner``, a function or module, once per process. The warning
    shows the line of the first caller outside of the package."""
    if (owner, old) in _warned:
        return
    _warned.add((owner, old))
    text = f"{old} is deprecated and ends with the next release: {remedy}"
    warnings.warn(text, DeprecationWarning, stacklevel=stack_level())


def stack_level(*folders: str) -> int:
    """The ``stacklevel`` of the first caller outside of the package and of ``folders``."""
    frame, level = sys._getframe(1), 1  # as skip_file_prefixes= of Python 3.12
    inside = (_PACKAGE, _IMPORTS, *folders)
    while frame.f_code.co_filename.startswith(inside) and frame.f_back is not None:
        frame = frame.f_back
        level += not frame.f_code.co_filename.startswith(_IMPORTS)  # not counted by warn()
    return level


def _renamed(old: str) -> types.ModuleType:
    new, public = _RENAMED[old]
    deprecated(old, f"use {public}")
    sys.modules[old] = importlib.import_module(new)
    return sys.modules[old]


sys.meta_path.insert(0, _Finder())  # before folders left behind by an old name
