"""On how many ranks a parameter has a gradient: what all must know alike before they step.

A parameter that no rank has a gradient of is left alone: no decay, no momentum, its residual kept.
On some ranks a missing gradient is one of zeros. A rank that has all gradients cannot know what the
others lack, so every step asks: a few bits a parameter, in one message of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from tersor._core import InvalidArgument
from tersor.collectives import CollectiveOptions, allreduce
from tersor.torch.exchange import TensorExchange

_EXACT = 1 << 24  # below it a float32 is any whole number


class Presence:
    """Counts over the ranks that exchange. All make the same calls in the same order."""

    def __init__(self, exchange: TensorExchange) -> None:
        """``exchange``: whose ranks and time limit it has. A collective call."""
        self._exchange = exchange
        self._ranks, self._losses = exchange.channel(), exchange.losses
        self._options: CollectiveOptions = {
            "codec": "none",
            "timeout": exchange.options["timeout"],
        }
        base, digits = self._ranks.ranks + 1, 1
        while base ** (digits + 1) <= _EXACT:
            digits += 1
        self._base = base
        self._places = torch.tensor([base**i for i in range(digits)], device="cpu")

    def somewhere(
        self, present: Mapping[str, bool], also: Sequence[bool] = ()
    ) -> tuple[list[str], list[int]]:
        """The names that are present on some rank, and on how many each of ``also`` is set."""
        return _told_apart(present, self.counts([*present.values(), *also]))

    def weighted(
        self, present: Mapping[str, bool], also: Sequence[bool], samples: float | None
    ) -> tuple[list[str], list[int], float]:
        """As ``somewhere``, and this rank's weight in a mean over the samples of all ranks: 1 where
        no rank tells of any. Raises InvalidArgument for less than none, before anything is sent;
        and on all ranks where only some tell, or all have none."""
        if samples is not None and not 0 <= samples < math.inf:
            raise InvalidArgument(f"samples={samples}: a number of samples, 0 or more")
        flags = [*present.values(), *also, samples is not None]
        (*counts, told), total = self._sums(flags, samples or 0.0)
        if 0 < told < self._exchange.ranks:
            raise InvalidArgument(
                f"{told} of {self._exchange.ranks} ranks tell of how many samples their gradient "
                "is: set samples before a step on all ranks, or on none"
            )
        if told and not 0 < total < math.inf:
            raise InvalidArgument(f"the ranks' gradients are of {total} samples together")
        weight = (samples or 0.0) * told / total if told else 1.0
        return (*_told_apart(present, counts), weight)

    def poison(self, cause: str) -> None:
        """Ends what these ranks have under way; any thread."""
        self._ranks.poison(cause)

    def counts(self, flags: Sequence[bool]) -> list[int]:
        """On how many ranks each flag is set. A collective call, of as many flags on each."""
        return self._sums(flags, 0.0)[0]

    def _sums(self, flags: Sequence[bool], value: float) -> tuple[list[int], float]:
        """Over the ranks. Several counts share a number: each is a digit of it, and no sum of
        digits carries."""
        if self._losses != self._exchange.losses:
            self._ranks, self._losses = self._exchange.channel(), self._exchange.losses
        digits = len(self._places)
        padded = [*flags, *[False] * (-len(flags) % digits)]
        own = torch.tensor(padded, dtype=torch.int64, device="cpu").view(-1, digits)
        last = torch.tensor([value], dtype=torch.float32, device="cpu")
        sums = torch.cat([(own * self._places).sum(1).to(torch.float32), last])
        allreduce(self._ranks, sums, **self._options)
        found = sums[:-1].to(torch.int64).unsqueeze(1) // self._places % self._base
        counts: list[int] = found.flatten()[: len(flags)].tolist()
        return counts, float(sums[-1])


def _told_apart(present: Mapping[str, bool], counts: list[int]) -> tuple[list[str], list[int]]:
    return [name for name, n in zip(present, counts, strict=False) if n], counts[len(present) :]
