"""Muon whose ranks exchange their own orthogonal updates in few bits.

Muon (Jordan 2024, kellerjordan.github.io/posts/muon) moves a matrix by the orthogonal matrix
nearest to the momentum. If ranks exchanged the momentum in few bits, Muon would amplify the noise
of small singular directions to the size of large ones. Therefore each rank makes its own momentum
orthogonal, and the ranks exchange the mean of the results with error feedback::

    m ← β · m + (1 - β) · g           on this rank; never sent
    u = NS(β · m + (1 - β) · g) · 0.2 · √max(rows, columns)
    weights ← weights · (1 - rate · decay) - rate · mean of u over ranks
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import ParamsT

from tersor._core import InvalidArgumentError
from tersor._options import takes_advanced
from tersor._renamed import renamed_keywords
from tersor.reducer import OptimizerOptions, ResidualDtype, Rules
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import OnLoss
from tersor.torch._src.optim.adamw import adamw_rule
from tersor.torch._src.optim.compressed import DEFAULT_CODEC, RENAMED, CompressedOptimizer
from tersor.torch._src.optim.rules import Part, Rule

# Names of embeddings and heads in models of PyTorch and Hugging Face.
_EMBEDDING = re.compile(r"embed|(^|[._])(wte|wpe|emb)([._]|$)|^shared\.")
_HEAD = re.compile(r"(^|\.)(lm_head|head|classifier|scores?|logits|proj_out|cls)\.|^(fc|output)\.")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's, of the polynomial a·x + b·x³ + c·x⁵
_SMALLEST_NORM = 1e-7

Hidden = str | re.Pattern[str] | Callable[[str, Tensor], bool]


class CompressedMuon(CompressedOptimizer):
    """Muon whose ranks exchange their own orthogonal updates, for codecs below two bits per value.

    Hidden matrices use Muon: weights of two dimensions, and convolutions (four or five dimensions)
    as matrices with one row per output. Parameters named like embeddings or heads are not hidden.
    All other parameters use :class:`CompressedAdamW` in the same exchange, in parameter groups
    with ``use_muon`` False.

    Each rank passes its own gradient: do not average gradients before ``step``.
    :class:`CompressedAdamW` describes missing gradients, added parameters, a ``GradScaler`` and
    gradients that are not finite.

    Source: Jordan 2024, kellerjordan.github.io/posts/muon; size of steps: Liu et al. 2025,
    arXiv:2502.16982.

    Args:
        params: ``model.named_parameters()``, or groups that set ``use_muon``.
        lr: Learning rate. A step has the size of an AdamW step, so use AdamW's rates.
        momentum: Momentum of Muon. Fewer bits need a smaller momentum.
        weight_decay: Decoupled weight decay.
        nesterov: True for Nesterov momentum.
        ns_steps: Number of Newton-Schulz iterations.
        hidden: Selects the hidden matrices among parameters of two or more dimensions: a regular
            expression to search in names, or a function of name and parameter. Equal on all ranks.
        adamw: ``betas`` (default (0.9, 0.95)), ``eps`` (1e-8), ``lr`` and ``weight_decay`` (default
            Muon's) of the other parameters.
        codec: Spec of the codec; this and all later arguments as in :class:`CompressedAdamW`.

    Raises:
        InvalidArgumentError: As :class:`CompressedAdamW`; also if no parameter is a hidden matrix,
            a group with ``use_muon`` has a parameter that is not a matrix, or ranks disagree on
            the hidden matrices.

    Example::

        optimizer = tersor.torch.CompressedMuon(model.named_parameters(), lr=2e-3)
        loss_of(model, batch).backward()
        optimizer.step()
    """

    _remedy = "use torch.optim.Muon with tersor.torch.compress"

    @renamed_keywords(**RENAMED)
    @takes_advanced(OptimizerOptions)
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.8,
        weight_decay: float = 0.1,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        hidden: Hidden | None = None,
        adamw: Mapping[str, Any] | None = None,
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
        self._is_hidden = _hidden_predicate(hidden)
        plain = {"lr": lr, "weight_decay": weight_decay}
        self._muon = {**plain, "momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        self._adamw = {**plain, "betas": (0.9, 0.95), "eps": 1e-8}
        if unknown := (adamw or {}).keys() - self._adamw.keys():
            known = ", ".join(self._adamw)
            raise InvalidArgumentError(f"adamw= has no option {min(unknown)!r}; there are: {known}")
        self._adamw.update(adamw or {})
        super().__init__(params, {}, locals())
        if not any(one["use_muon"] for one in self.param_groups):
            raise InvalidArgumentError(
                "no parameter is a hidden matrix: select them by hidden= or groups with "
                "use_muon=True, or use CompressedAdamW"
            )

    @property
    def hidden(self) -> list[str]:
        """The names of the hidden matrices."""
        muon_ids = self._muon_ids()
        return [name for name, one in self._optimized.all.items() if id(one) in muon_ids]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, between two steps, on all ranks.

        A group without ``use_muon`` becomes two groups: hidden matrices and other parameters.

        Args:
            param_group: A group as of ``torch.optim.Optimizer.add_param_group``.

        Raises:
            InvalidArgumentError: A parameter with ``use_muon`` is not a matrix.

        Example::

            optimizer.add_param_group({"params": model.head.named_parameters()})
        """
        for one in _split(param_group, self._is_hidden):
            if one["use_muon"]:
                _check_matrices(one)
            for key, value in (self._muon if one["use_muon"] else self._adamw).items():
                one.setdefault(key, value)
            super().add_param_group(one)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        wanted = self._muon if group["use_muon"] else self._adamw
        if missing := sorted(wanted.keys() - group.keys()):
            raise InvalidArgumentError(f"a group has no {', '.join(missing)}")

    def _muon_ids(self) -> set[int]:
        groups = (one["params"] for one in self.param_groups if one["use_muon"])
        return {id(parameter) for parameters in groups for parameter in parameters}

    def _rule(self, parameter: Tensor, codecs: Sequence[str]) -> Rule:
        return _ORTHOGONAL if id(parameter) in self._muon_ids() else adamw_rule(codecs[-1])

    def _agree(self, newcomers: Mapping[str, Tensor]) -> None:
        """Raises InvalidArgumentError if ranks disagree on the hidden matrices."""
        muon_ids, names = self._muon_ids(), sorted(newcomers)  # groups may be in another order, too
        counts = self._presence.counts([id(newcomers[name]) in muon_ids for name in names])
        total = self._exchange.ranks
        for name, ranks in zip(names, counts, strict=True):
            if ranks not in (0, total):
                raise InvalidArgumentError(
                    f"{name} is a hidden matrix on {ranks} of {total} ranks: pass the same "
                    "hidden= and groups on all ranks"
                )


class _Orthogonal(Rule):
    moments = ("momentum_buffer",)
    own = "momentum_buffer"

    def batch_key(self, parameter: Tensor, codec: str) -> object:
        return _as_matrix(parameter).shape

    def to_send(self, part: Part) -> list[Tensor]:
        gradients, weight = part.float_gradients(), 1 - part.group["momentum"]
        lookahead = _compat.foreach_lerp(part.moments("momentum_buffer"), gradients, weight)
        if part.group["nesterov"]:
            _compat.foreach_lerp_(lookahead, gradients, weight)
        pairs = list(zip(lookahead, part.parameters, strict=True))
        matrices = torch.stack([_as_matrix(_full_tensor(one, like)) for one, like in pairs])
        updates = orthogonal(matrices, part.group["ns_steps"])
        updates *= 0.2 * math.sqrt(max(updates.shape[1:]))
        results = zip(updates, part.parameters, strict=True)
        return [_local_part(one.view(like.shape), like) for one, like in results]

    def update(self, part: Part, means: list[Tensor]) -> None:
        weight = 1 - part.group["momentum"]
        _compat.foreach_lerp_(part.moments("momentum_buffer"), part.float_gradients(), weight)
        _compat.foreach_add_(part.decayed_weights(), means, alpha=-float(part.group["lr"]))


_ORTHOGONAL = _Orthogonal()


def orthogonal(matrices: Tensor, steps: int) -> Tensor:
    """Approximates the nearest orthogonal matrix of each of ``matrices`` (count, rows, columns).

    Newton-Schulz iterations give singular values of about 0.7 to 1.2. Zeros stay zeros.
    """
    a, b, c = _COEFFICIENTS
    wide = matrices.size(1) <= matrices.size(2)
    norms = matrices.norm(dim=(1, 2), keepdim=True).clamp_(min=_SMALLEST_NORM)
    x: Tensor = (matrices / norms).to(_fast_dtype(matrices.device))
    for _ in range(steps):
        squares = torch.bmm(x, x.mT) if wide else torch.bmm(x.mT, x)
        factors = torch.baddbmm(squares, squares, squares, beta=b, alpha=c)
        first, second = (factors, x) if wide else (x, factors)
        x = torch.baddbmm(x, first, second, beta=a)
    return x.float()


@functools.cache
def _fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 if matrix products in bfloat16 are fast."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and _compat.bf16_is_fast_on_cpu()
    return torch.bfloat16 if fast else torch.float32


def _as_matrix(values: Tensor) -> Tensor:
    """A matrix with one row per output."""
    return values if values.dim() == 2 else values.flatten(1)


def _full_tensor(own: Tensor, like: Tensor) -> Tensor:
    """The whole tensor of a sharded parameter: a collective call of the ranks with its shards."""
    if not isinstance(like, DTensor):
        return own
    mesh, placements, shape = like.device_mesh, like.placements, like.shape
    made = DTensor.from_local(own, mesh, placements, shape=shape, stride=like.stride())
    return made.full_tensor()


def _local_part(values: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a whole tensor."""
    if not isinstance(like, DTensor):
        return values
    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(values, mesh, placements, src_data_rank=None).to_local()


def is_hidden(name: str, parameter: Tensor) -> bool:
    """True if the parameter uses Muon by default. Stacks of matrices (3-D) do not."""
    return parameter.dim() != 3 and not (_EMBEDDING.search(name) or _HEAD.search(name))


def _hidden_predicate(hidden: Hidden | None) -> Callable[[str, Tensor], bool]:
    if hidden is None:
        return is_hidden
    if callable(hidden):
        return hidden
    pattern = re.compile(hidden)
    return lambda name, _: pattern.search(name) is not None


def _split(group: dict[str, Any], is_chosen: Callable[[str, Tensor], bool]) -> list[dict[str, Any]]:
    """Splits a group without ``use_muon`` into hidden matrices and others."""
    given = group["params"]
    given = list(given) if not isinstance(given, (Tensor, set)) else given
    if "use_muon" in group:
        return [{**group, "params": given}]
    if not all(isinstance(one, tuple) for one in given):
        raise InvalidArgumentError(
            "CompressedMuon finds hidden matrices by their names: pass "
            "model.named_parameters(), or groups with use_muon=True and use_muon=False"
        )
    parts: dict[bool, list[tuple[str, Tensor]]] = {True: [], False: []}
    for name, one in given:
        parts[one.dim() >= 2 and bool(is_chosen(name, one))].append((name, one))
    return [{**group, "params": some, "use_muon": key} for key, some in parts.items() if some]


def _check_matrices(group: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError for a parameter that is not a matrix; warns of embeddings."""
    for one in [group["params"]] if isinstance(group["params"], Tensor) else group["params"]:
        name, parameter = one if isinstance(one, tuple) else ("a parameter", one)
        if parameter.dim() < 2:
            raise InvalidArgumentError(
                f"{name} of shape {tuple(parameter.shape)} is not a matrix, as Muon needs: put it "
                "into a group with use_muon=False"
            )
        if _EMBEDDING.search(name):
            warnings.warn(
                f"{name} seems to be an embedding: a step has gradients for few of its rows, but "
                "Muon updates all directions equally; use AdamW (use_muon=False) for it",
                stacklevel=5,
            )
