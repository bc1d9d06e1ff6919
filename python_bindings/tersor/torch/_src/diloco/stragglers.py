"""Late ranks in DiLoCo: an exchange waits for ``straggler_timeout`` and continues without them.

On each rank, a thread runs the exchanges; the training thread hands over its difference and takes
the new weights. The threads agree every few milliseconds, by a small sum, on the next action: a
rank *calls* once its difference holds ``sync_every`` inner steps; the others *join* after their
current inner step. When all have joined, or the timeout of a caller has passed, all threads
exchange. Late ranks contribute nothing. All ranks therefore have the same common weights, and the
model of a late rank is behind by the sum of the missed updates.

The agreement is a sum over all ranks because a store would fail with rank 0,
and because all ranks learn of a lost rank in the same sum.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError, RanksLostError, TransportError
from tersor._options import expect
from tersor.torch._src.diloco.fragments import SyncSchedule
from tersor.torch._src.gradients.exchange import Presence, Result, TensorExchange

_PAUSE_SECONDS = 0.005  # between two sums
_END_SECONDS = 2.0  # for a sum or an exchange under way when the interpreter ends
#: Calls of all ranks together, during which training waits.
_CALLS = ("synchronize", "exact state_dict", "portable state_dict", "load_state_dict", "close")


@dataclasses.dataclass(frozen=True)
class Role:
    """This rank's part in an exchange."""

    present: bool = True  #: True if the training thread waits: its weights may be read and written
    all_present: bool = True  #: True if ``present`` is True on all ranks
    samples: float = 1.0  #: the number of samples in the difference


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The functions of DiLoCo that the thread calls."""

    exchange: TensorExchange
    presence: Presence
    run_elastic: Callable[[Callable[[], None]], None]
    run_exchange: Callable[[Role], bool]  #: exchanges; returns True if a rank had a difference
    weights: Callable[[], Mapping[str, Tensor]]  #: of this rank


@dataclasses.dataclass
class _Call:
    """A call of the training thread that waits until all ranks call."""

    kind: str
    work: Callable[[], Any]
    result: Any = None
    error: Exception | None = None
    done: bool = False


def check_timeout(seconds: float, schedule: SyncSchedule) -> None:
    """Raises InvalidArgumentError for a timeout out of range, or with fragments or a delay."""
    expect(seconds, (float, int), "straggler_timeout must be a number of seconds")
    if not 0 <= seconds < math.inf:
        raise InvalidArgumentError(f"straggler_timeout={seconds}: give seconds, 0 or more")
    fragments, delay = schedule.fragments, schedule.fragment_sync_delay
    if fragments > 1 or delay > 0:
        raise InvalidArgumentError(
            f"straggler_timeout={seconds} with fragments={fragments} and "
            f"fragment_sync_delay={delay}: fragments and delays need the same step numbers on all "
            "ranks; leave out straggler_timeout, or both others"
        )


def check_state(state: dict[str, Any] | None, may_be_late: bool) -> dict[str, Any]:
    """The entry of a checkpoint. Raises InvalidArgumentError if the entry is of a late rank and
    ranks may not be late."""
    if state and state["moved"] and not may_be_late:
        raise InvalidArgumentError(
            "the state is of a late rank with older weights: load it with straggler_timeout="
        )
    return state or {"steps": 0, "samples": 0.0, "moved": {}}


class Stragglers:
    """A rank's thread, and the calls of the training thread."""

    def __init__(self, tasks: Tasks, sync_every: int, timeout: float) -> None:
        """A collective call."""
        self.steps = 0  #: inner steps in this rank's difference
        self.samples = 0.0  #: samples in this rank's difference
        self.missed: dict[str, Tensor] = {}  #: updates that this rank's weights lack
        self.lock = threading.Lock()  #: held by the user of the reducer
        self._tasks, self._sync_every, self._timeout = tasks, sync_every, timeout
        self._condition = threading.Condition()
        self._training_waits = False  # the training thread waits in ``step``
        self._called = False  # by some rank
        self._deadline = math.inf  # of the exchange that a rank called
        self._call: _Call | None = None
        self._error: Exception | None = None
        self._ended = False
        cuda = tasks.exchange.device.type == "cuda"
        self._stream = torch.cuda.Stream(tasks.exchange.device) if cuda else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._run, name="tersor DiLoCo", daemon=True)
        _running.add(self)
        self._thread.start()

    # Calls of the training thread.

    def step(self, samples: float) -> bool:
        """Counts an inner step and joins a called exchange. Returns True if weights changed."""
        with self._condition:
            self._check()
            self.steps += 1
            self.samples += samples
            changed = self._catch_up()
            if not (self._called or self._is_due()):
                return changed
            self._order_after_training()
            self._training_waits = True
            self._wait_while(lambda: self._training_waits)
            self._catch_up()
            return True

    def synchronize(self) -> None:
        """An exchange that waits for all ranks without a timeout."""
        self.call(_CALLS[0], lambda: self._exchange(Role(samples=self.samples)))

    def call(self, kind: str, work: Callable[[], Result]) -> Result:
        """Runs ``work`` on all ranks at once when all ranks have asked, and returns its result."""
        with self._condition:
            if self._ended and kind != _CALLS[0]:
                return work()
            self._check()
            call = self._call = _Call(kind, work)
            self._order_after_training()
            try:
                self._wait_while(lambda: not call.done)
            finally:
                self._call = None
        if call.error is not None:
            raise call.error
        return cast(Result, call.result)

    def resume(self) -> None:
        """Continues after RanksLostError, which paused the thread."""
        with self.lock:
            self._tasks.exchange.resume()
        with self._condition:
            self._error = None
            self._condition.notify_all()

    def close(self) -> None:
        """Ends the threads of all ranks together."""
        if not self._ended and self._error is None:
            with contextlib.suppress(TransportError):  # a rank ended before
                self.call("close", lambda: None)
        self._end()
        self._thread.join()

    def add_missed(self, by: Mapping[str, Tensor]) -> None:
        """Notes an update of the common weights that the late rank lacks."""
        with self._condition:
            for name, one in by.items():
                self.missed[name] = self.missed[name] + one if name in self.missed else one

    def state(self) -> dict[str, Any]:
        """The steps since this rank's last exchange, and its missing updates."""
        moved = {name: one.clone() for name, one in self.missed.items()}
        return {"steps": self.steps, "samples": self.samples, "moved": moved}

    def load(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Loads the result of ``state``, to the devices of the tensors ``like``."""
        self.steps, self.samples = state["steps"], state["samples"]
        self.missed = {n: one.to(like[n].device, copy=True) for n, one in state["moved"].items()}

    def apply_missed(self) -> None:
        """Applies the missing updates, while the training thread waits."""
        if self.missed:
            weights = self._tasks.weights()
            for name, one in self.missed.items():
                weights[name].add_(one)
        self.missed = {}

    def abandon(self) -> None:
        """Ends this rank's thread at the end of the interpreter; other ranks continue."""
        self._end()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._tasks.presence.abort("this rank's training has ended")
            self._thread.join(_END_SECONDS)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise InvalidArgumentError("this DiLoCo was closed: make another DiLoCo")

    def _is_due(self) -> bool:
        return self.steps >= self._sync_every

    def _catch_up(self) -> bool:
        behind = bool(self.missed)
        if behind:
            self._order_after_thread()
            self.apply_missed()
            self._order_after_training()  # the thread may reuse the freed memory
        return behind

    def _wait_while(self, waiting: Callable[[], bool]) -> None:
        self._condition.notify_all()
        self._condition.wait_for(lambda: self._error is not None or self._ended or not waiting())
        if waiting():
            self._check()
        self._order_after_thread()

    def _order_after_training(self) -> None:
        """Makes later work of the thread wait for the training thread's queued work."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def _order_after_thread(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    # The thread.

    def _run(self) -> None:
        stream = self._stream
        on_device = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
        with torch.no_grad(), on_device:
            while not self._ended:
                try:
                    with self.lock:
                        self._tasks.run_elastic(self._poll)
                except RanksLostError as lost:
                    self._pause(lost)
                except Exception as error:
                    return self._fail(error)
                with self._condition:
                    self._condition.wait(_PAUSE_SECONDS)

    def _poll(self) -> None:
        """One sum and the action that all ranks derive from the sum. Repeated if ranks are lost."""
        with self._condition:
            call = self._call
            joins = self._training_waits or (call is not None and call.kind == _CALLS[0])
            calls = self._training_waits and self._is_due()
            if calls:
                self._begin_timeout()
            expired = time.monotonic() >= self._deadline
        flags = [calls, joins, expired, *(call is not None and call.kind == one for one in _CALLS)]
        calling, joining, timed_out, *asking = self._tasks.presence.counts(flags)
        ranks = self._tasks.exchange.ranks
        if call is not None and sum(asking) == ranks:
            self._run_call(call, same_kind=max(asking) == ranks)
        elif calling and (joining == ranks or timed_out):
            self._exchange(Role(joins, joining == ranks, self.samples if joins else 0.0))
        else:
            self._set_called(called=calling > 0)

    def _begin_timeout(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._timeout)

    def _set_called(self, *, called: bool) -> None:
        with self._condition:
            self._called = called
            if called:
                return self._begin_timeout()
            self._deadline = math.inf
            if not self._is_due():  # the calling rank is lost
                self._resume_training()

    def _exchange(self, role: Role) -> None:
        if self._tasks.run_exchange(role) and role.present:
            self.steps, self.samples = 0, 0.0
        with self._condition:
            self._called, self._deadline = False, math.inf
            self._resume_training()

    def _resume_training(self) -> None:
        self._training_waits = False
        self._condition.notify_all()

    def _run_call(self, call: _Call, *, same_kind: bool) -> None:
        try:
            if not same_kind:
                raise InvalidArgumentError(
                    f"{call.kind}: other ranks make another call ({', '.join(_CALLS)}); with "
                    "straggler_timeout, all ranks make these calls together"
                )
            call.result = call.work()
        except TransportError as error:
            if call.kind != _CALLS[0]:  # a synchronize is repeated
                call.error, call.done = error, True
            raise
        except InvalidArgumentError as error:
            call.error = error
        with self._condition:
            call.done, self._call = True, None
            self._ended = call.kind == "close" and call.error is None
            self._condition.notify_all()

    def _pause(self, lost: RanksLostError) -> None:
        """Waits until the training thread has received the error and called ``resume``."""
        with self._condition:
            self._error, self._called, self._deadline = lost, False, math.inf
            self._resume_training()
            self._condition.wait_for(lambda: self._error is None or self._ended)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, TransportError):  # the other ranks would wait
            self._tasks.presence.abort(f"DiLoCo's exchange ended: {error}")
        with self._condition:
            self._error = error
            self._resume_training()

    def _end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()


_running: weakref.WeakSet[Stragglers] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the transports end: a thread that wakes at the interpreter's end may crash."""
    for one in list(_running):
        one.abandon()
