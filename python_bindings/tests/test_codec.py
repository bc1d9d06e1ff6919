"""Tests of every codec in the registry on arrays, and of the additions of `tersor.Codec`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy
import pytest
from framed import FRAMED

import tersor

ml_dtypes = pytest.importorskip("ml_dtypes")

NAMES = FRAMED
DTYPES = [numpy.float32, ml_dtypes.bfloat16, numpy.float16]
COUNTS = [0, 1, 255, 256, 257, 1009, 100_003]


def gaussian(count: int, seed: int = 1, dtype: Any = numpy.float32) -> Any:
    return numpy.random.default_rng(seed).standard_normal(count).astype(dtype)


def decoded(codec: tersor.Codec, payload: Any, like: Any) -> Any:
    return codec.decode(payload, numpy.empty_like(like))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", NAMES)
class TestEveryCodec:
    @pytest.mark.parametrize("count", COUNTS)
    def test_decoded_payload_plus_residual_equals_input(
        self, name: str, dtype: Any, count: int
    ) -> None:
        codec = tersor.Codec(name + "+ef")
        gradient = gaussian(count, dtype=dtype)
        before = gaussian(count, seed=2)
        residual = before.copy()
        payload = codec.encode(gradient, residual=residual)
        sent = codec.decode(payload, numpy.empty(count, dtype))
        kept = sent.astype(numpy.float64) + residual
        rounding = 2.0**-23 if dtype is numpy.float32 else 2.0**-7  # of what was decoded
        numpy.testing.assert_allclose(
            kept, gradient.astype(numpy.float64) + before, rtol=rounding, atol=rounding * 8
        )

    @pytest.mark.parametrize("count", COUNTS)
    def test_payload_fits_max_payload_bytes(self, name: str, dtype: Any, count: int) -> None:
        codec = tersor.Codec(name)
        gradient = gaussian(count, dtype=dtype)
        payload = codec.encode(gradient)
        most = codec.max_payload_bytes(count, dtype)
        assert most == codec.max_payload_bytes(gradient)
        assert payload.dtype == numpy.uint8
        assert len(payload) <= most if name == "entropy" else len(payload) == most

    def test_lossless_codecs_restore_the_same_bits(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name)
        gradient = gaussian(1009, dtype=dtype)
        back = decoded(codec, codec.encode(gradient), gradient)
        same = back.tobytes() == gradient.tobytes()
        assert same if codec.lossless else not same or dtype is not numpy.float32

    def test_payload_does_not_depend_on_shape(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name)
        flat = gaussian(30, dtype=dtype)
        expected = codec.encode(flat)
        for shape in [(30,), (5, 6), (2, 1, 3, 5)]:
            payload = codec.encode(flat.reshape(shape))
            assert payload.tobytes() == expected.tobytes()
            back = codec.decode(payload, numpy.empty(shape, dtype))
            assert back.tobytes() == decoded(codec, expected, flat).tobytes()
        assert (
            codec.encode(numpy.zeros((), dtype)).tobytes()
            == codec.encode(numpy.zeros(1, dtype)).tobytes()
        )

    def test_torch_tensors_give_the_same_bytes(self, name: str, dtype: Any) -> None:
        torch = pytest.importorskip("torch")
        codec = tersor.Codec(name)
        gradient = gaussian(1009, dtype=dtype)
        tensor = torch.from_numpy(gradient.astype(numpy.float32)).to(getattr(torch, dtype.__name__))
        payload = codec.encode(tensor)
        assert payload.dtype == torch.uint8
        assert payload.numpy().tobytes() == codec.encode(gradient).tobytes()
        back = codec.decode(payload, torch.empty_like(tensor))
        expected = decoded(codec, codec.encode(gradient), gradient)
        assert back.view(torch.uint8).numpy().tobytes() == expected.tobytes()

    def test_more_threads_give_the_same_bytes(self, name: str, dtype: Any) -> None:
        gradient = gaussian(300_007, dtype=dtype)
        payloads = [
            tersor.Codec(name, threads=threads).encode(gradient).tobytes() for threads in (1, 3)
        ]
        assert payloads[0] == payloads[1]

    def test_instruction_sets_give_the_same_bytes(self, name: str, dtype: Any) -> None:
        from tersor import _core

        codec = tersor.Codec(name)
        gradient = gaussian(1009, dtype=dtype)
        expected = codec.encode(gradient).tobytes()
        try:
            for instruction_set in _core.instruction_sets():
                _core.force_instruction_set(instruction_set)
                assert codec.encode(gradient).tobytes() == expected, instruction_set
        finally:
            _core.force_instruction_set(None)


@pytest.mark.parametrize("name", NAMES)
class TestSums:
    def test_several_payloads_are_added(self, name: str) -> None:
        codec = tersor.Codec(name)
        gradients = [gaussian(1009, seed) for seed in (1, 2, 3)]
        payloads = [codec.encode(gradient) for gradient in gradients]
        total = sum(decoded(codec, payload, gradients[0]) for payload in payloads)
        mean = codec.decode(payloads, numpy.empty(1009, numpy.float32), factor=1 / 3)
        numpy.testing.assert_allclose(mean, total / 3, rtol=1e-5, atol=1e-6)

    def test_add_accumulates_into_the_output(self, name: str) -> None:
        codec = tersor.Codec(name)
        gradient, there = gaussian(1009), gaussian(1009, 2)
        payload = codec.encode(gradient)
        out = there.copy()
        assert codec.decode(payload, out, add=True, factor=2.0) is out
        numpy.testing.assert_allclose(
            out, there + 2 * decoded(codec, payload, gradient), rtol=1e-5, atol=1e-6
        )

    def test_lists_are_encoded_in_one_payload(self, name: str) -> None:
        codec = tersor.Codec(name)
        gradients = [gaussian(257).reshape(257, 1), gaussian(0), gaussian(1000, 2)]
        payload = codec.encode(gradients, parameter=3)
        assert len(payload) <= codec.max_payload_bytes(gradients)
        outs = [numpy.empty_like(gradient) for gradient in gradients]
        codec.decode(payload, outs, parameter=3)
        for parameter, (gradient, out) in enumerate(zip(gradients, outs, strict=True), 3):
            alone = numpy.empty_like(gradient)
            codec.decode(codec.encode(gradient, parameter=parameter), alone, parameter=parameter)
            assert out.tobytes() == alone.tobytes()


class TestRegistry:
    def test_registry_lists_options(self) -> None:
        int8 = next(codec for codec in tersor.codecs() if codec.name == "int8")
        assert int8.id == 4
        assert int8.options == (tersor.CodecOption("rounding", "nearest|stochastic", "nearest"),)
        topk = next(codec for codec in tersor.codecs() if codec.name == "topk")
        assert topk.options[0] == tersor.CodecOption("density", "(0, 1]", "0.01")

    def test_explicit_defaults_give_the_same_bytes(self) -> None:
        assert "intsum" not in FRAMED
        for codec in tersor.codecs():
            assert codec.summary
            for option in codec.options if codec.name in FRAMED else ():
                spelled = tersor.Codec(f"{codec.name}:{option.key}={option.default}")
                gradient = gaussian(1009)
                payload = tersor.Codec(codec.name).encode(gradient)
                assert spelled.encode(gradient).tobytes() == payload.tobytes()

    def test_specs_are_canonical(self) -> None:
        codec = tersor.Codec("topk:density=0.010+ef")
        assert codec.spec.startswith("topk:")
        assert codec.spec.endswith("+ef")
        assert codec.has_feedback
        assert not codec.lossless
        assert repr(codec) == f"tersor.Codec({codec.spec!r})"

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("int9", "int8"),
            ("int8:round=up", "rounding"),
            ("int8:rounding=up", "stochastic"),
            ("topk:density=2", "density"),
        ],
    )
    def test_invalid_specs_are_rejected(self, spec: str, words: str) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            tersor.Codec(spec)


class TestOptions:
    def test_seed_step_and_parameter_change_stochastic_rounding(self) -> None:
        codec = tersor.Codec("int8:rounding=stochastic")
        gradient = gaussian(1009)
        options: list[dict[str, int]] = [
            {},
            {"seed": 1},
            {"step": 1},
            {"parameter": 1},
            {"first_index": 512},
        ]
        # The header holds first_index and a checksum; codes alone tell whether numbers differ.
        codes = [codec.encode(gradient, **each).tobytes()[64:] for each in options]
        assert len(set(codes)) == len(codes)
        assert codes[1] == codec.encode(gradient, seed=1).tobytes()[64:]

    def test_slice_decodes_like_the_whole_parameter(self) -> None:
        codec = tersor.Codec("int8:rounding=stochastic")
        gradient = gaussian(1536)
        whole = decoded(codec, codec.encode(gradient, seed=5), gradient)
        payload = codec.encode(gradient[512:], seed=5, first_index=512)
        part = codec.decode(payload, numpy.empty(1024, numpy.float32), first_index=512)
        assert part.tobytes() == whole[512:].tobytes()

    def test_bf16_residuals(self) -> None:
        codec = tersor.Codec("int4+ef")
        gradient = gaussian(1009)
        residual = numpy.zeros(1009, ml_dtypes.bfloat16)
        payload = codec.encode(gradient, residual=residual)
        left_out = gradient - decoded(codec, payload, gradient)
        assert residual.tobytes() == left_out.astype(ml_dtypes.bfloat16).tobytes()

    @pytest.mark.parametrize("name", NAMES)
    def test_encode_factor_scales_the_array(self, name: str) -> None:
        codec = tersor.Codec(name + "+ef")
        gradient, factor = gaussian(1009), numpy.float32(0.3)
        residual = gaussian(1009, seed=2)
        expected = residual.copy()
        payload = codec.encode(gradient, residual=residual, factor=float(factor))
        weighed = codec.encode(factor * gradient, residual=expected)
        assert payload.tobytes() == weighed.tobytes()
        assert residual.tobytes() == expected.tobytes()

    def test_invalid_encode_factors_are_rejected(self) -> None:
        gradient = gaussian(300)
        with pytest.raises(tersor.InvalidArgumentError, match="pass factor to decode"):
            tersor.Codec("int8").encode(gradient, factor=0.5)
        with pytest.raises(tersor.InvalidArgumentError, match="pass a finite number"):
            tersor.Codec("int8+ef").encode(gradient, residual=gaussian(300), factor=float("nan"))

    def test_checksums_are_optional(self) -> None:
        codec = tersor.Codec("int8")
        payload = codec.encode(gaussian(1009), checksum=False)
        codec.decode(payload, checksum=False)
        with pytest.raises(tersor.WireError, match="checksum setting"):
            codec.decode(payload)

    def test_signature_mismatch_raises(self) -> None:
        codec = tersor.Codec("int8")
        payload = codec.encode(gaussian(1009), signature=2**64 - 1)
        codec.decode(payload, signature=2**64 - 1)
        with pytest.raises(tersor.WireError, match="signature"):
            codec.decode(payload)


class TestOutputs:
    def test_payload_is_written_to_the_given_buffer(self) -> None:
        codec = tersor.Codec("int8")
        gradient = gaussian(1009)
        room = numpy.full(codec.max_payload_bytes(gradient) + 16, 7, numpy.uint8)
        payload = codec.encode(gradient, room)
        assert numpy.shares_memory(payload, room)
        assert (room[len(payload) :] == 7).all()

    def test_new_payloads_are_aligned(self) -> None:
        codec = tersor.Codec("int8")
        starts = {codec.encode(gaussian(count)).ctypes.data % 16 for count in range(1, 40)}
        assert starts == {0}

    @pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
    def test_new_outputs_have_the_gradients_dtype(self, dtype: Any) -> None:
        codec = tersor.Codec("none")
        gradient = gaussian(1009, dtype=dtype)
        back = codec.decode(codec.encode(gradient))
        assert back.dtype == dtype
        assert back.tobytes() == gradient.tobytes()

    def test_decode_accepts_unaligned_payloads_and_buffers(self) -> None:
        codec = tersor.Codec("int8")
        payload = codec.encode(gaussian(1009))
        expected = codec.decode(payload).tobytes()
        shifted = numpy.empty(len(payload) + 1, numpy.uint8)[1:]
        shifted[:] = payload
        for other in (shifted, bytes(payload), bytearray(payload), memoryview(payload)):
            assert codec.decode(other).tobytes() == expected


class TestThreads:
    def test_codec_is_thread_safe(self) -> None:
        codec = tersor.Codec("topk:density=0.05", threads=2)
        gradients = [gaussian(200_000, seed) for seed in range(4)]
        expected = [codec.encode(gradient).tobytes() for gradient in gradients]
        found: list[list[bytes]] = [[] for _ in gradients]

        def encode(index: int) -> None:
            for _ in range(10):
                found[index].append(codec.encode(gradients[index]).tobytes())

        threads = [threading.Thread(target=encode, args=(i,)) for i in range(len(gradients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [set(each) for each in found] == [{each} for each in expected]

    def test_oversized_shapes_are_rejected(self) -> None:
        for shape in (1 << 62, 1 << 63, (1 << 40, 1 << 40), (1 << 32, 1 << 32)):
            for codec in ("none", "int8", "topk"):
                with pytest.raises(tersor.InvalidArgumentError, match=r"at most 2\^48 values"):
                    tersor.Codec(codec).max_payload_bytes(shape)

    def test_damaged_count_without_checksum_raises_wire_error(self) -> None:
        codec = tersor.Codec("topk:density=0.3")
        payload = numpy.array(codec.encode(gaussian(700), checksum=False))
        for bit in range(8):
            damaged = payload.copy()
            damaged[20] ^= 1 << bit  # bits 32 to 39 of the number of values
            with pytest.raises(tersor.WireError):
                codec.decode(damaged, checksum=False)

    def test_calls_release_the_gil(self) -> None:
        """With the longest switch interval nobody else runs unless the lock is given away."""
        codec = tersor.Codec("int8:rounding=stochastic")
        gradient = gaussian(16 << 20)
        out = numpy.empty(codec.max_payload_bytes(gradient), numpy.uint8)
        codec.encode(gradient, out)
        during: list[bool] = []
        encoding, done = threading.Event(), threading.Event()

        def tick() -> None:
            while not done.is_set():
                during.append(encoding.is_set())
                time.sleep(0)

        interval = sys.getswitchinterval()
        ticker = threading.Thread(target=tick)
        try:
            ticker.start()
            sys.setswitchinterval(100)
            encoding.set()
            for _ in range(200):  # on a busy machine the other thread may not get its turn in one
                codec.encode(gradient, out)
                if sum(during) > 5:
                    break
            encoding.clear()
        finally:
            sys.setswitchinterval(interval)
            done.set()
            ticker.join(60)
        assert sum(during) > 5


def test_supported_uses_of_codecs() -> None:
    uses = ("payload", "native", "two-shot", "one-shot")

    def supported(spec: str) -> list[str]:
        return [use for use in uses if tersor.Codec(spec).supports(use)]

    assert supported("none") == list(uses)
    assert supported("int8+ef") == ["payload", "two-shot", "one-shot"]
    assert supported("topk") == ["payload", "one-shot"]
    assert supported("intsum") == ["native"]
    with pytest.raises(tersor.InvalidArgumentError, match=r"topk:density=0.01 does not support"):
        tersor.Codec("topk+ef").require("two-shot")
    with pytest.raises(tersor.InvalidArgumentError, match="algorithm"):
        tersor.Codec("int8").require("three-shot")  # type: ignore[arg-type]


class TestSentCodes:
    def test_mxfp8_codes_and_scales(self) -> None:
        codec, weight = tersor.Codec("mxfp8"), gaussian(64 * 96).reshape(64, 96)
        payload = codec.encode(weight)
        (sent,) = codec.sent_codes(payload, weight)
        assert sent.codes.shape == (64, 96)
        assert sent.scales.shape == (64, 3)
        assert sent.largest is None
        assert sent.codes.dtype == sent.scales.dtype == numpy.uint8
        values = sent.codes.view(ml_dtypes.float8_e4m3fn).astype(numpy.float32)
        scales = sent.scales.view(ml_dtypes.float8_e8m0fnu).astype(numpy.float32)
        found = values * scales.repeat(32, axis=1)
        assert found.tobytes() == decoded(codec, payload, weight).tobytes()
        (again,) = codec.sent_codes(payload.tobytes(), (64, 96))
        assert again.codes.tobytes() == sent.codes.tobytes()

    def test_nvfp4_codes_and_scales(self) -> None:
        codec, weight = tersor.Codec("nvfp4"), gaussian(64 * 48).reshape(64, 48)
        payload = codec.encode(weight)
        (sent,) = codec.sent_codes(payload, weight)
        assert sent.codes.shape == (64, 24)
        assert sent.scales.shape == (64, 3)
        assert sent.largest is not None
        assert sent.largest.view(numpy.float32)[0] == abs(weight).max()
        codes = numpy.stack([sent.codes & 15, sent.codes >> 4], axis=-1).reshape(64, 48)
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(numpy.float32)
        scales = sent.scales.view(ml_dtypes.float8_e4m3fn).astype(numpy.float32)
        scales *= sent.largest.view(numpy.float32)[0] / numpy.float32(2688)
        found = values * scales.repeat(16, axis=1)
        assert found.tobytes() == decoded(codec, payload, weight).tobytes()

    def test_lists_and_odd_shapes_are_flat(self) -> None:
        arrays = [gaussian(33), gaussian(64).reshape(2, 32), gaussian(0)]
        for spec, codes in (("mxfp8", [33, 64, 0]), ("nvfp4", [17, 32, 0])):
            codec = tersor.Codec(spec)
            sent = codec.sent_codes(codec.encode(arrays), arrays)
            assert [one.codes.size for one in sent] == codes
            block = 16 if spec == "nvfp4" else 32
            assert [one.scales.size for one in sent] == [
                -(-array.size // block) for array in arrays
            ]

    def test_other_codecs_and_damaged_payloads_are_rejected(self) -> None:
        codec, gradient = tersor.Codec("mxfp8"), gaussian(300)
        payload = codec.encode(gradient)
        with pytest.raises(tersor.InvalidArgumentError, match="use mxfp8 or nvfp4"):
            tersor.Codec("int8").sent_codes(payload, gradient)
        with pytest.raises(tersor.WireError, match="elements=e4m3"):
            tersor.Codec("mxfp8:elements=e5m2").sent_codes(payload, gradient)
        with pytest.raises(tersor.WireError, match="dtype"):
            codec.sent_codes(payload, (300,), "bfloat16")
        with pytest.raises(tersor.WireError, match="count"):
            codec.sent_codes(payload, (301,))
        payload[200] ^= 1
        with pytest.raises(tersor.WireError, match="checksum"):
            codec.sent_codes(payload, gradient)
