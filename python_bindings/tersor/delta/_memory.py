"""Deltas in memory: encodes, reads and checks the bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from tersor import _core
from tersor._core import InvalidArgumentError

Weights = Mapping[str, Any]
Described = tuple[str, str, list[int]]

_DTYPES = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64",
    "float8_e4m3": "e4m3", "float8_e4m3fn": "e4m3", "float8_e4m3fnuz": "e4m3",
    "float8_e5m2": "e5m2", "float8_e5m2fnuz": "e5m2",
    "int8": "i8", "uint8": "i8", "bool": "i8", "int16": "i16", "uint16": "i16",
    "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor in a delta.

    Attributes:
        name: The tensor's name.
        dtype: ``"f32"``, ``"bf16"``, ``"f16"``, ``"f64"``, ``"e4m3"``, ``"e5m2"``, ``"i8"``,
            ``"i16"``, ``"i32"`` or ``"i64"``. Unsigned integers have the names of signed integers.
        shape: The dimensions.
        changed: Number of changed values.
        classes: Number of classes of exponents.
        bytes: Size in the delta.

    Example:
        >>> old = {"bias": numpy.zeros(3, numpy.float32)}
        >>> new = {"bias": numpy.float32([0, 1, 0])}
        >>> tersor.delta.encode(old, new).entries()[0].changed
        1
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: int
    classes: int
    bytes: int


@dataclass(frozen=True)
class Delta:
    """The bytes of a delta.

    Attributes:
        data: The bytes. Make a delta from received bytes with ``Delta(data)``.

    Example:
        >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
        >>> delta = tersor.delta.encode(weights, weights)
        >>> tersor.delta.Delta(delta.data) == delta
        True
    """

    data: bytes

    def entries(self) -> list[Entry]:
        """Returns the tensors.

        Raises:
            WireError: The delta is damaged.

        Example:
            >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
            >>> [entry.name for entry in tersor.delta.encode(weights, weights).entries()]
            ['bias']
        """
        return [
            Entry(one.name, one.dtype, tuple(one.shape), one.changed, one.classes, one.bytes)
            for one in _core.delta_entries(self.data)
        ]


def encode(
    base: Weights, new: Weights, classes: Literal["auto"] | int = "auto", *, threads: int = 1
) -> Delta:
    """Returns the delta from ``base`` to ``new``.

    Args:
        base: Names and tensors of the old version: NumPy arrays or PyTorch tensors. Tensors on
            a device are copied to the host.
            Dtypes are float32, bfloat16, float16, float64, float8, bool and integers.
        new: The new version: the same names, dtypes and shapes.
        classes: Number of classes of exponents: 1, 2 or 4. Four classes take about 0.2 bytes less
            per changed value of bf16, and more time. "auto" chooses the fewest bytes by a sample.
        threads: Number of threads; 0: one per core.

    Returns:
        The delta.

    Raises:
        InvalidArgumentError: A tensor has another dtype or shape in ``new``, or an unknown dtype.

    Example:
        >>> old = {"bias": numpy.zeros(3, numpy.float32)}
        >>> new = {"bias": numpy.float32([0, 1, 0])}
        >>> delta = tersor.delta.encode(old, new)
        >>> tersor.delta.apply(old, delta)
        >>> old["bias"].tolist()
        [0.0, 1.0, 0.0]
    """
    if classes != "auto" and classes not in (1, 2, 4):
        raise InvalidArgumentError(f'classes is {classes!r}: give 1, 2, 4 or "auto"')
    tensors, old_values = tensors_of(base)
    others, new_values = tensors_of(new)
    known = {one[0]: one for one in others}
    for one in tensors:
        if known.pop(one[0], None) != one:
            raise InvalidArgumentError(
                f'tensor "{one[0]}" is {one[1]} {tuple(one[2])} in base, and missing or different '
                "in new: send a full copy of the model"
            )
    for name in known:
        raise InvalidArgumentError(f'base has no tensor "{name}": send a full copy of the model')
    order = {one[0]: index for index, one in enumerate(others)}
    new_values = [new_values[order[one[0]]] for one in tensors]
    number = 0 if classes == "auto" else int(classes)
    return Delta(_core.delta_encode(tensors, old_values, new_values, number, threads))


def check(base: Weights, delta: Delta, *, trust_base: bool = False, threads: int = 1) -> None:
    """Proves that ``apply`` will succeed. Writes nothing.

    The result's checksum follows from the base's checksum and from the changed values alone,
    because the checksum is linear.

    Args:
        base: The weights. The order of names does not matter.
        delta: The delta.
        trust_base: As in :func:`apply`.
        threads: Number of threads; 0: one per core.

    Raises:
        WireError: The delta is damaged.
        InvalidArgumentError: The delta belongs to another model. The message names the tensor.
        BaseMismatchError: The delta belongs to another base. The message names the tensor.

    Example:
        >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
        >>> tersor.delta.check(weights, tersor.delta.encode(weights, weights))
    """
    tensors, values = tensors_of(base)
    _core.delta_check(tensors, values, delta.data, trust_base, threads)


def described(weights: Weights) -> list[Described]:
    """Returns the name, dtype and shape of each tensor."""
    tensors = []
    for name, tensor in weights.items():
        dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise InvalidArgumentError(
                f'tensor "{name}" has dtype {dtype}; deltas take {", ".join(_DTYPES)}'
            )
        tensors.append((name, _DTYPES[dtype], list(tensor.shape)))
    return tensors


def bytes_of(name: str, tensor: Any) -> Any:
    """Returns the bytes of a tensor as a flat array of uint8. Bytes of a device are copied."""
    flat = device_bytes_of(name, tensor)
    if isinstance(flat, numpy.ndarray):
        return flat
    return (flat if is_on_host(tensor) else flat.to("cpu", copy=True)).numpy()


def device_bytes_of(name: str, tensor: Any) -> Any:
    """Returns the bytes of a tensor as a flat array or tensor of uint8 in the same memory."""
    torch = sys.modules.get("torch")
    # Another thread may be importing torch.
    is_torch = isinstance(tensor, getattr(torch, "Tensor", ()))
    if hasattr(tensor, "to_local"):
        raise InvalidArgumentError(f'tensor "{name}" is a DTensor: pass its to_local()')
    if not is_torch and not isinstance(tensor, numpy.ndarray):
        raise InvalidArgumentError(
            f'tensor "{name}" is a {type(tensor).__name__}: pass a NumPy array or a PyTorch tensor'
        )
    if not (tensor.is_contiguous() if is_torch else tensor.flags.c_contiguous):
        raise InvalidArgumentError(f'tensor "{name}" is not contiguous: make a contiguous copy')
    if torch is not None and is_torch:
        return tensor.detach().reshape(-1).view(torch.uint8)
    return tensor.reshape(-1).view(numpy.uint8)


def type_of(tensor: Any) -> str:
    """Returns the name of a dtype, which NumPy and PyTorch share. Deltas have fewer dtypes."""
    return str(tensor.dtype).removeprefix("torch.")


def is_on_host(tensor: Any) -> bool:
    """False if the tensor is PyTorch's, and on a device."""
    device = getattr(tensor, "device", "cpu")  # of NumPy: a string
    return bool(getattr(device, "type", device) == "cpu")


def are_on_cuda(tensors: Iterable[Any]) -> bool:
    """True if this build has CUDA, and all tensors are PyTorch's on one CUDA device."""
    devices = {getattr(tensor, "device", "cpu") for tensor in tensors}
    device = devices.pop() if devices else None
    has_cuda = bool(_core.build_info()[1])
    return has_cuda and not devices and getattr(device, "type", None) == "cuda"


def tensors_of(weights: Weights) -> tuple[list[Described], list[Any]]:
    """Returns the descriptions and the bytes of tensors."""
    return described(weights), [bytes_of(name, tensor) for name, tensor in weights.items()]


def address_of(tensor: Any) -> tuple[int, int]:
    """Returns the address of a contiguous tensor, and its number of bytes."""
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return tensor.ctypes.data, tensor.nbytes
