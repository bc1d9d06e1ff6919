"""Muon that exchanges what each rank has made orthogonal by itself, in few bits.

Muon (Jordan 2024, kellerjordan.github.io/posts/muon) moves a matrix by the orthogonal matrix that
is nearest to its momentum. Made of what arrives in few bits it would give the noise of small
singular directions the size of large ones. So each rank makes its own momentum orthogonal, and the
mean of these is exchanged, with feedback behind them::

    m ← β · m + (1 - β) · g           of this rank alone; nothing of it is sent
    u = NS(β · m + (1 - β) · g) · 0.2 · √max(rows, columns)
    weights ← weights · (1 - rate · decay) - rate · mean of u over ranks
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import ParamsT

from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import ElasticOptions
from tersor.torch._src.optim.adamw import adamw_rule
from tersor.torch._src.optim.compressed import CompressedOptimizer
from tersor.torch._src.optim.rules import Part, Rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Names of what is no hidden matrix, by the usage of PyTorch's and Hugging Face's models.
_EMBEDDING = re.compile(r"embed|(^|[._])(wte|wpe|emb)([._]|$)|^shared\.")
_HEAD = re.compile(r"(^|\.)(lm_head|head|classifier|scores?|logits|proj_out|cls)\.|^(fc|output)\.")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's, of the polynomial a·x + b·x³ + c·x⁵
_SMALLEST_NORM = 1e-7

Hidden = str | re.Pattern[str] | Callable[[str, Tensor], bool]


class CompressedMuon(CompressedOptimizer):
    """Muon whose ranks exchange orthogonal updates of their own, for codecs below two bits a value.

    ::

        optimizer = tersor.torch.CompressedMuon(
            model.named_parameters(), lr=2e-3, codec="hadamard:bits=1+ef", momentum=0.8
        )
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()    # each rank's own gradient; DDP within no_sync()
            optimizer.step()                    # exchanges, and moves all ranks alike

    Hidden matrices go by Muon: weights of two dimensions, and of four and five (convolutions, as
    matrices of a row for each output), but for those whose names are of embeddings or a head. All
    else goes by the recipe of :class:`CompressedAdamW` in the same exchange, and stands in groups
    of its own, which have ``use_muon`` False. ``hidden`` has the names of the matrices.

    Gradients must not be averaged before. Missing gradients, parameters that are added, a
    ``GradScaler`` and gradients that are not finite: as in :class:`CompressedAdamW`.
    """

    _instead = "use torch.optim.Muon with tersor.torch.compress"

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
        dense_codec: str = "bf16",
        dense_steps: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ElasticOptions],
    ) -> None:
        """``lr``: the size of a step is AdamW's (Liu et al. 2025, arXiv:2502.16982), and so are
        rates. ``momentum``: fewer bits want a smaller one. ``ns_steps``: of Newton-Schulz.

        ``hidden``: which of the matrices are, a regular expression that is searched for in names,
        or a function of name and parameter. Or parameter groups say so, by ``use_muon``. ``adamw``:
        ``betas`` (0.9, 0.95) and ``eps`` of the rest, and ``lr`` and ``weight_decay`` where they
        are others than Muon's. All else is as in :class:`CompressedAdamW`.

        A collective call, of equal ``hidden`` on all ranks. Raises InvalidArgumentError as
        :class:`CompressedAdamW`, and where no parameter is a hidden matrix, a group with
        ``use_muon`` has what is no matrix, or ranks disagree.
        """
        self._is_hidden = _chosen_by(hidden)
        plain = {"lr": lr, "weight_decay": weight_decay}
        self._muon = {**plain, "momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        self._adamw = {**plain, "betas": (0.9, 0.95), "eps": 1e-8}
        if unknown := (adamw or {}).keys() - self._adamw.keys():
            known = ", ".join(self._adamw)
            raise InvalidArgumentError(f"adamw= has no option {min(unknown)!r}; there are: {known}")
        self._adamw.update(adamw or {})
        super().__init__(params, {}, (dense_codec, dense_steps), group, options)
        if not any(one["use_muon"] for one in self.param_groups):
            raise InvalidArgumentError(
                "no parameter is a hidden matrix: select them by hidden= or groups with "
                "use_muon=True, or use CompressedAdamW"
            )

    @property
    def hidden(self) -> list[str]:
        """The names of the parameters that go by Muon."""
        marked = self._marked()
        return [name for name, one in self._optimized.all.items() if id(one) in marked]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Between two steps, on all ranks alike. Without ``use_muon`` it becomes two groups, of
        hidden matrices and of the others."""
        for one in _split(param_group, self._is_hidden):
            if one["use_muon"]:
                _check_matrices(one)
            for key, value in (self._muon if one["use_muon"] else self._adamw).items():
                one.setdefault(key, value)
            super().add_param_group(one)

    def _marked(self) -> set[int]:
        groups = (one["params"] for one in self.param_groups if one["use_muon"])
        return {id(parameter) for parameters in groups for parameter in parameters}

    def _rule(self, parameter: Tensor, codec: str) -> Rule:
        return _ORTHOGONAL if id(parameter) in self._marked() else adamw_rule(codec)

    def _begin(self, newcomers: Mapping[str, Tensor]) -> None:
        """Raises InvalidArgumentError where ranks disagree on which are hidden."""
        marked, names = self._marked(), sorted(newcomers)  # groups may be in another order, too
        counts = self._presence.counts([id(newcomers[name]) in marked for name in names])
        everywhere = (0, self._exchange.transport.ranks)
        for name, ranks in zip(names, counts, strict=True):
            if ranks not in everywhere:
                raise InvalidArgumentError(
                    f"{name} is a hidden matrix on {ranks} of {everywhere[1]} ranks: pass the same "
                    "hidden= and groups on all ranks"
                )
        super()._begin(newcomers)


class _Orthogonal(Rule):
    moments = ("momentum_buffer",)
    own = "momentum_buffer"

    def likeness(self, parameter: Tensor) -> object:
        return _as_matrix(parameter).shape

    def sent(self, part: Part) -> list[Tensor]:
        gradients, weight = part.float_gradients(), 1 - part.group["momentum"]
        ahead = _compat.foreach_lerp(part.moments["momentum_buffer"], gradients, weight)
        if part.group["nesterov"]:
            _compat.foreach_lerp_(ahead, gradients, weight)
        pairs = list(zip(ahead, part.parameters, strict=True))
        made = orthogonal(
            torch.stack([_as_matrix(_whole(one, like)) for one, like in pairs]),
            part.group["ns_steps"],
        )
        made *= 0.2 * math.sqrt(max(made.shape[1:]))
        return [
            _own_part(one.view(like.shape), like)
            for one, like in zip(made, part.parameters, strict=True)
        ]

    def move(self, part: Part, arrived: list[Tensor]) -> None:
        weight = 1 - part.group["momentum"]
        _compat.foreach_lerp_(part.moments["momentum_buffer"], part.float_gradients(), weight)
        _compat.foreach_add_(part.decayed_weights(), arrived, alpha=-float(part.group["lr"]))


_ORTHOGONAL = _Orthogonal()


def orthogonal(matrices: Tensor, steps: int) -> Tensor:
    """Of each of some matrices (count, rows, columns) nearly the orthogonal one nearest to it.

    By Newton-Schulz, whose singular values end at some 0.7 to 1.2. A matrix of zeros stays so.
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
    """bfloat16 where products of matrices are fast in it."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and _compat.bf16_is_fast_on_cpu()
    return torch.bfloat16 if fast else torch.float32


def _as_matrix(values: Tensor) -> Tensor:
    """A row for each output."""
    return values if values.dim() == 2 else values.flatten(1)


def _whole(own: Tensor, like: Tensor) -> Tensor:
    """Where the parameter is sharded what all its ranks have; a collective call of those."""
    if not isinstance(like, DTensor):
        return own
    mesh, placements = like.device_mesh, like.placements
    shape, stride = like.shape, like.stride()
    sharded = DTensor.from_local(own, mesh, placements, shape=shape, stride=stride)
    whole: Tensor = sharded.full_tensor()
    return whole


def _own_part(values: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, where the parameter is sharded."""
    if not isinstance(like, DTensor):
        return values
    return distribute_tensor(
        values, like.device_mesh, like.placements, src_data_rank=None
    ).to_local()


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether it goes by Muon where nobody says: a stack of matrices, of three dimensions, does
    not."""
    return parameter.dim() != 3 and not (_EMBEDDING.search(name) or _HEAD.search(name))


def _chosen_by(hidden: Hidden | None) -> Callable[[str, Tensor], bool]:
    if hidden is None:
        return is_hidden
    if callable(hidden):
        return hidden
    pattern = re.compile(hidden)
    return lambda name, _: pattern.search(name) is not None


def _split(group: dict[str, Any], is_chosen: Callable[[str, Tensor], bool]) -> list[dict[str, Any]]:
    """Into hidden matrices and others, if it does not say itself what it is."""
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
    """Raises InvalidArgumentError for what is none, and warns of embeddings."""
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
