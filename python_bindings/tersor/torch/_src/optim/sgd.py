"""SGD on ranks with a common momentum, exchanged in few bits.

Error feedback acts as a momentum: in each step, a codec sends a share k of the residual, so a
gradient arrives over several steps, as with a momentum of 1 - k. SGD's own momentum is a second
filter. Two filters delay large steps until the weights oscillate. If the ranks exchange the common
momentum, both filters become a single filter with momentum 1 - k (1 - β'). The optimizer chooses β'
such that the momentum is β::

    β' = max(0, 1 - (1 - β) / k)
    p = β' · m + (1 - β') · (g + decay · weights)
    m ← mean of p over ranks          through the codec; equal bits on every rank
    weights ← weights - rate / (1 - β) · m
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor._options import takes_advanced
from tersor._renamed import renamed_keywords
from tersor.reducer import OptimizerOptions, ResidualDtype, Rules
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import OnLoss
from tersor.torch._src.optim.compressed import RENAMED, CompressedOptimizer
from tersor.torch._src.optim.rules import MeanGradient, Part, Rule, number

_SAMPLE = 1 << 16  # values


class CompressedSGD(CompressedOptimizer):
    """SGD with a common momentum, which ranks exchange, for codecs below two bits.

    Use the learning rate and momentum of ``torch.optim.SGD`` on mean gradients. Each rank passes
    its own gradient: do not average gradients before ``step``. A parameter whose codec has no
    ``+ef`` uses SGD on the mean gradient. :class:`CompressedAdamW` describes missing gradients,
    added parameters, a ``GradScaler`` and gradients that are not finite.

    Args:
        params: Parameters or groups, best with names: ``model.named_parameters()``.
        lr: Learning rate.
        momentum: Momentum β, at least 0 and below 1.
        weight_decay: Weight decay, added to the gradient.
        sent_momentum: The momentum β' of the exchanged values. Default: computed from the codec's
            share k of normally distributed values. Steps without ``+ef`` use ``momentum``.
        codec: Spec of the codec, with ``+ef``. Default: one bit per value, also from owners.
        rules: This and all later arguments as in :class:`CompressedAdamW`.

    Raises:
        InvalidArgumentError: As :class:`CompressedAdamW`; also for codec ``lowrank``, whose share k
            depends on the gradients.

    Example::

        optimizer = tersor.torch.CompressedSGD(model.named_parameters(), lr=0.05, momentum=0.9)
        loss_of(model, batch).backward()
        optimizer.step()
    """

    @renamed_keywords(**RENAMED)
    @takes_advanced(OptimizerOptions)
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        sent_momentum: float | None = None,
        codec: str = "hadamard:bits=1+ef",
        rules: Rules | None = None,
        warmup_codec: str = "bf16",
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        elastic: bool = False,
        min_ranks: int = 0,
        on_loss: OnLoss = "raise",
        advanced: OptimizerOptions | None = None,
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        defaults["sent_momentum"] = sent_momentum
        super().__init__(params, defaults, locals())

    def _rule(self, parameter: Tensor, codecs: Sequence[str]) -> Rule:
        if not Codec(codecs[-1]).has_feedback:
            return _MEAN_GRADIENT
        for codec in codecs:
            if codec.startswith("lowrank") and Codec(codec).has_feedback:
                raise InvalidArgumentError(
                    f"{codec}: the share of a gradient that it sends depends on the gradients, and "
                    "so does the momentum: average gradients for SGD (tersor.torch.compress), or "
                    "use hadamard:bits=1+ef or blocktopk"
                )
        return _COMMON_MOMENTUM


class _CommonMomentum(Rule):
    moments = ("momentum_buffer",)

    def batch_key(self, parameter: Tensor, codec: str) -> object:
        return codec

    def to_send(self, part: Part) -> list[Tensor]:
        gradients = _with_decay(part, part.float_gradients())
        weight = 1 - self._sent_momentum(part)
        return list(_compat.foreach_lerp(part.moments("momentum_buffer"), gradients, weight))

    def update(self, part: Part, means: list[Tensor]) -> None:
        _compat.foreach_copy_(part.moments("momentum_buffer"), means)
        rate = float(part.group["lr"]) / (1 - part.group["momentum"])
        _compat.foreach_add_(part.moving_weights(), means, alpha=-rate)

    def _sent_momentum(self, part: Part) -> float:
        wanted: float = part.group["momentum"]
        if not Codec(part.codec).has_feedback:
            return wanted
        given: float | None = part.group["sent_momentum"]
        return max(0.0, 1 - (1 - wanted) / sent_share(part.codec)) if given is None else given


class _MeanGradient(MeanGradient):
    """SGD on the mean gradient, with the same bits as PyTorch's."""

    moments = ("momentum_buffer",)

    def update(self, part: Part, means: list[Tensor]) -> None:
        momenta = part.moments("momentum_buffer")
        _compat.foreach_mul_(momenta, number(part.group["momentum"], momenta))
        _compat.foreach_add_(momenta, _with_decay(part, means))
        _compat.foreach_add_(part.moving_weights(), momenta, alpha=-float(part.group["lr"]))


def _with_decay(part: Part, gradients: list[Tensor]) -> list[Tensor]:
    if decay := part.group["weight_decay"]:
        return list(_compat.foreach_add(gradients, part.weights, alpha=decay))
    return gradients


_COMMON_MOMENTUM, _MEAN_GRADIENT = _CommonMomentum(), _MeanGradient()


@functools.cache
def sent_share(codec: str) -> float:
    """The share of normally distributed values in a message."""
    alone = Codec(codec.removesuffix("+ef"))
    values = np.random.default_rng(0).standard_normal(_SAMPLE, dtype=np.float32)
    decoded = alone.decode(alone.encode(values), out=np.empty_like(values))
    return float(np.vdot(values, decoded) / np.vdot(values, values))
