"""Parameters that a program replaces or casts in a model after a handle was made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tersor._core import InvalidArgument


@dataclass(frozen=True)
class _Entry:
    name: str
    module: weakref.ref[nn.Module]
    key: str
    parameter: torch.Tensor
    dtype: torch.dtype


class Registered:
    """The modules that parameters are registered in. Shards of FSDP2 are left out."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], modules: Iterable[nn.Module] | None = None
    ) -> None:
        """``modules``: by default all modules of the process."""
        names = {id(one): name for name, one in parameters.items() if not isinstance(one, DTensor)}
        self._entries = [
            _Entry(names[id(one)], weakref.ref(module), key, one, one.dtype)
            for module in (_every_module() if modules is None else modules)
            for key, one in module._parameters.items()
            if one is not None and id(one) in names
        ]

    def check(self, remedy: str) -> None:
        """Raises InvalidArgument for the first parameter that is no longer registered, or cast."""
        for entry in self._entries:
            module = entry.module()
            now = None if module is None else module._parameters.get(entry.key)
            if isinstance(now, nn.Parameter) and now is not entry.parameter:
                raise InvalidArgument(
                    f"{entry.name} was replaced in the model (by load_state_dict(assign=True), say)"
                    f": {remedy}"
                )
            if now is not None and now.dtype != entry.dtype:
                raise InvalidArgument(
                    f"{entry.name} was cast from {entry.dtype} to {now.dtype}: {remedy}"
                )


class CheckRegistered:
    """A forward pre-hook of a model under DDP. A copy of the model has nothing to check."""

    def __init__(self, registered: Registered | None = None) -> None:
        self._registered = registered

    def __call__(self, *_: object) -> None:
        # functional_call() puts other tensors into modules, without gradients for an evaluation.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self._registered is not None:
            self._registered.check(
                "call tersor.torch.group.close(), wrap the model in a new DistributedDataParallel "
                "and compress that"
            )

    def __reduce__(self) -> Any:
        return CheckRegistered, ()


def _every_module() -> list[nn.Module]:
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
