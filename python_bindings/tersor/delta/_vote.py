"""A vote of all ranks: an error of one rank becomes an error on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tersor._core import BaseMismatchError, Error, InvalidArgumentError, Transport, WireError
from tersor.collectives import gather_texts

EXACT = "entropy"  # the codec of bytes; "none" changes the bits of NaNs
_ERRORS: dict[str, type[Error]] = {
    one.__name__: one for one in (BaseMismatchError, InvalidArgumentError, WireError)
}


Result = TypeVar("Result")


def on_all_ranks(
    transport: Transport | None, call: Callable[[], Result], label: str, timeout: float
) -> Result:
    """Returns the result of a call, if the call succeeds and has the same label on all ranks.
    Otherwise raises the error of the lowest rank with an error, with the number of that rank.
    Without a transport, and after an interrupt, raises the own error."""
    if transport is None:
        return call()
    error: BaseException | None = None
    try:
        result = call()
    except BaseException as raised:
        error = raised
    kind = "" if error is None else type(error).__name__
    own = "\x1f".join((kind, label.replace("\x1f", " "), str(error)))
    votes = [text.split("\x1f", 2) for text in gather_texts(transport, own, timeout)]
    if error is not None and not isinstance(error, Exception):
        raise error
    for rank, (kind, _, text) in enumerate(votes):
        if kind:
            failure = _ERRORS.get(kind, Error)(f"rank {rank}: {text or kind}")
            raise failure from error if rank == transport.rank else None
    for rank, (_, other, _) in enumerate(votes):
        if other != votes[0][1]:
            raise InvalidArgumentError(
                f"delta: rank {rank} has {other or 'no version'}, "
                f"rank 0 has {votes[0][1] or 'no version'}"
            )
    return result
