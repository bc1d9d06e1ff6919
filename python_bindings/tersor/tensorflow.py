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
import os
import warnings
from collections import Counter
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
from tersor._core import InvalidArgumentError, Transport
from tersor.codec import Codec
from tersor.collectives import broadcast
from tersor.reducer import GradientReducer, ReducerOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

if not tf.__version__.startswith("2.21."):
    warnings.warn(f"TensorFlow {tf.__version__}: tested with version 2.21 only", stacklevel=2)

__all__ = [
    "CrossDeviceOps",
    "DistributedOptimizer",
    "Reducer",
    "broadcast_variables",
    "init",
    "shutdown",
    "transport",
]

_FLOATS = (tf.float32, tf.bfloat16, tf.float16)
_world: list[_core.TcpTransport] = []


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
    the port behind its own) or from torchrun's ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
    ``MASTER_PORT``. ``address``: ``"host:port"`` of rank 0, which listens there and at no other
    address. ``secret``, by default ``TERSOR_SECRET``: at least 16 letters that only the ranks know,
    best the output of ``openssl rand -hex 32``. The rendezvous is authenticated and encrypted.
    ``TERSOR_TCP_PROTECT`` ("authenticate", "encrypt") protects the gradients as well. Raises
    InvalidArgumentError where something is missing, TransportError where a rank does not come
    within
    ``timeout`` seconds.
    """
    if not _world:
        given = {"rank": rank, "ranks": ranks, "address": address}
        found = _from_environment() | {key: one for key, one in given.items() if one is not None}
        if missing := ", ".join(f"{key}=" for key in given if key not in found):
            raise InvalidArgumentError(
                f"init() needs {missing}: pass it, or set TF_CONFIG, or RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT"
            )
        if secret is None:
            secret = os.environ.get("TERSOR_SECRET", "")
        own = os.environ.get("TERSOR_TCP_ADDRESS", "")
        protect = os.environ.get("TERSOR_TCP_PROTECT", "none")
        made = _core.TcpTransport(
            found["address"], found["rank"], found["ranks"], own, timeout, secret, protect
        )
        _world.append(made)
    return _world[0]


def transport() -> Transport:
    """What ``init`` made. Raises InvalidArgumentError before it."""
    if not _world:
        raise InvalidArgumentError("call tersor.tensorflow.init() first")
    return _world[0]


def shutdown() -> None:
    """Says goodbye to the other ranks."""
    while _world:
        _world.pop().close()


def _from_environment() -> dict[str, Any]:
    told = os.environ
    if "TF_CONFIG" in told:
        return _from_tf_config(json.loads(told["TF_CONFIG"]))
    names = {"rank": "RANK", "ranks": "WORLD_SIZE"}
    found: dict[str, Any] = {key: int(told[name]) for key, name in names.items() if name in told}
    if "MASTER_ADDR" in told and "MASTER_PORT" in told:
        found["address"] = f"{told['MASTER_ADDR']}:{told['MASTER_PORT']}"
    return found


def _from_tf_config(config: dict[str, Any]) -> dict[str, Any]:
    """A chief is rank 0, workers come behind it."""
    cluster, task = config.get("cluster", {}), config.get("task", {})
    kinds = [kind for kind in ("chief", "worker") for _ in cluster.get(kind, ())]
    if task.get("type") not in kinds:
        raise InvalidArgumentError("TF_CONFIG: the task type must be 'worker' or 'chief'")
    host, _, port = cluster[kinds[0]][0].rpartition(":")
    rank = kinds.index(task["type"]) + int(task["index"])
    return {"rank": rank, "ranks": len(kinds), "address": f"{host}:{int(port) + 1}"}


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
    ``tersor.GradientReducer``, which is ``core``: with ``weighted=True`` a step begins with
    ``reducer.core.weigh(samples)``, outside of a ``tf.function``. What ends an exchange is raised
    by TensorFlow as an error that holds Tersor's text.
    """

    def __init__(self, **options: Unpack[ReducerOptions]) -> None:
        self.core = GradientReducer(transport(), **options)
        self._known: dict[str, Any] = {}  # an array of zeros for each

    def __call__(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Gradients of these names, in one order on all ranks."""
        if tf.distribute.get_strategy().num_replicas_in_sync > transport().ranks:
            raise InvalidArgumentError(
                "one replica per process is required: start a process for each"
            )
        dense = {i: tf.convert_to_tensor(x) for i, x in enumerate(gradients) if x is not None}
        reduced = list(gradients)
        if dense:
            exchange = functools.partial(self._exchange, [names[i] for i in dense])
            given = list(dense.values())
            results = tf.numpy_function(exchange, given, [one.dtype for one in given])
            for i, result in zip(dense, tf.nest.flatten(results), strict=True):  # one is no list
                result.set_shape(dense[i].shape)
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
    host. Variables start equal: ``broadcast_variables(model.weights)``. Raises InvalidArgumentError
    for an optimizer that has trained already, whose state a copy would not have, and under
    ``mixed_float16``, where Keras lets a rank leave out a step by itself: take ``mixed_bfloat16``.
    """
    if optimizer.built:
        raise InvalidArgumentError(
            "pass an optimizer that has not trained yet, because its state would be lost"
        )
    if tf.keras.config.dtype_policy().compute_dtype == "float16":
        raise InvalidArgumentError(
            "mixed_float16: Keras scales losses itself, and a rank whose gradients overflow would "
            "skip a step for which other ranks wait; use mixed_bfloat16"
        )
    kind: Any = type(optimizer)
    reducer = Reducer(**options)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = trainable_variables or self._trainable_variables
        return kind.apply(self, reducer(grads, _names(variables)), trainable_variables)

    made: Any = type(kind.__name__, (kind,), {"apply": apply, "__module__": kind.__module__})
    config = optimizer.get_config()
    if isinstance(config.get("learning_rate"), dict):  # a schedule, whose class Keras may not know
        config["learning_rate"] = optimizer._learning_rate
    result = made.from_config(config)
    result.reducer = reducer.core
    return result


def _names(variables: Iterable[Any]) -> list[str]:
    """Their paths; a number tells equal ones apart."""
    seen: Counter[str] = Counter()
    names = []
    for one in variables:
        seen[one.path] += 1
        names.append(one.path if seen[one.path] == 1 else f"{one.path}:{seen[one.path]}")
    return names


class CrossDeviceOps(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """For ``MirroredStrategy(cross_device_ops=…)``: sums of what a codec makes of each replica's.

    Floats of at least ``least_bytes`` bytes are encoded, the rest goes as TensorFlow sends it. It
    hands over gradients without names, so that there is no feedback: ``+ef`` is refused.
    """

    def __init__(self, codec: str = "int8", least_bytes: int = 1 << 16) -> None:
        super().__init__(accumulation_fn=self._total)
        self._codec = Codec(codec)
        if self._codec.has_feedback:
            raise InvalidArgumentError(
                f"{codec!r}: TensorFlow passes gradients without names, so no residual is kept; "
                "leave out +ef, or use DistributedOptimizer with one process per rank"
            )
        self._least_bytes = least_bytes
        self._calls = itertools.count()

    def _total(self, values: Sequence[Any]) -> Any:
        """What TensorFlow asks for, of dense tensors."""
        if not all(self._takes(one) for one in values):
            return tf.add_n(values)
        total = tf.numpy_function(self._sum, list(values), values[0].dtype)
        total.set_shape(values[0].shape)
        return total

    def _takes(self, value: Any) -> bool:
        if not isinstance(value, tf.Tensor) or value.dtype not in _FLOATS:
            return False
        bytes: int = (value.shape.num_elements() or 0) * value.dtype.size
        return bytes >= self._least_bytes

    def _sum(self, *values: Any) -> Any:
        call = next(self._calls) % 2**32  # else all draw the same random numbers
        payloads = [
            self._codec.encode(np.ascontiguousarray(value), seed=replica, step=call)
            for replica, value in enumerate(values)
        ]
        total = np.empty_like(values[0])
        self._codec.decode(payloads, out=total)
        return total
