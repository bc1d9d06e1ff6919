"""Integers in accumulators with wrap-around."""

from __future__ import annotations

import numpy as np
import pytest

import tersor
from tersor.federated import sums


@pytest.mark.parametrize("width", [8, 16, 32])
def test_masks_cancel_in_a_sum(width: int) -> None:
    draw = np.random.default_rng(0)
    scale, bits = 0.25, 6
    total = np.zeros(1_001, f"u{width // 8}")
    masked = total.copy()
    for _ in range(3):
        codes, cut = sums.encode(
            draw.standard_normal(1_001, np.float32), scale, bits=bits, accumulator_bits=width
        )
        assert (codes.dtype, cut) == (total.dtype, 0)
        mask = draw.integers(0, 2**width, total.shape, total.dtype)
        sums.add(total, codes)
        sums.add(codes, mask)
        sums.add(masked, codes)
        sums.subtract(masked, mask)
    assert np.array_equal(total, masked)
    signed = total.astype(f"i{width // 8}")
    assert np.array_equal(sums.decode(total, scale, bits=bits), np.float32(scale) * signed)


def test_encode_clips_and_rounds_without_bias() -> None:
    values = np.full((40, 50), 0.3, np.float32)
    values[0, 0], values[1, 1] = 1e9, -1e9
    found = np.mean([sums.decode(sums.encode(values, 0.5)[0], 0.5) for _ in range(100)], axis=0)
    assert (found[0], found[51]) == (63.5, -63.5)
    assert found[100:].mean() == pytest.approx(0.3, abs=0.003)
    first, second = sums.encode(values, 0.5), sums.encode(values, 0.5)
    assert first[1] == 2
    assert not np.array_equal(first[0], second[0])
    seeded = [sums.encode(values, 0.5, seed=3)[0] for _ in range(2)]
    assert np.array_equal(*seeded)


def test_invalid_arguments_raise() -> None:
    values, codes = np.ones(4, np.float32), np.zeros(4, np.uint16)
    with pytest.raises(tersor.InvalidArgumentError, match="accumulator_bits=12: give 8, 16 or 32"):
        sums.encode(values, 1.0, accumulator_bits=12)
    with pytest.raises(tersor.InvalidArgumentError, match="give 2 to 8"):
        sums.encode(values, 1.0, bits=9, accumulator_bits=8)
    for wrong in (lambda: sums.decode([1, 2], 1.0), lambda: sums.add([1, 2], codes)):  # type: ignore
        with pytest.raises(tersor.InvalidArgumentError, match="is list: pass an array"):
            wrong()
    with pytest.raises(tersor.InvalidArgumentError, match="others is list: pass an array"):
        sums.add(codes, [1, 2])  # type: ignore[arg-type]
    for seed in (-1, 1 << 64):
        with pytest.raises(tersor.InvalidArgumentError, match=f"seed={seed}: give 0 to"):
            sums.encode(values, 1.0, seed=seed)
    with pytest.raises(tersor.InvalidArgumentError, match="1 values are not finite"):
        sums.encode(np.array([np.nan], np.float32), 1.0)
    with pytest.raises(tersor.InvalidArgumentError, match="out is uint16: pass integers of 8 bits"):
        sums.encode(values, 1.0, accumulator_bits=8, out=codes)
    with pytest.raises(tersor.InvalidArgumentError, match="10 bytes for 4 values"):
        sums.encode(values, 1.0, out=np.zeros(5, np.uint16))
    with pytest.raises(tersor.InvalidArgumentError, match="float32 values"):
        sums.encode(values.astype(np.float16), 1.0)
    with pytest.raises(tersor.InvalidArgumentError, match="sums is uint16, others is uint8"):
        sums.add(codes, codes.astype(np.uint8))
    with pytest.raises(tersor.InvalidArgumentError, match="accumulators is float32: pass an"):
        sums.decode(values, 1.0)
    with pytest.raises(tersor.InvalidArgumentError, match="sums is float32: pass an array"):
        sums.add(values, values)
