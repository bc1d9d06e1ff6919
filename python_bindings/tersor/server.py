"""A parameter server for arrays in host memory, for ranks of unequal speed.

``docs/systems/parameter-server.md`` says when not to use a parameter server.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from tersor import _core
from tersor._core import ClientStatistics, InvalidArgumentError, ServerStatistics, Transport
from tersor._options import Self, Unpack, expect, fill
from tersor._renamed import deprecated, renamed_keywords
from tersor.codec import text_hash

__all__ = ["ParameterClient", "ParameterServer", "ServerOptions"]
__dir__ = __all__.copy

_MAX_RATE = float(np.finfo(np.float32).max)

#: The name of a parameter, its values on this server (changed in place), and a gradient: arrays of
#: one dimension. The values keep their memory. The gradient is valid during the call only.
Part = tuple[str, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]
Update = Callable[[list[Part]], None]


def named_update(update: Update, names: Sequence[str]) -> Callable[[list[Any]], None]:
    """Wraps an update for a shard, which numbers the parameters."""
    return lambda parts: update([(names[i], own, gradient) for i, own, gradient in parts])


def sgd_rates(update: float, momentum: float) -> tuple[float, float]:
    """Returns the rates, which must be finite as float32 numbers."""
    for name, rate in (("update", update), ("momentum", momentum)):
        if not abs(float(rate)) <= _MAX_RATE:
            raise InvalidArgumentError(f"{name}={rate}: give a finite float32 number")
    return float(update), momentum


def core_options(
    options: ServerOptions, workers: Sequence[int], arrays: Mapping[str, Any]
) -> _core.ServerOptions:
    """The library's options, with a hash of the model's names and shapes."""
    shapes = [(name, tuple(np.shape(one))) for name, one in arrays.items()]
    extra = {"workers": list(workers), "model": text_hash(repr(shapes))}
    return fill(_core.ServerOptions(), {**options, **extra})


class ServerOptions(TypedDict, total=False):
    """Options of servers and workers, equal on all of them.

    Attributes:
        push: The codec of gradients (``"int8+ef"``). A worker keeps the residuals.
        pull: The codec of parameters, without ``+ef`` (``"int8"``).
        staleness: The clocks that a worker may be ahead of the slowest worker (0); None: no bound.
        reduction: ``"mean"`` over the workers (the default), or ``"sum"``.
        checksum: True if frames have a checksum (True).
        require_finite: True if a server refuses a push that decodes to a NaN or an infinity (True).

    Example::

        options: tersor.ServerOptions = {"push": "int8+ef", "staleness": 3}
        server = tersor.ParameterServer(transport, parameters, 0.1, **options)
    """

    push: str
    pull: str
    staleness: int | None
    reduction: str
    checksum: bool
    require_finite: bool


class ParameterServer:
    """A part of the parameters, which answers workers on a thread.

    Create a server on each rank of ``servers``, and a `ParameterClient` on each worker at the same
    time: both are collective calls of the transport. Source: bounded staleness (Ho et al. 2013,
    "More effective distributed ML via a stale synchronous parallel parameter server", section 3).

    Args:
        transport: Connects the ranks: in process or over TCP.
        parameters: float32 arrays by name, equal on all servers. The server copies its part.
        update: The learning rate of SGD, or a function that changes a list of parts in place. The
            function must not call this server.
        momentum: The momentum of SGD.
        servers: The ranks that serve.
        workers: The ranks that create a client. None: all ranks except the servers; if all ranks
            serve, all ranks.
        timeout: The clients' timeout in seconds. The server waits for half of ``timeout`` until
            all workers have joined.
        straggler_timeout: Seconds, below ``timeout``. A worker that is silent for so long, while
            another worker waits, is left out. None: half of ``timeout``.
        options: See `ServerOptions`.

    Raises:
        InvalidArgumentError: This rank is not in ``servers``, a rate is not finite, or an option is
            invalid.

    Example:
        >>> server = tersor.ParameterServer(transport, {"w": parameter}, update=0.1)
        >>> lost = server.wait()
    """

    @renamed_keywords(weights="parameters")
    def __init__(
        self,
        transport: Transport,
        parameters: Mapping[str, Any],
        update: Update | float = 0.1,
        *,
        momentum: float = 0.0,
        servers: Sequence[int] = (0,),
        workers: Sequence[int] | None = None,
        timeout: float = 300.0,
        straggler_timeout: float | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        """A collective call. See the class."""
        if straggler_timeout is None:
            straggler_timeout = timeout / 2
        if not 0 < straggler_timeout < timeout:
            raise InvalidArgumentError(
                f"straggler_timeout={straggler_timeout:g}: give more than 0 and less than "
                f"timeout={timeout:g}, otherwise a silent worker stops all others"
            )
        expect(transport, Transport, "transport must be a tersor Transport")
        self._channels = _Channels(transport, servers, workers)
        index = self._channels.own_index
        if index is None:
            raise InvalidArgumentError(f"rank {transport.rank} is not in servers={list(servers)}")
        self._names = list(parameters)
        arrays = [np.asarray(one) for one in parameters.values()]
        by = named_update(update, self._names) if callable(update) else sgd_rates(update, momentum)
        checked = core_options(options, self._channels.workers, parameters)
        count = len(self._channels.servers)
        self.shard = _core.ParameterShard(arrays, by, checked, index, count)
        self._error: BaseException | None = None
        arguments = (self._channels.by_server[index], timeout, straggler_timeout)
        self._thread = threading.Thread(target=self._serve, args=arguments, daemon=True)
        self._thread.start()

    def wait(self) -> list[int]:
        """Waits until all workers have left or are lost.

        Returns:
            The lost workers. A warning names them.

        Raises:
            TransportError: A worker did not join in time.
            Exception: The exception of the update.

        Example::

            lost = server.wait()
        """
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

    def parameters(self) -> dict[str, tuple[int, np.ndarray[Any, Any]]]:
        """Returns a copy of this server's part.

        Returns:
            For each parameter, the index of the first value, and a flat float32 array.

        Example::

            parts = server.parameters()
            np.savez("part.npz", **{name: values for name, (_, values) in parts.items()})
        """
        parts = enumerate(self._names)
        return {name: (self.shard.part(i)[0], self.shard.values(i)) for i, name in parts}

    def weights(self) -> dict[str, tuple[int, np.ndarray[Any, Any]]]:
        """The old name of ``parameters``."""
        deprecated("ParameterServer.weights()", "use parameters()")
        return self.parameters()

    def statistics(self) -> ServerStatistics:
        """Returns the counts of this server.

        Returns:
            ``pushes``, ``pulls``, ``refused``, ``pushed_bytes``, ``pulled_bytes``, and ``lost``,
            the workers that left without notice.

        Example::

            print(server.statistics().pushes)
        """
        return self.shard.statistics()

    def _serve(self, channel: Transport, timeout: float, straggler_timeout: float) -> None:
        try:
            _core.serve(channel, self.shard, timeout, straggler_timeout)
        except BaseException as error:
            self._error = error


class Worker:
    """The methods of a worker that do not depend on the kind of parameters.

    A worker is a context manager. At the end of the block the worker leaves, so no rank waits for
    it.
    """

    _core_client: _core.ParameterClient

    @property
    def clock(self) -> int:
        """The number of pushes, plus the clock of the slowest worker when this worker joined."""
        return self._core_client.clock

    def flush(self) -> None:
        """Waits until the servers have applied all pushes of this worker.

        Raises:
            InvalidArgumentError: A server refused a push; the message gives the server's reason.
            TransportError: A server is gone or late.

        Example::

            client.push(gradients)
            client.flush()
        """
        self._core_client.flush()

    def statistics(self) -> ClientStatistics:
        """Returns the counts of this worker.

        Returns:
            ``sent_bytes`` and ``received_bytes``. A server on the same rank causes no traffic.

        Example::

            print(client.statistics().sent_bytes)
        """
        return self._core_client.statistics()

    def leave(self) -> None:
        """Waits for all pushes, and leaves. Servers do not wait for this worker any longer.

        Raises:
            tersor.Error: As :meth:`flush`.

        Example::

            client.leave()
        """
        self._core_client.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
        else:
            self._core_client.abandon()


class ParameterClient(Worker):
    """A worker: pulls parameters and pushes gradients.

    A pull waits until this worker is at most ``staleness`` clocks ahead of the slowest worker. With
    a ``staleness`` above 0, a push does not wait, so the bound holds for workers that pull.

    Args:
        transport: Connects the ranks.
        like: float32 arrays by name, with the shapes of the parameters.
        servers: The ranks that serve.
        workers: The ranks that create a client. None: as in `ParameterServer`.
        server: This rank's own server, if this rank serves too.
        timeout: Seconds of each call.
        options: See `ServerOptions`.

    Raises:
        InvalidArgumentError: An option is invalid, or ``server`` is missing.
        TransportError: A server is gone, or has another model or other options. The attribute
            ``disagreement`` lists the options.

    Example:
        >>> with tersor.ParameterClient(transport, parameters) as client:
        ...     client.pull(parameters)
        ...     client.push(gradients)
    """

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
        """A collective call. See the class."""
        expect(transport, Transport, "transport must be a tersor Transport")
        channels = server._channels if server else _Channels(transport, servers, workers)
        if server is None and channels.own_index is not None:
            raise InvalidArgumentError(
                f"rank {transport.rank} also runs a ParameterServer: pass it as server="
            )
        pairs = enumerate(zip(channels.by_server, channels.servers, strict=True))
        own = {channels.own_index: server.shard} if server else {}
        self._shapes = {name: np.shape(one) for name, one in like.items()}
        endpoints = [_core.ServerAt(channel, rank, own.get(i)) for i, (channel, rank) in pairs]
        arrays = [np.asarray(one) for one in like.values()]
        checked = core_options(options, channels.workers, like)
        self._core_client = _core.ParameterClient(endpoints, arrays, checked, timeout)

    @renamed_keywords(weights="parameters")
    def pull(self, parameters: Mapping[str, Any]) -> None:
        """Waits until no worker is too far behind, and reads the parameters of this clock.

        Args:
            parameters: float32 arrays by name, which are overwritten.

        Raises:
            InvalidArgumentError: The names or shapes differ from the constructor's, or a server
                refused a push.
            TransportError: A server is gone or late.

        Example::

            client.pull(parameters)
        """
        self._core_client.pull(self._in_order(parameters))

    def push(self, gradients: Mapping[str, Any]) -> None:
        """Sends gradients, and begins the next clock.

        The call returns before the gradients arrive. At most two pushes are unanswered.

        Args:
            gradients: float32 arrays by name, one for each parameter.

        Raises:
            InvalidArgumentError: A gradient is not finite, or the names or shapes differ from the
                constructor's (nothing was sent); or a server refused a push, with its reason.
            TransportError: A server is gone or late.

        Example::

            client.push(gradients)
        """
        self._core_client.push(self._in_order(gradients))

    def _in_order(self, arrays: Mapping[str, Any]) -> list[Any]:
        if other := sorted(arrays.keys() ^ self._shapes.keys()):
            raise InvalidArgumentError(f"unexpected parameters: {', '.join(other)}")
        for name, shape in self._shapes.items():
            if np.shape(arrays[name]) != shape:
                raise InvalidArgumentError(
                    f"{name} has the shape {np.shape(arrays[name])} instead of {shape}"
                )
        return [arrays[name] for name in self._shapes]


class _Channels:
    """An isolated channel for each server. Making the object is a collective call."""

    def __init__(
        self, transport: Transport, servers: Sequence[int], workers: Sequence[int] | None
    ) -> None:
        self.servers, ranks = list(servers), range(transport.ranks)
        if not servers or len(set(servers)) < len(servers) or not set(servers) <= set(ranks):
            raise InvalidArgumentError(
                f"servers={self.servers}: give ranks from 0 to {transport.ranks - 1}, each once"
            )
        others = [rank for rank in ranks if rank not in self.servers] or list(ranks)
        self.workers = others if workers is None else sorted(workers)
        self.own_index = self.servers.index(transport.rank) if transport.rank in servers else None
        self.by_server = [_core.isolated_channel(transport) for _ in self.servers]
