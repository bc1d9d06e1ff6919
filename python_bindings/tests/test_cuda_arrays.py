"""The accepted arrays of a device, the streams, and the errors for other arrays."""

from __future__ import annotations

import gc
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import cuda_arrays
import numpy
import pytest
from cuda_arrays import CUDA_HOST, LEGACY, MANAGED, DeviceArray, refused
from test_codec import gaussian

import tersor

pytestmark = cuda_arrays.on_cuda

COUNT = 1009
PER_THREAD = 2  # CUDA's handle of another stream in each thread
CODEC = tersor.Codec("int8")
MOST = CODEC.max_payload_bytes(COUNT)


def values() -> DeviceArray:
    return DeviceArray.of(gaussian(COUNT))


def room(count: int = MOST) -> DeviceArray:
    return DeviceArray((count,), numpy.uint8)


def on_host(seed: int = 1) -> bytes:
    payload: bytes = CODEC.encode(gaussian(COUNT, seed)).tobytes()
    return payload


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """Whatever was lent comes back, and calls leave the thread's device alone."""
    yield
    gc.collect()
    assert cuda_arrays.lent() == 0
    assert cuda_arrays.current_device() == 0


class TestPlaces:
    def test_views_of_all_shapes_are_read_in_place(self) -> None:
        whole = DeviceArray.of(gaussian(3 * 64))
        expected = CODEC.encode(gaussian(3 * 64)[64:128]).tobytes()
        for shape in ((64,), (8, 8), (2, 1, 32), (64, 1)):
            view = whole.view(shape, first=64)
            assert CODEC.encode(view, room(CODEC.max_payload_bytes(view))).tobytes() == expected

    def test_zero_dimensional_arrays(self) -> None:
        one = DeviceArray.of(numpy.full((), 3, numpy.float32))
        payload = CODEC.encode(one, room(CODEC.max_payload_bytes(one)))
        assert CODEC.decode(payload, DeviceArray(())).numpy() == pytest.approx(3)

    def test_managed_memory_is_device_memory(self) -> None:
        gradient = DeviceArray.of(gaussian(COUNT), kind=MANAGED)
        assert CODEC.encode(gradient, room()).tobytes() == on_host()

    def test_pinned_memory_is_host_memory(self) -> None:
        gradient = DeviceArray.of(gaussian(COUNT), kind=CUDA_HOST)
        assert CODEC.encode(gradient).tobytes() == on_host()
        out = DeviceArray((COUNT,), kind=CUDA_HOST)
        CODEC.decode(CODEC.encode(gaussian(COUNT)), out)
        expected = CODEC.decode(CODEC.encode(gaussian(COUNT)))
        assert out.tobytes() == expected.tobytes()

    def test_size_queries_do_not_synchronize(self) -> None:
        gradient = values()
        assert CODEC.max_payload_bytes(gradient) == MOST
        assert gradient.asked_for == [-1]

    @cuda_arrays.two_devices
    def test_arrays_on_a_noncurrent_device(self) -> None:
        gradient = DeviceArray.of(gaussian(COUNT), device=1)
        out = DeviceArray((MOST,), numpy.uint8, device=1)
        assert CODEC.encode(gradient, out).tobytes() == on_host()


class TestRefusals:
    def test_read_only_arrays_are_read_and_not_written(self) -> None:
        gradient, out = values(), room()
        gradient.read_only = True
        assert CODEC.encode(gradient, out).tobytes() == on_host()
        before = gradient.tobytes()
        refused("out: .*read-only", lambda: CODEC.decode(out, gradient))
        feedback = tersor.Codec("int8+ef")
        refused("residual: .*read-only", lambda: feedback.encode(values(), out, residual=gradient))
        out.read_only = True
        refused("out: .*read-only", lambda: CODEC.encode(values(), out))
        assert gradient.tobytes() == before

    @pytest.mark.parametrize(
        ("shape", "strides"), [((504,), (2,)), ((10, 100), (1, 10)), ((5,), (0,))]
    )
    def test_noncontiguous_arrays(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        refused("contiguous", lambda: CODEC.encode(values().view(shape, strides), room()))
        refused("contiguous", lambda: CODEC.decode(room(), values().view(shape, strides)))

    @pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", "uint16", "bool"])
    def test_unsupported_dtypes(self, dtype: str) -> None:
        gradient = DeviceArray((COUNT,), dtype)
        refused(f"array: the dtype is {dtype}; convert", lambda: CODEC.encode(gradient, room()))

    def test_mixed_host_and_device_arrays(self) -> None:
        feedback = tersor.Codec("int8+ef")
        residual, payload = gaussian(COUNT), CODEC.encode(gaussian(COUNT))
        words = "{}: the array is on {}, the first array on {}"
        to_host, to_device = ("the host", "cuda:0"), ("cuda:0", "the host")
        refused(
            words.format("residual", *to_host),
            lambda: feedback.encode(values(), room(), residual=residual),
        )
        refused(words.format("out", *to_host), lambda: CODEC.encode(values(), payload.copy()))
        refused(words.format("out", *to_device), lambda: CODEC.encode(residual, room()))
        refused(
            words.format("array", *to_host), lambda: CODEC.encode([values(), residual], room(9999))
        )
        refused(words.format("payload", *to_host), lambda: CODEC.decode(payload, values()))
        refused(words.format("payload", *to_device), lambda: CODEC.decode(room(), residual))

    @cuda_arrays.two_devices
    def test_two_devices(self) -> None:
        words = "out: the array is on cuda:1, the first array on cuda:0"
        refused(words, lambda: CODEC.encode(values(), DeviceArray((MOST,), numpy.uint8, device=1)))

    @cuda_arrays.two_devices
    def test_streams_of_another_device(self) -> None:
        stream = cuda_arrays.new_stream(1)
        refused("stream.* device", lambda: CODEC.encode(values(), room(), stream=stream))

    def test_pointers_inaccessible_to_the_device(self) -> None:
        gradient = values()
        elsewhere = gaussian(COUNT)
        gradient.pointer = elsewhere.ctypes.data
        refused("device", lambda: CODEC.encode(gradient, room()))

    def test_outputs_with_wrong_dtype_size_or_alignment(self) -> None:
        refused("flat uint8", lambda: CODEC.encode(values(), DeviceArray((COUNT,))))
        refused(f"needs {MOST}", lambda: CODEC.encode(values(), room(MOST - 1)))
        refused("16 bytes", lambda: CODEC.encode(values(), room(MOST + 16)[1:]))
        refused("16 bytes", lambda: CODEC.decode(room(MOST + 16)[1:], values()))

    def test_missing_outputs(self) -> None:
        refused("out: pass a uint8 array", lambda: CODEC.encode(values()))
        refused("payload is on a device", lambda: CODEC.decode(room()))

    def test_residual_length_mismatch_changes_nothing(self) -> None:
        residual, out = values(), room()
        out.fill(numpy.full(MOST, 7, numpy.uint8))
        feedback = tersor.Codec("int8+ef")
        with pytest.raises(tersor.InvalidArgumentError):
            feedback.encode(values()[:5], out, residual=residual)
        assert residual.tobytes() == gaussian(COUNT).tobytes()
        assert set(out.tobytes()) == {7}


class TestStreams:
    def test_calls_are_ordered_after_queued_work(self) -> None:
        stream = cuda_arrays.new_stream()
        gradient, later, out = values(), DeviceArray.of(gaussian(COUNT, 2)), room()
        CODEC.encode(gradient, out, stream=stream)
        with cuda_arrays.held(stream):
            cuda_arrays.queue_copy(gradient, later, stream)
            CODEC.encode(gradient, out, stream=stream)
            CODEC.decode(out, later, stream=stream)
            assert not cuda_arrays.is_idle(stream)
        assert out.tobytes() == on_host(2)
        assert later.tobytes() == CODEC.decode(CODEC.encode(gaussian(COUNT, 2))).tobytes()

    @pytest.mark.parametrize("form", ["cuda_stream", "ptr", "__cuda_stream__"])
    def test_streams_of_other_libraries(self, form: str) -> None:
        stream = cuda_arrays.new_stream()
        named = types.SimpleNamespace(
            **{form: (lambda: (0, stream)) if form == "__cuda_stream__" else stream}
        )
        gradient, later, out = values(), DeviceArray.of(gaussian(COUNT, 2)), room()
        CODEC.encode(gradient, out, stream=named)
        with cuda_arrays.held(stream):
            cuda_arrays.queue_copy(gradient, later, stream)
            CODEC.encode(gradient, out, stream=named)
        assert gradient.asked_for == [stream, stream]
        assert out.tobytes() == on_host(2)

    def test_invalid_stream(self) -> None:
        refused("stream: pass a PyTorch", lambda: CODEC.encode(values(), room(), stream="default"))

    def test_default_is_the_legacy_stream(self) -> None:
        gradient, out = values(), room()
        CODEC.encode(gradient, out)
        assert (gradient.asked_for, out.asked_for) == ([LEGACY], [LEGACY])
        assert out.tobytes() == on_host()

    @pytest.mark.parametrize("given", [True, False])
    def test_values_produced_on_another_stream(self, given: bool) -> None:
        making = cuda_arrays.new_stream()
        stream = cuda_arrays.new_stream() if given else None
        gradient, later, out = values(), DeviceArray.of(gaussian(COUNT, 2)), room()
        CODEC.encode(gradient, out, stream=stream)
        gradient.work = making
        with cuda_arrays.held(making):
            cuda_arrays.queue_copy(gradient, later, making)
            CODEC.encode(gradient, out, stream=stream)
        assert out.tobytes() == on_host(2)

    def test_codec_shared_by_streams_and_threads(self) -> None:
        codec = tersor.Codec("topk:density=0.05+ef")
        wanted = [codec.encode(gaussian(5003, seed), residual=numpy.zeros(5003, numpy.float32))
                  for seed in range(3)]  # fmt: skip
        found: list[set[bytes]] = [set() for _ in wanted]

        def encode(index: int) -> None:
            stream = cuda_arrays.new_stream()
            gradient = DeviceArray.of(gaussian(5003, index))
            out = room(codec.max_payload_bytes(gradient))
            for _ in range(4):
                residual = DeviceArray.of(numpy.zeros(5003, numpy.float32))
                codec.encode(gradient, out, residual=residual, stream=stream)
                cuda_arrays.synchronize(stream)
                found[index].add(out.tobytes()[: len(wanted[index])])

        threads = [threading.Thread(target=encode, args=(index,)) for index in range(len(wanted))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [{each.tobytes()} for each in wanted]

    def test_call_waits_for_another_stream_with_the_same_handle(self) -> None:
        """A call waits for an earlier call on another stream with the same handle."""
        codec = tersor.Codec("topk:density=0.05")
        gradients = [DeviceArray.of(gaussian(COUNT, seed)) for seed in (1, 2)]
        payloads = [room(codec.max_payload_bytes(COUNT)) for _ in gradients]
        found: list[bool] = []

        def encode() -> None:
            codec.encode(gradients[1], payloads[1], stream=PER_THREAD)
            time.sleep(0.2)
            found.append(cuda_arrays.is_idle(PER_THREAD))

        codec.encode(gradients[0], payloads[0], stream=PER_THREAD)
        with cuda_arrays.held(PER_THREAD):
            codec.encode(gradients[0], payloads[0], stream=PER_THREAD)
            thread = threading.Thread(target=encode)
            thread.start()
            thread.join()
        assert found == [False]
        for seed, payload in enumerate(payloads, 1):
            expected = codec.encode(gaussian(COUNT, seed)).tobytes()
            assert payload.tobytes()[: len(expected)] == expected

    def test_codec_deleted_while_work_is_queued(self) -> None:
        stream = cuda_arrays.new_stream()
        codec = tersor.Codec("topk:density=0.05")
        gradient = values()
        out = room(codec.max_payload_bytes(gradient))
        for _ in range(3):
            codec.encode(gradient, out, stream=stream)
        del codec
        gc.collect()
        cuda_arrays.synchronize(stream)
        expected = tersor.Codec("topk:density=0.05").encode(gaussian(COUNT))
        assert out.tobytes()[: len(expected)] == expected.tobytes()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The calls of CuPy that the package makes. CuPy's own kernels need a GPU."""
    module = types.ModuleType("cupy")
    stream = types.SimpleNamespace(ptr=cuda_arrays.new_stream())

    class Array(DeviceArray):
        __module__ = "cupy"

        @property
        def device(self) -> Any:
            return cuda_arrays.on_device(self.memory.device)

    def empty(shape: int, dtype: str) -> Array:
        return Array((shape,), dtype, device=cuda_arrays.current_device())

    found: Any = module
    found.ndarray, found.empty = Array, empty
    found.cuda = types.SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


class TestCupy:
    def test_calls_use_the_current_cupy_stream(self, cupy: Any) -> None:
        gradient = cupy.ndarray.of(gaussian(COUNT))
        later = DeviceArray.of(gaussian(COUNT, 2))
        stream = cupy.cuda.get_current_stream().ptr
        CODEC.encode(gradient)
        with cuda_arrays.held(stream):
            cuda_arrays.queue_copy(gradient, later, stream)
            payload = CODEC.encode(gradient)
        assert set(gradient.asked_for) == {-1}
        assert payload.tobytes() == on_host(2)

    @pytest.mark.parametrize("first", [True, False])
    def test_arrays_of_two_libraries_share_the_stream_of_the_first(
        self, cupy: Any, first: bool
    ) -> None:
        """The other array's library works on another stream. The call waits for this stream."""
        own, other = (cupy.ndarray, DeviceArray) if first else (DeviceArray, cupy.ndarray)
        gradient, residual = own.of(gaussian(COUNT)), other.of(gaussian(COUNT))
        current = cupy.cuda.get_current_stream().ptr
        residual.work = making = cuda_arrays.new_stream() if first else current
        feedback, later, out = tersor.Codec("int8+ef"), DeviceArray.of(gaussian(COUNT, 2)), room()
        feedback.encode(gradient, out, residual=residual)
        with cuda_arrays.held(making):
            cuda_arrays.queue_copy(residual, later, making)
            feedback.encode(gradient, out, residual=residual)
        assert set(gradient.asked_for) == {-1 if first else LEGACY}
        assert set(residual.asked_for) == {current if first else LEGACY}
        expected = gaussian(COUNT, 2)
        assert out.tobytes() == feedback.encode(gaussian(COUNT), residual=expected).tobytes()
        assert residual.tobytes() == expected.tobytes()

    @cuda_arrays.two_devices
    def test_new_payloads_are_on_the_gradients_device(self, cupy: Any) -> None:
        cuda_stream = cuda_arrays.new_stream(1)
        gradient = cupy.ndarray.of(gaussian(COUNT), device=1)
        payload = CODEC.encode(gradient, stream=cuda_stream)
        assert payload.memory.device == 1
        assert payload.tobytes() == on_host()
