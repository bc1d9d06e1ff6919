"""The warning for gradients with less than two bits per value under an optimizer like Adam.

Under DDP and FSDP2, the optimizer of a gradient is known at the optimizer's first step.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tersor import Codec, _core
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.reducer import ReducerOptions

MIN_BITS = 2.0
_SMALL, _LARGE = 1 << 9, 1 << 10  # rows and columns, between which payloads are compared

CodecOf = Mapping[str, str]
Phases = Sequence[tuple[int, str]]  #: the first step and the spec of each codec of a schedule


def codec_phases(options: ReducerOptions, parameters: Mapping[str, Tensor]) -> dict[str, Phases]:
    """Returns the codecs of each parameter: specs, or ``"auto"``."""
    core = fill(_core.ReducerOptions(), options)
    choices = {
        name: _core.choose_codec(core, name, list(one.shape), dtype_text(one.dtype))
        for name, one in parameters.items()
    }
    return {name: one.phases or [(0, one.codec)] for name, one in choices.items()}


def chosen_codecs(options: ReducerOptions, parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the codec of each parameter: a spec, the last spec of a schedule, or ``"auto"``."""
    return {name: phases[-1][1] for name, phases in codec_phases(options, parameters).items()}


def has_feedback(options: ReducerOptions) -> bool:
    """True if some parameters may have residuals."""
    named = [options.get("codec", ""), *(rule[1] for rule in options.get("rules", ()))]
    return any(one.endswith("+ef") for one in [*named, *options.get("auto_codecs", ())])


def last_codec(choice: _core.CodecChoice) -> str:
    """Returns the codec after all steps of a schedule."""
    return choice.phases[-1][1] if choice.phases else choice.codec


def warn_low_bits(optimizer: torch.optim.Optimizer, codecs: CodecOf, stacklevel: int = 3) -> None:
    """Warns if the optimizer is like Adam and a codec has less than two bits per value."""
    low = [name for name, codec in codecs.items() if _is_low_bit(codec)]
    if low and "adam" in type(optimizer).__name__.lower():
        others = f" and {len(low) - 1} more use" if len(low) > 1 else " uses"
        warnings.warn(
            "gradients with less than two bits per value train poorly under Adam: use "
            f"tersor.torch.CompressedAdamW ({low[0]}{others} {codecs[low[0]]})",
            stacklevel=stacklevel,
        )


def warn_at_first_step(parameters: Mapping[str, Tensor], codecs: CodecOf) -> None:
    """Warns at the first step of an optimizer that has one of the parameters."""
    low = [parameters[name] for name, codec in codecs.items() if _is_low_bit(codec)]
    references = [weakref.ref(one) for one in low]
    if references:
        _register_step_hook()
        _pending.append((references, codecs))


_pending: list[tuple[list[weakref.ref[Tensor]], CodecOf]] = []  # no optimizer has stepped yet


@functools.cache
def _register_step_hook() -> None:
    """Registers a hook that stays, because PyTorch iterates over hooks during a step."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for entry in list(_pending):
        alive = [one for reference in entry[0] if (one := reference()) is not None]
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        found = any(id(one) in own for one in alive)
        if found or not alive:
            _pending[:] = [one for one in _pending if one is not entry]  # == compares tensors
        if found:
            warn_low_bits(optimizer, entry[1], stacklevel=4)


@functools.cache
def _is_low_bit(codec: str) -> bool:
    """True if the codec sends less than two bits per float32 value of a long parameter."""
    if codec == "auto":
        return False
    small, large = (Codec(codec).max_payload_bytes((side, side)) for side in (_SMALL, _LARGE))
    return 0 < 8 * (large - small) < MIN_BITS * (_LARGE**2 - _SMALL**2)  # 0: raw values
