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
from tersor.torch._src.parameters.memory_order import as_contiguous
from tersor.torch._src.parameters.selection import restore_overflow
from tersor.torch._src.process_group.connections import Connection, Members, chunk_count

Kwargs = dict[str, Any]  # options of a collective
_WORKSPACES = 16  # kept per group
_ABORT_SECONDS = 5.0


def reduction_of(op: object) -> str | None:
    """Returns ``"sum"`` or ``"mean"`` for a reduction of torch.distributed, or None for others."""
    return "sum" if op == ReduceOp.SUM else "mean" if op == ReduceOp.AVG else None


class Call(Work):
    """A queued call and its work handle."""

    def __init__(
        self, entry: Callable[..., Any], output: Tensor, inputs: Sequence[Tensor], kwargs: Kwargs
    ) -> None:
        """``entry``: of ``collectives``. The inputs are joined; without inputs, it is in place."""
        super().__init__()
        self._entry, self._output, self._inputs, self._kwargs = entry, output, inputs, kwargs
        self._error: BaseException | None = None
        self._ended = threading.Event()
        device, on_device = output.device, output.device.type == "cuda"
        devices: Any = [device] if on_device else None
        self._completion: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        self._result = self._completion.then(self._resolve)
        self._ready = torch.cuda.current_stream(device).record_event() if on_device else None

    def perform(self, executor: Executor) -> None:
        """Makes the call, on the executor's thread. Errors go to the work."""
        with executor.after_event(self._ready, (self._output, *self._inputs)):
            try:
                with torch.inference_mode(), as_contiguous(self._output.detach()) as output:
                    values = [_unaliased(self._inputs, output)] if self._inputs else []
                    executor.run(self._entry, (*values, output), self._kwargs)
            except BaseException as error:
                self._error = error
                executor.error = executor.error or error
            self._inputs = ()
            executor.completed += 1  # first, because a waiting thread may end the executor
            self._ended.set()
            self._completion.set_result(None)

    def _resolve(self, _: Any) -> list[Tensor]:
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
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._error is None


def _unaliased(inputs: Sequence[Tensor], output: Tensor) -> Tensor:
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


class Executor:
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
        self.submitted = self.completed = 0  # numbers of calls
        self.error: BaseException | None = None  #: the error of the first failed call
        self.gradient_bytes = self.sent_bytes = 0
        self._end_reason = ""  # the reason

    def submit(self, call: Call) -> Call:
        """Queues a call. Raises TransportError if the group was ended."""
        with self._lock:
            if self._end_reason:
                raise TransportError(self._end_reason)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tersor", daemon=True)
                self._thread.start()
            self.submitted += 1
            self._calls.put(call)
        return call

    def run(self, entry: Callable[..., Any], tensors: tuple[Tensor, ...], kwargs: Kwargs) -> None:
        """Makes a collective call. Calls with equal numbers of values share a workspace."""
        like = tensors[0]
        transport = self.connect().transport(like.device)
        count = kwargs.get("columns", like.numel())
        key = entry, like.device, like.dtype, count, kwargs["codec"], kwargs["reduction"]
        arguments = {**kwargs, "workspace": self._workspace(*key)}
        if entry is collectives.allreduce:
            arguments.setdefault("algorithm", "two-shot")  # sums in f32 for all dtypes
        if "feedback" in arguments:
            arguments["state"] = arguments.pop("feedback")()
        if isinstance(transport, TcpTransport):
            arguments["chunk_count"] = chunk_count(transport.ranks)
        statistics = entry(transport, *tensors, **arguments)
        is_sum = kwargs["reduction"] == "sum" and entry is not collectives.all_to_all
        if is_sum and kwargs["codec"] != "none":
            restore_overflow(tensors[-1])
        self.gradient_bytes += statistics.gradient_bytes
        self.sent_bytes += statistics.sent_bytes

    def connect(self) -> Connection:
        """Connects the ranks before the first call. A collective call."""
        if self._connection is None:
            self._connection = Connection(self._members)
            if self._store.cause:
                self._connection.abort(self._store.cause)
        return self._connection

    @contextlib.contextmanager
    def after_event(self, event: Any, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Queues work on the executor's stream, after ``event``."""
        if event is None:
            yield
            return
        device = tensors[0].device
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(event)
            for one in tensors:
                one.record_stream(stream)
            yield

    def finish(self) -> None:
        """Makes the queued calls, then ends."""
        self._end("the process group was shut down")

    def abort(self, reason: str = "") -> None:
        """Ends all calls on all ranks with a TransportError with the reason."""
        aborted = "the process group was aborted on this rank, or its process ended"
        self._store.cause = reason or aborted
        if self._connection is not None:  # open still, so that other ranks get the reason
            self._connection.abort(self._store.cause)
        self._end(self._store.cause, _ABORT_SECONDS)

    def leave(self, reason: str = "") -> None:
        """Ends with the process. Only ranks that wait for calls of this rank get an error."""
        self.abort(reason) if self.submitted > self.completed else self.finish()

    def _end(self, reason: str, seconds: float | None = None) -> None:
        with self._lock:
            if not self._end_reason:
                self._end_reason = reason
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
