"""Python writes the same bytes as the C++ tests, and refuses the same broken frames."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy
import pytest
from framed import FRAMED

import tersor

ml_dtypes = pytest.importorskip("ml_dtypes")

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
SIGNATURE = 0x1122334455667788
KEY = 0x0123456789ABCDEF
DTYPES = {"f32": numpy.float32, "bf16": ml_dtypes.bfloat16, "f16": numpy.float16}

# What the registry does not say: file, spec, counts, dtype, checksum.
VARIANTS: list[tuple[str, str, list[int], str, bool]] = [
    ("none-bf16", "none", [301], "bf16", True),
    ("none-f16", "none", [301], "f16", True),
    ("bf16-stochastic", "bf16:rounding=stochastic+ef", [601], "f32", True),
    ("int8-bf16", "int8", [601], "bf16", True),
    ("int8-stochastic", "int8:rounding=stochastic", [601], "f32", True),
    ("int8-segments", "int8", [0, 257, 1000], "f32", True),
    ("int8-unchecked", "int8", [601], "f32", False),
    ("int4-f16", "int4", [601], "f16", True),
    ("int4-stochastic", "int4:rounding=stochastic+ef", [601], "f32", True),
    ("topk-dense", "topk:density=0.05", [1000], "f32", True),
    ("topk-bf16", "topk:density=0.05,values=bf16+ef", [1000], "f32", True),
    ("topk-int8", "topk:density=0.3,values=int8", [1000], "f32", True),
    ("topk-segments", "topk:density=0.002", [0, 500, 140_000], "f32", True),
    ("hadamard-1-bit", "hadamard:bits=1+ef", [601], "f32", True),
    ("hadamard-3-bits", "hadamard:bits=3", [0, 257, 5000], "f32", True),
    ("hadamard-4-bits", "hadamard:bits=4+ef", [601], "bf16", True),
    ("blocktopk-int4", "blocktopk:density=0.03,values=int4+ef", [601], "bf16", True),
    ("blocktopk-bf16", "blocktopk:density=0.2,values=bf16", [5000], "f32", True),
    ("blocktopk-segments", "blocktopk:density=0.005", [0, 500, 10_000], "f32", True),
    ("entropy-bf16", "entropy", [5000], "bf16", True),
    ("entropy-f16", "entropy", [5000], "f16", True),
    ("entropy-segments", "entropy", [0, 3, 9000], "f32", True),
    ("mxfp8-e5m2", "mxfp8:elements=e5m2+ef", [601], "bf16", True),
    ("nvfp4-bf16", "nvfp4", [601], "bf16", True),
    ("nvfp4-segments", "nvfp4+ef", [0, 17, 1000], "f16", True),
    ("mxfp8-segments", "mxfp8", [0, 33, 1000], "f16", True),
]
PLAIN = [
    (name + suffix.replace("+", "-"), name + suffix, [601], "f32", True)
    for name in FRAMED
    for suffix in ("", "+ef")
]


def mixed(state: Any) -> Any:
    """splitmix64, on arrays of uint64."""
    state = state + numpy.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return state ^ (state >> numpy.uint64(31))


def golden_values(stream: int, count: int) -> Any:
    """24 random bits and a random exponent each, as docs/reference/wire-format.md says."""
    numbers = mixed(numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(stream << 32))
    digits = (numbers >> numpy.uint64(40)).astype(numpy.int64) - (1 << 23)
    exponents = (numbers & numpy.uint64(15)).astype(numpy.int64) - 31
    return numpy.ldexp(digits.astype(numpy.float64), exponents).astype(numpy.float32)


def gradients_of(counts: list[int], dtype: str, halved: bool) -> list[Any]:
    """Returns the files' gradients. With feedback, gradients are halved, which is exact."""
    factor = numpy.float32(0.5 if halved else 1.0)
    values = [golden_values(2 * i, count).astype(DTYPES[dtype]) for i, count in enumerate(counts)]
    return [(value * factor).astype(value.dtype) for value in values]


def residuals_of(counts: list[int]) -> list[Any]:
    """Returns the files' residuals: further values times 1.5, rounded to f32."""
    return [golden_values(2 * i + 1, count) * numpy.float32(1.5) for i, count in enumerate(counts)]


def places_of(counts: list[int], checksum: bool) -> dict[str, Any]:
    """Returns the positions of the files' segments, and the values of the headers."""
    return {
        "parameter": 7,
        "first_index": [512 * i for i in range(len(counts))],
        "checksum": checksum,
        "signature": SIGNATURE,
    }


of_each_file = pytest.mark.parametrize(
    ("name", "spec", "counts", "dtype", "checksum"),
    VARIANTS + PLAIN,
    ids=[golden[0] for golden in VARIANTS + PLAIN],
)


@of_each_file
def test_frames_match_golden_files_byte_for_byte(
    name: str, spec: str, counts: list[int], dtype: str, checksum: bool
) -> None:
    codec = tersor.Codec(spec)
    places = places_of(counts, checksum)
    payload = codec.encode(
        gradients_of(counts, dtype, codec.has_feedback),
        residual=residuals_of(counts) if codec.has_feedback else None,
        seed=KEY,
        step=3,
        **places,
    )
    expected = (GOLDEN / f"{name}.bin").read_bytes()
    assert payload.tobytes() == expected
    codec.decode(expected, [numpy.empty(count, DTYPES[dtype]) for count in counts], **places)


def test_no_golden_file_is_left_out() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == {
        golden[0] for golden in VARIANTS + PLAIN
    }


@pytest.mark.parametrize(
    "path", sorted((GOLDEN / "broken").glob("*.bin")), ids=lambda path: path.stem
)
def test_broken_frames_are_rejected(path: pathlib.Path) -> None:
    spec, counts = {
        "density": ("topk:density=0.05", [1000]),
        "segments": ("int8", [0, 257, 1000]),
        "topk-falling": ("topk:density=0.002", [0, 500, 140_000]),
        "topk-index": ("topk:density=0.05", [1000]),
        "topk-kept": ("topk:density=0.05", [1000]),
        "topk-order": ("topk:density=0.05", [1000]),
    }.get(path.stem, ("int8", [601]))
    outputs = [numpy.full(count, 7, numpy.float32) for count in counts]
    with pytest.raises(tersor.WireError, match="frame"):
        tersor.Codec(spec).decode(
            path.read_bytes(),
            outputs,
            parameter=7,
            first_index=[512 * i for i in range(len(counts))],
            signature=SIGNATURE,
        )
    if path.stem == "flipped-bit":  # known once all has been read
        assert all(numpy.isnan(output).all() for output in outputs)
    else:
        assert all((output == 7).all() for output in outputs)
