"""Arrays on a CUDA device without a library of arrays: memory of the CUDA runtime, lent by DLPack.

Tests use these arrays on a GPU and on the device for PTX (docs/explain/gpu-tests.md), where kernels
of PyTorch and CuPy cannot run.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy
import pytest

import tersor

DTYPES = [numpy.float32, ml_dtypes.bfloat16, numpy.float16]
CUDA, CUDA_HOST, MANAGED = 2, 3, 13  # DLPack's kinds of places
LEGACY = 1  # DLPack's number of the stream that waits for all others
READ_ONLY = 1  # a flag of DLPack's
RUNTIME = "libcudart.so.13"


def _load() -> ctypes.CDLL | None:
    for name in (
        RUNTIME,
        *(at for path in sys.path for at in glob.glob(f"{path}/nvidia/*/lib/{RUNTIME}")),
    ):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


_runtime = _load()


def call(name: str, *arguments: Any) -> None:
    """A function of the CUDA runtime."""
    status = getattr(_runtime, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: error {status}")


def device_count() -> int:
    count = ctypes.c_int(0)
    if _runtime is not None:
        _runtime.cudaGetDeviceCount(ctypes.byref(count))
    return count.value


class _Memory:
    """Memory that is freed with the last array."""

    def __init__(self, nbytes: int, kind: int, device: int) -> None:
        self.nbytes, self.kind, self.device = nbytes, kind, device
        pointer = ctypes.c_void_p()
        with on_device(device):
            if kind == MANAGED:
                call("cudaMallocManaged", ctypes.byref(pointer), _size(nbytes), 1)
            elif kind == CUDA_HOST:
                call("cudaMallocHost", ctypes.byref(pointer), _size(nbytes))
            else:
                call("cudaMalloc", ctypes.byref(pointer), _size(nbytes))
        assert pointer.value is not None
        self.pointer = pointer.value
        free = "cudaFreeHost" if kind == CUDA_HOST else "cudaFree"
        weakref.finalize(self, call, free, ctypes.c_void_p(self.pointer))


def _size(nbytes: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(max(nbytes, 1))


class DeviceArray:
    """Values on a device, with a dtype of NumPy or ml_dtypes.

    ``work``: the stream on which the values are made. A consumer that asks by DLPack waits for this
    stream.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any = numpy.float32,
        *,
        kind: int = CUDA,
        device: int = 0,
    ) -> None:
        self.shape, self.dtype = shape, numpy.dtype(dtype)
        self.strides = _dense(shape)
        self.memory = _Memory(math.prod(shape) * self.dtype.itemsize, kind, device)
        self.pointer = self.memory.pointer
        self.read_only = False
        self.work: int | None = None
        self.asked_for: list[int | None] = []  # streams

    @classmethod
    def of(cls, values: Any, **options: Any) -> DeviceArray:
        array = cls(values.shape, values.dtype, **options)
        array.fill(values)
        return array

    def fill(self, values: Any) -> None:
        contiguous = numpy.ascontiguousarray(values)
        self._copy(self.pointer, contiguous.ctypes.data, contiguous.nbytes)

    def numpy(self) -> Any:
        """Returns a copy on the host after the work of all streams."""
        assert self.strides == _dense(self.shape)
        values = numpy.empty(self.shape, self.dtype)
        self._copy(values.ctypes.data, self.pointer, values.nbytes)
        return values

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        with on_device(self.memory.device):
            call("cudaDeviceSynchronize")
            call("cudaMemcpy", _at(to), _at(source), ctypes.c_size_t(nbytes), 4)
            call("cudaDeviceSynchronize")

    def tobytes(self) -> bytes:
        found: bytes = self.numpy().tobytes()
        return found

    def view(
        self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, first: int = 0
    ) -> DeviceArray:
        """The same memory seen otherwise; strides and the first value count in values."""
        other = object.__new__(DeviceArray)
        other.__dict__.update(
            self.__dict__, shape=shape, strides=strides or _dense(shape), asked_for=[]
        )
        other.pointer = self.pointer + first * self.dtype.itemsize
        return other

    def __getitem__(self, part: slice) -> DeviceArray:
        first, end, step = part.indices(self.shape[0])
        assert len(self.shape) == 1
        return self.view((len(range(first, end, step)),), (step,), first)

    def __len__(self) -> int:
        return self.shape[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.kind, self.memory.device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None
    ) -> object:
        self.asked_for.append(stream)
        if self.work is not None and stream != -1:
            wait_for(self.work, 0 if stream in (None, LEGACY) else stream)
        versioned = max_version is not None and max_version >= (1, 0)
        if self.read_only and not versioned:
            raise BufferError("read-only arrays need DLPack 1.0")
        return _Lent(self, versioned).capsule()


def _at(pointer: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(pointer)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


# --- Devices and streams ---


def current_device() -> int:
    device = ctypes.c_int()
    call("cudaGetDevice", ctypes.byref(device))
    return device.value


def device_name() -> str:
    properties = ctypes.create_string_buffer(8192)  # the name comes first
    call("cudaGetDeviceProperties", properties, 0)
    return properties.value.decode()


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    before = current_device()
    call("cudaSetDevice", device)
    try:
        yield
    finally:
        call("cudaSetDevice", before)


def new_stream(device: int | None = None) -> int:
    """Returns a stream that does not wait for other streams or CUDA's default stream. Never
    destroyed."""
    stream = ctypes.c_void_p()
    with on_device(current_device() if device is None else device):
        call("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
    assert stream.value is not None
    return stream.value


def synchronize(stream: int) -> None:
    call("cudaStreamSynchronize", _at(stream))


def is_idle(stream: int) -> bool:
    assert _runtime is not None
    return bool(_runtime.cudaStreamQuery(_at(stream)) == 0)


def wait_for(first: int, second: int) -> None:
    """Makes later work of the second stream wait for earlier work of the first stream."""
    event = ctypes.c_void_p()
    call("cudaEventCreateWithFlags", ctypes.byref(event), 2)
    call("cudaEventRecord", event, _at(first))
    call("cudaStreamWaitEvent", _at(second), event, 0)
    call("cudaEventDestroy", event)


def queue_copy(to: DeviceArray, source: DeviceArray, stream: int) -> None:
    nbytes = ctypes.c_size_t(source.memory.nbytes)
    call("cudaMemcpyAsync", _at(to.pointer), _at(source.pointer), nbytes, 4, _at(stream))


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@contextlib.contextmanager
def held(stream: int) -> Iterator[None]:
    """Holds up the work that the block queues on the stream. The block must not wait for the
    work."""
    go = threading.Event()
    in_time: list[bool] = []
    callback = _Callback(lambda _: in_time.append(go.wait(10)))
    call("cudaLaunchHostFunc", _at(stream), callback, None)
    try:
        yield
    finally:
        go.set()
        synchronize(stream)
    assert in_time == [True], "something waited for the stream"


# --- DLPack ---


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_lent: dict[int, _Lent] = {}


def lent() -> int:
    """How many times arrays are with somebody at the moment."""
    return len(_lent)


class _Lent:
    """The object behind a capsule. Keeps the array until the consumer releases the array."""

    def __init__(self, array: DeviceArray, versioned: bool) -> None:
        axes = len(array.shape)
        self.array, self.versioned = array, versioned
        self.shape = (ctypes.c_int64 * axes)(*array.shape)
        self.strides = (ctypes.c_int64 * axes)(*array.strides)
        bfloat16 = array.dtype == ml_dtypes.bfloat16
        kind, device = array.__dlpack_device__()
        self.managed = _Versioned() if versioned else _Managed()
        self.managed.deleter = ctypes.cast(_let_go, ctypes.c_void_p)
        self.managed.tensor = _Tensor(
            array.pointer if math.prod(array.shape) else None,
            kind, device, axes,
            4 if bfloat16 else _CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1,
            self.shape, self.strides, 0,
        )  # fmt: skip
        if versioned:
            self.managed.major, self.managed.flags = 1, READ_ONLY if array.read_only else 0

    def capsule(self) -> object:
        address = ctypes.addressof(self.managed)
        _lent[address] = self
        name = _VERSIONED if self.versioned else _UNVERSIONED
        return _new_capsule(address, name, ctypes.cast(_drop, ctypes.c_void_p))


_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@_Callback
def _let_go(managed: int) -> None:
    del _lent[managed]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule: int) -> None:
    """Frees a capsule without a consumer."""
    for name in (_VERSIONED, _UNVERSIONED):
        if _is_valid(capsule, name):
            del _lent[_pointer_of(capsule, name)]


# --- Who needs them ---


def _what_is_missing() -> str | None:
    if device_count() == 0:
        return "needs a CUDA device"
    try:
        tersor.Codec("none").encode(
            DeviceArray.of(numpy.zeros(1, numpy.float32)), DeviceArray((1024,), numpy.uint8)
        )
    except tersor.CudaError as error:
        return f"this build cannot use CUDA: {error}"
    return None


_missing = _what_is_missing()
on_cuda = [pytest.mark.gpu, pytest.mark.skipif(_missing is not None, reason=str(_missing))]
two_devices = pytest.mark.skipif(device_count() < 2, reason="needs two CUDA devices")


def refused(words: str, call: Callable[[], object]) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=words):
        call()
