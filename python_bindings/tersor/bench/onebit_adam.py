"""1-bit Adam (Tang et al. 2021, arXiv:2102.02888), to compare `CompressedAdamW` with.

After steps of Adam on uncompressed gradients the variance stays as it is, and what ranks exchange
is their momentum, with feedback, as signs and a mean magnitude of each tensor::

    m_i = β1 · m + (1 - β1) · g_i     g_i: this rank's gradient
    m ← mean of m_i over ranks        one bit a value each way; the same bits on every rank
    weights ← weights · (1 - rate · decay) - rate · m / (√(v / (1 - β2^steps)) + ε)

Decoupled decay and the bias of the moments' start are AdamW's, beside which it runs. β2 is the
paper's: one that forgets within twenty steps would leave values of rare rows next to no variance to
be divided by for the rest of the training. Values with none at all stay, as in the authors'
program: a mean magnitude has a bit for them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BYTE = 8  # bits, one a value
BETA2 = 0.999


class OneBitAdamW(torch.optim.Optimizer):
    """AdamW for so many steps, then 1-bit Adam. Gradients stay each rank's own."""

    def __init__(self, plain: torch.optim.AdamW, dense_steps: int) -> None:
        """``plain``: whose one group of parameters, rates and decay it takes."""
        super().__init__(plain.param_groups, plain.defaults)
        (self._group,) = self.param_groups
        self._sizes = [one.numel() for one in self._group["params"]]
        device = self._group["params"][0].device
        self._momentum = torch.zeros(sum(self._sizes), device=device)
        self._variance = torch.zeros_like(self._momentum)
        self._dense_steps, self.steps = dense_steps, 0
        self.exchange = SignExchange(self._sizes, device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and moves the weights; a collective call. No ``closure`` is called."""
        beta1 = self._group["betas"][0]
        gradient = torch.cat([one.grad.flatten() for one in self._group["params"]])
        self.steps += 1
        dense = self.steps <= self._dense_steps
        if dense:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
            self._variance.lerp_(gradient.square(), 1 - BETA2)
        self._momentum.lerp_(gradient, 1 - beta1)
        if not dense:
            self._momentum = self.exchange.mean(self._momentum) * self._variance.sign()
        variance = self._variance / (1 - BETA2 ** min(self.steps, self._dense_steps))
        self._move(
            self._momentum / (1 - beta1**self.steps) / (variance.sqrt() + self._group["eps"])
        )

    def _move(self, update: Tensor) -> None:
        rate = self._group["lr"]
        parts = torch.split(update, self._sizes)
        for one, part in zip(self._group["params"], parts, strict=True):
            one.mul_(1 - rate * self._group["weight_decay"]).sub_(rate * part.view_as(one))


class SignExchange:
    """Two-shot means in one bit a value: each rank sends every other the signs of its part, and
    each owner those of the mean, both with the mean magnitude of each tensor, and with feedback."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        """``sizes``: values of each tensor; they come in a row."""
        self.sent_bytes = 0  #: by this rank
        self._ranks, self._count, self._tensors = dist.get_world_size(), sum(sizes), len(sizes) + 1
        self._part = -(-self._count // (BYTE * self._ranks)) * BYTE
        padding = self._ranks * self._part - self._count  # a tensor of zeros
        extents = torch.tensor([*sizes, padding], device=device)
        self._tensor_of = torch.repeat_interleave(extents).view(self._ranks, self._part)
        self._own = self._tensor_of[dist.get_rank()]
        self._sender_error = torch.zeros(self._tensor_of.shape, device=device)
        self._owner_error = torch.zeros(self._part, device=device)

    def mean(self, values: Tensor) -> Tensor:
        """Over the ranks, of `values` (their count)."""
        padded = torch.nn.functional.pad(values, (0, self._sender_error.numel() - self._count))
        sent = padded.view_as(self._sender_error) + self._sender_error
        signs, scales = self._encoded(sent, self._tensor_of)
        self._sender_error = sent - decoded(signs, scales, self._tensor_of)
        part = self._owned_part(signs, scales) + self._owner_error
        signs, scales = self._encoded(part, self._own)
        self._owner_error = part - decoded(signs, scales, self._own)
        parts = zip(self._gathered(signs), self._gathered(scales), self._tensor_of, strict=True)
        return torch.cat([decoded(*one) for one in parts])[: self._count]

    def _encoded(self, values: Tensor, tensor_of: Tensor) -> tuple[Tensor, Tensor]:
        """Bits, and of each tensor the mean magnitude of these values of it, 0 where none are."""
        place = tensor_of.flatten()
        sums = torch.bincount(place, values.abs().flatten(), self._tensors)
        counts = torch.bincount(place, minlength=self._tensors)
        return packed_signs(values), sums / counts.clamp(min=1)

    def _owned_part(self, signs: Tensor, scales: Tensor) -> Tensor:
        """The mean over ranks of what this one owns."""
        arrived = torch.empty_like(signs)
        dist.all_to_all_single(arrived, signs)
        self.sent_bytes += signs.nbytes // self._ranks * (self._ranks - 1)
        pairs = zip(arrived, self._gathered(scales), strict=True)
        return torch.stack([decoded(*pair, self._own) for pair in pairs]).mean(0)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        """Of all ranks, by way of a ring."""
        gathered = [torch.empty_like(own) for _ in range(self._ranks)]
        dist.all_gather(gathered, own)
        self.sent_bytes += own.nbytes * (self._ranks - 1)
        return gathered


def packed_signs(values: Tensor) -> Tensor:
    """A bit for each of (…, count) values, 1 where it is negative: (…, count / 8) bytes."""
    weights = 2 ** torch.arange(BYTE, dtype=torch.uint8, device=values.device)
    bits = values.lt(0).view(*values.shape[:-1], -1, BYTE)
    return torch.sum(bits * weights, -1, dtype=torch.uint8)


def decoded(signs: Tensor, scales: Tensor, tensor_of: Tensor) -> Tensor:
    """Values (…, count) of bits (…, count / 8), and of the scale of each value's tensor."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=signs.device)
    negative = (signs.unsqueeze(-1) >> places & 1).flatten(-2).bool()
    magnitudes = scales[tensor_of]
    return torch.where(negative, -magnitudes, magnitudes)
