"""Ranks as threads of this process, over an emulated link: for trying things in a notebook.

>>> import numpy, tersor, tersor.local
>>> def rank(transport):
...     gradient = numpy.full(1000, transport.rank, dtype=numpy.float32)
...     tersor.allreduce(transport, gradient, codec="int8", reduction="mean")
...     return gradient[0]
>>> tersor.local.run(3, rank, link="1Gbit,50us")
[1.0, 1.0, 1.0]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tersor._core import InProcessWorld, InvalidArgument, Transport, TransportError

__all__ = ["InProcessWorld", "run"]

Result = TypeVar("Result")


class _Rank(threading.Thread, Generic[Result]):
    """One rank: its thread, and what came of it."""

    def __init__(self, transport: Transport, function: Callable[[Transport], Result]) -> None:
        super().__init__(name=f"rank {transport.rank}", daemon=True)
        self._transport: Transport | None = transport
        self._function = function
        self.results: list[Result] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        try:
            self.results.append(self._function(transport))
        except BaseException as error:
            self.error = error
            transport.poison(f"rank {transport.rank} raised {type(error).__name__}: {error}")


def run(ranks: int, function: Callable[[Transport], Result], *, link: str = "none") -> list[Result]:
    """Calls ``function(transport)`` once for each rank, each on a thread, and returns the results.

    ``link``: RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. ``"1Gbit,50us"``; waiting
    for it is real. Where a rank raises, the others are told, and the first rank's error is raised
    again here: that of a rank which failed by itself before one that was told.
    """
    if ranks < 1:
        raise InvalidArgument(f"a world has at least one rank, not {ranks}")
    world = InProcessWorld(ranks, link)
    threads = [_Rank(world.transport(rank), function) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _raise_first(threads)
    return [result for thread in threads for result in thread.results]


def _raise_first(threads: list[_Rank[Result]]) -> None:
    """Of several errors the cause, not its echo: ranks that were told raise TransportError."""
    errors = [thread.error for thread in threads if thread.error is not None]
    causes = [error for error in errors if not isinstance(error, TransportError)]
    for error in causes or errors:
        raise error
