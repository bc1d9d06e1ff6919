"""Arrays of other libraries: names of dtypes, and new arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy

from tersor._core import InvalidArgumentError

__all__ = [
    "FLOATS", "Array", "Stream", "dtype_text", "empty_bytes", "empty_values", "is_on_device",
    "library_of", "narrowed", "require_finite", "require_numbers",
]  # fmt: skip
__dir__ = __all__.copy

# Any array with DLPack or the buffer protocol: NumPy, PyTorch, CuPy, and JAX for reading. No Python
# type covers all these arrays.
Array: TypeAlias = Any
# A CUDA stream of PyTorch or CuPy, an int (a cudaStream_t), or an object with __cuda_stream__.
Stream: TypeAlias = Any

FLOATS = ("float16", "float32", "float64")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NUMBERS = (*FLOATS, "bfloat16", "bool", *_INTEGERS)
_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_TEXTS = {name: text for text, name in _NAMES.items()}
_ALIGNMENT = 64  # of new frames; the format requires 16


def narrowed(values: numpy.ndarray[Any, Any], dtype: Any) -> numpy.ndarray[Any, Any]:
    """Converts decoded values. Finite values stay finite in float16: at most 65504.

    Args:
        values: An array of floats.
        dtype: The dtype of the result.

    Returns:
        A new array of the same shape.

    Example:
        >>> narrowed(numpy.array([1e6, numpy.inf]), "float16")
        array([6.55e+04,      inf], dtype=float16)
    """
    if numpy.dtype(dtype) == numpy.float16:
        limit = numpy.finfo(numpy.float16).max.astype(values.dtype)
        values = numpy.where(numpy.isfinite(values), values.clip(-limit, limit), values)
    return values.astype(dtype)


def require_finite(
    name: str, values: Array, update: str = "the update", then: str = "nothing is sent"
) -> None:
    """Checks an array of NumPy or PyTorch.

    Args:
        name: The name of the array in the error.
        values: The array.
        update: The role of the array in the error.
        then: The consequence in the error.

    Raises:
        InvalidArgumentError: The array has a NaN or an infinity.

    Example:
        >>> require_finite("weight", update)
    """
    finite = values.isfinite() if hasattr(values, "isfinite") else numpy.isfinite(values)
    if not finite.all():
        raise InvalidArgumentError(f"{name}: {update} is not finite; {then}")


def require_numbers(name: str, values: Array, then: str) -> None:
    """Checks a received array of NumPy or PyTorch.

    Args:
        name: The name of the array in the error.
        values: The array.
        then: The consequence in the error.

    Raises:
        InvalidArgumentError: The array does not have booleans, integers, or floats of 16, 32 or 64
            bits, in the byte order of this machine, or has a NaN or an infinity.

    Example:
        >>> require_numbers("weight", update, then="the update is left out")
    """
    if (dtype := str(values.dtype).removeprefix("torch.")) not in _NUMBERS:
        raise InvalidArgumentError(
            f"{name} is {dtype}: send booleans, integers, or floats of 16, 32 or 64 bits; {then}"
        )
    require_finite(name, values, then=then)


def refuse_masked(arrays: Iterable[Array]) -> None:
    """Raises InvalidArgumentError for a masked array of NumPy, because Tersor ignores masks."""
    ma = sys.modules.get("numpy.ma")
    if ma is not None and any(isinstance(one, ma.MaskedArray) for one in arrays):
        raise InvalidArgumentError("an array is masked: pass array.filled(0)")


def library_of(array: Array) -> str:
    """Returns the library of an array's class: "numpy", "torch", "cupy", …

    Args:
        array: An array or tensor.

    Example:
        >>> library_of(numpy.zeros(3))
        'numpy'
    """
    return type(array).__module__.partition(".")[0]


def dtype_text(dtype: Any) -> str:
    """Returns Tersor's name of a dtype of any library: "f32", "bf16" or "f16".

    Args:
        dtype: A name ("float32", "bf16"), or a type or dtype of NumPy, PyTorch or ml_dtypes.

    Raises:
        InvalidArgumentError: Any other dtype.

    Example:
        >>> dtype_text(numpy.float32)
        'f32'
    """
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
    text = _TEXTS.get(name, name)
    if text not in _NAMES:
        raise InvalidArgumentError(f"dtype is {name}: give float32, bfloat16 or float16")
    return text


def empty_bytes(count: int, like: Array) -> Array:
    """Returns a flat uint8 array of ``count`` bytes, 16-byte aligned and not initialised.

    Args:
        count: Number of bytes.
        like: An array on the device of the result. The result is of PyTorch or CuPy if ``like``
            is, otherwise of NumPy.

    Raises:
        InvalidArgumentError: ``like`` is on a device, and of another library.

    Example:
        >>> out = empty_bytes(codec.max_payload_bytes(gradient), gradient)
    """
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=torch.uint8, device=like.device)
    if library == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(count, dtype="uint8")
    if is_on_device(like):
        raise InvalidArgumentError(
            f"out: pass a uint8 array of PyTorch or CuPy on the device of the {library} array, "
            f"with max_payload_bytes(...) bytes"
        )
    bytes = numpy.empty(count + _ALIGNMENT, dtype=numpy.uint8)
    start = -bytes.ctypes.data % _ALIGNMENT
    return bytes[start : start + count]


def empty_values(count: int, dtype: str, like: Array) -> Array:
    """Returns a flat array that is not initialised.

    Args:
        count: Number of values.
        dtype: "f32", "bf16" or "f16".
        like: An array on the device of the result. The result is of PyTorch if ``like`` is,
            otherwise of NumPy.

    Raises:
        InvalidArgumentError: NumPy has no bfloat16, because ml_dtypes is missing.

    Example:
        >>> values = empty_values(header.count, header.dtype, payload)
    """
    if library_of(like) == "torch":
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=getattr(torch, _NAMES[dtype]), device=like.device)
    return numpy.empty(count, dtype=_numpy_dtype(dtype))


def is_on_device(array: Array) -> bool:
    """True if an array is not in host memory, according to DLPack.

    Args:
        array: An array or tensor. Objects without DLPack are in host memory.

    Example:
        >>> is_on_device(numpy.zeros(3))
        False
    """
    if not hasattr(array, "__dlpack_device__"):
        return False
    kind, _ = array.__dlpack_device__()
    return int(kind) not in (1, 3)  # DLPack's kDLCPU and kDLCUDAHost


def _numpy_dtype(dtype: str) -> Any:
    if dtype != "bf16":
        return numpy.dtype(_NAMES[dtype])
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidArgumentError(
            "out: NumPy has no bfloat16; install ml_dtypes, or pass an array"
        ) from None
    return ml_dtypes.bfloat16
