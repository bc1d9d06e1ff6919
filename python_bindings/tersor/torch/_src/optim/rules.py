"""The updates of a ``CompressedOptimizer``: the sent values, and the use of the mean."""

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
    """Parameters with the same rule, parameter group and number of steps."""

    rule: Rule
    group: Group
    steps: int
    codec: str  #: the codec of this step, if ``batch_key`` includes the codec
    names: list[str]
    parameters: list[Tensor]  #: of the model; all other tensors are this rank's shards
    gradients: list[Tensor]
    states: list[dict[str, Tensor]]  #: the step counters and moments of the parameters

    def moments(self, key: str) -> list[Tensor]:
        """This rank's shards of a moment of all parameters."""
        return [local_shard(one[key]) for one in self.states]

    def float_gradients(self) -> list[Tensor]:
        """Float32 gradients; 16-bit gradients are copied."""
        return [one.float() for one in self.gradients]

    @property
    def weights(self) -> list[Tensor]:
        """This rank's shards of the parameters."""
        return [local_shard(one) for one in self.parameters]

    def moving_weights(self) -> list[Tensor]:
        """Counts a step and returns the weights to update in place."""
        counters = [one["step"] for one in self.states]
        _compat.foreach_add_(counters, number(1, counters))
        return self.weights

    def decayed_weights(self) -> list[Tensor]:
        """Counts a step and returns the weights after decoupled decay."""
        weights = self.moving_weights()
        remaining = 1 - float(self.group["lr"]) * self.group["weight_decay"]
        _compat.foreach_mul_(weights, number(remaining, weights))
        return weights


def number(value: float, tensors: Sequence[Tensor]) -> Any:
    """A number for ``_compat.foreach_…``: on CPUs a tensor, which is faster. Read only."""
    return _number(value) if tensors[0].device.type == "cpu" else value


@functools.lru_cache(maxsize=64)
def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


class Rule(ABC):
    """The update of parameters."""

    #: names; the first moment has the shape and dtype of the sent values
    moments: ClassVar[tuple[str, ...]]
    own: ClassVar[str | None] = None  #: the moment that differs between ranks, if any

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        """The moments before the first step."""
        return {key: torch.zeros_like(parameter, dtype=torch.float32) for key in self.moments}

    def batch_key(self, parameter: Tensor, codec: str) -> object:
        """Parameters with different results are in different parts. ``codec``: of this step."""
        return None

    @abstractmethod
    def to_send(self, part: Part) -> list[Tensor]:
        """The values to send, in new memory or in gradients. Leaves the moments unchanged."""

    @abstractmethod
    def update(self, part: Part, means: list[Tensor]) -> None:
        """Updates weights, moments and counters by the mean of the sent values over ranks."""


class MeanGradient(Rule):
    """An update by the mean gradient. Moments have PyTorch's dtype, except that f16 parameters have
    f32 moments: unscaled gradients would underflow."""

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        dtype = torch.float32 if parameter.dtype == torch.float16 else None
        return {key: torch.zeros_like(parameter, dtype=dtype) for key in self.moments}

    def to_send(self, part: Part) -> list[Tensor]:
        pairs = zip(part.gradients, part.moments(self.moments[0]), strict=True)
        return [one.to(like.dtype) for one, like in pairs]
