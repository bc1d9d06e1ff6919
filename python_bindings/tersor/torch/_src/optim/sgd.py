"""SGD with a momentum that is exchanged, in few bits.

Error feedback is a momentum itself: of what waits a codec brings a share k in each step, so that a
gradient arrives spread over steps as by a momentum of 1 - k. SGD's momentum behind that, or before
it, is a second filter in a row, which delays large steps until they oscillate. With the common
momentum exchanged the two are one, 1 - k (1 - β'), and β' is chosen such that it is β::

    β' = max(0, 1 - (1 - β) / k)
    p = β' · m + (1 - β') · (g + decay · weights)
    m ← mean of p over ranks          by the codec; the same bits on every rank
    weights ← weights - rate / (1 - β) · m
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import ElasticOptions
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import MeanGradient, Part, Rule, number

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SAMPLE = 1 << 16  # values


class CompressedSGD(CompressedOptimizer):
    """SGD with momentum whose ranks exchange the common momentum, for codecs below two bits.

    ::

        optimizer = tersor.torch.CompressedSGD(
            model.named_parameters(), lr=0.05, momentum=0.9, codec="hadamard:bits=1+ef"
        )
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()    # each rank's own gradient; DDP within no_sync()
            optimizer.step()                    # exchanges, and moves all ranks alike

    Rates and momentum are those of ``torch.optim.SGD`` on mean gradients. Parameters whose codec
    has no ``+ef`` go by SGD on the mean gradient. Gradients must not be averaged before. Missing
    gradients, parameters that are added, a ``GradScaler`` and gradients that are not finite: as in
    :class:`CompressedAdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        sent_momentum: float | None = None,
        dense_codec: str = "bf16",
        dense_steps: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ElasticOptions],
    ) -> None:
        """``lr``, ``momentum``, ``weight_decay``: as of ``torch.optim.SGD``. ``sent_momentum``: β',
        where it is not to follow from the codec. All else is as in :class:`CompressedAdamW`.
        """
        defaults: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        defaults["sent_momentum"] = sent_momentum
        super().__init__(params, defaults, (dense_codec, dense_steps), group, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Between two steps, on all ranks alike."""
        super().add_param_group(param_group)
        sent = self.param_groups[-1]["sent_momentum"]
        if sent is not None and not 0 <= sent < 1:
            raise InvalidArgumentError(f"sent_momentum={sent}: give at least 0 and below 1")

    def _rule(self, parameter: Tensor, codec: str) -> Rule:
        if not Codec(codec).has_feedback:
            return _MEAN_GRADIENT
        if codec.startswith("lowrank"):
            raise InvalidArgumentError(
                f"{codec}: the share of a gradient that it sends depends on the gradients, and so "
                "does the momentum: average gradients for SGD (tersor.torch.compress), or use "
                "hadamard:bits=1+ef or blocktopk"
            )
        return _common_momentum(codec, self._dense_steps)


class _CommonMomentum(Rule):
    moments = ("momentum_buffer",)

    def __init__(self, share: float, dense_steps: int) -> None:
        """``share``: of what waits, that the codec brings; all of it in the first steps."""
        self._share, self._dense_steps = share, dense_steps

    def sent(self, part: Part) -> list[Tensor]:
        made = _with_decay(part, part.float_gradients())
        weight = 1 - self._sent_momentum(part)
        return list(_compat.foreach_lerp(part.moments["momentum_buffer"], made, weight))

    def move(self, part: Part, arrived: list[Tensor]) -> None:
        _compat.foreach_copy_(part.moments["momentum_buffer"], arrived)
        rate = float(part.group["lr"]) / (1 - part.group["momentum"])
        _compat.foreach_add_(part.moving_weights(), arrived, alpha=-rate)

    def _sent_momentum(self, part: Part) -> float:
        wanted: float = part.group["momentum"]
        if part.steps < self._dense_steps:
            return wanted
        told: float | None = part.group["sent_momentum"]
        return max(0.0, 1 - (1 - wanted) / self._share) if told is None else told


class _MeanGradient(MeanGradient):
    """SGD on the mean gradient, to the bits of PyTorch's."""

    moments = ("momentum_buffer",)

    def move(self, part: Part, arrived: list[Tensor]) -> None:
        momenta = part.moments["momentum_buffer"]
        _compat.foreach_mul_(momenta, number(part.group["momentum"], momenta))
        _compat.foreach_add_(momenta, _with_decay(part, arrived))
        _compat.foreach_add_(part.moving_weights(), momenta, alpha=-float(part.group["lr"]))


def _with_decay(part: Part, gradients: list[Tensor]) -> list[Tensor]:
    if decay := part.group["weight_decay"]:
        return list(_compat.foreach_add(gradients, part.weights, alpha=decay))
    return gradients


_MEAN_GRADIENT = _MeanGradient()


@functools.cache
def _common_momentum(codec: str, dense_steps: int) -> Rule:
    """One for all parameters of a codec, so that they move together."""
    return _CommonMomentum(share_of(codec), dense_steps)


def share_of(codec: str) -> float:
    """Of what waits, the share that a message brings: of normally distributed values."""
    alone = Codec(codec.removesuffix("+ef"))
    values = np.random.default_rng(0).standard_normal(_SAMPLE, dtype=np.float32)
    brought = alone.decode(alone.encode(values), out=np.empty_like(values))
    return float(np.vdot(values, brought) / np.vdot(values, values))
