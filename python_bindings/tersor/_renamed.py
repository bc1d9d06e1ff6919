"""Renamed modules. The old name works for one release and warns once."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence

#: Old name: the module, and the public name in the warning.
_RENAMED = {
    f"tersor.{old}": (f"tersor.{new}", f"tersor.{new}")
    for old, new in {
        "flower": "federated.flower",
        "lanes": "federated.sums",
        "nvflare": "federated.nvflare",
    }.items()
} | {
    f"tersor.torch.{old}": (f"tersor.torch._src.{new}", f"tersor.torch{public}")
    for old, (new, public) in {
        "allocation": ("gradients.allocation", ".allocate"),
        "checkpoint": ("checkpoint.residuals", ""),
        "collectives": ("collectives.tensors", ""),
        "compressed_adamw": ("optim.adamw", ".optim"),
        "compressed_muon": ("optim.muon", ".optim"),
        "compressed_optimizer": ("optim.compressed", ".optim"),
        "compressed_sgd": ("optim.sgd", ".optim"),
        "copied": ("ddp.copies", ""),  # models that were saved whole name this module
        "ddp": ("ddp.hook", ""),
        "distributed_checkpoint": ("checkpoint.distributed", ".load_checkpoint"),
        "group": ("process_group.connections", ".close and tersor.torch.transport"),
        "neighbours": ("gossip", ".Gossip"),
        "optimizer": ("optim.distributed", ".optim"),
        "server": ("server", ""),
        "statistics": ("statistics.records", ""),
        "world": ("hvd.launcher", ".hvd"),
    }.items()
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a renamed module by its old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in _RENAMED else None

    def exec_module(self, module: types.ModuleType) -> None:
        _renamed(module.__name__, stacklevel=3)


def attribute(package: str, name: str) -> types.ModuleType:
    """Returns a renamed module for a package's ``__getattr__``."""
    if (old := f"{package}.{name}") not in _RENAMED:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = _renamed(old, stacklevel=4)
    setattr(sys.modules[package], name, module)
    return module


def _renamed(old: str, stacklevel: int) -> types.ModuleType:
    new, public = _RENAMED[old]
    warnings.warn(
        f"{old} is deprecated and ends with the next release: use {public}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    sys.modules[old] = importlib.import_module(new)
    return sys.modules[old]


sys.meta_path.insert(0, _Finder())  # also before folders that an old name left
