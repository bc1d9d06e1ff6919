"""What the package knows of other libraries' arrays: names of dtypes, and how to make one."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy

from tersor._core import InvalidArgumentError

# Any array with DLPack or the buffer protocol: NumPy, PyTorch, CuPy; JAX to read from. There is no
# type in Python that says so for all of them.
Array: TypeAlias = Any
# A CUDA stream: of PyTorch, of CuPy, an int (a cudaStream_t) or anything with __cuda_stream__.
Stream: TypeAlias = Any

FLOATS = ("float16", "float32", "float64")
_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_TEXTS = {name: text for text, name in _NAMES.items()}
_ALIGNMENT = 64  # of frames made here; the format asks for 16


def narrowed(values: numpy.ndarray[Any, Any], dtype: Any) -> numpy.ndarray[Any, Any]:
    """Decoded values as another dtype. Finite values stay finite in float16: at most 65504."""
    if numpy.dtype(dtype) == numpy.float16:
        most = numpy.finfo(numpy.float16).max.astype(values.dtype)
        values = numpy.where(numpy.isfinite(values), values.clip(-most, most), values)
    return values.astype(dtype)


def require_finite(
    name: str, values: Array, update: str = "the update", then: str = "nothing is sent"
) -> None:
    """Raises InvalidArgumentError if NumPy's or PyTorch's values have a NaN or an infinity."""
    finite = values.isfinite() if hasattr(values, "isfinite") else numpy.isfinite(values)
    if not finite.all():
        raise InvalidArgumentError(f"{name}: {update} is not finite; {then}")


def library_of(array: Array) -> str:
    """The library that an array's class comes from: "numpy", "torch", "cupy", …"""
    return type(array).__module__.partition(".")[0]


def dtype_text(dtype: Any) -> str:
    """Tersor's name of a dtype of any library: "f32", "bf16" or "f16".

    Takes names ("float32", "bf16"), NumPy's types and dtypes, PyTorch's and ml_dtypes'.
    Raises InvalidArgumentError for any other.
    """
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
    text = _TEXTS.get(name, name)
    if text not in _NAMES:
        raise InvalidArgumentError(f"dtype is {name}: give float32, bfloat16 or float16")
    return text


def empty_bytes(count: int, like: Array) -> Array:
    """A flat uint8 array of ``count`` bytes where ``like`` lies, 16-byte aligned, not initialised.

    Of PyTorch or CuPy for arrays of these, else of NumPy.
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
    room = numpy.empty(count + _ALIGNMENT, dtype=numpy.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + count]


def empty_values(count: int, dtype: str, like: Array) -> Array:
    """A flat array of ``count`` values (``dtype``: "f32", "bf16" or "f16") beside ``like``."""
    if library_of(like) == "torch":
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=getattr(torch, _NAMES[dtype]), device=like.device)
    return numpy.empty(count, dtype=_numpy_dtype(dtype))


def is_on_device(array: Array) -> bool:
    """Whether an array says that it lies elsewhere than in host memory."""
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
