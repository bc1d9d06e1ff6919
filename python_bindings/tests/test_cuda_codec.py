"""Every codec on a device: the same bytes as on the host."""

from __future__ import annotations

import pathlib
from typing import Any

import cuda_arrays
import numpy
import pytest
from cuda_arrays import DTYPES, DeviceArray
from test_codec import NAMES, gaussian
from test_codec_golden import (
    DTYPES as GOLDEN_DTYPES,
)
from test_codec_golden import (
    GOLDEN,
    KEY,
    SIGNATURE,
    gradients_of,
    of_each_file,
    places_of,
    residuals_of,
)

import tersor

pytestmark = cuda_arrays.on_cuda

COUNTS = [0, 1, 257, 5003]


def same_bytes(found: Any, expected: Any) -> None:
    assert found.tobytes() == expected.tobytes()


def encode(codec: tersor.Codec, gradients: Any, **options: Any) -> DeviceArray:
    """Encodes into uninitialised memory of the device."""
    room = DeviceArray((codec.max_payload_bytes(gradients),), numpy.uint8)
    payload = codec.encode(gradients, room, **options)
    assert payload.pointer == room.pointer
    assert len(payload) == len(room)
    found: DeviceArray = payload
    return found


def same_payload(found: DeviceArray, expected: Any) -> None:
    """Compares the first bytes. A call on a device does not wait for the true length, so later
    bytes are undefined."""
    assert found.tobytes()[: len(expected)] == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "entropy"])  # hosts only
class TestEveryCodec:
    def test_payloads_and_values_match_host_bytes(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name)
        for count in COUNTS:
            gradient = gaussian(count, dtype=dtype)
            expected = codec.encode(gradient)
            payload = encode(codec, DeviceArray.of(gradient))
            same_payload(payload, expected)
            out = DeviceArray((count,), dtype)
            assert codec.decode(payload, out) is out
            same_bytes(out, codec.decode(expected, numpy.empty_like(gradient)))

    def test_residuals_match_host_bytes(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name + "+ef")
        for residual_dtype in DTYPES[:2]:
            gradient = gaussian(5003, dtype=dtype)
            residual = gaussian(5003, seed=2, dtype=residual_dtype)
            kept = DeviceArray.of(residual)
            on_device = DeviceArray.of(gradient)
            for step in range(2):
                expected = codec.encode(gradient, residual=residual, step=step)
                same_payload(encode(codec, on_device, residual=kept, step=step), expected)
                same_bytes(kept, residual)

    def test_sums_match_host_bytes(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name)
        gradients = [gaussian(1009, seed, dtype) for seed in (1, 2, 3)]
        there = gaussian(1009, 4, dtype)
        payloads = [encode(codec, DeviceArray.of(gradient)) for gradient in gradients]
        out = DeviceArray.of(there)
        codec.decode(payloads, out, add=True, factor=1 / 3)
        codec.decode(list(map(codec.encode, gradients)), there, add=True, factor=1 / 3)
        same_bytes(out, there)

    def test_lists_are_encoded_in_one_payload(self, name: str, dtype: Any) -> None:
        codec = tersor.Codec(name)
        gradients = [gaussian(count, seed=count, dtype=dtype) for count in (257, 0, 1000)]
        gradients[0] = gradients[0].reshape(257, 1)
        expected = codec.encode(gradients, parameter=3)
        payload = encode(codec, list(map(DeviceArray.of, gradients)), parameter=3)
        same_payload(payload, expected)
        outs = [DeviceArray(gradient.shape, dtype) for gradient in gradients]
        codec.decode(payload, outs, parameter=3)
        wanted = [numpy.empty_like(gradient) for gradient in gradients]
        codec.decode(expected, wanted, parameter=3)
        for out, want in zip(outs, wanted, strict=True):
            same_bytes(out, want)


@of_each_file
def test_frames_match_golden_files_byte_for_byte(
    name: str, spec: str, counts: list[int], dtype: str, checksum: bool
) -> None:
    if name.startswith("entropy"):
        pytest.skip("for hosts only")
    codec = tersor.Codec(spec)
    places = places_of(counts, checksum)
    gradients = [DeviceArray.of(one) for one in gradients_of(counts, dtype, codec.has_feedback)]
    residuals = [DeviceArray.of(one) for one in residuals_of(counts)]
    payload = encode(
        codec,
        gradients,
        residual=residuals if codec.has_feedback else None,
        seed=KEY,
        step=3,
        **places,
    )
    expected = numpy.fromfile(GOLDEN / f"{name}.bin", numpy.uint8)
    same_payload(payload, expected)
    outs = [DeviceArray((count,), GOLDEN_DTYPES[dtype]) for count in counts]
    codec.decode(payload, outs, **places)
    wanted = [numpy.empty(count, GOLDEN_DTYPES[dtype]) for count in counts]
    codec.decode(expected, wanted, **places)
    for out, want in zip(outs, wanted, strict=True):
        same_bytes(out, want)


def test_encode_factor_on_device_is_rejected() -> None:
    gradient, residual = DeviceArray.of(gaussian(300)), DeviceArray.of(gaussian(300, 2))
    with pytest.raises(tersor.InvalidArgumentError, match="supported in host memory only"):
        encode(tersor.Codec("int8+ef"), gradient, residual=residual, factor=0.5)


class TestDamage:
    """On a device nobody waits to be told: values are NaN."""

    def test_damaged_or_mismatched_frames_decode_to_nan(self) -> None:
        codec = tersor.Codec("int8")
        sent = codec.encode(gaussian(1009))
        flipped = sent.copy()
        flipped[400] ^= 4
        for frame, signature in ((flipped, 0), (sent, 5)):
            out = DeviceArray((1009,))
            codec.decode(DeviceArray.of(frame), out, signature=signature)
            assert numpy.isnan(out.numpy()).all()

    def test_truncated_frames_raise_immediately(self) -> None:
        codec = tersor.Codec("int8")
        sent = codec.encode(gaussian(1009))
        out = DeviceArray.of(gaussian(1009))
        for length in (0, 3, 64, 500):
            with pytest.raises(tersor.WireError, match="truncated"):
                codec.decode(DeviceArray.of(sent[:length]), out)
        same_bytes(out, gaussian(1009))

    def test_mismatched_frame_among_several_decodes_to_nan(self) -> None:
        codec = tersor.Codec("int4")
        frames = [codec.encode(gaussian(1009, seed)) for seed in (1, 2)]
        frames[1] = tersor.Codec("int8").encode(gaussian(1009))
        out = DeviceArray.of(gaussian(1009))
        codec.decode(list(map(DeviceArray.of, frames)), out, add=True)
        assert numpy.isnan(out.numpy()).all()

    @pytest.mark.parametrize(
        "path", sorted((GOLDEN / "broken").glob("topk-*.bin")), ids=lambda path: path.stem
    )
    def test_damaged_topk_indices_decode_to_nan(self, path: pathlib.Path) -> None:
        spec, counts = "topk:density=0.05", [1000]
        if path.stem == "topk-falling":
            spec, counts = "topk:density=0.002", [0, 500, 140_000]
        outs = [DeviceArray((count,)) for count in counts]
        tersor.Codec(spec).decode(
            DeviceArray.of(numpy.fromfile(path, numpy.uint8)),
            outs,
            parameter=7,
            first_index=[512 * i for i in range(len(counts))],
            signature=SIGNATURE,
        )
        assert any(numpy.isnan(out.numpy()).any() for out in outs)
