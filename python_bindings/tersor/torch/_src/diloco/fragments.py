"""Which part of a model ranks exchange when, in Streaming DiLoCo (arXiv:2501.18512)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tersor import _text
from tersor._core import InvalidArgumentError, ReducerStatistics
from tersor._options import expect

_HIDDEN_ENOUGH = 0.05  # of the exchange may be waited for


@dataclasses.dataclass(frozen=True)
class Timetable:
    """Of inner steps, counted from 1, in rounds of ``every``, in which each fragment has its turn.

    What is sent after a step counts ``delay`` steps later, before the next fragment's turn.
    """

    every: int
    fragments: int
    delay: int

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError that names what does not go together."""
        for name, value, least in (
            ("every", self.every, 1),
            ("fragments", self.fragments, 1),
            ("delay", self.delay, 0),
        ):
            expect(value, int, f"{name} must be an integer")
            if value < least:
                raise InvalidArgumentError(f"{name}={value}: give at least {least}")
        if self.fragments > self.every:
            raise InvalidArgumentError(
                f"fragments={self.fragments} with every={self.every}: use at most one per step"
            )
        if self.delay * self.fragments >= self.every:
            raise InvalidArgumentError(
                f"delay={self.delay}: with every={self.every} and fragments={self.fragments} the "
                f"next fragment is sent {self.every // self.fragments} steps later, and delay must "
                f"be below every / fragments: at most {(self.every - 1) // self.fragments}"
            )

    def turn_of(self, step: int) -> int | None:
        """Which fragment is sent after this step."""
        place = (step - 1) % self.every + 1
        fragment = -(-place * self.fragments // self.every) - 1  # the first that ends here or later
        return fragment if self.end_of(fragment) == place else None

    def end_of(self, fragment: int) -> int:
        """After which step of a round it is sent."""
        return (fragment + 1) * self.every // self.fragments


def divide(counts: Mapping[str, int], fragments: int) -> list[list[str]]:
    """Parameters in their order, in so many lists of about as many values each, none empty.

    ``counts``: values of each. Raises InvalidArgumentError where there are fewer than lists.
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
        missing = fragments - (len(counts) - number)  # from here on one each would fill the rest
        last = min(max(middle, last, missing), last + 1, fragments - 1)
        divided[last].append(name)
        before += count
    return divided


def differences(
    pairs: Mapping[str, tuple[Tensor, Tensor]],
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The first of each pair less the second, those of a dtype one after another in memory.

    Gives that memory, and each one's part of it.
    """
    alike: dict[torch.dtype, list[str]] = {}
    for name, (first, _) in pairs.items():
        alike.setdefault(first.dtype, []).append(name)
    for names in alike.values():
        firsts = [pairs[name][0] for name in names]
        counts = [one.numel() for one in firsts]
        flat = firsts[0].new_empty(sum(counts))
        parts = [
            one.view(like.shape)
            for one, like in zip(flat.split_with_sizes(counts), firsts, strict=True)
        ]
        for name, part in zip(names, parts, strict=True):
            torch.sub(*pairs[name], out=part)
        yield flat, dict(zip(names, parts, strict=True))


def hidden(delay: int, sofar: ReducerStatistics) -> str:
    """A line on whether so long a delay hides the exchange; empty where there is none."""
    if not (delay and sofar.wire_seconds):
        return ""
    waited = sofar.exposed_seconds / sofar.wire_seconds
    hint = ": a longer delay hides more" if waited > _HIDDEN_ENOUGH else ""
    spent = _text.seconds(sofar.wire_seconds)
    return f"delay={delay}: {100 * waited:.0f} % of {spent} of exchange waited for{hint}\n"


@dataclasses.dataclass
class UnderWay:
    """Differences that were sent."""

    due: int  #: the inner step after which they count
    mix: float  #: what a rank keeps then of its own weights
    mean: dict[str, Tensor]  #: of the ranks, once it is here
    is_here: bool = False

    def state(self) -> dict[str, Any]:
        """Once it is here, copied."""
        mean = {name: one.clone() for name, one in self.mean.items()}
        return {"due": self.due, "mix": self.mix, "mean": mean}

    @classmethod
    def of(cls, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> UnderWay:
        """What ``state`` gave; ``like``: where tensors of these names lie."""
        mean = {name: one.to(like[name].device, copy=True) for name, one in state["mean"].items()}
        return cls(state["due"], state["mix"], mean, is_here=True)
