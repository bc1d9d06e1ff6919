"""Detects parameters that a program replaced or cast after a handle was made."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.parameters.memory_order import memory_order


class Registered:
    """The modules of parameters, without shards of FSDP2. Also a forward pre-hook of a DDP model. A
    copy of the model checks nothing."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], modules: Iterable[nn.Module] | None = None
    ) -> None:
        """``modules``: by default all modules of the process."""
        names = {id(one): name for name, one in parameters.items() if not isinstance(one, DTensor)}
        self._entries = [
            (names[id(one)], weakref.ref(module), key, one, one.dtype, one.stride())
            for module in (_compat.live_modules() if modules is None else modules)
            for key, one in _compat.own_parameters(module).items()
            if one is not None and id(one) in names
        ]

    def check(self, remedy: str) -> None:
        """Raises InvalidArgumentError for the first replaced or cast parameter."""
        for name, find, key, parameter, dtype, strides in self._entries:
            module = find()
            now = None if module is None else _compat.own_parameters(module).get(key)
            if isinstance(now, nn.Parameter) and now is not parameter:
                raise InvalidArgumentError(
                    f"{name} was replaced in the model (by load_state_dict(assign=True), say)"
                    f": {remedy}"
                )
            if now is not None and now.dtype != dtype:
                raise InvalidArgumentError(f"{name} was cast from {dtype} to {now.dtype}: {remedy}")
            if now is not None and now.stride() != strides:
                shape = now.shape
                if memory_order(shape, now.stride()) != memory_order(shape, strides):
                    raise InvalidArgumentError(
                        f"{name} has another memory order (channels_last, say): {remedy}"
                    )

    def __call__(self, *_: object) -> None:
        # functional_call() puts other tensors into modules, without gradients for an evaluation.
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self.check(
                "call tersor.torch.close(), wrap the model in a new DistributedDataParallel "
                "and compress that"
            )

    def __reduce__(self) -> Any:
        return Registered, ({}, ())
