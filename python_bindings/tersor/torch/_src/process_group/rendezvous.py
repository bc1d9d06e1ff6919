"""How the ranks of a process group meet: by words that they leave each other in its store.

A store holds the words of all meetings that it ever had: of transports that were closed, of groups
that were destroyed and made anew. So each meeting has a name, which rank 0 draws; who comes leaves
a call that nobody left before, and finds the name in answer to it.

Whoever reads the store can read the world's secret there, until the last rank has read the secret
and removes it. ``TERSOR_SECRET`` completes that secret by another one, which is in no store.
"""

from __future__ import annotations

import contextlib
import secrets
import time

from tersor._core import TransportError
from tersor.torch._compat import Store

_PAUSES = (0.001, 0.1)  # seconds between two looks into the store, at first and at most
_NO_CALL = "-"
_TELLING_SECONDS = 5.0  # in which rank 0 says why it does not come, to those who have not called


class Meeting:
    """What ``tersor._core.TcpTransport`` takes as a store: good for one transport."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._callers = range(1, ranks) if rank == 0 else range(0)
        self._answered: dict[int, str] = {}  # the last call of each rank
        self._name = f"tersor/{secrets.token_hex(16)}"  # a key that nobody ever had

    def join(self, seconds: float) -> None:
        """Learns the meeting's name. Raises TransportError where rank 0 does not come in time."""
        if self._rank == 0:
            return
        call, self._name = self._name, ""
        self._store.set(_call_of(self._rank), call)
        name = self._find(call, time.monotonic() + seconds)
        self._store.set(_call_of(self._rank), _NO_CALL)  # the next rank 0 is not to answer it
        if name is None:
            raise TransportError(f"rank 0 missed the rendezvous within {seconds:g} s")
        self._name = name
        self._remove(call)

    def set(self, key: str, value: str) -> None:
        """Leaves a word for all who are here."""
        self._store.set(f"{self._name}/{key}", value)

    def get(self, key: str, seconds: float) -> str | None:
        """Waits for a word; None where nobody left it in time.

        Raises TransportError where somebody left the reason why he does not come.
        """
        found = self._find(f"{self._name}/{key}", time.monotonic() + seconds)
        if found is not None:
            self._forget(key)
        return found

    def _forget(self, key: str) -> None:
        """Removes a value that all its readers have read: rank 0, or all ranks but rank 0."""
        word, count = f"{self._name}/{key}", f"{self._name}/{key}/readers"
        if self._rank == 0:
            self._remove(word)
            return
        with contextlib.suppress(RuntimeError):  # some stores do not count
            if self._store.add(count, 1) == self._ranks - 1:
                self._remove(word, count)

    def _remove(self, *keys: str) -> None:
        with contextlib.suppress(RuntimeError):  # some stores keep all keys
            for key in keys:
                self._store.delete_key(key)

    def give_up(self, reason: str) -> None:
        """Tells the others, as far as the store lets it, that this rank does not come."""
        if not self._name:
            return
        with contextlib.suppress(Exception):
            self.set("failure", f"rank {self._rank} gave up the rendezvous: {reason}")
            until = time.monotonic() + _TELLING_SECONDS
            while len(self._answered) < len(self._callers) and time.monotonic() < until:
                self._answer()
                time.sleep(_PAUSES[0])

    def _find(self, key: str, until: float) -> str | None:
        pause, longest = _PAUSES
        while not self._store.check([key]):
            self._answer()
            if self._name and self._store.check([f"{self._name}/failure"]):
                raise TransportError(self._store.get(f"{self._name}/failure").decode())
            if time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, longest)
        return self._store.get(key).decode()

    def _answer(self) -> None:
        """A call may be of a meeting that failed, and a new one come in its place."""
        for rank in self._callers:
            if self._store.check([_call_of(rank)]):
                call = self._store.get(_call_of(rank)).decode()
                if call not in (_NO_CALL, self._answered.get(rank)):
                    self._store.set(call, self._name)
                    self._answered[rank] = call


def _call_of(rank: int) -> str:
    return f"tersor/call-{rank}"
