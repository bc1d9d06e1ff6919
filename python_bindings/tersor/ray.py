"""A parameter server as actors of Ray, whose frames go through Ray's object store.

For machines that come and go: there are no ranks that all begin together, and a worker is any task
or actor of the cluster. ``docs/systems/parameter-server.md`` says what the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from tersor import _core
from tersor._core import Error, InvalidArgumentError, TransportError
from tersor.arrays import empty_bytes
from tersor.server import Update, named_update, told

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from tersor.server import ServerOptions

__all__ = ["ParameterClient", "ParameterServer"]

Arrays = Mapping[str, Any]

_MOST_UNANSWERED = 2  # pushes of a worker


class _Shard:
    """An actor: a part of the weights. Whoever waits lets others in."""

    def __init__(
        self,
        weights: Arrays,
        update: Any,
        options: Any,
        workers: Sequence[int],
        place: tuple[int, int],
        patience: float,
    ) -> None:
        self._names, self._patience = list(weights), patience
        made = named_update(update, self._names) if callable(update) else update
        self._shard = _core.ParameterShard(
            list(weights.values()), made, told(options, workers, weights), *place
        )
        self._changed = asyncio.Condition()
        self._next: dict[int, int] = {}  # clocks
        self._pushes: Counter[int] = Counter()  # of each worker, unanswered
        self._lives: Counter[int] = Counter()  # how often it has joined

    async def join(self, worker: int, signature: int) -> tuple[int, int]:
        """Its clock, and a number that its calls tell: another one may come in its place."""
        if signature != self._shard.signature:
            raise InvalidArgumentError(
                "the server has another model or other options: pass the same to both"
            )
        async with self._changed:
            if worker in self._next:  # it takes the place of one that died
                self._drop(worker, lost=True)
            clock = self._next[worker] = self._shard.join(worker)
            self._lives[worker] += 1
            self._pushes[worker] = 0
            self._changed.notify_all()
        return clock, self._lives[worker]

    async def push(self, worker: int, life: int, clock: int, frame: Any) -> None:
        """Returns when the weights have moved by it."""
        self._is_here(worker, life)
        if self._pushes[worker] >= _MOST_UNANSWERED:
            raise InvalidArgumentError(
                f"worker {worker} pushes while {_MOST_UNANSWERED} of its pushes are unanswered"
            )
        self._pushes[worker] += 1
        try:
            async with self._changed:  # Ray may begin calls in another order
                await self._until(worker, life, lambda: self._next[worker] >= clock)
                self._take(worker, clock, frame)
                await self._until(worker, life, lambda: self._moved(worker) > clock)
        finally:
            self._pushes[worker] -= life == self._lives[worker]

    def _take(self, worker: int, clock: int, frame: Any) -> None:
        try:
            self._shard.push(worker, clock, frame)
            self._next[worker] = clock + 1
        except Error:
            self._drop(worker, lost=True)  # what it pushes next is for a clock that never comes
            raise
        finally:
            self._changed.notify_all()

    def _moved(self, worker: int) -> int:
        return self._next[worker] - self._shard.waiting(worker)

    async def pull(self, worker: int, life: int, clock: int) -> Any:
        async with self._changed:
            await self._until(
                worker,
                life,
                lambda: self._next[worker] >= clock and self._shard.may_pull(worker, clock),
            )
            frame = empty_bytes(self._shard.pull_capacity, np.empty(0))
            return frame[: self._shard.pull(worker, clock, frame)]

    async def leave(self, worker: int, life: int) -> None:
        async with self._changed:
            await self._until(worker, life, lambda: self._shard.waiting(worker) == 0)
            self._drop(worker, lost=False)

    async def weights(self) -> dict[str, tuple[int, Any]]:
        parts = enumerate(self._names)
        return {name: (self._shard.part(i)[0], self._shard.weights(i)) for i, name in parts}

    async def statistics(self) -> dict[str, Any]:
        fields = ("pushes", "pulls", "refused", "pushed_bytes", "pulled_bytes", "lost")
        return {field: getattr(self._shard.statistics(), field) for field in fields}

    async def _until(self, worker: int, life: int, is_so: Callable[[], bool]) -> None:
        """Leaves out workers that are silent for too long meanwhile."""
        until = time.monotonic() + self._patience
        while self._is_here(worker, life) and not is_so():
            if (missing := self._shard.missing()) and time.monotonic() > until:
                raise TransportError(
                    f"workers {missing} of workers= did not join within {self._patience:g} s"
                )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._patience / 4)
            for one in self._shard.leave_out_silent(self._patience):
                self._drop(one, lost=True)

    def _is_here(self, worker: int, life: int) -> bool:
        self._shard.waiting(worker)  # raises what an update raised
        if worker not in self._next or life != self._lives[worker]:
            raise InvalidArgumentError(
                f"worker {worker} has not joined, or was considered lost: it sent nothing for "
                f"{self._patience:g} s, its last push was refused, or another worker has its number"
            )
        return True

    def _drop(self, worker: int, lost: bool) -> None:
        self._next.pop(worker, None)
        self._changed.notify_all()
        self._shard.leave(worker, lost)


class ParameterServer:
    """Actors that have the weights; to be handed to tasks, each of which makes a ``client``."""

    def __init__(
        self,
        weights: Arrays,
        update: Update | float = 0.1,
        *,
        momentum: float = 0.0,
        servers: int = 1,
        workers: Sequence[int] = (),
        patience: float = 60.0,
        actor_options: Mapping[str, Any] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        """``weights``: float32 arrays. ``update``: the rate of SGD, or a function that moves a list
        of parts. ``workers``: numbers that workers have which must come before anything moves.
        ``patience``: seconds without a call after which a worker is lost while others wait for it,
        and after which their calls raise TransportError if a number of ``workers`` has not joined.
        ``actor_options``: Ray's, such as ``resources``. Raises InvalidArgumentError for options
        that no server takes."""
        self._options, self._workers = options, list(workers)
        made: Any = ray.remote(_Shard).options(**{"num_cpus": 0, **(actor_options or {})})
        by = update if callable(update) else (float(update), momentum)
        arrays = {name: np.asarray(one) for name, one in weights.items()}
        checked = told(self._options, self._workers, arrays)
        _core.WorkerFrames(list(arrays.values()), checked, 0, 0, servers)  # raises what is wrong
        self._actors = [
            made.remote(arrays, by, self._options, self._workers, (place, servers), patience)
            for place in range(servers)
        ]
        self._like = {name: np.zeros_like(one) for name, one in arrays.items()}

    def client(self, worker: int) -> ParameterClient:
        """Joins as the worker of that number, in the place of one that has it."""
        options = told(self._options, self._workers, self._like)
        return ParameterClient(self._actors, self._like, options, worker)

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """A copy of all weights."""
        whole = {name: np.empty_like(one) for name, one in self._like.items()}
        for parts in ray.get([actor.weights.remote() for actor in self._actors]):
            for name, (first, own) in parts.items():
                whole[name].reshape(-1)[first : first + len(own)] = own
        return whole

    def statistics(self) -> list[dict[str, Any]]:
        """What each server has seen; ``lost``: workers that went without a word."""
        found: list[dict[str, Any]] = ray.get([one.statistics.remote() for one in self._actors])
        return found


class ParameterClient:
    """A worker; a context, as ``tersor.ParameterClient``, whose calls it has. What the server
    refuses is raised by a later call, or by ``leave``."""

    def __init__(self, actors: Sequence[Any], like: Arrays, options: Any, worker: int) -> None:
        self._actors, self._names, self._worker = actors, list(like), worker
        self._frames = [
            _core.WorkerFrames(list(like.values()), options, worker, place, len(actors))
            for place in range(len(actors))
        ]
        places = list(zip(actors, self._frames, strict=True))
        joins = [actor.join.remote(worker, frames.signature) for actor, frames in places]
        joined: list[tuple[int, int]] = ray.get(joins)
        self._clocks = [clock for clock, _ in joined]  # each server's slowest worker's
        self._lives = [life for _, life in joined]
        self._pushed: deque[list[Any]] = deque()

    @property
    def clock(self) -> int:
        """Pushes until now, from that of the slowest worker on when it joined."""
        return self._clocks[0]

    def pull(self, weights: Arrays) -> None:
        """Writes the weights of this clock into arrays of float32."""
        arrays = [weights[name] for name in self._names]
        places = zip(self._actors, self._lives, self._clocks, strict=True)
        calls = [one.pull.remote(self._worker, life, clock) for one, life, clock in places]
        try:
            answers = ray.get(calls)
        except ray.exceptions.RayError:
            self.flush()  # the reason may be a push that was refused
            raise
        for frames, answer in zip(self._frames, answers, strict=True):
            frames.decode(answer, arrays)

    def push(self, gradients: Arrays) -> None:
        """Sends a gradient; the next clock begins. At most two are unanswered. Raises
        InvalidArgumentError for one that is not finite, which is not sent."""
        arrays = [gradients[name] for name in self._names]
        if not all(np.isfinite(one).all() for one in arrays):
            raise InvalidArgumentError("push: a gradient is not finite; push zeros to leave it out")
        while len(self._pushed) >= _MOST_UNANSWERED:
            ray.get(self._pushed.popleft())
        sent = []
        places = zip(self._actors, self._frames, self._lives, self._clocks, strict=True)
        for actor, frames, life, clock in places:
            out = empty_bytes(frames.push_capacity, np.empty(0))
            frame = out[: frames.encode(arrays, clock, out)]
            sent.append(actor.push.remote(self._worker, life, clock, frame))
        self._pushed.append(sent)
        self._clocks = [clock + 1 for clock in self._clocks]

    def flush(self) -> None:
        """Waits until the servers' weights have moved by all that it has pushed."""
        while self._pushed:
            ray.get(self._pushed.popleft())

    def leave(self) -> None:
        """Waits for what it has pushed; then nobody waits for it any more."""
        self.flush()
        places = zip(self._actors, self._lives, strict=True)
        ray.get([actor.leave.remote(self._worker, life) for actor, life in places])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
