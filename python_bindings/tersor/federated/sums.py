"""Whole numbers in lanes, whose sums wrap around: what secure sums add.

A code is ``value / scale``, cut to ``2**(bits - 1) - 1`` and rounded up or down at random so that
its mean is right, in a lane of 8, 16 or 32 bits. The sum of ``n`` codes is right where
``bits + ceil(log2(n)) <= lanes``, whatever masks were added and taken off on the way.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.arrays import Array

Lanes = numpy.ndarray[Any, Any]

_DTYPES = {8: numpy.uint8, 16: numpy.uint16, 32: numpy.uint32}


def encode(
    values: Array,
    scale: float,
    *,
    bits: int = 8,
    lanes: int = 16,
    seed: int | None = None,
    out: Lanes | None = None,
) -> tuple[Lanes, int]:
    """The codes of float32 values, flat, and how many values were cut.

    ``seed`` below 2**64 decides how they are rounded; None, and nothing else where a sum is to hide
    what was added: of the system's random numbers. ``out``: a flat array of that dtype to write to.
    Raises InvalidArgumentError for a format that is none, and for a value that is not finite.
    """
    if lanes not in _DTYPES:
        raise InvalidArgumentError(f"lanes={lanes}: 8, 16 or 32")
    format = _core.LaneFormat(bits, lanes, scale)
    if out is None:
        out = numpy.empty(int(numpy.prod(numpy.shape(values))), _DTYPES[lanes])
    elif out.dtype != _DTYPES[lanes]:
        raise InvalidArgumentError(f"out is {out.dtype}: pass integers of {lanes} bits")
    secret = secrets.randbits(64) if seed is None else seed
    return out, _core.encode_lanes(values, format, secret, out)


def decode(lanes: Lanes, scale: float, *, bits: int = 8, out: Array | None = None) -> Array:
    """The float32 values of codes, or of sums of them: ``scale`` times the lane with its sign."""
    format = _core.LaneFormat(bits, 8 * lanes.itemsize, scale)
    if out is None:
        out = numpy.empty(lanes.size, numpy.float32)
    _core.decode_lanes(lanes, format, out)
    return out


def add(sums: Lanes, others: Lanes) -> None:
    """``sums += others``, lane by lane, wrapping around."""
    _combine(sums, others, subtract=False)


def subtract(sums: Lanes, others: Lanes) -> None:
    """``sums -= others``, lane by lane, wrapping around."""
    _combine(sums, others, subtract=True)


def _combine(sums: Lanes, others: Lanes, subtract: bool) -> None:
    if sums.dtype != others.dtype:
        raise InvalidArgumentError(
            f"sums is {sums.dtype}, others is {others.dtype}: pass equal dtypes"
        )
    _core.combine_lanes(sums, others, 8 * sums.itemsize, subtract)
