"""How the parameters of a ``CompressedOptimizer`` move: what a rank sends of them, and what it does
with what arrives."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tersor.torch import _compat
from tersor.torch._src.parameters.selection import local_shard

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """Parameters that move alike: by a rule, by the options of a group, after so many steps."""

    rule: Rule
    group: Group
    steps: int
    counters: list[Tensor]  #: of steps, of which there were so many
    names: list[str]
    parameters: list[Tensor]  #: as the model has them; all else is what this rank has
    gradients: list[Tensor]
    moments: Mapping[str, list[Tensor]]  #: by their names, those of all parameters

    def float_gradients(self) -> list[Tensor]:
        """Those of 16 bits as copies."""
        return [one.float() for one in self.gradients]

    @property
    def weights(self) -> list[Tensor]:
        """What this rank has of them."""
        return [local_shard(one) for one in self.parameters]

    def moving_weights(self) -> list[Tensor]:
        """To be moved in place by a step, which is counted."""
        _compat.foreach_add_(self.counters, number(1, self.counters))
        return self.weights

    def decayed_weights(self) -> list[Tensor]:
        """The same, after they decayed by themselves."""
        weights = self.moving_weights()
        remaining = 1 - float(self.group["lr"]) * self.group["weight_decay"]
        _compat.foreach_mul_(weights, number(remaining, weights))
        return weights


def number(value: float, tensors: Sequence[Tensor]) -> Any:
    """For ``_compat.foreach_…``, which on hosts takes a tensor in less time; not to be written."""
    return _number(value) if tensors[0].device.type == "cpu" else value


@functools.lru_cache(maxsize=64)
def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


class Rule(ABC):
    """How parameters move."""

    moments: ClassVar[tuple[str, ...]]  #: names of those that it keeps; the first is like the sent
    own: ClassVar[str | None] = None  #: that of each rank's own; None: all are common

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        """The moments before the first step."""
        return {key: torch.zeros_like(parameter, dtype=torch.float32) for key in self.moments}

    def likeness(self, parameter: Tensor) -> object:
        """Parameters of another one are no part of the same ``Part``."""
        return None

    @abstractmethod
    def sent(self, part: Part) -> list[Tensor]:
        """Of this rank, in memory of its own or that of gradients. Moments stay as they are."""

    @abstractmethod
    def move(self, part: Part, arrived: list[Tensor]) -> None:
        """Moves the weights by the mean of what ranks sent; moments and counters move on."""


class MeanGradient(Rule):
    """Moves by the mean gradient. Moments have PyTorch's dtype except that f16 parameters have f32
    moments: unscaled gradients would underflow."""

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        dtype = torch.float32 if parameter.dtype == torch.float16 else None
        return {key: torch.zeros_like(parameter, dtype=dtype) for key in self.moments}

    def sent(self, part: Part) -> list[Tensor]:
        pairs = zip(part.gradients, part.moments[self.moments[0]], strict=True)
        return [one.to(like.dtype) for one, like in pairs]
