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
from typing import TypeVar

from tersor._core import InProcessWorld, InvalidArgumentError, Transport, TransportError

__all__ = ["InProcessWorld", "run"]

Result = TypeVar("Result")


def run(ranks: int, function: Callable[[Transport], Result], *, link: str = "none") -> list[Result]:
    """Calls ``function(transport)`` once for each rank, each on a thread, and returns the results.

    ``link``: RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. ``"1Gbit,50us"``; waiting
    for it is real. Where a rank raises, the others are told, and the first rank's error is raised
    again here: that of a rank which failed by itself before one that was told.
    """
    if ranks < 1:
        raise InvalidArgumentError(f"ranks is {ranks}: give at least 1")
    world = InProcessWorld(ranks, link)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run_one(transport: Transport) -> None:
        try:
            results[transport.rank] = function(transport)
        except BaseException as error:
            errors[transport.rank] = error
            transport.poison(f"rank {transport.rank} raised {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=run_one, args=(world.transport(rank),), daemon=True)
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:  # the cause, not its echo: ranks that were told raise TransportError
        raise errors[min(errors, key=lambda rank: (isinstance(errors[rank], TransportError), rank))]
    return [results[rank] for rank in range(ranks)]
