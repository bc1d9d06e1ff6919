"""AdamW whose ranks exchange a normalised momentum in few bits.

Adam divides the mean gradient by the root of its mean square. With error feedback, gradients arrive
late and noisy, so this quotient moves the weights too little (1-bit Adam, Tang et al. 2021,
arXiv:2102.02888, section 3). Therefore each rank divides its own gradient by the root of its own
variance v before the exchange. The ranks exchange the common momentum m of the quotients::

    v ← β2 · v + (1 - β2) · g²        on this rank
    p = β1 · m + (1 - β1) · g / (√(v / (1 - β2^t)) + ε)
    m ← mean of p over ranks          through the codec; equal bits on every rank
    weights ← weights · (1 - rate · decay) - rate · m / (1 - β1^t)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._options import takes_advanced
from tersor._renamed import renamed_keywords
from tersor.reducer import OptimizerOptions, ResidualDtype, Rules
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import OnLoss
from tersor.torch._src.optim.compressed import DEFAULT_CODEC, RENAMED, CompressedOptimizer
from tersor.torch._src.optim.rules import MeanGradient, Part, Rule, number


class CompressedAdamW(CompressedOptimizer):
    """AdamW whose ranks exchange a normalised momentum, for codecs below two bits per value.

    Each rank passes its own gradient: do not average gradients before ``step``. Under DDP, call
    ``backward`` within ``no_sync()``. A rank's gradient is noisier than the mean, so steps are
    smaller: use a learning rate up to two or three times that of AdamW.

    A parameter whose codec has no ``+ef`` uses AdamW on the mean gradient. Without ``rules``, 1-D
    parameters and parameters with fewer than 4,096 values use bf16. A missing gradient on this rank
    counts as zero. The optimizer leaves a parameter alone if no rank has a gradient. A parameter
    that is unfrozen or added takes part from its first gradient on. All ranks must begin with equal
    parameters: call ``tersor.torch.broadcast_parameters(model)``, which includes buffers. Moments
    of parameters with ``+ef`` are float32.

    A ``GradScaler`` works as with any optimizer. A gradient that is not finite on one rank skips
    the step on all ranks, with or without a scaler.

    Source: 1-bit Adam, Tang et al. 2021, arXiv:2102.02888, section 3.

    Args:
        params: Parameters or groups, as of ``torch.optim.AdamW``. With ``named_parameters()``,
            rules, statistics and checkpoints use these names; otherwise ``"parameter.0"``, ….
        lr: Learning rate.
        betas: Decay rates of the two moments.
        eps: Added to the root of the variance.
        weight_decay: Decoupled weight decay.
        codec: Spec of the codec, with ``+ef``. Default: one bit per value; in two-shot exchanges
            (usual from three ranks on), owners answer with two bits.
        rules: Tuples ``(pattern, codec)`` or ``(pattern, codec, step)``, as in ``compress``. At
            least one codec must have ``+ef``.
        warmup_codec: Codec of the first ``warmup_steps`` steps.
        warmup_steps: Number of first steps in which parameters with ``+ef`` use ``warmup_codec``
            instead, with error feedback.
        process_group: The ranks that take part. Default: all.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        elastic: True if the remaining ranks may continue after the loss of a rank, see ``resume``.
        min_ranks: The minimum number of ranks to continue. 0: more than half of the ranks, or
            exactly half with the lowest rank.
        on_loss: ``"raise"`` raises RanksLostError after a loss. ``"continue"`` warns, and the
            remaining ranks repeat the step. Needs ``elastic=True``.
        average_gradients_in_host: True if the ranks of a machine first average their gradients
            without compression, so that eight ranks on two machines train like two ranks. Float32
            gradients are overwritten by the mean. Needs ``elastic=False``.
        advanced: Further options.

    Raises:
        InvalidArgumentError: An option is wrong, or a parameter has a dtype without a codec or is
            sharded over ranks of ``process_group``.

    Example::

        optimizer = tersor.torch.CompressedAdamW(model.named_parameters(), lr=2e-3)
        loss_of(model, batch).backward()
        optimizer.step()    # exchanges, and moves the weights of all ranks alike
    """

    @renamed_keywords(**RENAMED)
    @takes_advanced(OptimizerOptions)
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        codec: str = DEFAULT_CODEC,
        rules: Rules | None = None,
        warmup_codec: str = "bf16",
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        elastic: bool = False,
        min_ranks: int = 0,
        on_loss: OnLoss = "raise",
        average_gradients_in_host: bool = False,
        advanced: OptimizerOptions | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, locals())

    def _rule(self, parameter: Tensor, codecs: Sequence[str]) -> Rule:
        return adamw_rule(codecs[-1])


class _OwnVariance(Rule):
    moments = ("exp_avg", "exp_avg_sq")
    own = "exp_avg_sq"

    def to_send(self, part: Part) -> list[Tensor]:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments(key) for key in self.moments)
        gradients, correction = part.float_gradients(), 1 - beta2 ** (part.steps + 1)
        made = list(_compat.foreach_mul(variances, number(beta2 / correction, variances)))
        _compat.foreach_addcmul_(made, gradients, gradients, (1 - beta2) / correction)
        _compat.foreach_sqrt_(made)
        _compat.foreach_add_(made, number(part.group["eps"], made))
        _divide(gradients, made)
        _compat.foreach_lerp_(made, averages, beta1)
        return made

    def update(self, part: Part, means: list[Tensor]) -> None:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments(key) for key in self.moments)
        _update_variances(variances, part.float_gradients(), beta2)
        _compat.foreach_copy_(averages, means)
        rate = float(part.group["lr"]) / (1 - beta1 ** (part.steps + 1))
        _compat.foreach_add_(part.decayed_weights(), means, alpha=-rate)


def _update_variances(variances: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
    _compat.foreach_mul_(variances, number(beta2, variances))
    _compat.foreach_addcmul_(variances, gradients, gradients, 1 - beta2)


def _divide(numerators: list[Tensor], denominators: list[Tensor]) -> None:
    """Overwrites denominators with quotients; on CPUs without a copy."""
    if denominators[0].device.type != "cpu":
        _compat.foreach_copy_(denominators, _compat.foreach_div(numerators, denominators))
        return
    for numerator, denominator in zip(numerators, denominators, strict=True):
        torch.div(numerator, denominator, out=denominator)


class _MeanGradient(MeanGradient):
    """AdamW on the mean gradient, with the same bits as PyTorch's."""

    moments = ("exp_avg", "exp_avg_sq")

    def update(self, part: Part, means: list[Tensor]) -> None:
        beta1, beta2 = part.group["betas"]
        averages, variances = (part.moments(key) for key in self.moments)
        _compat.foreach_lerp_(averages, means, 1 - beta1)
        _update_variances(variances, means, beta2)
        roots = _compat.foreach_sqrt(variances)
        _compat.foreach_div_(roots, number((1 - beta2 ** (part.steps + 1)) ** 0.5, roots))
        _compat.foreach_add_(roots, number(part.group["eps"], roots))
        rate = float(part.group["lr"]) / (1 - beta1 ** (part.steps + 1))
        _compat.foreach_addcdiv_(part.decayed_weights(), averages, roots, -rate)


_OWN_VARIANCE, _MEAN_GRADIENT = _OwnVariance(), _MeanGradient()


def adamw_rule(codec: str) -> Rule:
    """The update of parameters with this codec."""
    return _OWN_VARIANCE if Codec(codec).has_feedback else _MEAN_GRADIENT
