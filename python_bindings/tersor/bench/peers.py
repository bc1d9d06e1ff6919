"""Methods to compare with, written from their papers: DeMo, Dion, and the settings of SparseLoCo.

**DeMo** (Peng et al. 2024, arXiv:2411.19870, algorithm 1, with the sign of Signum). Each rank keeps
a momentum, and sends the largest coefficients of its cosine transform, in chunks of 64 x 64
values::

    m ← β · m + g                        g: this rank's gradient
    q = top k of DCT(m) in each chunk    16-bit indices, bf16 values
    m ← m - IDCT(q)                      the unsent rest stays, also the rounding to bf16
    weights ← weights · (1 - rate · decay) - rate · sign(IDCT(mean of q over ranks))

A dimension of n values has ⌈n / 64⌉ chunks of equal length, padded with zeros. A vector has chunks
of one row. β = 0.999 and k = 32 are the defaults of the authors' program.

**Dion** (Ahn et al. 2025, arXiv:2504.05295, algorithm 1). For hidden matrices, ranks exchange the
two factors of a power iteration::

    B = M + g                            M, g: this rank's momentum and gradient
    P = orthonormal columns of the mean of B Q over ranks
    R = Bᵀ P
    M ← B - (1 - μ) · P Rᵀ               the unsent rest stays
    Q ← columns of the mean of R over ranks, each with norm 1
    weights ← weights · (1 - rate · decay) - F · rate · √(rows / columns) · P Qᵀ

Each rank subtracts its own P Rᵀ, so the mean of M is the M of one process on the mean gradient. The
other parameters use AdamW on uncompressed gradients. F = 5 gives matrices the rate 0.01 of the
authors' program at the GPT's rate of 0.002. √(rows / columns) is the scale of the experiments.

**SparseLoCo** (Sarfi et al. 2025, arXiv:2508.15706) runs as Tersor's DiLoCo: no outer momentum,
residuals that decay by 0.95, and the largest values of every 4,096. Three points differ.
Chunks are consecutive values instead of squares of 64 x 64. Values take 1 bit (``sign``) or 4
(``int4``) instead of 2. Indices are coded in fewer bits. All ranks' values are added, as in the
paper (``algorithm="one-shot"``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tersor.bench.errors import fail_if
from tersor.bench.hook_kinds import Hook, PeerHook
from tersor.bench.local_training import DiLoCoHook
from tersor.bench.measures import Sender
from tersor.bench.optimizers import OneBitAdamW, hidden_and_others

CHUNK = 64
SMALLEST_NORM = 1e-8


def check(name: str, options: dict[str, str | None]) -> None:
    """Raises BenchmarkError for an option out of range."""
    for option, limit in {"top": CHUNK * CHUNK, "decay": 1, "mu": 1, "density": 0.25}.items():
        text = f'hook "{name}": {options.get(option)} is above {limit}'
        fail_if(float(options.get(option) or 0) > limit, text)


def onebit_adam(module: nn.Module, steps: str | None) -> Hook:
    """1-bit Adam. Gradients stay each rank's own."""
    dense_steps = int(steps or 100)  # a fifth of the GPT's steps; the paper has 15 to 25 %
    return PeerHook(module, lambda one, by: OneBitAdamW(one, by, dense_steps), "onebit-adam")


def demo(module: nn.Module, top: str | None, decay: str | None) -> Hook:
    """DeMo. Gradients stay each rank's own."""
    options = int(top or 32), float(decay or 0.999)
    return PeerHook(module, lambda one, by: DeMo(one, by, *options), "demo")


def dion(
    module: nn.Module, rank: str, mu: str | None, factor: str | None, cast: str | None
) -> Hook:
    """Dion. Gradients stay each rank's own."""
    dtype = torch.bfloat16 if cast else torch.float32
    options = int(rank), float(mu or 0.95), float(factor or 5.0), dtype
    return PeerHook(module, lambda one, by: Dion(module, one, by, *options), "dion")


def sparseloco(
    module: nn.Module, every: str, density: str | None, rate: str | None, values: str | None
) -> Hook:
    """SparseLoCo's settings under Tersor's DiLoCo."""
    codec = f"blocktopk:density={density or 0.03},values={values or 'int4'}+ef"
    options = f",rate={rate or 1},momentum=0,residual=0.95"
    return DiLoCoHook(module, every, options, codec, algorithm="one-shot")


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class DeMo(torch.optim.Optimizer):
    """DeMo with the sign of the mean. Gradients stay each rank's own."""

    def __init__(self, plain: torch.optim.AdamW, sender: Sender, top: int, decay: float) -> None:
        """``plain`` has the only group of parameters, its rate and its weight decay."""
        super().__init__(plain.param_groups, plain.defaults)
        (self._group,) = self.param_groups
        self._sender, self._decay = sender, decay
        by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for one in self._group["params"]:
            by_shape.setdefault(_chunk_shape(one), []).append(one)
        self._parts = [_Chunks(own, shape, top) for shape, own in by_shape.items()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and changes the weights. A collective call. Ignores ``closure``."""
        own = [tensor for part in self._parts for tensor in part.pop_largest(self._decay)]
        sent = torch.cat([one.flatten().view(torch.uint8) for one in own])
        columns = torch.split(self._sender.all_gather(sent), [one.nbytes for one in own], dim=1)
        received = [
            column.contiguous().view(one.dtype).view(-1, *one.shape)
            for column, one in zip(columns, own, strict=True)
        ]
        rate = self._group["lr"]
        for part, *lists in zip(self._parts, received[::2], received[1::2], strict=True):
            update = part.decoded(*lists).sign_()
            for one, change in zip(part.parameters, part.from_chunks(update), strict=True):
                one.mul_(1 - rate * self._group["weight_decay"]).sub_(rate * change)


class _Chunks:
    """Parameters whose chunks have one shape, and their momentum (chunks, rows, columns)."""

    def __init__(self, parameters: list[nn.Parameter], shape: tuple[int, int], top: int) -> None:
        self.parameters, self._shape = parameters, shape
        self._top = min(top, math.prod(shape))
        self._rows, self._columns = (_cosines(n, parameters[0].device) for n in shape)
        self._inside = self._to_chunks([torch.ones_like(one) for one in parameters])  # 0: padding
        self.momentum = torch.zeros_like(self._inside)

    def pop_largest(self, decay: float) -> tuple[Tensor, Tensor]:
        """Adds gradients to the momentum. Subtracts and returns the largest coefficients: indices
        and values (chunks, top)."""
        self.momentum.mul_(decay).add_(self._to_chunks([_gradient(one) for one in self.parameters]))
        coefficients = (self._rows @ self.momentum @ self._columns.T).flatten(1)
        indices = coefficients.abs().topk(self._top, sorted=False).indices
        values = coefficients.gather(1, indices).bfloat16()
        self.momentum.sub_(self.decoded(indices[None], values[None])).mul_(self._inside)
        return indices.short(), values

    def decoded(self, indices: Tensor, values: Tensor) -> Tensor:
        """The mean of the chunks of all ranks, from lists (ranks, chunks, top)."""
        total = torch.zeros_like(self.momentum).flatten(1)
        for pair in zip(indices.long(), values.float(), strict=True):  # the same order on all ranks
            total.scatter_add_(1, *pair)
        return self._rows.T @ (total.view_as(self.momentum) / len(indices)) @ self._columns

    def from_chunks(self, chunks: Tensor) -> list[Tensor]:
        """Chunks as tensors of the parameters' shapes."""
        (rows, columns), found, first = self._shape, [], 0
        for one in self.parameters:
            high, wide = _extents(one)
            down, across = -(-high // rows), -(-wide // columns)
            own = chunks[first : first + down * across].view(down, across, rows, columns)
            first += down * across
            whole = own.transpose(1, 2).reshape(down * rows, across * columns)
            found.append(whole[:high, :wide].reshape(one.shape))
        return found

    def _to_chunks(self, tensors: Sequence[Tensor]) -> Tensor:
        (rows, columns), found = self._shape, []
        for one in tensors:
            high, wide = _extents(one)
            padded = functional.pad(one.reshape(high, wide), (0, -wide % columns, 0, -high % rows))
            cut = padded.view(-(-high // rows), rows, -1, columns).transpose(1, 2)
            found.append(cut.reshape(-1, rows, columns))
        return torch.cat(found)


def _extents(tensor: Tensor) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix. A vector is a row."""
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    return rows, tensor.numel() // rows


def _chunk_shape(tensor: Tensor) -> tuple[int, int]:
    rows, columns = (-(-n // -(-n // CHUNK)) for n in _extents(tensor))
    return rows, columns


def _cosines(count: int, device: torch.device) -> Tensor:
    """The orthonormal cosine transform (DCT-II; Ahmed, Natarajan and Rao 1974) as a matrix."""
    places = torch.arange(count, dtype=torch.float64)
    made = torch.cos(math.pi / count * places[:, None] * (places + 0.5)) * math.sqrt(2 / count)
    made[0] /= math.sqrt(2)
    return made.to(device, torch.float32)


class Dion(torch.optim.Optimizer):
    """Dion for hidden matrices, AdamW for the rest. Gradients stay each rank's own."""

    def __init__(
        self,
        model: nn.Module,
        plain: torch.optim.AdamW,
        sender: Sender,
        rank: int,
        mu: float,
        factor: float,
        dtype: torch.dtype,
    ) -> None:
        """``plain`` has the options of AdamW. Values are sent as ``dtype``. Raises BenchmarkError
        if no parameter is a hidden matrix."""
        self._sender, self._mu, self._factor, self._dtype = sender, mu, factor, dtype
        self._matrices, self._rest = hidden_and_others(model)
        fail_if(not self._matrices, "dion: the model has no hidden matrix")
        options = {key: plain.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
        self._adamw = torch.optim.AdamW([{"params": self._rest}], **options)
        own = {"params": self._matrices, **options}
        super().__init__([own, *self._adamw.param_groups], {})
        self.momenta = [torch.zeros_like(one) for one in self._matrices]
        draw = torch.Generator().manual_seed(0)  # the same factors on all ranks
        self._right = [
            torch.randn(one.shape[1], min(rank, *one.shape), generator=draw).to(one.device)
            for one in self._matrices
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and changes the weights. A collective call. Ignores ``closure``."""
        group, products = self.param_groups[0], []
        for one, momentum, right in zip(self._matrices, self.momenta, self._right, strict=True):
            products.append(momentum.add_(_gradient(one)) @ right)
        gradients = [_gradient(one) for one in self._rest]
        means = self._means([*products, *gradients])
        for one, mean in zip(self._rest, means[len(products) :], strict=True):
            one.grad = mean
        self._adamw.step()
        left = [torch.linalg.qr(one).Q for one in means[: len(products)]]
        own = [momentum.T @ one for momentum, one in zip(self.momenta, left, strict=True)]
        means = self._means(own)
        for one, momentum, basis, rest, mean, right in zip(
            self._matrices, self.momenta, left, own, means, self._right, strict=True
        ):
            momentum.addmm_(basis, rest.T, alpha=self._mu - 1)
            right.copy_(mean / mean.norm(dim=0).clamp(min=SMALLEST_NORM))
            scale = self._factor * math.sqrt(one.shape[0] / one.shape[1])
            one.mul_(1 - group["lr"] * group["weight_decay"])
            one.addmm_(basis, right.T, alpha=-group["lr"] * scale)

    def _means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The means over the ranks, in one exchange."""
        flat = torch.cat([one.flatten() for one in tensors]).to(self._dtype)
        mean = self._sender.mean(flat).to(tensors[0].dtype)
        parts = torch.split(mean, [one.numel() for one in tensors])
        return [part.view_as(one) for part, one in zip(parts, tensors, strict=True)]
