"""A group's encoded calls: one thread makes them, in order, over connections of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import Work

from tersor import collectives
from tersor._core import TcpTransport, Transport, TransportError, Workspace
from tersor.torch.group import Connection, Members, chunk_count

__all__ = ["Call", "Caller", "Way", "mend_handles"]

Way = dict[str, Any]  # options of a collective
_WORKSPACES = 16  # that are kept
_ABORT_SECONDS = 5.0


class Call(Work):
    """What is to be done, and the handle of who waits for it."""

    def __init__(
        self,
        make: Callable[[Caller], None],
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor] = (),
    ) -> None:
        super().__init__()
        self._make: Callable[[Caller], None] | None = make
        self._outputs = list(outputs)
        self._inputs = inputs
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self.device = outputs[0].device
        on_device = self.device.type == "cuda"
        self._made: torch.futures.Future[None] = torch.futures.Future(
            devices=[self.device] if on_device else None
        )
        self._result = self._made.then(self._told)
        self.queued = torch.cuda.current_stream(self.device).record_event() if on_device else None

    def perform(self, caller: Caller) -> None:
        """Once, on the caller's thread; raises nothing."""
        make, self._make = self._make, None
        assert make is not None
        with caller.behind(self.queued, (*self._outputs, *self._inputs)):
            try:
                with torch.inference_mode():
                    make(caller)
            except BaseException as error:
                self._error = error
            self._inputs = ()
            caller.made += 1  # who waits for it may end the caller at once
            self._ended.set()
            self._made.set_result(None)

    def _told(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Raises what the call raised; TransportError where it did not end in time."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise TransportError(f"the call did not end within {timeout.total_seconds():g} s")
        if self._error is None:
            self._result.wait()  # on a device the current stream does
            return True
        with contextlib.suppress(Exception):
            self._result.wait()  # so that the handle says it, too
        raise self._error

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self._result

    def is_completed(self) -> bool:
        return self._ended.is_set()


class _Store:
    """The group's store, until there is a cause to give up a meeting."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.cause = ""

    def __getattr__(self, name: str) -> Any:
        if self.cause:
            raise TransportError(self.cause)
        return getattr(self._store, name)


class Caller:
    """The thread of a group, which begins with the first call; so do the connections."""

    def __init__(self, members: Members) -> None:
        self._store = _Store(members.store)
        self._members = dataclasses.replace(members, store=self._store)
        self._connection: Connection | None = None
        self._workspaces: dict[Any, Workspace] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.taken = self.made = 0  # calls
        self._ended = ""  # why

    def take(self, call: Call) -> Call:
        """Queues a call. Raises TransportError where the group was ended."""
        with self._lock:
            if self._ended:
                raise TransportError(self._ended)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tersor", daemon=True)
                self._thread.start()
            self.taken += 1
            self._calls.put(call)
        return call

    def run(
        self, entry: Callable[..., Any], arguments: tuple[Any, ...], count: int, way: Way
    ) -> None:
        """One collective. ``count``: values, or of a row, by which its buffers are known again."""
        like = arguments[0]
        transport = self._transport(like.device)
        key = (entry, like.device, like.dtype, count, way["codec"], way.get("reduction"))
        told = {**way, "workspace": self._workspace(key)}
        if entry is collectives.allreduce:
            told["algorithm"] = "two-shot"  # sums in f32, whatever the values are
        if isinstance(transport, TcpTransport):
            told["chunk_count"] = chunk_count(transport.ranks)
        entry(transport, *arguments, **told)

    def _transport(self, device: torch.device) -> Transport:
        if self._connection is None:
            self._connection = Connection(self._members)
            if self._store.cause:
                self._connection.poison(self._store.cause)
        return self._connection.of(device)

    def _workspace(self, key: Any) -> Workspace:
        if key not in self._workspaces:
            if len(self._workspaces) >= _WORKSPACES:
                self._workspaces.clear()
            self._workspaces[key] = Workspace()
        return self._workspaces[key]

    @contextlib.contextmanager
    def behind(self, queued: Any, tensors: Sequence[Tensor]) -> Iterator[None]:
        """What is queued within comes after ``queued``, on a stream of the caller's."""
        if queued is None:
            yield
            return
        device = tensors[0].device
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(queued)
            for one in tensors:
                one.record_stream(stream)
            yield

    def finish(self) -> None:
        """Makes what was taken, then ends."""
        self._end("the process group was shut down")
        if self._thread is not None:
            self._thread.join()

    def abort(self) -> None:
        """Ends with what was taken, on all ranks, by TransportError."""
        self._store.cause = "the process group was aborted on this rank, or its process ended"
        if self._connection is not None:  # before its thread closes it, so that others hear why
            self._connection.poison(self._store.cause)
        self._end(self._store.cause)
        if self._thread is not None:
            self._thread.join(_ABORT_SECONDS)

    def leave(self) -> None:
        """Ends as the process does: nobody else hears of it but those who wait for its calls."""
        if self.taken > self.made:
            self.abort()
        else:
            self.finish()

    def _end(self, why: str) -> None:
        with self._lock:
            if not self._ended:
                self._ended = why
                self._calls.put(None)

    def _serve(self) -> None:
        try:
            while self._serve_one():
                pass
        finally:
            self._workspaces.clear()
            if self._connection is not None:
                self._connection.close()

    def _serve_one(self) -> bool:
        """What it made is not kept while it waits for the next."""
        call = self._calls.get()
        if call is not None:
            call.perform(self)
        return call is not None


_is_completed, _is_success = Work.is_completed, Work.is_success


def mend_handles() -> None:
    """Has ``Work.is_completed`` and ``is_success`` ask the futures of works in Python, too.

    PyTorch 2.15 wraps what a back end in Python returns and asks it for ``wait`` and
    ``get_future`` alone: the others' answers would be "no" and "yes" for ever.
    """
    handles = cast(Any, Work)
    handles.is_completed = lambda work: _is_completed(work) or _future_says(work, ended=True)
    handles.is_success = lambda work: _is_success(work) and not _future_says(work, ended=False)


def _future_says(work: Work, *, ended: bool) -> bool:
    """Whether a work has ended, or has failed."""
    try:
        future = work.get_future()
    except RuntimeError:  # this one has none
        return False
    if ended or not future.done():
        return bool(ended and future.done())
    try:
        future.wait()
    except Exception:
        return True
    return False
