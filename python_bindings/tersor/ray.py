"""A parameter server as actors of Ray. Frames are sent through Ray's object store.

Use it for machines that come and go: a worker is any task or actor of the cluster, and ranks do
not start together. ``docs/systems/parameter-server.md`` describes the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from tersor import _core
from tersor._core import Error, InvalidArgumentError, ServerStatistics, TransportError
from tersor._options import Self, Unpack
from tersor._renamed import deprecated, renamed_keywords
from tersor.arrays import empty_bytes
from tersor.server import ServerOptions, Update, core_options, named_update, sgd_rates

__all__ = ["ParameterClient", "ParameterServer"]
__dir__ = __all__.copy

Arrays = Mapping[str, Any]

_MAX_PENDING_PUSHES = 2  # pushes of a worker


class _Shard:
    """An actor with a part of the parameters. A waiting call lets other calls in."""

    def __init__(
        self,
        parameters: Arrays,
        update: Any,
        options: Any,
        workers: Sequence[int],
        index: tuple[int, int],
        timeout: float,
    ) -> None:
        self._names, self._timeout = list(parameters), timeout
        own_update = named_update(update, self._names) if callable(update) else update
        arrays, own_options = list(parameters.values()), core_options(options, workers, parameters)
        self._shard = _core.ParameterShard(arrays, own_update, own_options, *index)
        self._changed = asyncio.Condition()
        self._clocks: dict[int, int] = {}  # of the workers
        self._pushes: Counter[int] = Counter()  # of each worker, unanswered
        self._tokens: Counter[int] = Counter()  # how often it has joined

    async def join(self, worker: int, signature: int) -> tuple[int, int]:
        """The worker's clock, and a number for its calls: another worker may replace it."""
        if signature != self._shard.signature:
            raise InvalidArgumentError(
                "the server has another model or other options: pass the same to both"
            )
        async with self._changed:
            if worker in self._clocks:  # a worker that died is replaced
                self._remove(worker, lost=True)
            clock = self._clocks[worker] = self._shard.join(worker)
            self._tokens[worker] += 1
            self._pushes[worker] = 0
            self._changed.notify_all()
        return clock, self._tokens[worker]

    async def push(self, worker: int, token: int, clock: int, frame: Any) -> None:
        """Returns after the update with the gradient."""
        self._check_joined(worker, token)
        if self._pushes[worker] >= _MAX_PENDING_PUSHES:
            raise InvalidArgumentError(
                f"worker {worker} pushes while {_MAX_PENDING_PUSHES} of its pushes are unanswered"
            )
        self._pushes[worker] += 1
        try:
            async with self._changed:  # Ray may begin calls in another order
                await self._wait_until(worker, token, lambda: self._clocks[worker] >= clock)
                self._apply(worker, clock, frame)
                await self._wait_until(worker, token, lambda: self._applied(worker) > clock)
        finally:
            self._pushes[worker] -= token == self._tokens[worker]

    def _apply(self, worker: int, clock: int, frame: Any) -> None:
        try:
            self._shard.push(worker, clock, frame)
            self._clocks[worker] = clock + 1
        except Error:
            self._remove(worker, lost=True)  # its next push is for a clock that never comes
            raise
        finally:
            self._changed.notify_all()

    def _applied(self, worker: int) -> int:
        return self._clocks[worker] - self._shard.waiting(worker)

    async def pull(self, worker: int, token: int, clock: int) -> Any:

        def may_pull() -> bool:
            return self._clocks[worker] >= clock and self._shard.may_pull(worker, clock)

        async with self._changed:
            await self._wait_until(worker, token, may_pull)
            frame = empty_bytes(self._shard.pull_capacity, np.empty(0))
            return frame[: self._shard.pull(worker, clock, frame)]

    async def leave(self, worker: int, token: int) -> None:
        async with self._changed:
            await self._wait_until(worker, token, lambda: self._shard.waiting(worker) == 0)
            self._remove(worker, lost=False)

    async def parameters(self) -> dict[str, tuple[int, Any]]:
        parts = enumerate(self._names)
        return {name: (self._shard.part(i)[0], self._shard.values(i)) for i, name in parts}

    async def statistics(self) -> ServerStatistics:
        return self._shard.statistics()

    async def _wait_until(self, worker: int, token: int, is_done: Callable[[], bool]) -> None:
        """Waits for a condition, and leaves out workers that are silent for too long."""
        deadline = time.monotonic() + self._timeout
        while self._check_joined(worker, token) and not is_done():
            if (missing := self._shard.missing()) and time.monotonic() > deadline:
                raise TransportError(
                    f"workers {missing} of workers= did not join within {self._timeout:g} s"
                )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._timeout / 4)
            for one in self._shard.leave_out_silent(self._timeout):
                self._remove(one, lost=True)

    def _check_joined(self, worker: int, token: int) -> bool:
        self._shard.waiting(worker)  # raises the exception of an update
        if worker not in self._clocks or token != self._tokens[worker]:
            raise InvalidArgumentError(
                f"worker {worker} has not joined, or was considered lost: it sent nothing for "
                f"{self._timeout:g} s, its last push was refused, or another worker has its number"
            )
        return True

    def _remove(self, worker: int, lost: bool) -> None:
        self._clocks.pop(worker, None)
        self._changed.notify_all()
        self._shard.leave(worker, lost)


class ParameterServer:
    """Actors that hold the parameters. Pass the object to tasks; each task creates a ``client``.

    Args:
        parameters: float32 arrays by name.
        update: The learning rate of SGD, or a function that changes a list of parts in place.
        momentum: The momentum of SGD.
        servers: The number of actors.
        workers: The numbers of the workers that must join before parameters change.
        timeout: Seconds after which a silent worker is lost, while another worker waits. A waiting
            call raises TransportError if one of ``workers`` has not joined for so long.
        actor_options: Ray's options of the actors, such as ``resources``, without ``max_restarts``:
            a restarted actor begins with the first parameters.
        options: See ``tersor.server.ServerOptions``.

    Raises:
        InvalidArgumentError: An option is invalid.

    Example:
        >>> server = tersor.ray.ParameterServer({"w": parameter}, update=0.1, staleness=3)
        >>> client = server.client(worker=0)
    """

    @renamed_keywords(weights="parameters", patience="timeout")
    def __init__(
        self,
        parameters: Arrays,
        update: Update | float = 0.1,
        *,
        momentum: float = 0.0,
        servers: int = 1,
        workers: Sequence[int] = (),
        timeout: float = 60.0,
        actor_options: Mapping[str, Any] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        if (actor_options or {}).get("max_restarts"):
            raise InvalidArgumentError(
                "leave out max_restarts: a restarted actor begins with the first parameters"
            )
        self._options, self._workers = options, list(workers)
        actor: Any = ray.remote(_Shard).options(**{"num_cpus": 0, **(actor_options or {})})
        by = update if callable(update) else sgd_rates(update, momentum)
        arrays = {name: np.asarray(one) for name, one in parameters.items()}
        checked = core_options(self._options, self._workers, arrays)
        _core.WorkerFrames(list(arrays.values()), checked, 0, 0, servers)  # raises for bad options
        common = (arrays, by, self._options, self._workers)
        self._actors = [actor.remote(*common, (i, servers), timeout) for i in range(servers)]
        self._like = {name: np.zeros_like(one) for name, one in arrays.items()}

    def client(self, worker: int) -> ParameterClient:
        """Joins all servers as a worker.

        Args:
            worker: The number of the worker. A worker that already has this number is replaced.

        Returns:
            A `ParameterClient`, whose first clock is the clock of the slowest worker.

        Raises:
            ray.exceptions.RayError: A server is gone, or has another model or other options.

        Example::

            client = server.client(worker)
        """
        options = core_options(self._options, self._workers, self._like)
        return ParameterClient(self._actors, self._like, options, worker)

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns a copy of all parameters: float32 arrays by name.

        Raises:
            ray.exceptions.RayError: A server is gone.

        Example::

            weights = server.parameters()["weight"]
        """
        whole = {name: np.empty_like(one) for name, one in self._like.items()}
        for parts in ray.get([actor.parameters.remote() for actor in self._actors]):
            for name, (first, own) in parts.items():
                whole[name].reshape(-1)[first : first + len(own)] = own
        return whole

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """The old name of ``parameters``."""
        deprecated("ParameterServer.weights()", "use parameters()", __name__)
        return self.parameters()

    def statistics(self) -> list[ServerStatistics]:
        """Returns the counts of each server, as ``tersor.ParameterServer.statistics``.

        Raises:
            ray.exceptions.RayError: A server is gone.

        Example::

            print([one.pushes for one in server.statistics()])
        """
        found: list[ServerStatistics] = ray.get([one.statistics.remote() for one in self._actors])
        return found


class ParameterClient:
    """A worker with the methods of ``tersor.ParameterClient``.

    ``ParameterServer.client`` creates the object. A client is a context manager: at the end of the
    block the worker leaves. A later call, or ``leave``, raises the reason if a server refused a
    push.

    Args:
        actors: The server's actors.
        like: float32 arrays by name, with the sizes of the parameters.
        options: The server's options.
        worker: The number of this worker.

    Raises:
        ray.exceptions.RayError: A server is gone, or has another model or other options.

    Example:
        >>> with server.client(0) as client:
        ...     client.pull(parameters)
        ...     client.push(gradients)
    """

    def __init__(self, actors: Sequence[Any], like: Arrays, options: Any, worker: int) -> None:
        """Joins all servers. See the class."""
        self._like, self._worker, self._has_left = like, worker, False
        arrays, count = list(like.values()), len(actors)
        frames = [_core.WorkerFrames(arrays, options, worker, i, count) for i in range(count)]
        pairs = list(zip(actors, frames, strict=True))
        joins = [actor.join.remote(worker, one.signature) for actor, one in pairs]
        joined: list[tuple[int, int]] = ray.get(joins)
        self._clocks = [clock for clock, _ in joined]  # of each server's slowest worker
        self._servers = [(*pair, token) for pair, (_, token) in zip(pairs, joined, strict=True)]
        self._pushed: deque[list[Any]] = deque()

    @property
    def clock(self) -> int:
        """The number of pushes, plus the clock of the slowest worker when this worker joined."""
        return self._clocks[0]

    @renamed_keywords(weights="parameters")
    def pull(self, parameters: Arrays) -> None:
        """Waits until no worker is too far behind, and reads the parameters of this clock.

        Args:
            parameters: float32 arrays by name, which are overwritten.

        Raises:
            InvalidArgumentError: An array has another dtype or shape than its parameter.
            KeyError: A parameter is missing.
            ray.exceptions.RayError: A server is gone, or refused a push.

        Example::

            client.pull(parameters)
        """
        arrays = self._arrays(parameters, "pull")
        pairs = zip(self._servers, self._clocks, strict=True)
        calls = [one.pull.remote(self._worker, token, clock) for (one, _, token), clock in pairs]
        try:
            answers = ray.get(calls)
        except ray.exceptions.RayError:
            self.flush()  # the reason may be a refused push
            raise
        for (_, frames, _), answer in zip(self._servers, answers, strict=True):
            frames.decode(answer, arrays)

    def push(self, gradients: Arrays) -> None:
        """Sends gradients, and begins the next clock. At most two pushes are unanswered.

        Args:
            gradients: float32 arrays by name, one for each parameter.

        Raises:
            InvalidArgumentError: A gradient is not finite, or has another dtype or shape than its
                parameter, or a name is unknown. Nothing was sent.
            KeyError: A gradient is missing. Nothing was sent.
            ray.exceptions.RayError: A server is gone, or refused an earlier push.

        Example::

            client.push(gradients)
        """
        arrays = [np.ascontiguousarray(one) for one in self._arrays(gradients, "push")]
        if unknown := ", ".join(sorted(gradients.keys() - self._like.keys())):
            raise InvalidArgumentError(f"push: the server has no parameters {unknown}")
        if not all(np.isfinite(one).all() for one in arrays):
            raise InvalidArgumentError("push: a gradient is not finite; push zeros to leave it out")
        while len(self._pushed) >= _MAX_PENDING_PUSHES:
            ray.get(self._pushed.popleft())
        calls = []  # encode all frames before the first is sent
        for (actor, frames, token), clock in zip(self._servers, self._clocks, strict=True):
            out = empty_bytes(frames.push_capacity, np.empty(0))
            calls.append((actor, token, clock, out[: frames.encode(arrays, clock, out)]))
        self._pushed.append([actor.push.remote(self._worker, *rest) for actor, *rest in calls])
        self._clocks = [clock + 1 for clock in self._clocks]

    def _arrays(self, given: Arrays, call: str) -> list[Any]:
        """The arrays in the order of the parameters."""
        arrays = [np.asarray(given[name]) for name in self._like]
        for (name, like), one in zip(self._like.items(), arrays, strict=True):
            if (one.dtype, one.shape) != (like.dtype, like.shape):
                raise InvalidArgumentError(
                    f"{call}: {name} is {one.dtype} of {one.shape}: pass float32 of {like.shape}"
                )
        return arrays

    def flush(self) -> None:
        """Waits until the servers have applied all pushes of this worker.

        Raises:
            ray.exceptions.RayError: A server is gone, or refused a push.

        Example::

            client.push(gradients)
            client.flush()
        """
        while self._pushed:
            ray.get(self._pushed.popleft())

    def leave(self) -> None:
        """Waits for all pushes, and leaves. Servers do not wait for this worker any longer.

        A second call has no effect.

        Raises:
            ray.exceptions.RayError: A server is gone, or refused a push.

        Example::

            client.leave()
        """
        if self._has_left:
            return
        self.flush()
        ray.get([actor.leave.remote(self._worker, token) for actor, _, token in self._servers])
        self._has_left = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
