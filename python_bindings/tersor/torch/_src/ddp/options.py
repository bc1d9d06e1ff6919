"""Checks of a DistributedDataParallel model, and the registration of the hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.parameters.replaced import Registered
from tersor.torch._src.parameters.selection import split_parameters


def checked_ddp(model: nn.Module) -> DistributedDataParallel:
    """Returns the DDP model, also of a compiled model. Raises InvalidArgumentError if the model is
    no DDP model, or cannot have a communication hook."""
    ddp = _compat.uncompiled(model)
    if not isinstance(ddp, DistributedDataParallel):
        raise InvalidArgumentError(
            f"model must be a DistributedDataParallel, not {type(model).__name__}"
        )
    if ddp.mixed_precision is not None:
        raise InvalidArgumentError(
            "DistributedDataParallel(mixed_precision=...) has a communication hook of its own; use "
            "torch.autocast, or a model in bfloat16"
        )
    refuse_options(ddp)
    if any(_compat.steps_in_backward(one) for one in ddp.module.parameters()):
        raise InvalidArgumentError(
            "an optimizer in the backward pass occupies DDP's communication hook; step the "
            "optimizer after backward()"
        )
    check_reducer(_compat.calls_comm_hook())
    return ddp


def refuse_options(ddp: DistributedDataParallel | None) -> None:
    """Raises InvalidArgumentError for options that make DDP bypass the communication hook."""
    if ddp is None:
        return
    delayed = _compat.delayed_parameters(ddp)
    if found := [name for name, one in ddp.module.named_parameters() if id(one) in delayed]:
        raise InvalidArgumentError(
            f"delay_all_reduce_named_params ({', '.join(found)}): DistributedDataParallel starts "
            "this all-reduce outside of the communication hook and never waits for the result; "
            "leave delay_all_reduce_named_params and param_to_hook_all_reduce out"
        )
    if getattr(ddp, "skip_all_reduce_unused_params", False):
        raise InvalidArgumentError(
            "skip_all_reduce_unused_params=True: DistributedDataParallel then omits the last "
            "bucket if the bucket's parameters are unused, and the backward pass never ends; leave "
            "the option out"
        )


def check_reducer(calls_hook: bool) -> None:
    """Raises InvalidArgumentError if DDP does not call its communication hook."""
    if not calls_hook:
        raise InvalidArgumentError(
            'torch._dynamo.config.optimize_ddp = "python_reducer" passes no buckets; set it to '
            'True or "ddp_optimizer" before DistributedDataParallel is made'
        )


def refuse_unfrozen(frozen: Mapping[str, nn.Parameter]) -> None:
    """Raises InvalidArgumentError if a parameter was unfrozen. Ranks would silently diverge."""
    if found := [name for name, one in frozen.items() if one.requires_grad]:
        raise InvalidArgumentError(
            f"{', '.join(found)}: frozen when DistributedDataParallel was made or compressed, so "
            "their gradients are not exchanged: call tersor.torch.close(), wrap the module in a "
            "new one and compress that; or do both while all parameters are trainable, with "
            "find_unused_parameters=True, and freeze afterwards"
        )


class NewParameterCheck:
    """A forward pre-hook of a DDP model that refuses new parameters. A copy of the model checks
    nothing."""

    def __init__(self, parameters: Iterable[Mapping[str, nn.Parameter]]) -> None:
        """``parameters``: all parameters that the model has now."""
        self._known = {id(one): one for part in parameters for one in part.values()}
        self._registrations = _compat.registrations()

    def __call__(self, ddp: DistributedDataParallel, *_: object) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self._registrations == (now := _compat.registrations()):
            return
        trained, _frozen = split_parameters(ddp.module, ddp.parameters_to_ignore)
        if found := [name for name, one in trained.items() if id(one) not in self._known]:
            raise InvalidArgumentError(
                f"{', '.join(found)}: added after DistributedDataParallel was made, so it does not "
                "exchange their gradients: call tersor.torch.close(), wrap the module in a new one "
                "and compress that"
            )
        self._registrations = now

    def __reduce__(self) -> Any:
        return Registered, ({}, ())


def register(ddp: DistributedDataParallel, state: object, hook: Callable[..., object]) -> None:
    """Registers the hook. Raises InvalidArgumentError if the model has a hook already."""
    try:
        ddp.register_comm_hook(state, hook)
    except RuntimeError as error:
        _compat.remove_hook(ddp, state)
        raise InvalidArgumentError(
            f"this DistributedDataParallel has a communication hook already ({error}); wrap the "
            "module in a new one"
        ) from error
