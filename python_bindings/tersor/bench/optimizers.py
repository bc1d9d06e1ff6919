"""Optimizers to compare with: 1-bit Adam, and PyTorch's Muon together with its AdamW.

1-bit Adam (Tang et al. 2021, arXiv:2102.02888) starts with steps of Adam on uncompressed gradients.
Then the variance stays constant, and ranks exchange their momentum with error feedback, as signs
and one mean magnitude per tensor::

    m_i = β1 · m + (1 - β1) · g_i     g_i: this rank's gradient
    m ← mean of m_i over ranks        1 bit per value and direction; the same bits on every rank
    weights ← weights · (1 - rate · decay) - rate · m / (√(v / (1 - β2^steps)) + ε)

The decoupled decay and the bias correction are AdamW's, with which it is compared. β2 is the
paper's: with a short memory, rare rows would have almost no variance to divide by. Values without
any variance stay unchanged, as in the authors' program, because a mean magnitude also has a bit for
these values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tersor.bench.measures import Sender
from tersor.torch._src.optim.muon import is_hidden

BYTE = 8  # bits, one a value
BETA2 = 0.999


class OneBitAdamW(torch.optim.Optimizer):
    """AdamW for a number of steps, then 1-bit Adam. Gradients stay each rank's own."""

    def __init__(self, plain: torch.optim.AdamW, sender: Sender, dense_steps: int) -> None:
        """``plain`` has the only group of parameters, its rates and its decay."""
        super().__init__(plain.param_groups, plain.defaults)
        (self._group,) = self.param_groups
        self._sizes = [one.numel() for one in self._group["params"]]
        device = self._group["params"][0].device
        self._momentum = torch.zeros(sum(self._sizes), device=device)
        self._variance = torch.zeros_like(self._momentum)
        self._dense_steps, self._steps = dense_steps, 0
        self._sender, self._exchange = sender, SignExchange(self._sizes, device, sender)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and changes the weights. A collective call. Ignores ``closure``."""
        beta1 = self._group["betas"][0]
        gradient = torch.cat([one.grad.flatten() for one in self._group["params"]])
        self._steps += 1
        dense = self._steps <= self._dense_steps
        if dense:
            self._sender.mean(gradient)
            self._variance.lerp_(gradient.square(), 1 - BETA2)
        self._momentum.lerp_(gradient, 1 - beta1)
        if not dense:
            self._momentum = self._exchange.mean(self._momentum) * self._variance.sign()
        variance = self._variance / (1 - BETA2 ** min(self._steps, self._dense_steps))
        update = self._momentum / (1 - beta1**self._steps) / (variance.sqrt() + self._group["eps"])
        rate, parts = self._group["lr"], torch.split(update, self._sizes)
        for one, part in zip(self._group["params"], parts, strict=True):
            one.mul_(1 - rate * self._group["weight_decay"]).sub_(rate * part.view_as(one))


class SignExchange:
    """Two-shot means with 1 bit per value. Each rank sends the signs of each part to its owner, and
    each owner sends the signs of the mean, both with mean magnitudes and with error feedback."""

    def __init__(self, sizes: list[int], device: torch.device, sender: Sender) -> None:
        """``sizes``: the number of values of each tensor."""
        self._sender, self._count, self._tensors = sender, sum(sizes), len(sizes) + 1
        self._part = -(-self._count // (BYTE * sender.ranks)) * BYTE
        padding = sender.ranks * self._part - self._count  # a tensor of zeros
        extents = torch.tensor([*sizes, padding], device=device)
        self._tensor_of = torch.repeat_interleave(extents).view(sender.ranks, self._part)
        self._own = self._tensor_of[dist.get_rank()]
        self._sender_error = torch.zeros(self._tensor_of.shape, device=device)
        self._owner_error = torch.zeros(self._part, device=device)

    def mean(self, values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(values, (0, self._sender_error.numel() - self._count))
        sent = padded.view_as(self._sender_error) + self._sender_error
        signs, scales = self._encoded(sent, self._tensor_of)
        self._sender_error = sent - decoded(signs, scales, self._tensor_of)
        part = self._owned_part(signs, scales) + self._owner_error
        signs, scales = self._encoded(part, self._own)
        self._owner_error = part - decoded(signs, scales, self._own)
        all_gather = self._sender.all_gather
        parts = zip(all_gather(signs), all_gather(scales), self._tensor_of, strict=True)
        return torch.cat([decoded(*one) for one in parts])[: self._count]

    def _encoded(self, values: Tensor, tensor_of: Tensor) -> tuple[Tensor, Tensor]:
        """Bits, and the mean magnitude of each tensor's values; 0 for a tensor without values."""
        index = tensor_of.flatten()
        sums = torch.bincount(index, values.abs().flatten(), self._tensors)
        counts = torch.bincount(index, minlength=self._tensors)
        return packed_signs(values), sums / counts.clamp(min=1)

    def _owned_part(self, signs: Tensor, scales: Tensor) -> Tensor:
        """The mean over ranks of this rank's own part."""
        pairs = zip(self._sender.all_to_all(signs), self._sender.all_gather(scales), strict=True)
        return torch.stack([decoded(*pair, self._own) for pair in pairs]).mean(0)


def packed_signs(values: Tensor) -> Tensor:
    """A bit per value of (…, count), 1 for a negative value: (…, count / 8) bytes."""
    weights = 2 ** torch.arange(BYTE, dtype=torch.uint8, device=values.device)
    bits = values.lt(0).view(*values.shape[:-1], -1, BYTE)
    return torch.sum(bits * weights, -1, dtype=torch.uint8)


def decoded(signs: Tensor, scales: Tensor, tensor_of: Tensor) -> Tensor:
    """Values (…, count) from bits (…, count / 8) and the scale of each value's tensor."""
    shifts = torch.arange(BYTE, dtype=torch.uint8, device=signs.device)
    negative = (signs.unsqueeze(-1) >> shifts & 1).flatten(-2).bool()
    magnitudes = scales[tensor_of]
    return torch.where(negative, -magnitudes, magnitudes)


def hidden_and_others(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The hidden matrices of a model, and its other parameters."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, one in model.named_parameters():
        groups[one.dim() == 2 and is_hidden(name, one)].append(one)
    return groups[True], groups[False]


class MuonWithAdamW(torch.optim.Optimizer):
    """PyTorch's Muon for hidden matrices, and its AdamW for the rest, with AdamW's step size."""

    def __init__(self, model: nn.Module, plain: torch.optim.AdamW, momentum: float) -> None:
        """``plain`` has the options."""
        matrices, others = hidden_and_others(model)
        rate, decay = plain.defaults["lr"], plain.defaults["weight_decay"]
        muon = torch.optim.Muon(matrices, rate, decay, momentum, adjust_lr_fn="match_rms_adamw")
        betas, eps = plain.defaults["betas"], plain.defaults["eps"]
        self._optimizers = (muon, torch.optim.AdamW(others, rate, betas, eps, decay))
        super().__init__([group for one in self._optimizers for group in one.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Ignores ``closure``."""
        for one in self._optimizers:
            one.step()  # type: ignore[no-untyped-call,unused-ignore]
