"""Compressed gradients for TensorFlow and Keras 3 over TCP, with one process per rank.

::

    tersor.tensorflow.init()                                     # on each rank
    model.compile(optimizer=tersor.tensorflow.DistributedOptimizer(Adam(), codec="int8+ef"), …)

Values pass through the host (``tf.numpy_function``), for CPUs and slow links. Tersor compresses
gradients only. Your dataset must give each rank its own inputs.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from tersor._options import Unpack, needs

with needs("tensorflow", "tersor.tensorflow needs TensorFlow: pip install tensorflow"):
    import tensorflow as tf

from tersor import _core
from tersor._core import InvalidArgumentError, ReducerState, Transport
from tersor._renamed import renamed_keywords
from tersor.codec import Codec
from tersor.collectives import allreduce, broadcast
from tersor.reducer import GradientReducer, ReducerOptions

if not tf.__version__.startswith("2.21."):
    warnings.warn(f"TensorFlow {tf.__version__}: tested with version 2.21 only", stacklevel=2)

__all__ = [
    "CrossDeviceOps", "DistributedOptimizer", "Reducer", "broadcast_variables", "init", "shutdown",
    "transport",
]  # fmt: skip
__dir__ = __all__.copy

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
    """Connects the ranks. A second call returns the first call's transport.

    Missing arguments come from ``TF_CONFIG`` (its workers; the address is the first worker's, with
    the next port), or from torchrun's ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
    ``MASTER_PORT``. The rendezvous is authenticated and encrypted. ``TERSOR_TCP_PROTECT``
    (``"authenticate"`` or ``"encrypt"``) also protects the gradients.

    Args:
        rank: This rank, from 0.
        ranks: The number of ranks.
        address: ``"host:port"`` of rank 0. Rank 0 listens only at this address.
        secret: At least 16 characters that only the ranks know, such as the output of
            ``openssl rand -hex 32``. None: ``TERSOR_SECRET``.
        timeout: Seconds for the rendezvous.

    Returns:
        The transport of all ranks.

    Raises:
        InvalidArgumentError: An argument is missing or invalid.
        TransportError: A rank is late.

    Example:
        >>> tersor.tensorflow.init()
        >>> tersor.tensorflow.broadcast_variables(model.weights)
    """
    if not _world:
        given = {"rank": rank, "ranks": ranks, "address": address}
        found = _from_environment() | {key: one for key, one in given.items() if one is not None}
        if missing := ", ".join(f"{key}=" for key in given if key not in found):
            raise InvalidArgumentError(
                f"init() needs {missing}: pass it, or set TF_CONFIG, or RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT"
            )
        secret = os.environ.get("TERSOR_SECRET", "") if secret is None else secret
        own = os.environ.get("TERSOR_TCP_ADDRESS", "")
        protect = os.environ.get("TERSOR_TCP_PROTECT", "none")
        location = found["address"], found["rank"], found["ranks"]
        _world.append(_core.TcpTransport(*location, own, timeout, secret, protect))
    return _world[0]


def transport() -> Transport:
    """Returns the transport of ``init``.

    Raises:
        InvalidArgumentError: ``init`` was not called.

    Example:
        >>> tersor.tensorflow.init()
        >>> rank = tersor.tensorflow.transport().rank
    """
    if not _world:
        raise InvalidArgumentError("call tersor.tensorflow.init() first")
    return _world[0]


def shutdown() -> None:
    """Closes the connections and notifies the other ranks.

    Example:
        >>> model.fit(dataset)
        >>> tersor.tensorflow.shutdown()
    """
    while _world:
        _world.pop().close()


def _from_environment() -> dict[str, Any]:
    env = os.environ
    if "TF_CONFIG" in env:
        return _from_tf_config(json.loads(env["TF_CONFIG"]))
    names = {"rank": "RANK", "ranks": "WORLD_SIZE"}
    found: dict[str, Any] = {key: int(env[name]) for key, name in names.items() if name in env}
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        found["address"] = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    return found


def _from_tf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The chief is rank 0; workers follow."""
    cluster, task = config.get("cluster", {}), config.get("task", {})
    kinds = [kind for kind in ("chief", "worker") for _ in cluster.get(kind, ())]
    if task.get("type") not in kinds:
        raise InvalidArgumentError("TF_CONFIG: the task type must be 'worker' or 'chief'")
    host, _, port = cluster[kinds[0]][0].rpartition(":")
    rank = kinds.index(task["type"]) + int(task["index"])
    return {"rank": rank, "ranks": len(kinds), "address": f"{host}:{int(port) + 1}"}


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Copies the root's values exactly to all ranks. Call before the first step.

    Args:
        variables: The variables, such as ``model.weights``. Do not pass ``model.variables``: it
            includes the state of random generators, which must differ between ranks.
        root: The rank that sends.

    Raises:
        InvalidArgumentError: ``init`` was not called, or ``root`` is not a rank.
        TransportError: A rank failed, is late, or made another call.

    Example:
        >>> tersor.tensorflow.init()
        >>> tersor.tensorflow.broadcast_variables(model.weights)
    """
    for variable in variables:
        value = np.array(variable)
        flat = np.frombuffer(value.tobytes(), np.uint8)
        flat = np.resize(flat, -(-flat.size // 4) * 4).view(np.float32)
        broadcast(transport(), flat, codec="entropy", root=root)  # "none" changes NaNs
        value = np.frombuffer(flat.tobytes()[: value.nbytes], value.dtype).reshape(value.shape)
        variable.assign(value)


class _DeferredReducer(GradientReducer):
    """Knows the parameters from the first step on. Loads a state of an earlier run then."""

    _deferred: tuple[Callable[[], None], ...] | None = ()
    _loaded = b""  # a state for the first step

    def load_state(self, state: bytes, common: int = 0) -> None:
        if self._deferred is None:
            super().load_state(state, common)
        else:
            ReducerState.read(state)  # raises for damaged bytes
            self._deferred = (functools.partial(super().load_state, state, common),)
            self._loaded = state

    def save_state(self) -> bytes:
        return self._loaded or super().save_state()

    def save_portable_state(self) -> bytes:
        if self._loaded:
            raise InvalidArgumentError("the loaded state applies from the next step: save after it")
        return super().save_portable_state()

    def weigh(self, samples: float) -> None:
        if self._deferred:
            self._deferred += (functools.partial(super().weigh, samples),)
        else:
            super().weigh(samples)

    def start(self) -> None:
        """Call after all parameters of the first step were added."""
        deferred, self._deferred, self._loaded = self._deferred, None, b""
        for call in deferred or ():
            call()


class Reducer:
    """The mean (or sum) of gradients over ranks, for custom loops, also in a ``tf.function``.

    TensorFlow raises an error with Tersor's message if an exchange fails.

    Args:
        options: The options of ``tersor.GradientReducer``. With ``weighted=True``, call
            ``reducer.core.weigh(samples)`` before each step, outside of a ``tf.function``.

    Attributes:
        core: The ``tersor.GradientReducer``. A new one loads a state in its first step.
        variables: The variables of the gradients, by name. The next exchange of a gradient checks
            that the variable has equal values on all ranks. None: the variable was checked.

    Raises:
        InvalidArgumentError: ``init`` was not called, or an option is invalid.

    Example:
        >>> reducer = tersor.tensorflow.Reducer(codec="int8+ef")
        >>> gradients = reducer(tape.gradient(loss, variables), names)
    """

    def __init__(self, **options: Unpack[ReducerOptions]) -> None:
        self.core = _DeferredReducer(transport(), **options)
        self.variables: dict[str, Any] = {}
        self._known: dict[str, Any] = {}  # an array of zeros for each name
        self._timeout: Any = {key: options[key] for key in ("timeout",) if key in options}
        self._is_lossy_sum = options.get("reduction") == "sum" and options.get("codec") != "none"

    def __call__(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Reduces gradients.

        Args:
            gradients: Tensors, or None. A None must be None on all ranks; it keeps its residual.
                Sparse gradients become dense.
            names: A name for each gradient, in the same order on all ranks.

        Returns:
            The mean (or sum) over ranks of each gradient.

        Raises:
            InvalidArgumentError: This process has several replicas.
        """
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
            for i, result in zip(dense, tf.nest.flatten(results), strict=True):
                result.set_shape(dense[i].shape)
                reduced[i] = result
        return reduced

    def _require_equal(self, names: Sequence[str]) -> None:
        """Raises InvalidArgumentError on all ranks if variables not yet compared differ."""
        known = self.variables
        new = {name: known[name] for name in names if known.get(name) is not None}
        if not new:
            return
        sums = np.array([zlib.crc32(np.array(one).tobytes()) for one in new.values()], np.uint32)
        own = np.stack([sums >> 16, sums & 0xFFFF]).astype(np.float32)
        first = own.copy()
        broadcast(transport(), first, codec="none", **self._timeout)
        differ = (own != first).any(0).astype(np.float32)
        allreduce(transport(), differ, codec="none", **self._timeout)
        if wrong := [name for name, count in zip(new, differ, strict=True) if count]:
            raise InvalidArgumentError(
                f"the ranks begin with different values of {', '.join(wrong[:3])}: call "
                "tersor.tensorflow.broadcast_variables(model.weights) before the first step"
            )
        self.variables |= dict.fromkeys(new)

    def _exchange(self, names: Sequence[str], *arrays: Any) -> list[Any]:
        self._require_equal(names)
        values = [np.array(one) for one in arrays]  # TensorFlow's arrays are read-only
        for name, value in zip(names, values, strict=True):
            if name not in self._known:
                self.core.add(name, value)
                self._known[name] = np.zeros_like(value)
        self.core.start()
        for name, value in reversed(list(zip(names, values, strict=True))):
            self.core.ready(name, value)
        for name in self._known.keys() - set(names):
            self.core.ready(name, self._known[name], "none")
        self.core.wait()
        for value in values:
            if self._is_lossy_sum and value.dtype == np.float16:  # decoding saturates
                at_limit = np.abs(value) == np.finfo(np.float16).max
                value[at_limit] = np.copysign(np.float16(np.inf), value[at_limit])
        return values


def DistributedOptimizer(optimizer: Any, **options: Unpack[ReducerOptions]) -> Any:  # noqa: N802
    """Changes a Keras optimizer to average gradients over ranks.

    Variables must start equal: call ``broadcast_variables(model.weights)``. The first step raises
    an error on all ranks if variables differ. Compile with ``jit_compile=False``, because XLA
    cannot call the host. A ``LossScaleOptimizer`` is passed as ``optimizer``.

    Args:
        optimizer: An optimizer that has not trained yet.
        options: The options of ``tersor.GradientReducer``.

    Returns:
        The same object, of a new class. Its ``reducer`` saves and loads the residuals by
        ``save_state`` and ``load_state``.

    Raises:
        InvalidArgumentError: The optimizer has trained, or the policy is ``mixed_float16``. Keras
            lets a single rank skip a step there: use ``mixed_bfloat16``.

    Example:
        >>> optimizer = tersor.tensorflow.DistributedOptimizer(SGD(0.1), codec="int8+ef")
        >>> model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    """
    if optimizer.built or isinstance(getattr(optimizer, "reducer", None), GradientReducer):
        raise InvalidArgumentError("pass an optimizer that has not trained yet, and only once")
    if tf.keras.config.dtype_policy().compute_dtype == "float16":
        raise InvalidArgumentError(
            "mixed_float16: Keras scales losses itself, and a rank whose gradients overflow would "
            "skip a step for which other ranks wait; use mixed_bfloat16"
        )
    kind: Any = type(optimizer)
    reducer = Reducer(**options)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = trainable_variables or self._trainable_variables
        names = _names(variables)
        reducer.variables = dict(zip(names, variables, strict=True)) | reducer.variables
        return kind.apply(self, reducer(grads, names), trainable_variables)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name == "loss_scale_factor":  # set by a LossScaleOptimizer around this optimizer
            raise InvalidArgumentError(
                "pass a LossScaleOptimizer to DistributedOptimizer instead: a rank whose gradients "
                "overflow would skip a step for which other ranks wait"
            )
        kind.__setattr__(self, name, value)

    methods = {"apply": apply, "__setattr__": set_attribute, "__module__": __name__}
    # A copy by get_config() would lose settings.
    object.__setattr__(optimizer, "__class__", type("DistributedOptimizer", (kind,), methods))
    optimizer.reducer = reducer.core
    return optimizer


class _SavedOptimizer:
    """The optimizer of a saved model, which cannot hold the connections."""

    @classmethod
    def from_config(cls, _: Any) -> NoReturn:
        raise InvalidArgumentError(
            "the model was saved with tersor.tensorflow.DistributedOptimizer: load it with "
            "compile=False, and compile it with a new DistributedOptimizer"
        )


tf.keras.utils.get_custom_objects().update(DistributedOptimizer=_SavedOptimizer)


def _names(variables: Iterable[Any]) -> list[str]:
    """The paths of variables, with a number after repeated paths."""
    seen: Counter[str] = Counter()
    names = []
    for one in variables:
        path = getattr(one, "path", one.name)  # a tf.Variable has no path
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path}:{seen[path]}")
    return names


class CrossDeviceOps(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """Encodes each replica's gradients before the sum, for ``MirroredStrategy``.

    Args:
        codec: The spec, without ``+ef``, because TensorFlow passes gradients without names.
        min_bytes: The smallest size of an encoded gradient in bytes. TensorFlow sends smaller
            gradients, and other dtypes than float32, bfloat16 and float16, unchanged.

    Raises:
        InvalidArgumentError: The codec is invalid or has ``+ef``.

    Example:
        >>> operations = tersor.tensorflow.CrossDeviceOps("int8")
        >>> strategy = tf.distribute.MirroredStrategy(cross_device_ops=operations)
    """

    @renamed_keywords(least_bytes="min_bytes")
    def __init__(self, codec: str = "int8", min_bytes: int = 1 << 16) -> None:
        super().__init__(accumulation_fn=self._total)
        self._codec = Codec(codec)
        if self._codec.has_feedback:
            raise InvalidArgumentError(
                f"{codec!r}: TensorFlow passes gradients without names, so no residual is kept; "
                "leave out +ef, or use DistributedOptimizer with one process per rank"
            )
        self._min_bytes = min_bytes
        self._calls = itertools.count()

    def _total(self, values: Sequence[Any]) -> Any:
        """The accumulation of dense tensors for TensorFlow."""
        if not all(self._encodes(one) for one in values):
            return tf.add_n(values)
        wide = [tf.cast(one, tf.float32) for one in values]  # float16 sums would not overflow
        total = tf.numpy_function(self._sum, wide, tf.float32)
        total.set_shape(values[0].shape)
        return tf.cast(total, values[0].dtype)

    def _encodes(self, value: Any) -> bool:
        if not isinstance(value, tf.Tensor) or value.dtype not in _FLOATS:
            return False
        bytes: int = (value.shape.num_elements() or 0) * value.dtype.size
        return bytes >= self._min_bytes

    def _sum(self, *values: Any) -> Any:
        call = next(self._calls) % 2**32  # otherwise all calls draw the same random numbers
        arrays = enumerate(map(np.ascontiguousarray, values))
        payloads = [self._codec.encode(one, seed=replica, step=call) for replica, one in arrays]
        total = np.empty_like(values[0])
        self._codec.decode(payloads, out=total)
        return total
