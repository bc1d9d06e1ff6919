"""How the gradients of one ``FSDPModule`` travel, and its weights: one flat tensor, in messages.

A parameter travels in a message of its own, so that a codec sees its values and no others, and its
residual stays its own. Parameters whose codec takes each value by itself (bf16, none) share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tersor._core import FRESH_STATE_WORDS, CollectiveStatistics, FeedbackState
from tersor.torch.sharding import ShardedParameter
from tersor.torch.statistics import ParameterStatistics


@dataclass
class Totals:
    """What was sent for one parameter: sums over ``steps`` steps."""

    steps: int = 0
    gradient_bytes: float = 0
    uncompressed_bytes: float = 0
    sent_bytes: float = 0
    encode_seconds: float = 0
    decode_seconds: float = 0
    wire_seconds: float = 0
    overflows: float = 0

    def add(self, call: CollectiveStatistics, share: float, ranks: int) -> None:
        """``share``: of the call's values, those of this parameter."""
        self.steps += 1
        self.uncompressed_bytes += share * call.gradient_bytes * (ranks - 1) / ranks
        for name in ("gradient_bytes", "sent_bytes", "encode_seconds", "decode_seconds"):
            setattr(self, name, getattr(self, name) + share * getattr(call, name))
        self.wire_seconds += share * call.wire_seconds
        self.overflows += share * call.overflows


@dataclass(frozen=True)
class Choice:
    """How a parameter travels. ``by_value``: its codec looks at no value's neighbours."""

    codec: str
    reason: str
    by_value: bool
    feedback: bool = False


class Feedback:
    """What error feedback keeps of one parameter, zero at first; where ``like`` lies, of its dtype.

    Attributes:
        codec: whose errors these are.
        ranks: among which the parameter is sharded.
        residual: one value for each of the padded parameter, shard after shard.
        state: the same, as the library takes it.
    """

    def __init__(self, parameter: ShardedParameter, codec: str, ranks: int, like: Tensor) -> None:
        self.parameter = parameter
        self.codec = codec
        self.ranks = ranks
        count = ranks * parameter.shard_count
        self.residual = like.new_zeros(count)
        fresh = torch.frombuffer(bytearray(FRESH_STATE_WORDS), dtype=torch.int32)
        self._words = fresh.to(like.device, copy=True)
        self.state = FeedbackState(self.residual, self._words)

    @property
    def step(self) -> int:
        """How often it was used; on a device this waits for it."""
        return int(self._words[0])

    @step.setter
    def step(self, step: int) -> None:
        self._words[0] = step


@dataclass
class Track:
    """What is kept of one parameter from step to step."""

    parameter: ShardedParameter
    choice: Choice
    feedback: Feedback | None = None
    totals: Totals = field(default_factory=Totals)

    def statistics(self) -> ParameterStatistics:
        """What was sent, as the reports take it."""
        norm = 0.0 if self.feedback is None else float(self.feedback.residual.float().norm())
        return {
            "name": self.parameter.name,
            "codec": self.choice.codec,
            "reason": self.choice.reason,
            "steps": self.totals.steps,
            "gradient_bytes": self.totals.gradient_bytes,
            "uncompressed_bytes": self.totals.uncompressed_bytes,
            "sent_bytes": self.totals.sent_bytes,
            "encode_seconds": self.totals.encode_seconds,
            "decode_seconds": self.totals.decode_seconds,
            "wire_seconds": self.totals.wire_seconds,
            "residual_norm": norm,
            "overflows": self.totals.overflows,
        }


@dataclass(frozen=True)
class Columns:
    """Where a track's shard lies in each rank's part of the flat tensor."""

    track: Track
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Message:
    """Parameters that travel together by one codec, in the order of their columns."""

    columns: list[Columns]

    @property
    def codec(self) -> str:
        return self.columns[0].track.choice.codec

    @property
    def shard_count(self) -> int:
        """Values of it that each rank keeps."""
        return sum(one.count for one in self.columns)

    def gather(self, rows: Tensor) -> Tensor:
        """Its values out of ``rows`` (ranks, shard): one shard after another, no copy of all."""
        if self.shard_count == rows.shape[1]:
            return rows.reshape(-1)
        parts = [rows[:, one.start : one.stop] for one in self.columns]
        return torch.cat(parts, dim=1).reshape(-1)

    def scatter(self, values: Tensor, output: Tensor) -> None:
        """Puts its shard, or rows of all ranks' shards, to its places in ``output``."""
        parts = torch.split(values, [one.count for one in self.columns], dim=-1)
        for one, part in zip(self.columns, parts, strict=True):
            output[..., one.start : one.stop] = part

    def account(self, call: CollectiveStatistics, ranks: int) -> None:
        """Shares what a call sent among the parameters."""
        for one in self.columns:
            one.track.totals.add(call, one.count / max(self.shard_count, 1), ranks)


def plan_messages(tracks: Iterable[Track]) -> list[Message]:
    """The messages of a flat tensor that holds the shards of ``tracks``, in this order."""
    alone: list[Message] = []
    shared: dict[str, list[Columns]] = {}
    start = 0
    for track in tracks:
        columns = Columns(track, start, start + track.parameter.shard_count)
        start = columns.stop
        if track.choice.by_value:
            shared.setdefault(track.choice.codec, []).append(columns)
        else:
            alone.append(Message([columns]))
    return alone + [Message(columns) for columns in shared.values()]
