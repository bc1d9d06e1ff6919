"""mxfp8, nvfp4 and torchao: equal codes and scales of finite values, and the known differences."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy
import pytest

import tersor

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="no torchao"),
]
torch = pytest.importorskip("torch")

SPECS = {"mxfp8": "float8_e4m3fn", "mxfp8:elements=e5m2": "float8_e5m2"}
COUNT = 32 * 512


def sections(values: Any, spec: str) -> tuple[Any, Any, Any]:
    """Tersor's scales, codes and decoded values."""
    codec = tersor.Codec(spec)
    payload = codec.encode(values)
    sent = codec.sent_codes(payload, values)[0]
    return sent.scales, sent.codes, codec.decode(payload, out=torch.empty_like(values))


def expected_sections(values: Any, spec: str) -> tuple[Any, Any, Any]:
    """The scales, codes and decoded values of torchao."""
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    dtype = getattr(torch, SPECS[spec])
    scales, codes = to_mx(values, dtype, 32)
    decoded = to_dtype(codes, scales, dtype, 32, values.dtype)
    return scales.view(torch.uint8), codes.view(torch.uint8), decoded


def nvfp4_sections(values: Any) -> tuple[Any, Any, Any]:
    """Tersor's scales, codes and decoded values, and torchao's per-tensor scale of them."""
    codec = tersor.Codec("nvfp4")
    payload = codec.encode(values)
    sent = codec.sent_codes(payload, values)[0]
    assert sent.largest is not None
    largest = sent.largest.view(torch.float32)[0]
    assert largest == values.float().abs().nan_to_num(0, posinf=0).max()
    return sent.scales, sent.codes, codec.decode(payload, out=torch.empty_like(values))


def expected_nvfp4_sections(values: Any) -> tuple[Any, Any, Any]:
    """The scales, codes and decoded values of torchao with its dynamic per-tensor scale."""
    from torchao.prototype.mx_formats import nvfp4_tensor

    rows = values.reshape(1, -1)
    scale = nvfp4_tensor.per_tensor_amax_to_scale(rows.abs().max())
    tensor = nvfp4_tensor.NVFP4Tensor.to_nvfp4(rows, per_tensor_scale=scale)
    return tensor.scale, tensor.qdata, tensor.dequantize(values.dtype)


def bits(array: Any) -> Any:
    """The bytes of an array, or of a tensor of any dtype."""
    if isinstance(array, torch.Tensor):
        array = array.contiguous().view(torch.uint8).numpy()
    return numpy.asarray(array).reshape(-1).view(numpy.uint8)


def gaussian() -> Any:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(5))


def with_ties() -> Any:
    """Numbers of few bits, so that many lie halfway between two codes."""
    generator = torch.Generator().manual_seed(6)
    digits = torch.randint(-255, 256, (COUNT,), generator=generator)
    return digits * 2.0 ** torch.randint(-12, 3, (COUNT,), generator=generator)


def of_any_bits() -> Any:
    """Every exponent but the largest, which bf16 rounds to infinities, alone in its block."""
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(0, 1 << 23, (COUNT // 32, 32), generator=generator)
    words += (torch.arange(COUNT // 32) % 254 << 23)[:, None]
    words += torch.randint(0, 2, words.shape, generator=generator) * -(1 << 31)
    return words.to(torch.int32).reshape(-1).view(torch.float32)


def mixed_exponents() -> Any:
    generator = torch.Generator().manual_seed(8)
    return gaussian() * 2.0 ** torch.randint(-140, 120, (COUNT,), generator=generator)


def tiny() -> Any:
    """The blocks around the smallest scale, and subnormal values."""
    power = torch.arange(COUNT // 32) % 60 - 149
    return (gaussian().reshape(-1, 32) * (2.0**power)[:, None]).reshape(-1)


def zeros() -> Any:
    values = torch.zeros(COUNT)
    values[::3] = -0.0
    values[64 * 32] = 2.0**-149
    return values


def saturating() -> Any:
    """The largest magnitudes of each block round beyond the largest code."""
    values = gaussian().reshape(-1, 32)
    values[:, 3], values[:, 5] = 511.99, -470.0
    return (values * (2.0 ** (torch.arange(COUNT // 32) % 100 - 50))[:, None]).reshape(-1)


INPUTS = [gaussian, with_ties, of_any_bits, mixed_exponents, tiny, zeros, saturating]


@pytest.mark.parametrize("make", INPUTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", SPECS)
def test_finite_values_match_torchao_bytes(spec: str, dtype: str, make: Any) -> None:
    values = make().to(getattr(torch, dtype))
    assert torch.isfinite(values).all()
    found, expected = sections(values, spec), expected_sections(values, spec)
    for ours, theirs in zip(found, expected, strict=True):
        assert (bits(ours) == bits(theirs)).all()


@pytest.mark.parametrize("spec", SPECS)
def test_f16_values_match_f32_bytes(spec: str) -> None:
    """torchao refuses f16; Tersor converts to f32 first."""
    values = (gaussian() * 300).to(torch.float16)
    found, expected = sections(values, spec), expected_sections(values.float(), spec)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert (bits(ours) == bits(theirs)).all()


@pytest.mark.parametrize("spec", SPECS)
def test_the_last_block_may_be_short(spec: str) -> None:
    """torchao refuses a part of a block; Tersor's bytes are those of a block filled with zeros."""
    values = gaussian()[: 32 * 3 + 7]
    found, expected = (
        sections(values, spec),
        expected_sections(torch.nn.functional.pad(values, (0, 25)), spec),
    )
    assert (bits(found[0]) == bits(expected[0])).all()
    assert (bits(found[1]) == bits(expected[1])[: len(values)]).all()


@pytest.mark.parametrize("spec", SPECS)
def test_nan_makes_its_block_nan_in_both(spec: str) -> None:
    """The decoded blocks are equal. Tersor's codes are 0; torchao's are NaN or 0."""
    values = gaussian()
    values[70] = float("nan")
    found, expected = sections(values, spec), expected_sections(values, spec)
    assert (bits(found[0]) == bits(expected[0])).all()
    assert found[2][64:96].isnan().all()
    assert expected[2][64:96].isnan().all()
    assert (bits(found[1])[64:96] == 0).all()
    assert (bits(expected[1])[64:96] != 0).any()


@pytest.mark.parametrize("spec", SPECS)
def test_infinity_makes_its_block_nan_only_in_tersor(spec: str) -> None:
    """torchao writes the largest code, which decodes to the infinity, and crushes the block."""
    values = gaussian()
    values[70] = float("-inf")
    found, expected = sections(values, spec), expected_sections(values, spec)
    assert found[2][64:96].isnan().all()
    assert expected[2][70] == float("-inf")
    assert (expected[2][64:70] == 0).all()
    for ours, theirs in zip(found, expected, strict=True):
        rest = numpy.ones(COUNT, bool)
        rest[64:96] = False
        if len(bits(ours)) == COUNT // 32:
            rest = rest.reshape(-1, 32)[:, 0]
        rest = rest.repeat(len(bits(ours)) // len(rest))
        assert (bits(ours) == bits(theirs))[rest].all()


@pytest.mark.parametrize(
    "make", [*INPUTS, "narrow"], ids=lambda make: getattr(make, "__name__", make)
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_finite_tensors_match_torchao_nvfp4(dtype: str, make: Any) -> None:
    values = (gaussian() * 3e-4 if make == "narrow" else make()).to(getattr(torch, dtype))
    if make in (tiny, zeros):
        values[5] = 1.0  # Tersor sends zeros if all values are below 2**-88
    found, expected = nvfp4_sections(values), expected_nvfp4_sections(values)
    for ours, theirs in zip(found, expected, strict=True):
        assert (bits(ours) == bits(theirs)).all()


def test_last_nvfp4_block_may_be_short() -> None:
    values = gaussian()[: 16 * 3 + 7]
    found = nvfp4_sections(values)
    expected = expected_nvfp4_sections(torch.nn.functional.pad(values, (0, 9)))
    assert (bits(found[0]) == bits(expected[0])).all()
    assert (bits(found[1]) == bits(expected[1])[:28]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_value_spoils_an_nvfp4_block_but_a_whole_torchao_tensor(bad: float) -> None:
    values = gaussian()
    values[70] = bad
    found, expected = nvfp4_sections(values), expected_nvfp4_sections(values)
    assert found[2][64:80].isnan().all()
    assert found[2][:64].isfinite().all()
    assert found[2][80:].isfinite().all()
    assert expected[2].isnan().all()


def test_zeros_are_zeros_in_tersor_and_nans_in_torchao() -> None:
    values = torch.zeros(COUNT)
    assert (nvfp4_sections(values)[2] == 0).all()
    assert expected_nvfp4_sections(values)[2].isnan().all()
