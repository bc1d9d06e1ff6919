"""DiLoCo among ranks that are slow or stand still: an exchange waits so long for them and no more.

A thread of each rank has the exchange; its trainer hands over its difference, and takes what comes.
The threads agree every few milliseconds, by one small sum, on what comes next: a rank *calls* once
its difference holds ``every`` inner steps, the others *join* after the inner step they are in, and
when all have or somebody's patience is over all threads exchange, with nothing of who is late. So
all ranks have the same weights in common, whose trainers are behind by what those moved meanwhile.

What calls wait for one another by is a sum over all, since it needs nothing of the ranks' store,
which dies with rank 0, and tells all of them the same of a rank that is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError, RanksLostError, TransportError
from tersor._options import expect
from tersor.torch._src.gradients.exchange import Presence, TensorExchange
from tersor.torch._src.statistics.handles import ElasticReporting
from tersor.torch._src.statistics.records import ParameterStatistics

Result = TypeVar("Result")
_PAUSE_SECONDS = 0.005  # between two sums
_END_SECONDS = 2.0  # for a sum or an exchange that is under way when the interpreter ends
#: What all ranks do together, while their trainers wait.
_KINDS = ("synchronize", "exact state_dict", "portable state_dict", "load_state_dict", "close")


@dataclasses.dataclass(frozen=True)
class Part:
    """What this rank has in an exchange."""

    here: bool = True  #: its trainer waits: its weights may be read and written
    everyone: bool = True  #: so do all others'
    samples: float = 1.0  #: that its difference is of


@dataclasses.dataclass(frozen=True)
class Tasks:
    """What DiLoCo does on the thread."""

    exchange: TensorExchange
    presence: Presence
    together: Callable[[Callable[[], None]], None]
    take_part: Callable[[Part], bool]  #: exchanges; whether any rank had a difference
    weights: Callable[[], Mapping[str, Tensor]]  #: the trainer's


@dataclasses.dataclass
class _Asked:
    """By a trainer that waits until all do so."""

    kind: str
    work: Callable[[], Any]
    result: Any = None
    error: Exception | None = None
    done: bool = False


def check_grace(grace: float, fragments: int, delay: int) -> None:
    """Raises InvalidArgumentError for what does not go together."""
    expect(grace, (float, int), "grace must be a number of seconds")
    if not 0 <= grace < math.inf:
        raise InvalidArgumentError(f"grace={grace}: give seconds, 0 or more")
    if fragments > 1 or delay > 0:
        raise InvalidArgumentError(
            f"grace={grace} with fragments={fragments} and delay={delay}: grace cannot be combined "
            "with fragments or delay, which need the same step numbers on all ranks"
        )


def check_state(state: dict[str, Any] | None, grace: Grace | None) -> dict[str, Any]:
    """Of a checkpoint. Raises InvalidArgumentError where it is of a late rank, and nobody may
    be."""
    if grace is None and state and state["moved"]:
        raise InvalidArgumentError(
            "the state is of a late rank with older weights: load it with grace="
        )
    return state or {"steps": 0, "samples": 0.0, "moved": {}}


class Grace:
    """A rank's thread, and what its trainer asks of it."""

    def __init__(self, tasks: Tasks, every: int, seconds: float) -> None:
        """A collective call."""
        self.steps = 0  #: that this rank's difference holds, and of how many samples they were
        self.samples = 0.0
        self.moved: dict[str, Tensor] = {}  #: by what the trainer's weights are behind
        self.busy = threading.Lock()  #: of whom uses the reducer
        self._tasks, self._every, self._seconds = tasks, every, seconds
        self._state = threading.Condition()
        self._waits = False  # the trainer handed its difference over
        self._called = False  # by some rank
        self._patience = math.inf  # until then it may take
        self._asked: _Asked | None = None
        self._error: Exception | None = None
        self._ended = False
        cuda = tasks.exchange.device.type == "cuda"
        self._stream = torch.cuda.Stream(tasks.exchange.device) if cuda else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._run, name="tersor DiLoCo", daemon=True)
        _running.add(self)
        self._thread.start()

    # The trainer's side.

    def step(self, samples: float) -> bool:
        """Counts an inner step, and joins if there is a call. Returns whether weights changed."""
        with self._state:
            self._check()
            self.steps += 1
            self.samples += samples
            changed = self._catch_up()
            if not (self._called or self._is_due()):
                return changed
            self._hand_over()
            self._waits = True
            self._wait_while(lambda: self._waits)
            self._catch_up()
            return True

    def synchronize(self) -> None:
        """An exchange for which all ranks wait, however long it takes."""
        self.ask(_KINDS[0], lambda: self._exchange(Part(samples=self.samples)))

    def ask(self, kind: str, work: Callable[[], Result]) -> Result:
        """What ``work`` returns, done on all ranks at once when all have asked for it."""
        with self._state:
            if self._ended and kind != _KINDS[0]:
                return work()
            self._check()
            asked = self._asked = _Asked(kind, work)
            self._hand_over()
            try:
                self._wait_while(lambda: not asked.done)
            finally:
                self._asked = None
        if asked.error is not None:
            raise asked.error
        result: Result = asked.result
        return result

    def resume(self) -> None:
        """After RanksLostError, for which the thread stands still."""
        with self.busy:
            self._tasks.exchange.resume()
        with self._state:
            self._error = None
            self._state.notify_all()

    def close(self) -> None:
        """Ends the threads, of all ranks together."""
        if not self._ended and self._error is None:
            with contextlib.suppress(TransportError):  # of who ended before
                self.ask("close", lambda: None)
        self._end()
        self._thread.join()

    def fall_behind(self, by: Mapping[str, Tensor]) -> None:
        """The weights in common moved by so much, and the trainer is late."""
        with self._state:
            for name, one in by.items():
                self.moved[name] = self.moved[name] + one if name in self.moved else one

    def state(self) -> dict[str, Any]:
        """Of what this rank has trained since it took part last, and what it is behind by."""
        moved = {name: one.clone() for name, one in self.moved.items()}
        return {"steps": self.steps, "samples": self.samples, "moved": moved}

    def load(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """What ``state`` gave; ``like``: where tensors of these names lie."""
        self.steps, self.samples = state["steps"], state["samples"]
        self.moved = {n: one.to(like[n].device, copy=True) for n, one in state["moved"].items()}

    def follow_now(self) -> None:
        """On the thread, while the trainer waits."""
        if self.moved:
            weights = self._tasks.weights()
            for name, one in self.moved.items():
                weights[name].add_(one)
        self.moved = {}

    def abandon(self) -> None:
        """Ends this rank's thread: the interpreter ends, and the others go on without it."""
        self._end()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._tasks.presence.poison("this rank's training has ended")
            self._thread.join(_END_SECONDS)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise InvalidArgumentError("this DiLoCo was closed: make another one")

    def _is_due(self) -> bool:
        return self.steps >= self._every

    def _catch_up(self) -> bool:
        behind = bool(self.moved)
        if behind:
            self._give_back()
            self.follow_now()
            self._hand_over()  # memory that is free again is the thread's
        return behind

    def _wait_while(self, waiting: Callable[[], bool]) -> None:
        self._state.notify_all()
        self._state.wait_for(lambda: self._error is not None or self._ended or not waiting())
        if waiting():
            self._check()
        self._give_back()

    def _hand_over(self) -> None:
        """What the thread queues from now on waits for what the trainer has."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def _give_back(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    # The thread's side.

    def _run(self) -> None:
        with torch.no_grad(), self._on_device():
            while not self._ended:
                try:
                    with self.busy:
                        self._tasks.together(self._turn)
                except RanksLostError as lost:
                    self._stand_still(lost)
                except Exception as error:
                    return self._fail(error)
                with self._state:
                    self._state.wait(_PAUSE_SECONDS)

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
                yield

    def _turn(self) -> None:
        """One sum, and what all find in it. Done again from here where ranks are lost."""
        with self._state:
            asked = self._asked
            joins = self._waits or (asked is not None and asked.kind == _KINDS[0])
            calls = self._waits and self._is_due()
            if calls:
                self._begin_patience()
            over = time.monotonic() >= self._patience
        flags = [calls, joins, over, *(asked is not None and asked.kind == one for one in _KINDS)]
        calling, joining, impatient, *asking = self._tasks.presence.counts(flags)
        ranks = self._tasks.exchange.ranks
        if asked is not None and sum(asking) == ranks:
            self._answer(asked, alike=max(asking) == ranks)
        elif calling and (joining == ranks or impatient):
            self._exchange(Part(joins, joining == ranks, self.samples if joins else 0.0))
        else:
            self._note(called=calling > 0)

    def _begin_patience(self) -> None:
        self._patience = min(self._patience, time.monotonic() + self._seconds)

    def _note(self, *, called: bool) -> None:
        with self._state:
            self._called = called
            if called:
                return self._begin_patience()
            self._patience = math.inf
            if not self._is_due():  # whoever called is gone
                self._release()

    def _exchange(self, part: Part) -> None:
        if self._tasks.take_part(part) and part.here:
            self.steps, self.samples = 0, 0.0
        with self._state:
            self._called, self._patience = False, math.inf
            self._release()

    def _release(self) -> None:
        self._waits = False
        self._state.notify_all()

    def _answer(self, asked: _Asked, *, alike: bool) -> None:
        try:
            if not alike:
                raise InvalidArgumentError(
                    f"{asked.kind}: other ranks call something else ({', '.join(_KINDS)}); with "
                    "grace all ranks make these calls together"
                )
            asked.result = asked.work()
        except TransportError as error:
            if asked.kind != _KINDS[0]:  # which is done again
                asked.error, asked.done = error, True
            raise
        except InvalidArgumentError as error:
            asked.error = error
        with self._state:
            asked.done, self._asked = True, None
            self._ended = asked.kind == "close" and asked.error is None
            self._state.notify_all()

    def _stand_still(self, lost: RanksLostError) -> None:
        """Until the trainer has heard of it and resumed."""
        with self._state:
            self._error, self._called, self._patience = lost, False, math.inf
            self._release()
            self._state.wait_for(lambda: self._error is None or self._ended)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, TransportError):  # the others would wait
            self._tasks.presence.poison(f"DiLoCo's exchange ended: {error}")
        with self._state:
            self._error = error
            self._release()

    def _end(self) -> None:
        with self._state:
            self._ended = True
            self._state.notify_all()


class LateReporting(ElasticReporting):
    """What handles can tell and do whose ranks may be late, too."""

    _grace: Grace | None

    @property
    def held_steps(self) -> int:
        """With ``grace``: inner steps of this rank that no exchange has had yet; else 0."""
        return 0 if self._grace is None else self._grace.steps

    def close(self) -> None:
        """Ends what ``grace`` has going on, on all ranks, who all call it. Without it does nothing.

        The last call of a training, so that no rank takes the others' end for a loss.
        """
        if self._grace is not None:
            self._grace.close()

    def resume(self) -> None:
        super().resume() if self._grace is None else self._grace.resume()

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        with self._alone():
            return super().statistics(residual_norms=residual_norms)

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        with self._alone():
            return super().totals(residual_norms=residual_norms)

    def _alone(self) -> contextlib.AbstractContextManager[object]:
        """No other thread uses the reducer meanwhile."""
        return contextlib.nullcontext() if self._grace is None else self._grace.busy


_running: weakref.WeakSet[Grace] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the transports end, as a thread that wakes in an interpreter's end may crash it."""
    for one in list(_running):
        one.abandon()
