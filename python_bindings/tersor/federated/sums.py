"""Integers in accumulators that wrap around, for secure sums.

A code is ``value / scale``, clipped to ``2**(bits - 1) - 1`` in both directions, and rounded up or
down at random with the correct mean. An accumulator of 8, 16 or 32 bits holds a code, or a sum of
codes. The sum of ``n`` codes is exact if ``bits + ceil(log2(n)) <= accumulator_bits``, with or
without masks that were added and subtracted in between.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor._renamed import renamed_keywords
from tersor.arrays import Array

__all__ = ["Accumulators", "add", "decode", "encode", "subtract"]
__dir__ = __all__.copy

Accumulators = numpy.ndarray[Any, Any]

_DTYPES = {8: numpy.uint8, 16: numpy.uint16, 32: numpy.uint32}


@renamed_keywords(lanes="accumulator_bits")
def encode(
    values: Array,
    scale: float,
    *,
    bits: int = 8,
    accumulator_bits: int = 16,
    seed: int | None = None,
    out: Accumulators | None = None,
) -> tuple[Accumulators, int]:
    """Encodes values as integers.

    Args:
        values: A float32 array of any shape.
        scale: The value of code 1, at least 2^-100.
        bits: Bits per code, 2 to 14.
        accumulator_bits: Bits per accumulator: 8, 16 or 32, and at least ``bits``.
        seed: Seed of the rounding, below 2**64. None: drawn from the system's random numbers. Leave
            ``seed`` out if the sum must hide the values.
        out: A flat array of ``accumulator_bits``-bit integers to overwrite. None: a new array.

    Returns:
        The codes in a flat array, and the number of clipped values.

    Raises:
        InvalidArgumentError: The format is invalid, or a value is not finite.

    Example:
        >>> codes, clipped = tersor.federated.sums.encode(update, scale=1e-3)
        >>> tersor.federated.sums.add(total, codes)
    """
    if accumulator_bits not in _DTYPES:
        raise InvalidArgumentError(f"accumulator_bits={accumulator_bits}: give 8, 16 or 32")
    dtype = _DTYPES[accumulator_bits]
    if out is None:
        out = numpy.empty(int(numpy.prod(numpy.shape(values))), dtype)
    elif out.dtype != dtype:
        raise InvalidArgumentError(
            f"out is {out.dtype}: pass integers of {accumulator_bits} bits, or another "
            "accumulator_bits="
        )
    secret = secrets.randbits(64) if seed is None else seed
    if not 0 <= secret < 1 << 64:
        raise InvalidArgumentError(f"seed={seed}: give 0 to 2**64 - 1")
    format = _core.AccumulatorFormat(bits, accumulator_bits, scale)
    return out, _core.encode_accumulators(values, format, secret, out)


@renamed_keywords(lanes="accumulators")
def decode(
    accumulators: Accumulators, scale: float, *, bits: int = 8, out: Array | None = None
) -> Array:
    """Decodes codes, or sums of codes.

    Args:
        accumulators: The codes or sums, as signed integers of the array's width.
        scale: The scale of the codes.
        bits: The bits of the codes.
        out: A float32 array to overwrite. None: a new flat array.

    Returns:
        ``scale`` times each integer, float32.

    Raises:
        InvalidArgumentError: The format is invalid, the accumulators are not integers, or ``out``
            has another size or dtype.

    Example:
        >>> total = tersor.federated.sums.decode(codes, scale=1e-3)
        >>> mean = total / clients
    """
    _require_integers("accumulators", accumulators)
    format = _core.AccumulatorFormat(bits, 8 * accumulators.itemsize, scale)
    if out is None:
        out = numpy.empty(accumulators.size, numpy.float32)
    _core.decode_accumulators(accumulators, format, out)
    return out


def add(sums: Accumulators, others: Accumulators) -> None:
    """Adds accumulators in place, with wrap-around: ``sums += others``.

    Args:
        sums: The accumulators to change.
        others: As many accumulators of the same dtype.

    Raises:
        InvalidArgumentError: The dtypes or sizes differ, or the values are not integers.

    Example:
        >>> total = numpy.zeros_like(codes)
        >>> tersor.federated.sums.add(total, codes)
    """
    _combine(sums, others, subtract=False)


def subtract(sums: Accumulators, others: Accumulators) -> None:
    """Subtracts accumulators in place, with wrap-around: ``sums -= others``.

    Args:
        sums: The accumulators to change.
        others: As many accumulators of the same dtype.

    Raises:
        InvalidArgumentError: The dtypes or sizes differ, or the values are not integers.

    Example:
        >>> tersor.federated.sums.subtract(total, mask)
        >>> values = tersor.federated.sums.decode(total, scale=1e-3)
    """
    _combine(sums, others, subtract=True)


def _combine(sums: Accumulators, others: Accumulators, subtract: bool) -> None:
    _require_integers("sums", sums)
    _require_integers("others", others)
    if sums.dtype != others.dtype:
        raise InvalidArgumentError(
            f"sums is {sums.dtype}, others is {others.dtype}: pass equal dtypes"
        )
    _core.combine_accumulators(sums, others, 8 * sums.itemsize, subtract)


def _require_integers(name: str, values: Accumulators) -> None:
    if not hasattr(values, "dtype") or numpy.asarray(values).dtype.kind not in "iu":
        kind = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{name} is {kind}: pass an array of integers")
