"""The encoded calls of a group: one thread makes the calls in order, over separate connections."""

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
from torch.distributed import ReduceOp, Work

from tersor import collectives
from tersor._core import TcpTransport, TransportError, Workspace
from tersor.torch._src.parameters.memory_order import straightened
from tersor.torch._src.parameters.selection import restore_overflow
from tersor.torch._src.process_group.connections import Connection, Members, chunk_count

Way = dict[str, Any]  # options of a collective
_WORKSPACES = 16  # kept per group
_ABORT_SECONDS = 5.0


def reduction_of(op: object) -> str | None:
    """Returns ``"sum"`` or ``"mean"`` for a reduction of torch.distributed, or None for others."""
    return "sum" if op == ReduceOp.SUM else "mean" if op == ReduceOp.AVG else None


class Call(Work):
    """A queued call and its work handle."""

    def __init__(
        self, entry: Callable[..., Any], output: Tensor, inputs: Sequence[Tensor], way: Way
    ) -> None:
        """``entry``: of ``collectives``. The inputs are joined; without inputs, it is in place."""
        super().__init__()
        self._entry, self._output, self._inputs, self._way = entry, output, inputs, way
        self._error: BaseException | None = None
        self._ended = threading.Event()
        device, on_device = output.device, output.device.type == "cuda"
        devices: Any = [device] if on_device else None
        self._made: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        self._result = self._made.then(self._told)
        self._queued = torch.cuda.current_stream(device).record_event() if on_device else None

    def perform(self, caller: Caller) -> None:
        """Makes the call, on the caller's thread. Errors go to the work."""
        with caller.behind(self._queued, (self._output, *self._inputs)):
            try:
                with torch.inference_mode(), straightened(self._output.detach()) as output:
                    values = [_apart(self._inputs, output)] if self._inputs else []
                    caller.run(self._entry, (*values, output), self._way)
            except BaseException as error:
                self._error = error
                caller.error = caller.error or error
            self._inputs = ()
            caller.made += 1  # before the event, because a waiting thread may end the caller
            self._ended.set()
            self._made.set_result(None)

    def _told(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return [self._output]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the call, and raises its error; TransportError after the timeout."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise TransportError(f"the call did not end within {timeout.total_seconds():g} s")
        try:
            self._result.wait()  # on a device the current stream does
        except Exception as error:  # without the original type
            raise self._error or error from None
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Returns the future with the output, or with the call's error."""
        return self._result

    def is_completed(self) -> bool:
        """True if the call has ended."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """True if the call has raised no error."""
        return self._error is None


def _apart(inputs: Sequence[Tensor], output: Tensor) -> Tensor:
    """Returns the contiguous values of all inputs, in other memory than the output's."""
    if len(inputs) > 1:
        return torch.cat([one.detach().reshape(-1) for one in inputs])
    values = inputs[0].detach().contiguous()
    shared = values.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return values.clone() if shared else values


class _Store:
    """The group's store. With a cause, every use raises TransportError and ends a rendezvous."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.cause = ""

    def __getattr__(self, name: str) -> Any:
        if self.cause:
            raise TransportError(self.cause)
        return getattr(self._store, name)


class Caller:
    """The thread and the connections of a group. Both start with the first call."""

    def __init__(self, members: Members) -> None:
        self._store = _Store(members.store)
        self._members = dataclasses.replace(members, store=self._store)
        self._connection: Connection | None = None
        self._workspace = functools.lru_cache(_WORKSPACES)(lambda *_: Workspace())
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.taken = self.made = 0  # numbers of calls
        self.error: BaseException | None = None  #: the error of the first failed call
        self.gradient_bytes = self.sent_bytes = 0
        self._ended = ""  # the reason

    def take(self, call: Call) -> Call:
        """Queues a call. Raises TransportError if the group was ended."""
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
        """Makes a collective call. Calls with equal numbers of values share a workspace."""
        like = tensors[0]
        transport = self.connect().of(like.device)
        count = way.get("columns", like.numel())
        same = entry, like.device, like.dtype, count, way["codec"], way["reduction"]
        told = {**way, "workspace": self._workspace(*same)}
        if entry is collectives.allreduce:
            told.setdefault("algorithm", "two-shot")  # sums in f32 for all dtypes
        if "feedback" in told:
            told["state"] = told.pop("feedback")()
        if isinstance(transport, TcpTransport):
            told["chunk_count"] = chunk_count(transport.ranks)
        done = entry(transport, *tensors, **told)
        is_sum = way["reduction"] == "sum" and entry is not collectives.all_to_all
        if is_sum and way["codec"] != "none":
            restore_overflow(tensors[-1])
        self.gradient_bytes += done.gradient_bytes
        self.sent_bytes += done.sent_bytes

    def connect(self) -> Connection:
        """Connects the ranks before the first call. A collective call."""
        if self._connection is None:
            self._connection = Connection(self._members)
            if self._store.cause:
                self._connection.abort(self._store.cause)
        return self._connection

    @contextlib.contextmanager
    def behind(self, queued: Any, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Queues work on the caller's stream, after the event ``queued``."""
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
        """Makes the queued calls, then ends."""
        self._end("the process group was shut down")

    def abort(self, why: str = "") -> None:
        """Ends all calls on all ranks with a TransportError with the reason."""
        aborted = "the process group was aborted on this rank, or its process ended"
        self._store.cause = why or aborted
        if self._connection is not None:  # open still, so that other ranks get the reason
            self._connection.abort(self._store.cause)
        self._end(self._store.cause, _ABORT_SECONDS)

    def leave(self, why: str = "") -> None:
        """Ends with the process. Only ranks that wait for calls of this rank get an error."""
        self.abort(why) if self.taken > self.made else self.finish()

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
                del call  # frees the tensors while this waits for the next call
        finally:
            self._workspace.cache_clear()
            if self._connection is not None:
                self._connection.close()
