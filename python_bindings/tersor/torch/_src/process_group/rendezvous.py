"""The rendezvous of the ranks of a process group, through keys in the group's store.

A store keeps the keys of all earlier rendezvous: of closed transports and of destroyed groups.
Therefore rank 0 draws a new name for each rendezvous. Every other rank writes a call with a new
random key, and rank 0 answers with the name.

Readers of the store can read the secret of the transport until the last rank has read and removed
the secret. ``TERSOR_SECRET`` adds a second secret that no store contains.
"""

from __future__ import annotations

import contextlib
import secrets
import time

from tersor._core import TransportError
from tersor.torch._compat import Store

_PAUSES = (0.001, 0.1)  # seconds between two reads of the store, at first and at most
_NO_CALL = "-"
_ANSWER_SECONDS = 5.0  # how long a failed rank 0 answers late calls


class Rendezvous:
    """The store of one ``tersor._core.TcpTransport``."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._callers = range(1, ranks) if rank == 0 else range(0)
        self._answered: dict[int, str] = {}  # the last call of each rank
        self._name = f"tersor/{secrets.token_hex(16)}"  # a new key

    def join(self, seconds: float) -> None:
        """Reads the name of the rendezvous. Raises TransportError if rank 0 is late."""
        if self._rank == 0:
            return
        call, self._name = self._name, ""
        self._store.set(_call_key(self._rank), call)
        name = self._wait_for_key(call, time.monotonic() + seconds)
        self._store.set(_call_key(self._rank), _NO_CALL)  # the next rank 0 must not answer the call
        if name is None:
            raise TransportError(f"rank 0 missed the rendezvous within {seconds:g} s")
        self._name = name
        self._remove(call)

    def set(self, key: str, value: str) -> None:
        """Writes a value for all ranks of the rendezvous."""
        self._store.set(f"{self._name}/{key}", value)

    def get(self, key: str, seconds: float) -> str | None:
        """Waits for a value. Returns None after the time limit. If a rank gave up the rendezvous,
        raises TransportError with the reason."""
        found = self._wait_for_key(f"{self._name}/{key}", time.monotonic() + seconds)
        if found is not None:
            self._remove_after_read(key)
        return found

    def _remove_after_read(self, key: str) -> None:
        """Removes a value that all its readers have read: rank 0, or all ranks but rank 0."""
        value_key, count = f"{self._name}/{key}", f"{self._name}/{key}/readers"
        if self._rank == 0:
            self._remove(value_key)
            return
        with contextlib.suppress(RuntimeError):  # some stores do not count
            if self._store.add(count, 1) == self._ranks - 1:
                self._remove(value_key, count)

    def _remove(self, *keys: str) -> None:
        with contextlib.suppress(RuntimeError):  # some stores keep all keys
            for key in keys:
                self._store.delete_key(key)

    def report_failure(self, reason: str) -> None:
        """Reports the reason to the other ranks, if the store still works."""
        if not self._name:
            return
        with contextlib.suppress(Exception):
            self.set("failure", f"rank {self._rank} gave up the rendezvous: {reason}")
            deadline = time.monotonic() + _ANSWER_SECONDS
            while len(self._answered) < len(self._callers) and time.monotonic() < deadline:
                self._answer()
                time.sleep(_PAUSES[0])

    def _wait_for_key(self, key: str, deadline: float) -> str | None:
        pause, longest = _PAUSES
        while not self._store.check([key]):
            self._answer()
            if self._name and self._store.check([f"{self._name}/failure"]):
                raise TransportError(self._store.get(f"{self._name}/failure").decode())
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, longest)
        return self._store.get(key).decode()

    def _answer(self) -> None:
        """Answers new calls. A rank may call again after a failed rendezvous."""
        for rank in self._callers:
            if self._store.check([_call_key(rank)]):
                call = self._store.get(_call_key(rank)).decode()
                if call not in (_NO_CALL, self._answered.get(rank)):
                    self._store.set(call, self._name)
                    self._answered[rank] = call


def _call_key(rank: int) -> str:
    return f"tersor/call-{rank}"
