"""How the gradients of a model would travel, without sending any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tersor import Codec, _core
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.reducer import ReducerOptions
from tersor.torch.sharded_exchange import GradientExchange


@dataclass(frozen=True)
class Planned:
    """Of one parameter: bytes that a rank would send in a step, headers not counted.

    ``sent_bytes``: None where a run has to decide (``"auto"``); of a schedule in its first step.
    """

    name: str
    codec: str
    sent_bytes: float | None
    uncompressed_bytes: float


def planned_of_ddp(
    parameters: Mapping[str, torch.Tensor], options: ReducerOptions, group: dist.ProcessGroup
) -> list[Planned]:
    """An all-reduce sends each part of a gradient twice, but for what a rank keeps."""
    asked = fill(_core.ReducerOptions(), options)
    share = 2 * (group.size() - 1) / group.size()
    return [
        _planned(
            name,
            _core.choose_codec(asked, name, list(one.shape), dtype_text(one.dtype)),
            one,
            share,
        )
        for name, one in parameters.items()
    ]


def planned_of_shards(exchanges: Iterable[GradientExchange]) -> list[Planned]:
    """A reduce-scatter sends each part once."""
    return [
        _planned(
            one.name,
            choice,
            torch.empty(one.shape, dtype=each.layout.dtype, device="meta"),
            (each.layout.ranks - 1) / each.layout.ranks,
        )
        for each in exchanges
        for one, choice in each.expected()
    ]


def _planned(name: str, choice: _core.CodecChoice, like: torch.Tensor, share: float) -> Planned:
    codec = choice.phases[0][1] if choice.phases else choice.codec
    sent = None
    if codec != "auto":
        sent = share * Codec(codec).max_payload_bytes(tuple(like.shape), like.dtype)
    return Planned(name, f"{choice.codec} ({choice.reason})", sent, share * like.nbytes)
