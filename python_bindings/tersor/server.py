"""A parameter server for arrays in host memory, for ranks of unequal speed.

``docs/systems/parameter-server.md`` says when not to use it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from tersor import _core
from tersor._core import InvalidArgumentError, ServerStatistics, Transport
from tersor._options import expect, fill
from tersor.codec import text_hash

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["ParameterClient", "ParameterServer", "ServerOptions"]

#: Of a parameter its name, the part of its weights that a server has, to be changed in place, and
#: a gradient; arrays of one dimension. Weights lie where they lie, gradients are not to be kept.
Part = tuple[str, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]
Update = Callable[[list[Part]], None]


def named_update(
    update: Update, names: Sequence[str]
) -> Callable[[list[tuple[int, Any, Any]]], None]:
    """For a shard, which knows numbers of parameters."""
    return lambda parts: update([(names[i], own, by) for i, own, by in parts])


def told(
    options: ServerOptions, workers: Sequence[int], arrays: Mapping[str, Any]
) -> _core.ServerOptions:
    """The library's options: what names and shapes a model has is told, too."""
    shapes = [(name, tuple(np.shape(one))) for name, one in arrays.items()]
    more = {"workers": list(workers), "model": text_hash(repr(shapes))}
    return fill(_core.ServerOptions(), {**options, **more})


class ServerOptions(TypedDict, total=False):
    """Equal on all servers and workers."""

    push: str  #: codec of gradients ("int8+ef"); a worker keeps what it leaves out
    pull: str  #: of weights, without +ef ("int8")
    staleness: int | None  #: clocks that a worker may be ahead of the slowest (0); None: no bound
    reduction: str  #: "mean" over the workers, or "sum"
    checksum: bool
    require_finite: bool  #: a server refuses a push that decodes to a NaN or an infinity (True)


class ParameterServer:
    """On each rank of ``servers``: has a part of the weights, and answers workers on a thread.

    Beside it all ranks that work make a `ParameterClient`, at the same time; both are collective
    calls of ``transport``, one of TCP or of this process.
    """

    def __init__(
        self,
        transport: Transport,
        weights: Mapping[str, Any],
        update: Update | float = 0.1,
        *,
        momentum: float = 0.0,
        servers: Sequence[int] = (0,),
        workers: Sequence[int] | None = None,
        timeout: float = 300.0,
        straggler_timeout: float | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        """``weights``: float32, the same on all servers. ``update``: the rate of SGD, or a function
        that moves a list of parts, and asks this server nothing. ``workers``: the ranks that make a
        client; None: all but the servers, or all where all serve. ``timeout``: the clients', in
        seconds. The server waits for half of it until the workers have joined.
        ``straggler_timeout``: seconds, below ``timeout``, after which a silent worker is left out
        while another worker waits. None: half of ``timeout``.

        Raises InvalidArgumentError where this rank is no server, or for options that no server
        takes.
        """
        if straggler_timeout is None:
            straggler_timeout = timeout / 2
        if not 0 < straggler_timeout < timeout:
            raise InvalidArgumentError(
                f"straggler_timeout={straggler_timeout:g}: give more than 0 and less than "
                f"timeout={timeout:g}, otherwise a silent worker stops all others"
            )
        expect(transport, Transport, "transport must be a tersor Transport")
        self._ways = _Ways(transport, servers, workers)
        if self._ways.place is None:
            raise InvalidArgumentError(f"rank {transport.rank} is not in servers={list(servers)}")
        self._names = list(weights)
        self.shard = _core.ParameterShard(
            [np.asarray(one) for one in weights.values()],
            named_update(update, self._names) if callable(update) else (float(update), momentum),
            told(options, self._ways.workers, weights),
            self._ways.place,
            len(self._ways.servers),
        )
        self._error: BaseException | None = None
        limits = (timeout, straggler_timeout)
        self._thread = threading.Thread(target=self._serve, args=limits, daemon=True)
        self._thread.start()

    def wait(self) -> list[int]:
        """Until all workers have left or are lost. Returns the lost workers, and warns of them.
        Raises TransportError where some did not come, and what the update raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        lost = self.statistics().lost
        if lost:
            warnings.warn(
                f"the parameter server left out workers {lost}, which died or were silent while "
                "another worker waited; the others continued",
                stacklevel=2,
            )
        return lost

    def weights(self) -> dict[str, tuple[int, np.ndarray[Any, Any]]]:
        """Of each parameter where this server's part begins, and a copy of it."""
        return {
            name: (self.shard.part(i)[0], self.shard.weights(i))
            for i, name in enumerate(self._names)
        }

    def statistics(self) -> ServerStatistics:
        """What it has seen until now; ``lost``: workers that went without a word."""
        return self.shard.statistics()

    def _serve(self, timeout: float, straggler_timeout: float) -> None:
        assert self._ways.place is not None
        lifeline = self._ways.lifelines[self._ways.place]
        try:
            _core.serve(lifeline, self.shard, timeout, straggler_timeout)
        except BaseException as error:
            self._error = error


class Worker:
    """What a worker may be asked, whatever its weights are.

    A context: it leaves at the end, so that nobody waits for it."""

    _own: _core.ParameterClient

    @property
    def clock(self) -> int:
        """Pushes until now, from that of the slowest worker on when it joined."""
        return self._own.clock

    def flush(self) -> None:
        """Waits until the servers' weights have moved by all that it has pushed."""
        self._own.flush()

    def statistics(self) -> _core.ClientStatistics:
        """Bytes sent and received; none of a server on its own rank."""
        return self._own.statistics()

    def leave(self) -> None:
        """Waits for what it has pushed; then no server waits for it any more."""
        self._own.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()


class ParameterClient(Worker):
    """A worker: pulls weights, pushes gradients, and is not ahead of the slowest by more than the
    bound."""

    def __init__(
        self,
        transport: Transport,
        like: Mapping[str, Any],
        *,
        servers: Sequence[int] = (0,),
        workers: Sequence[int] | None = None,
        server: ParameterServer | None = None,
        timeout: float = 300.0,
        **options: Unpack[ServerOptions],
    ) -> None:
        """``like``: float32 arrays of the parameters' lengths. ``server``: this rank's own, where
        it serves, too. ``timeout``: of each call, in seconds.

        Raises TransportError if a server has another model or other options (``disagreement``
        lists the options), and if a server is gone."""
        expect(transport, Transport, "transport must be a tersor Transport")
        ways = server._ways if server is not None else _Ways(transport, servers, workers)
        if server is None and ways.place is not None:
            raise InvalidArgumentError(
                f"rank {transport.rank} also runs a ParameterServer: pass it as server="
            )
        places = [
            _core.ServerAt(lifeline, rank, server.shard if place == ways.place and server else None)
            for place, (lifeline, rank) in enumerate(zip(ways.lifelines, ways.servers, strict=True))
        ]
        self._names = list(like)
        self._own = _core.ParameterClient(
            places,
            [np.asarray(one) for one in like.values()],
            told(options, ways.workers, like),
            timeout,
        )

    def pull(self, weights: Mapping[str, Any]) -> None:
        """Writes the weights of this clock into arrays of float32."""
        self._own.pull(self._in_order(weights))

    def push(self, gradients: Mapping[str, Any]) -> None:
        """Sends a gradient; the next clock begins. Returns before it has arrived; at most two are
        unanswered. Raises InvalidArgumentError for one that is not finite, which is not sent, and
        where the server refused one, and why."""
        self._own.push(self._in_order(gradients))

    def _in_order(self, arrays: Mapping[str, Any]) -> list[Any]:
        if arrays.keys() != set(self._names):
            other = sorted(arrays.keys() ^ set(self._names))
            raise InvalidArgumentError(f"unexpected parameters: {', '.join(other)}")
        return [arrays[name] for name in self._names]


class _Ways:
    """An isolated channel for each server. Making the object is a collective call."""

    def __init__(
        self, transport: Transport, servers: Sequence[int], workers: Sequence[int] | None
    ) -> None:
        self.servers = list(servers)
        if (
            not servers
            or len(set(servers)) < len(servers)
            or not all(0 <= rank < transport.ranks for rank in servers)
        ):
            raise InvalidArgumentError(
                f"servers={self.servers}: give ranks from 0 to {transport.ranks - 1}, each once"
            )
        everybody = range(transport.ranks)
        rest = [rank for rank in everybody if rank not in self.servers] or list(everybody)
        self.workers = rest if workers is None else sorted(workers)
        self.place = self.servers.index(transport.rank) if transport.rank in servers else None
        self.lifelines = [_core.lifeline(transport) for _ in self.servers]
