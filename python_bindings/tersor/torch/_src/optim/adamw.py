"""AdamW that exchanges what each rank has divided by its own variance, in few bits.

Adam divides by the root of the mean square of what arrives; gradients that arrive late or noisy, as
error feedback has them, then move the weights too little (1-bit Adam, Tang et al. 2021,
arXiv:2102.02888, section 3). So each rank divides its own gradient by the root of its own variance
first, and the common momentum of these is exchanged, with feedback behind the division::

    v ← β2 · v + (1 - β2) · g²        of this rank alone
    p = β1 · m + (1 - β1) · g / (√(v / (1 - β2^t)) + ε)
    m ← mean of p over ranks          by the codec; the same bits on every rank
    weights ← weights · (1 - rate · decay) - rate · m / (1 - β1^t)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import ElasticOptions
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import MeanGradient, Part, Rule, number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CompressedAdamW(CompressedOptimizer):
    """AdamW whose ranks exchange their normalised momentum, for codecs below two bits a value.

    ::

        optimizer = tersor.torch.CompressedAdamW(
            model.named_parameters(), lr=2e-3, codec="topk:density=0.01+ef"
        )
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()    # each rank's own gradient; DDP within no_sync()
            optimizer.step()                    # exchanges, and moves all ranks alike

    Gradients must not be averaged before. A rank's gradient is noisier than the mean, so steps are
    smaller: learning rates want to be up to two or three times those of AdamW. Parameters that
    travel by a codec without ``+ef`` (without ``rules`` those of one dimension and those under
    4,096 values, as bf16) go by AdamW on the mean gradient. A parameter without a gradient on this
    rank counts as one whose gradient is zero; one that no rank has a gradient of is left alone. One
    that is unfrozen, or added, takes part from its first gradient on. Ranks must begin with equal
    parameters: ``tersor.torch.broadcast_parameters(model)`` sends them, and buffers. Moments of
    parameters with ``+ef`` are float32, whatever the parameters are.

    A ``GradScaler`` goes around it as around any optimizer. A gradient that is not finite on one
    rank skips the step on all of them, with a scaler or without, and changes nothing on any.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        dense_codec: str = "bf16",
        dense_steps: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ElasticOptions],
    ) -> None:
        """``params``, ``lr``, ``betas``, ``eps``, ``weight_decay``: as of ``torch.optim.AdamW``.

        Rules, statistics and checkpoints have the names of ``named_parameters()``; without,
        ``"parameter.0"``, …. ``dense_steps``: so many first steps go by ``dense_codec``, where the
        rest has ``+ef``: a schedule, and so with ``+ef`` too. ``group``: who takes part, default
        the whole world. ``options``: as of ``tersor.GradientReducer``; ``codec`` has ``+ef``,
        default ``"hadamard:bits=1+ef"``. Raises InvalidArgumentError for options that are wrong,
        and for parameters that no codec takes or that are sharded over ranks of ``group``.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, (dense_codec, dense_steps), group, options)

    def _rule(self, parameter: Tensor, codec: str) -> Rule:
        return adamw_rule(codec)


class _OwnVariance(Rule):
    moments = ("exp_avg", "exp_avg_sq")
    own = "exp_avg_sq"

    def sent(self, part: Part) -> list[Tensor]:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments[key] for key in self.moments)
        gradients, correction = part.float_gradients(), 1 - beta2 ** (part.steps + 1)
        made = list(_compat.foreach_mul(variances, number(beta2 / correction, variances)))
        _compat.foreach_addcmul_(made, gradients, gradients, (1 - beta2) / correction)
        _compat.foreach_sqrt_(made)
        _compat.foreach_add_(made, number(part.group["eps"], made))
        _divide(gradients, made)
        _compat.foreach_lerp_(made, averages, beta1)
        return made

    def move(self, part: Part, arrived: list[Tensor]) -> None:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments[key] for key in self.moments)
        _follow_squares(variances, part.float_gradients(), beta2)
        _compat.foreach_copy_(averages, arrived)
        rate = float(part.group["lr"]) / (1 - beta1 ** (part.steps + 1))
        _compat.foreach_add_(part.decayed_weights(), arrived, alpha=-rate)


def _follow_squares(variances: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
    _compat.foreach_mul_(variances, number(beta2, variances))
    _compat.foreach_addcmul_(variances, gradients, gradients, 1 - beta2)


def _divide(numerators: list[Tensor], denominators: list[Tensor]) -> None:
    """Quotients take the place of denominators, on hosts without a copy, which would cost more."""
    if denominators[0].device.type != "cpu":
        _compat.foreach_copy_(denominators, _compat.foreach_div(numerators, denominators))
        return
    for numerator, denominator in zip(numerators, denominators, strict=True):
        torch.div(numerator, denominator, out=denominator)


class _MeanGradient(MeanGradient):
    """AdamW on the mean gradient, to the bits of PyTorch's."""

    moments = ("exp_avg", "exp_avg_sq")

    def move(self, part: Part, arrived: list[Tensor]) -> None:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments[key] for key in self.moments)
        _compat.foreach_lerp_(averages, arrived, 1 - beta1)
        _follow_squares(variances, arrived, beta2)
        roots = _compat.foreach_sqrt(variances)
        _compat.foreach_div_(roots, number((1 - beta2 ** (part.steps + 1)) ** 0.5, roots))
        _compat.foreach_add_(roots, number(part.group["eps"], roots))
        rate = float(part.group["lr"]) / (1 - beta1 ** (part.steps + 1))
        _compat.foreach_addcdiv_(part.decayed_weights(), averages, roots, -rate)


_OWN_VARIANCE, _MEAN_GRADIENT = _OwnVariance(), _MeanGradient()


def adamw_rule(codec: str) -> Rule:
    """By which parameters move whose codec has feedback, or has none."""
    return _OWN_VARIANCE if Codec(codec).has_feedback else _MEAN_GRADIENT
