"""Ranks as threads of this process, over an emulated link, for experiments in a notebook.

>>> import numpy, tersor, tersor.local
>>> def rank(transport):
...     gradient = numpy.full(1000, transport.rank, dtype=numpy.float32)
...     tersor.allreduce(transport, gradient, codec="int8", reduction="mean")
...     return gradient[0]
>>> tersor.local.run(3, rank, link="1Gbit,50us")
[1.0, 1.0, 1.0]
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from tersor._core import InProcessWorld, Transport, TransportError

__all__ = ["InProcessWorld", "run"]
__dir__ = __all__.copy

Result = TypeVar("Result")


def run(ranks: int, function: Callable[[Transport], Result], *, link: str = "none") -> list[Result]:
    """Calls ``function(transport)`` once per rank, each on a thread.

    If a rank raises, or Ctrl-C interrupts the call, the transports of all ranks are aborted.

    Args:
        ranks: Number of ranks.
        function: Called with the transport of one rank.
        link: ``RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS]``, such as ``"1Gbit,50us"``.
            The delays are real.

    Returns:
        The results in rank order.

    Raises:
        InvalidArgumentError: ``ranks`` is below 1, or ``link`` is invalid.
        BaseException: The error of the first rank that failed. Errors of ranks that another rank
            aborted are raised last.

    Example:
        >>> tersor.local.run(2, lambda transport: transport.rank)
        [0, 1]
    """
    world = InProcessWorld(ranks, link)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run_one(transport: Transport) -> None:
        try:
            results[transport.rank] = function(transport)
        except BaseException as error:
            errors[transport.rank] = error
            reason = f"rank {transport.rank} raised {type(error).__name__}"
            with contextlib.suppress(BaseException):  # __str__ may raise
                reason = f"{reason}: {error}"
            transport.abort(reason)

    own = [(world.transport(rank),) for rank in range(ranks)]
    threads = [threading.Thread(target=run_one, args=one, daemon=True) for one in own]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # such as Ctrl-C
        for (transport,) in own:
            transport.abort(f"run raised {type(error).__name__}")
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(1 / ranks)
        raise
    if errors:  # aborted ranks raise TransportError, so prefer other errors
        raise errors[min(errors, key=lambda rank: (isinstance(errors[rank], TransportError), rank))]
    return [results[rank] for rank in range(ranks)]
