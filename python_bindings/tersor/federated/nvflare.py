"""Federated learning on NVFlare: filters that send clients' updates as frames.

Add ``Compress`` to the filters of a client's results, and ``Decompress`` to the server's filters of
results. Both change weight differences only. Needs nvflare 2.9 or later.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor.arrays import FLOATS, narrowed, require_finite, require_numbers
from tersor.codec import text_hash

__all__ = ["Compress", "Decompress"]
__dir__ = __all__.copy

Values = np.ndarray[Any, Any]

_KEY = "tersor"  # of the description of the frames
_TENSORS = tuple(f"torch.{one}" for one in (*FLOATS, "bfloat16"))


class Compress(DXOFilter):  # type: ignore[misc]
    """A client's filter of task results that encodes floating arrays of NumPy and PyTorch.

    With ``+ef``, the object keeps the residuals on the client, as long as the job's process lives.
    A collection of several results needs a codec without ``+ef``.

    Args:
        codec: The spec of updates, the same as in ``Decompress``.

    Raises:
        InvalidArgumentError: The codec is invalid.

    Example:
        >>> result = tersor.federated.nvflare.Compress("int8+ef").process(result, client_context)
        >>> result = tersor.federated.nvflare.Decompress("int8+ef").process(result, server_context)
    """

    def __init__(self, codec: str = "int8+ef") -> None:
        super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
        self.codec = codec  # NVFlare reads this attribute for a job's configuration
        self._codec, self._step = Codec(codec), 0
        self._residuals: dict[str, Values] = {}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """Replaces arrays by frames.

        Args:
            dxo: The client's result.
            shareable: The message with the result.
            fl_ctx: The context, whose identity seeds the rounding.

        Returns:
            The result with frames.

        Raises:
            InvalidArgumentError: The result has frames already, has a list, or is in a collection
                with ``+ef``, or an update is not finite. Nothing was changed.
        """
        if dxo.get_meta_prop(_KEY) is not None:
            raise InvalidArgumentError(
                "the result has frames already: one Compress filter is enough"
            )
        is_nested = from_shareable(shareable).data_kind == DataKind.COLLECTION
        if is_nested and self._codec.has_feedback:  # members may have equal names of arrays
            raise InvalidArgumentError(
                f'{self._codec.spec}: a collection of results needs a codec without "+ef"'
            )
        for name, one in dxo.data.items():
            if isinstance(one, list | tuple):
                kind = type(one).__name__
                raise InvalidArgumentError(f"{name}: pass an array or a tensor, not a {kind}")
        floats = {name: one for name, one in dxo.data.items() if _is_float(one)}
        values = {name: _flat(name, array) for name, array in floats.items()}
        seed = text_hash(fl_ctx.get_identity_name())
        frames = {name: self._frame(name, one, seed) for name, one in values.items()}
        self._step += 1
        description = {name: [str(one.dtype), list(one.shape)] for name, one in floats.items()}
        result = DXO(dxo.data_kind, {**dxo.data, **frames}, dict(dxo.meta))
        result.set_meta_prop(_KEY, {"codec": self._codec.spec, "arrays": description})
        return result

    def _frame(self, name: str, values: Values, seed: int) -> Values:
        residual = self._residuals.get(name)
        if self._codec.has_feedback and (residual is None or residual.size != values.size):
            residual = self._residuals[name] = np.zeros(values.size, np.float32)
        frame = self._codec.encode(
            values, residual=residual, signature=text_hash(name), seed=seed, step=self._step
        )
        data = np.array(frame)
        return np.pad(data, (0, max(0, _min_bytes(self._codec, values.size) - data.size)))


class Decompress(DXOFilter):  # type: ignore[misc]
    """The server's filter of task results that decodes frames to arrays and tensors.

    Results without frames pass. After an error, NVFlare counts the client's task as failed.

    Args:
        codec: The spec of updates, the same as in ``Compress``.

    Raises:
        InvalidArgumentError: The codec is invalid.

    Example:
        >>> result = tersor.federated.nvflare.Compress("int8+ef").process(result, client_context)
        >>> result = tersor.federated.nvflare.Decompress("int8+ef").process(result, server_context)
    """

    def __init__(self, codec: str = "int8+ef") -> None:
        super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
        self.codec = codec
        self._codec = Codec(codec)

    def process_dxo(self, dxo: DXO, _: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Replaces frames by arrays of the original dtypes and shapes.

        Args:
            dxo: A client's result.
            fl_ctx: The context, which has the client's name.

        Returns:
            The result with arrays; None if the result has no frames.

        Raises:
            InvalidArgumentError: The codec or a size differs, or a value or a weight is not finite,
                or a weight is negative.
            WireError: A frame is damaged or of another parameter.
        """
        description = dxo.get_meta_prop(_KEY)
        result = None if description is None else self._decoded(dxo, description)
        peer = fl_ctx.get_peer_context()
        client = peer.get_identity_name() if peer else "the client"
        steps = np.float64(dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) or 0)  # the weight
        for name, one in {**(result or dxo).data, "the number of steps": steps}.items():
            value = np.asarray(one) if isinstance(one, numbers.Number) else one
            if hasattr(value, "dtype"):
                require_numbers(name, value, f"the update of {client} is left out")
        if steps < 0:
            raise InvalidArgumentError(
                f"the number of steps is {steps}: expected 0 or more; the update of {client} is "
                "left out"
            )
        return result

    def _decoded(self, dxo: DXO, description: Any) -> DXO:
        if description["codec"] != self._codec.spec:
            raise InvalidArgumentError(
                f"the client's codec is {description['codec']}, not {self._codec.spec}"
            )
        entries = description["arrays"].items()
        arrays = {n: self._array(n, dxo.data[n], dtype, shape) for n, (dtype, shape) in entries}
        meta = {name: one for name, one in dxo.meta.items() if name != _KEY}
        return DXO(dxo.data_kind, {**dxo.data, **arrays}, meta)

    def _array(self, name: str, frame: Values, dtype: str, shape: list[int]) -> Any:
        count = math.prod(shape)
        known = dtype in FLOATS + _TENSORS and min(shape, default=1) >= 0
        if not known or _min_bytes(self._codec, count) > frame.nbytes:  # before the allocation
            raise InvalidArgumentError(f"{name}: {dtype} of {shape} does not match the frame")
        values = np.empty(count, np.float32)
        self._codec.decode(np.array(frame), values, signature=text_hash(name))
        if dtype in FLOATS:
            return narrowed(values.reshape(shape), dtype)
        import torch

        name = dtype[len("torch.") :]
        values = narrowed(values, name) if name == "float16" else values
        return torch.from_numpy(values).reshape(shape).to(getattr(torch, name))


def _min_bytes(codec: Codec, count: int) -> int:
    """The shortest accepted frame. The server allocates at most 64 bytes per byte of a frame whose
    length depends on the values (``entropy``)."""
    return min(codec.max_payload_bytes(count), count // 16)


def _is_float(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in FLOATS + _TENSORS


def _flat(name: str, array: Any) -> Values:
    if str(array.dtype) in _TENSORS:
        array = array.detach().float().cpu().numpy()
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, np.float32).reshape(-1)
    require_finite(name, values)
    return values
