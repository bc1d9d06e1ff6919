"""The schedule of fragments in Streaming DiLoCo (arXiv:2501.18512)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tersor import _text
from tersor._core import InvalidArgumentError, ReducerStatistics
from tersor._options import expect

_HIDDEN_ENOUGH = 0.05  # accepted share of waiting in the time of the exchange


@dataclasses.dataclass(frozen=True)
class SyncSchedule:
    """Rounds of ``sync_every`` inner steps, counted from 1. Each fragment has a turn per round.

    A fragment updates the weights ``fragment_sync_delay`` steps after the fragment's turn and
    before the next turn.
    """

    sync_every: int
    fragments: int
    fragment_sync_delay: int

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for invalid or conflicting numbers."""
        for name, least in {"sync_every": 1, "fragments": 1, "fragment_sync_delay": 0}.items():
            value = getattr(self, name)
            expect(value, int, f"{name} must be an integer")
            if value < least:
                raise InvalidArgumentError(f"{name}={value}: give at least {least}")
        if self.fragments > self.sync_every:
            raise InvalidArgumentError(
                f"fragments={self.fragments} with sync_every={self.sync_every}: use at most "
                "one fragment per step"
            )
        if self.fragment_sync_delay * self.fragments >= self.sync_every:
            raise InvalidArgumentError(
                f"fragment_sync_delay={self.fragment_sync_delay}: with "
                f"sync_every={self.sync_every} and fragments={self.fragments} the next fragment is "
                f"sent {self.sync_every // self.fragments} steps later; give at most "
                f"{(self.sync_every - 1) // self.fragments}"
            )

    def fragment_at(self, step: int) -> int | None:
        """The fragment with a turn after this step, or None."""
        position = (step - 1) % self.sync_every + 1
        # The first fragment with an end at this step or later.
        fragment = -(-position * self.fragments // self.sync_every) - 1
        end = (fragment + 1) * self.sync_every // self.fragments  # the last step before the turn
        return fragment if end == position else None


def divide(counts: Mapping[str, int], fragments: int) -> list[list[str]]:
    """Divides parameters, in order, into non-empty lists with similar numbers of values.

    ``counts``: the number of values per parameter. Raises InvalidArgumentError if ``fragments`` is
    larger than the number of parameters.
    """
    if fragments > len(counts):
        raise InvalidArgumentError(
            f"fragments={fragments}: give at most {len(counts)}, the number of parameters that "
            "require a gradient"
        )
    divided: list[list[str]] = [[] for _ in range(fragments)]
    total, before, last = max(sum(counts.values()), 1), 0, -1
    for number, (name, count) in enumerate(counts.items()):
        middle = (2 * before + count) * fragments // (2 * total)
        missing = fragments - (len(counts) - number)  # from here on, a parameter per list
        last = min(max(middle, last, missing), last + 1, fragments - 1)
        divided[last].append(name)
        before += count
    return divided


def differences(
    pairs: Mapping[str, tuple[Tensor, Tensor]],
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yields the differences of all pairs, per dtype: contiguous memory, and views by name."""
    by_dtype: dict[torch.dtype, list[str]] = {}
    for name, (first, _) in pairs.items():
        by_dtype.setdefault(first.dtype, []).append(name)
    for names in by_dtype.values():
        firsts = [pairs[name][0] for name in names]
        counts = [one.numel() for one in firsts]
        flat = firsts[0].new_empty(sum(counts))
        parts = dict(zip(names, flat.split_with_sizes(counts), strict=True))
        for name, part in parts.items():
            parts[name] = torch.sub(*pairs[name], out=part.view(pairs[name][0].shape))
        yield flat, parts


def overlap(delay: int, statistics: ReducerStatistics) -> str:
    """A line about the exposed share of the exchange. The line is empty without a delay."""
    if not (delay and statistics.wire_seconds):
        return ""
    waited = statistics.exposed_seconds / statistics.wire_seconds
    hint = ": a longer delay hides more" if waited > _HIDDEN_ENOUGH else ""
    spent = _text.seconds(statistics.wire_seconds)
    share = f"{100 * waited:.0f} % of {spent} of exchange was waiting"
    return f"fragment_sync_delay={delay}: {share}{hint}\n"


@dataclasses.dataclass
class PendingFragment:
    """A sent fragment, before the update of the weights."""

    due: int  #: the inner step after which the mean updates the weights
    alpha: float  #: the share of the rank's own weights in this update
    mean: dict[str, Tensor]  #: over ranks, valid if ``is_complete``
    is_complete: bool = False

    def state(self) -> dict[str, Any]:
        """A copy. ``is_complete`` must be true."""
        mean = {name: one.clone() for name, one in self.mean.items()}
        return {"due": self.due, "mix": self.alpha, "mean": mean}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> PendingFragment:
        """Restores the result of ``state`` on the devices of the tensors ``like``."""
        mean = {name: one.to(like[name].device, copy=True) for name, one in state["mean"].items()}
        return cls(state["due"], state["mix"], mean, is_complete=True)
