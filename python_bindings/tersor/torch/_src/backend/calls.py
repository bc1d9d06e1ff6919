"""A group's encoded calls: one thread makes them, in order, over connections of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from tersor import collectives
from tersor._core import TcpTransport, TransportError, Workspace
from tersor.torch._src.parameters.memory_order import straightened
from tersor.torch._src.process_group.connections import Connection, Members, chunk_count

Way = dict[str, Any]  # options of a collective
_WORKSPACES = 16  # that are kept
_ABORT_SECONDS = 5.0


class Call(Work):
    """What is to be done, and the handle of who waits for it."""

    def __init__(
        self, entry: Callable[..., Any], output: Tensor, inputs: Sequence[Tensor], way: Way
    ) -> None:
        """``entry``: of ``collectives``, whose ``inputs`` go together; none: ``output`` is it."""
        super().__init__()
        self._entry, self._output, self._inputs, self._way = entry, output, inputs, way
        self._error: BaseException | None = None
        self._ended = threading.Event()
        device, on_device = output.device, output.device.type == "cuda"
        self._made: torch.futures.Future[None] = torch.futures.Future(
            devices=[device] if on_device else None
        )
        self._result = self._made.then(self._told)
        self._queued = torch.cuda.current_stream(device).record_event() if on_device else None

    def perform(self, caller: Caller) -> None:
        """Once, on the caller's thread; raises nothing."""
        with caller.behind(self._queued, (self._output, *self._inputs)):
            try:
                with torch.inference_mode(), straightened(self._output.detach()) as output:
                    values = [_apart(self._inputs, output)] if self._inputs else []
                    caller.run(self._entry, (*values, output), self._way)
            except BaseException as error:
                self._error = error
                caller.error = caller.error or error
            self._inputs = ()
            caller.made += 1  # who waits for it may end the caller at once
            self._ended.set()
            self._made.set_result(None)

    def _told(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return [self._output]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Raises what the call raised; TransportError where it did not end in time."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise TransportError(f"the call did not end within {timeout.total_seconds():g} s")
        try:
            self._result.wait()  # on a device the current stream does
        except Exception as error:  # has lost its type
            raise self._error or error from None
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self._result

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._error is None


def _apart(inputs: Sequence[Tensor], output: Tensor) -> Tensor:
    """Contiguous values of all inputs, which do not share the output's memory."""
    if len(inputs) > 1:
        return torch.cat([one.detach().reshape(-1) for one in inputs])
    values = inputs[0].detach().contiguous()
    shared = values.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return values.clone() if shared else values


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
        self._workspace = functools.lru_cache(_WORKSPACES)(lambda *_: Workspace())
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.taken = self.made = 0  # calls
        self.error: BaseException | None = None  #: what the first call that failed raised
        self.gradient_bytes = self.sent_bytes = 0
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

    def run(self, entry: Callable[..., Any], tensors: tuple[Tensor, ...], way: Way) -> None:
        """One collective, whose buffers are known again by its values, or those of its rows."""
        like = tensors[0]
        transport = self.connect().of(like.device)
        count = way.get("columns", like.numel())
        same = entry, like.device, like.dtype, count, way["codec"], way["reduction"]
        told = {**way, "workspace": self._workspace(*same)}
        if entry is collectives.allreduce:
            told.setdefault("algorithm", "two-shot")  # sums in f32, whatever the values are
        if "feedback" in told:
            told["state"] = told.pop("feedback")()
        if isinstance(transport, TcpTransport):
            told["chunk_count"] = chunk_count(transport.ranks)
        done = entry(transport, *tensors, **told)
        self.gradient_bytes += done.gradient_bytes
        self.sent_bytes += done.sent_bytes

    def connect(self) -> Connection:
        """Before the first call, which does it else; collective."""
        if self._connection is None:
            self._connection = Connection(self._members)
            if self._store.cause:
                self._connection.poison(self._store.cause)
        return self._connection

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

    def abort(self, why: str = "") -> None:
        """Ends with what was taken, on all ranks, by TransportError that says why."""
        aborted = "the process group was aborted on this rank, or its process ended"
        self._store.cause = why or aborted
        if self._connection is not None:  # before its thread closes it, so that others hear why
            self._connection.poison(self._store.cause)
        self._end(self._store.cause, _ABORT_SECONDS)

    def leave(self, why: str = "") -> None:
        """Ends as the process does: nobody else hears of it but those who wait for its calls."""
        if self.taken > self.made:
            self.abort(why)
        else:
            self.finish()

    def _end(self, why: str, seconds: float | None = None) -> None:
        with self._lock:
            if not self._ended:
                self._ended = why
                self._calls.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        try:
            for call in iter(self._calls.get, None):
                call.perform(self)
                del call  # nor what it made is kept while this waits for the next
        finally:
            self._workspace.cache_clear()
            if self._connection is not None:
                self._connection.close()
