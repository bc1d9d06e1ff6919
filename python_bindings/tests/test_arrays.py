"""The accepted arrays, without a copy, and the errors for other arrays."""

from __future__ import annotations

import array
import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import tersor
import tersor.local
from tersor.arrays import narrowed

COUNT = 1009


def gradient() -> Any:
    return numpy.random.default_rng(1).standard_normal(COUNT).astype(numpy.float32)


def payload() -> Any:
    return tersor.Codec("int8").encode(gradient())


def refused(words: str, call: Callable[[], object]) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=words):
        call()


class TestBuffers:
    @pytest.mark.parametrize(
        "make",
        [
            memoryview,
            lambda values: array.array("f", values.tolist()),
            lambda values: (ctypes.c_float * COUNT)(*values.tolist()),
        ],
        ids=["memoryview", "array.array", "ctypes"],
    )
    def test_buffer_protocol_objects_are_read(self, make: Callable[[Any], Any]) -> None:
        encoded = tersor.Codec("int8").encode(make(gradient()))
        assert encoded.tobytes() == payload().tobytes()

    def test_outputs_are_written_in_place(self) -> None:
        out = array.array("f", [0.0] * COUNT)
        assert tersor.Codec("int8").decode(payload(), out) is out
        assert out.tobytes() == tersor.Codec("int8").decode(payload()).tobytes()

    def test_read_only_arrays_are_read_and_not_written(self) -> None:
        values = gradient()
        values.flags.writeable = False
        assert tersor.Codec("int8").encode(values).tobytes() == payload().tobytes()
        refused("out: .*read-only", lambda: tersor.Codec("int8").decode(payload(), values))
        refused(
            "residual: .*read-only",
            lambda: tersor.Codec("int8+ef").encode(gradient(), residual=values),
        )
        refused(
            "out: .*read-only",
            lambda: tersor.Codec("int8").encode(gradient(), bytes(2000)),
        )

    def test_offset_slices_are_accepted(self) -> None:
        shifted = numpy.empty(COUNT + 1, numpy.float32)[1:]
        shifted[:] = gradient()
        assert tersor.Codec("int8").encode(shifted).tobytes() == payload().tobytes()


class TestRefusals:
    @pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", "uint16", "bool"])
    def test_unsupported_dtypes(self, dtype: str) -> None:
        refused(
            f"array: the dtype is {dtype}; convert the array to float32, bfloat16 or float16",
            lambda: tersor.Codec("int8").encode(gradient().astype(dtype)),
        )

    def test_big_endian_float32(self) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match="array: "):
            tersor.Codec("int8").encode(gradient().astype(">f4"))

    def test_byte_swapped_bfloat16(self) -> None:
        kind = pytest.importorskip("ml_dtypes").bfloat16
        values = gradient().astype(kind)
        refused(
            "byte order",
            lambda: tersor.Codec("int8").encode(values.view(values.dtype.newbyteorder())),
        )

        class Values(numpy.ndarray):  # type: ignore[type-arg]
            pass

        found = tersor.Codec("int8").encode(values.view(Values))
        assert found.tobytes() == tersor.Codec("int8").encode(values).tobytes()

    def test_parameters_beyond_32_bits(self) -> None:
        codec = tersor.Codec("int8:rounding=stochastic")
        codec.encode(gradient(), parameter=2**32 - 1)
        refused("parameter is", lambda: codec.encode([gradient()] * 2, parameter=2**32 - 1))

    @pytest.mark.parametrize(
        "view", [lambda a: a[::2], lambda a: a[:1000].reshape(10, 100).T, lambda a: a[::-1]]
    )
    def test_noncontiguous_arrays(self, view: Callable[[Any], Any]) -> None:
        refused("ascontiguousarray", lambda: tersor.Codec("int8").encode(view(gradient())))

    @pytest.mark.parametrize("thing", ["text", 3.0, object(), {}])
    def test_non_arrays(self, thing: object) -> None:
        refused("is not an array", lambda: tersor.Codec("int8").encode(thing))

    def test_none_and_empty_lists(self) -> None:
        refused("got None; pass an array", lambda: tersor.Codec("int8").encode(None))
        refused("is an empty list", lambda: tersor.Codec("int8").encode([]))
        refused("is an empty list", lambda: tersor.Codec("int8").decode([]))
        refused("payload is an empty list", lambda: tersor.Codec("int8").decode([], out=gradient()))

    def test_unexpected_or_missing_residuals(self) -> None:
        refused('add "\\+ef"', lambda: tersor.Codec("int8").encode(gradient(), residual=gradient()))
        refused("zeros in the first step", lambda: tersor.Codec("int8+ef").encode(gradient()))

    def test_outputs_with_wrong_dtype_shape_size_or_alignment(self) -> None:
        codec = tersor.Codec("int8")
        refused("flat uint8", lambda: codec.encode(gradient(), numpy.empty(COUNT, numpy.float32)))
        refused("flat uint8", lambda: codec.encode(gradient(), numpy.empty((2, 999), numpy.uint8)))
        most = codec.max_payload_bytes(COUNT)
        refused(
            f"needs {most}", lambda: codec.encode(gradient(), numpy.empty(most - 1, numpy.uint8))
        )
        refused("16 bytes", lambda: codec.encode(gradient(), numpy.empty(2000, numpy.uint8)[1:]))

    def test_mismatched_lists(self) -> None:
        codec = tersor.Codec("int8")
        two = [gradient(), gradient()]
        refused("one dtype", lambda: codec.encode([gradient(), gradient().astype(numpy.float16)]))
        refused("first_index", lambda: codec.encode(two, first_index=[0]))
        refused("as many arrays", lambda: codec.decode(codec.encode(two)))
        with pytest.raises(tersor.WireError, match="segments"):
            codec.decode(codec.encode(two), gradient())

    def test_add_without_an_output(self) -> None:
        refused("the array to add to", lambda: tersor.Codec("int8").decode(payload(), add=True))

    def test_invalid_stream(self) -> None:
        refused("stream: ", lambda: tersor.Codec("int8").encode(gradient(), stream="default"))

    def test_unsupported_dtypes_in_size_queries(self) -> None:
        refused("dtype is float64", lambda: tersor.Codec("int8").max_payload_bytes(10, "float64"))
        core = tersor._core.Codec("int8", threads=1)
        refused('dtype is "i8"; pass one of', lambda: core.capacity_of_shapes([[10]], "i8"))

    def test_rejected_encode_keeps_the_residual(self) -> None:
        residual = gradient()
        with pytest.raises(tersor.InvalidArgumentError):
            tersor.Codec("int8+ef").encode(gradient()[:5], residual=residual)
        assert residual.tobytes() == gradient().tobytes()


class TestErrors:
    def test_error_classes_derive_from_builtin_errors_and_pickle(self) -> None:
        assert issubclass(tersor.InvalidArgumentError, ValueError)
        assert issubclass(tersor.OutOfMemoryError, MemoryError)
        for name in (
            "InvalidArgumentError",
            "WireError",
            "TransportError",
            "CudaError",
            "OutOfMemoryError",
        ):
            error = getattr(tersor, name)
            assert issubclass(error, tersor.Error)
            assert error.__module__ == "tersor"
            assert isinstance(pickle.loads(pickle.dumps(error("why"))), error)

    def test_damaged_payload_raises_wire_error_and_fills_output_with_nan(self) -> None:
        damaged = payload()
        damaged[400] ^= 4
        out = numpy.full(COUNT, 7, numpy.float32)
        with pytest.raises(tersor.WireError, match="checksum"):
            tersor.Codec("int8").decode(damaged, out)
        assert numpy.isnan(out).all()  # known once all has been read


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


class TestTorch:
    def test_tensors_and_parameters_are_read(self, torch: Any) -> None:
        tensor = torch.from_numpy(gradient())
        for each in (tensor, torch.nn.Parameter(tensor), tensor.reshape(1009, 1, 1)):
            encoded = tersor.Codec("int8").encode(each)
            assert encoded.numpy().tobytes() == payload().tobytes()

    def test_new_outputs_are_tensors(self, torch: Any) -> None:
        tensor = torch.from_numpy(gradient()).to(torch.bfloat16)
        back = tersor.Codec("none").decode(tersor.Codec("none").encode(tensor))
        assert torch.equal(back, tensor)
        assert back.dtype == torch.bfloat16

    def test_max_payload_bytes_accepts_torch_dtypes_and_shapes(self, torch: Any) -> None:
        tensor = torch.zeros(3, 5, dtype=torch.bfloat16)
        codec = tersor.Codec("none")
        assert (
            codec.max_payload_bytes(tensor)
            == codec.max_payload_bytes(tensor.shape, tensor.dtype)
            == codec.max_payload_bytes(15, "bf16")
            == 64 + 32
        )

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda t: t.to_sparse(), "torch.strided"),
            (lambda t: t.to("meta"), "meta"),
            (lambda t: t.double(), "float64"),
            (lambda t: t[:1008].reshape(2, 7, 8, 9).permute(0, 3, 1, 2), "contiguous()"),
            (lambda t: t[:1].expand(5), "contiguous()"),
        ],
        ids=["sparse", "meta", "float64", "channels-last", "expanded"],
    )
    def test_unsupported_tensors_are_rejected(
        self, torch: Any, change: Callable[[Any], Any], words: str
    ) -> None:
        tensor = change(torch.from_numpy(gradient()))
        refused(words, lambda: tersor.Codec("int8").encode(tensor))

    def test_negated_views_are_rejected(self, torch: Any) -> None:
        negated = torch._neg_view(torch.from_numpy(gradient()))
        codec = tersor.Codec("int8")
        refused("resolve_neg", lambda: codec.encode(negated))
        refused("out: .*resolve_neg", lambda: codec.decode(payload(), negated))
        found = codec.encode(negated.resolve_neg())
        assert numpy.array_equal(codec.decode(found), -codec.decode(payload()))


class OnADevice:
    """An array that claims a CUDA device, and records the requested stream."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise BufferError(f"stream {stream}")


class TestStreams:
    def test_dlpack_requests_the_legacy_stream_by_default(
        self,
    ) -> None:
        refused("stream 1$", lambda: tersor.Codec("int8").encode(OnADevice(), payload()))
        refused(
            "stream 77$", lambda: tersor.Codec("int8").encode(OnADevice(), payload(), stream=77)
        )

    def test_tensor_subclasses_use_the_current_torch_stream(self, torch: Any) -> None:
        class Derived(OnADevice, torch.Tensor):  # type: ignore[misc, name-defined]
            pass

        tensor = torch.zeros(3).as_subclass(Derived)
        refused("stream -1$", lambda: tersor.Codec("int8").encode(tensor))


class TestJax:
    def test_arrays_are_read_and_not_written(self) -> None:
        jax = pytest.importorskip("jax")
        values = jax.numpy.asarray(gradient())
        encoded = tersor.Codec("int8").encode(values)
        assert encoded.tobytes() == payload().tobytes()
        halves = values.astype(jax.numpy.bfloat16)
        assert len(tersor.Codec("none").encode(halves)) == 64 + 2 * COUNT + 14
        refused("out: .*jax.*read-only", lambda: tersor.Codec("int8").decode(payload(), values))


def cuda_torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch


@pytest.mark.gpu
class TestCuda:
    """Skipped without a GPU; the build then needs CUDA kernels, too."""

    def test_cuda_payloads_match_host_bytes(self) -> None:
        torch = cuda_torch()
        tensor = torch.from_numpy(gradient()).cuda()
        codec = tersor.Codec("int8")
        encoded = codec.encode(tensor)
        assert encoded.device == tensor.device
        parameter = codec.encode(torch.nn.Parameter(tensor))
        assert torch.equal(parameter, encoded)
        assert encoded.cpu().numpy().tobytes() == payload().tobytes()
        back = codec.decode(encoded, torch.empty_like(tensor))
        assert back.cpu().numpy().tobytes() == codec.decode(payload()).tobytes()

    def test_calls_use_the_current_or_given_stream(self) -> None:
        torch = cuda_torch()
        codec = tersor.Codec("int8")
        stream = torch.cuda.Stream()
        tensor = torch.from_numpy(gradient()).cuda()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            tensor.zero_()
            encoded = codec.encode(tensor)
        given = codec.encode(tensor, stream=stream)
        stream.synchronize()
        zeros = codec.encode(numpy.zeros(COUNT, numpy.float32)).tobytes()
        assert encoded.cpu().numpy().tobytes() == zeros
        assert given.cpu().numpy().tobytes() == zeros

    def test_host_residual_for_a_cuda_array_is_rejected(self) -> None:
        torch = cuda_torch()
        tensor = torch.from_numpy(gradient()).cuda()
        residual = torch.zeros(COUNT)
        refused(
            "residual: the array is on the host",
            lambda: tersor.Codec("int8+ef").encode(tensor, residual=residual),
        )

    def test_decode_requires_an_output(self) -> None:
        torch = cuda_torch()
        encoded = tersor.Codec("int8").encode(torch.zeros(COUNT, device="cuda"))
        refused("device", lambda: tersor.Codec("int8").decode(encoded))


def test_borrowed_memory_survives_replaced_tensor_data() -> None:
    """Sets ``tensor.data`` while Tersor sends the tensor of 4,000 bytes, a size that malloc
    reuses."""
    torch = pytest.importorskip("torch")

    def exchange(transport: tersor.Transport) -> list[float]:
        own = torch.full((1000,), transport.rank + 1.0)
        reducer = tersor.GradientReducer(transport, codec="none", progress="caller")
        reducer.add("weight", own)
        reducer.ready("weight", own)
        lent = own.data_ptr()
        own.data = torch.zeros(1)
        others = [torch.full((1000,), 99.0) for _ in range(9)]
        assert lent not in [one.data_ptr() for one in others]
        reducer.wait()
        return [float(one.mean()) for one in (own, *others)]

    assert tersor.local.run(2, exchange) == [[0.0] + [99.0] * 9] * 2


def test_finite_values_stay_finite_in_float16() -> None:
    values = numpy.array([1.0, 7e4, -1e30, 65504, numpy.inf, -numpy.inf, numpy.nan], numpy.float32)
    wanted = [1, 65504, -65504, 65504, numpy.inf, -numpy.inf, numpy.nan]
    for wide in (values, values.astype(numpy.float64)):
        found = narrowed(wide, "float16")
        assert found.dtype == numpy.float16
        numpy.testing.assert_array_equal(found, wanted)
        numpy.testing.assert_array_equal(narrowed(wide, "float32"), values)


def test_decoding_saturates_in_float16() -> None:
    array = numpy.full(256, 60000, numpy.float16)
    array[::2] *= -1
    for spec in ("hadamard:bits=1", "hadamard", "bf16", "int4"):
        codec = tersor.Codec(spec)
        out = numpy.empty_like(array)
        codec.decode(codec.encode(array), out)
        assert numpy.isfinite(out).all(), spec


def test_masked_arrays_are_rejected() -> None:
    masked = numpy.ma.masked_array(gradient(), mask=True)
    codec, transport = tersor.Codec("int8"), tersor.local.InProcessWorld(1).transport(0)
    refused("masked: pass array.filled", lambda: codec.encode(masked))
    refused("masked: pass array.filled", lambda: codec.encode([gradient(), masked]))
    refused("masked: pass array.filled", lambda: codec.decode(payload(), masked))
    refused("masked: pass array.filled", lambda: tersor.allreduce(transport, masked))
