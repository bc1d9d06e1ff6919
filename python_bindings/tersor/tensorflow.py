"""Compressed gradients for TensorFlow and Keras 3, one process a rank, over TCP.

::

    tersor.tensorflow.init()                                     # on each rank
    model.compile(optimizer=tersor.tensorflow.DistributedOptimizer(Adam(), codec="int8+ef"), …)

Values pass through the host (``tf.numpy_function``): for CPUs and slow links. What is compressed is
gradients; inputs are sharded by whoever makes the dataset.
"""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing.managers
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "tersor.tensorflow needs TensorFlow: pip install tensorflow", name="tensorflow"
    ) from error

from tersor import _core
from tersor._core import InvalidArgument, Transport, TransportError
from tersor.codec import Codec
from tersor.collectives import broadcast
from tersor.reducer import GradientReducer, ReducerOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "CrossDeviceOps",
    "DistributedOptimizer",
    "Reducer",
    "broadcast_variables",
    "init",
    "shutdown",
    "transport",
]

_SHORTEST_SECRET = 16
_world: list[Transport] = []
_servers: list[Any] = []


class _Manager(multiprocessing.managers.BaseManager):
    """Serves rank 0's dictionary of words to the others, which know the secret."""


class _Store:
    """Words that ranks leave each other, as ``TcpTransport`` takes them."""

    def __init__(self, words: Any) -> None:
        self._words = words

    def set(self, key: str, value: str) -> None:
        self._words.update({key: value})

    def get(self, key: str, seconds: float) -> str | None:
        found: str | None
        until = time.monotonic() + seconds
        while (found := self._words.get(key)) is None and time.monotonic() < until:
            time.sleep(0.01)
        return found


def init(
    rank: int | None = None,
    ranks: int | None = None,
    *,
    address: str | None = None,
    secret: str | None = None,
    timeout: float = 300.0,
) -> Transport:
    """Meets the other ranks; a second call returns what the first one made.

    What is not given comes from ``TF_CONFIG`` (its workers; the address is that of the first one,
    the port behind its own) or from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``,
    as torchrun sets them. ``address``: ``"host:port"`` of rank 0, where ranks find each other.
    ``secret``, by default ``TERSOR_SECRET``: a word of at least 16 letters that only the ranks
    know, in a network that they trust: what they say while they meet is not encrypted. Raises
    InvalidArgument where something is missing, TransportError where a rank does not
    come within ``timeout`` seconds.
    """
    if not _world:
        found = _from_environment()
        rank, ranks = _chosen("rank", rank, found), _chosen("ranks", ranks, found)
        words = _words(_chosen("address", address, found), _checked(secret), rank, timeout)
        own = os.environ.get("TERSOR_TCP_ADDRESS", "")
        _world.append(_core.TcpTransport(_Store(words), rank, ranks, own, timeout))
    return _world[0]


def transport() -> Transport:
    """What ``init`` made. Raises InvalidArgument before it."""
    if not _world:
        raise InvalidArgument("tersor.tensorflow.init() first: ranks have not met")
    return _world[0]


def shutdown() -> None:
    """Says goodbye to the other ranks."""
    while _world:
        _world.pop().close()  # type: ignore[attr-defined]
    while _servers:
        server = _servers.pop()
        server.stop_event.set()
        server.listener.close()


def _from_environment() -> dict[str, Any]:
    if "TF_CONFIG" in os.environ:
        return _from_tf_config(json.loads(os.environ["TF_CONFIG"]))
    names = {"rank": "RANK", "ranks": "WORLD_SIZE"}
    found: dict[str, Any] = {
        key: int(os.environ[name]) for key, name in names.items() if name in os.environ
    }
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        found["address"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return found


def _from_tf_config(config: dict[str, Any]) -> dict[str, Any]:
    """A chief is rank 0, workers come behind it."""
    cluster, task = config.get("cluster", {}), config.get("task", {})
    chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
    if not chiefs + workers or task.get("type") not in ("chief", "worker"):
        raise InvalidArgument("TF_CONFIG: a rank is a worker or the chief, and there is no other")
    host, _, port = (chiefs + workers)[0].rpartition(":")
    before = len(chiefs) if task["type"] == "worker" else 0
    return {
        "rank": before + int(task["index"]),
        "ranks": len(chiefs) + len(workers),
        "address": f"{host}:{int(port) + 1}",
    }


def _chosen(name: str, given: Any, found: dict[str, Any]) -> Any:
    if given is None and name not in found:
        raise InvalidArgument(
            f"init() does not know {name}=: give it, or set TF_CONFIG, or RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )
    return found[name] if given is None else given


def _checked(secret: str | None) -> bytes:
    word = os.environ.get("TERSOR_SECRET", "") if secret is None else secret
    if len(word) < _SHORTEST_SECRET:
        raise InvalidArgument(
            "ranks know each other by a secret of at least 16 letters: the same TERSOR_SECRET for "
            "all, such as $(openssl rand -hex 16)"
        )
    return word.encode()


def _words(address: str, secret: bytes, rank: int, timeout: float) -> Any:
    host, _, port = address.rpartition(":")
    if rank == 0:
        words: dict[str, str] = {}
        _Manager.register("words", callable=lambda: words, exposed=["update", "get"])
        server = _Manager(("", int(port)), secret).get_server()
        _servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return words
    _Manager.register("words", exposed=["update", "get"])
    manager = _Manager((host, int(port)), secret)
    until = time.monotonic() + timeout
    while True:
        try:
            manager.connect()
            return manager.words()  # type: ignore[attr-defined]
        except multiprocessing.AuthenticationError:
            raise InvalidArgument("rank 0 knows another TERSOR_SECRET") from None
        except (OSError, EOFError) as error:
            if time.monotonic() >= until:
                raise TransportError(f"rank 0 is not to be reached at {address}: {error}") from None
            time.sleep(0.1)


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Gives all ranks the root's values, as they are: before the first step.

    Of a model ``model.weights``: ``model.variables`` has the state of its random generators, too,
    which is to differ from rank to rank.
    """
    for variable in variables:
        value = np.array(variable)
        flat = np.frombuffer(value.tobytes(), np.uint8)
        flat = np.resize(flat, -(-flat.size // 4) * 4).view(np.float32)
        broadcast(transport(), flat, codec="none", root=root)
        value = np.frombuffer(flat.tobytes()[: value.nbytes], value.dtype).reshape(value.shape)
        variable.assign(value)


class Reducer:
    """The mean (or sum) of gradients over ranks, for custom loops and under ``tf.function``.

    ``gradients = reducer(tape.gradient(loss, variables), names)``; None stays None, on all ranks
    alike, and keeps its residual. Sparse gradients are made dense. Options are those of
    ``tersor.GradientReducer``. What ends an exchange is raised by TensorFlow as an error that holds
    Tersor's text.
    """

    def __init__(self, **options: Unpack[ReducerOptions]) -> None:
        self.core = GradientReducer(transport(), **options)
        self._known: dict[str, Any] = {}  # an array of zeros for each

    def __call__(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Gradients of these names, in one order on all ranks."""
        if tf.distribute.get_strategy().num_replicas_in_sync > transport().ranks:
            raise InvalidArgument("a rank is one replica: start a process for each")
        taken = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[i]) for i in taken]
        if not dense:
            return list(gradients)
        exchange = functools.partial(self._exchange, [names[i] for i in taken])
        reduced: list[Any] = list(gradients)
        results = tf.numpy_function(exchange, dense, [one.dtype for one in dense])
        results = tf.nest.flatten(results)  # of one tensor there is no list
        for i, one, result in zip(taken, dense, results, strict=True):
            result.set_shape(one.shape)
            reduced[i] = result
        return reduced

    def _exchange(self, names: Sequence[str], *arrays: Any) -> list[Any]:
        values = [np.array(one) for one in arrays]  # TensorFlow's own are not to be written to
        for name, value in zip(names, values, strict=True):
            if name not in self._known:
                self.core.add(name, value)
                self._known[name] = np.zeros_like(value)
        for name, value in reversed(list(zip(names, values, strict=True))):
            self.core.ready(name, value)
        for name in self._known.keys() - set(names):
            self.core.ready(name, self._known[name], "none")
        self.core.wait()
        return values


def DistributedOptimizer(optimizer: Any, **options: Unpack[ReducerOptions]) -> Any:  # noqa: N802
    """A Keras optimizer of the same kind and settings, whose gradients are the mean over ranks.

    Options are those of ``tersor.GradientReducer``; its ``reducer`` has ``save_state`` and
    ``load_state`` for the residuals. ``model.compile(…, jit_compile=False)``: XLA has no way to the
    host. Variables start equal: ``broadcast_variables(model.weights)``. Raises InvalidArgument for
    an optimizer that has trained already, whose state a copy would not have, and under
    ``mixed_float16``, where Keras lets a rank leave out a step by itself: take ``mixed_bfloat16``.
    """
    if optimizer.built:
        raise InvalidArgument("give an optimizer that has not trained yet: its state would be lost")
    if tf.keras.config.dtype_policy().compute_dtype == "float16":
        raise InvalidArgument(
            "mixed_float16: Keras scales losses by itself, and a rank whose gradients overflow "
            "would leave out a step that others wait for; use mixed_bfloat16"
        )
    kind: Any = type(optimizer)
    reducer = Reducer(**options)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = trainable_variables or self._trainable_variables
        return kind.apply(self, reducer(grads, _names(variables)), trainable_variables)

    made: Any = type(kind.__name__, (kind,), {"apply": apply, "__module__": kind.__module__})
    result = made.from_config(optimizer.get_config())
    result.reducer = reducer.core
    return result


def _names(variables: Iterable[Any]) -> list[str]:
    """Their paths; a number tells equal ones apart."""
    seen: dict[str, int] = {}
    names = []
    for one in variables:
        seen[one.path] = number = seen.get(one.path, 0) + 1
        names.append(one.path if number == 1 else f"{one.path}:{number}")
    return names


class CrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc]
    """For ``MirroredStrategy(cross_device_ops=…)``: sums of what a codec makes of each replica's.

    Floats of at least ``least_bytes`` bytes are encoded, the rest goes as TensorFlow sends it. It
    hands over gradients without names, so that there is no feedback: ``+ef`` is refused.
    """

    def __init__(self, codec: str = "int8", least_bytes: int = 1 << 16) -> None:
        super().__init__()
        self._codec = Codec(codec)
        if self._codec.has_feedback:
            raise InvalidArgument(
                f"{codec!r}: TensorFlow hands over gradients without names, and so no residual is "
                "kept; leave out +ef, or use DistributedOptimizer with a process a rank"
            )
        self._least_bytes = least_bytes
        self._plain = tf.distribute.ReductionToOneDevice()
        self._calls = itertools.count()

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """What TensorFlow calls."""
        values = getattr(per_replica_value, "values", None)
        if values is None or not all(self._takes(one) for one in values):
            return self._plain.reduce_implementation(
                reduce_op, per_replica_value, destinations, options
            )
        total = tf.numpy_function(self._sum, list(values), values[0].dtype)
        total.set_shape(values[0].shape)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            total /= len(values)
        return self.broadcast(total, destinations)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """The same of several."""
        return [
            self.reduce_implementation(reduce_op, value, destination, options)
            for value, destination in value_destination_pairs
        ]

    def _gather_implementation(self, *arguments: Any) -> Any:
        return self._plain._gather_implementation(*arguments)

    def _takes(self, value: Any) -> bool:
        return (
            isinstance(value, tf.Tensor)
            and value.dtype in (tf.float32, tf.bfloat16, tf.float16)
            and (value.shape.num_elements() or 0) * value.dtype.size >= self._least_bytes
        )

    def _sum(self, *values: Any) -> Any:
        call = next(self._calls) % 2**32  # else all draw the same random numbers
        payloads = [
            self._codec.encode(np.ascontiguousarray(value), seed=replica, step=call)
            for replica, value in enumerate(values)
        ]
        total = np.empty_like(values[0])
        self._codec.decode(payloads, out=total)
        return total
