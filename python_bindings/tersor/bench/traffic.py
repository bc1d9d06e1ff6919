"""What a rank sends in a step, as a way of sending counts it or it is computed."""

import dataclasses
from typing import Any

from torch import nn

from tersor.bench.records import Record
from tersor.bench.world import World


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What one rank sent, and how long that took; None: PyTorch does not tell."""

    sent_bytes: float | None
    encode_seconds: float | None = None
    wire_seconds: float | None = None
    decode_seconds: float | None = None

    def since(self, before: "Traffic") -> "Traffic":
        """What came to it."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before), strict=True)
        return Traffic(*(None if now is None else now - (was or 0) for now, was in pairs))

    def mean(self, steps: int, world: World) -> "Traffic":
        """Of one step, over the ranks. All of them call it."""
        own = dataclasses.astuple(self)
        means = iter(world.mean([value / steps for value in own if value is not None]))
        return Traffic(*(None if value is None else next(means) for value in own))


def fields_of(measured: Any) -> Record:
    """What was measured, `traffic` among it, as records have it."""
    own = dict(vars(measured))
    parts = dict(vars(own.pop("traffic")))
    return {**own, "wire_bytes": parts.pop("sent_bytes"), **parts}


def ring_bytes(reduced_bytes: float, ranks: int) -> float:
    """What each rank sends in a ring allreduce (Patarasuk and Yuan 2009)."""
    return 2 * (ranks - 1) / ranks * reduced_bytes


def parameter_count(model: nn.Module) -> int:
    """Values of all parameters that are trained."""
    return sum(values.numel() for values in model.parameters() if values.requires_grad)
