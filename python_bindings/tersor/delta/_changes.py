"""Decodes deltas into indices and values, for engines that take patches."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.delta import _files, _memory
from tersor.delta._memory import Delta, Weights
from tersor.delta._transaction import Part, parts_of


def changes(
    weights: Weights,
    delta: Delta | Sequence[Delta],
    *,
    trust_base: bool = False,
    allow_nan: bool = True,
    threads: int = 1,
) -> dict[str, tuple[Any, Any]]:
    """Returns the changed values of each tensor, with every bit. Writes nothing.

    The call performs :func:`check`, and keeps a copy of one tensor at a time.

    Args:
        weights: Names and tensors of the base, as in :func:`apply`.
        delta: The delta or deltas, as in :func:`apply`.
        trust_base: As in :func:`apply`.
        allow_nan: False refuses new values that are NaN, which mean "unchanged" in vLLM's patches.
        threads: Number of threads; 0: one per core.

    Returns:
        The indices and the new values of each tensor with changes, in host memory. Indices ascend
        in the flat tensor, and are int32, or int64 for more than 2,147,483,647 values.

    Raises:
        WireError: As :func:`check`.
        InvalidArgumentError: As :func:`check`, or a new value is NaN and ``allow_nan`` is False.
        BaseMismatchError: As :func:`check`.

    Example:
        >>> old = {"bias": numpy.zeros(3, numpy.float32)}
        >>> new = {"bias": numpy.float32([0, 1, 0])}
        >>> tersor.delta.changes(old, tersor.delta.encode(old, new))
        {'bias': (array([1], dtype=int32), array([1.], dtype=float32))}
    """
    deltas = [delta] if isinstance(delta, Delta) else delta
    single = [one for several in deltas for one in _split(several)]
    found: dict[str, tuple[Any, Any]] = {}
    for part in parts_of(weights, single, threads):
        [name] = part.tensors
        indices, values = _changed(part, trust_base)
        numbers = values.float() if hasattr(values, "float") else values
        if not allow_nan and (numbers != numbers).any():
            raise InvalidArgumentError(f'tensor "{name}" has a new value that is NaN')
        if len(indices):
            found[name] = indices, values
    return found


def _changed(part: Part, trust_base: bool) -> tuple[Any, Any]:
    """Returns the indices and the new values of a part with one tensor."""
    [tensor] = part.tensors.values()
    described, [old] = _memory.tensors_of(part.tensors)
    new = old.copy()
    for number, one in enumerate(part.deltas):
        _core.delta_apply(described, [new], one.data, trust_base and not number, part.threads)
    unit = f"u{tensor.itemsize}"
    [positions] = (old.view(unit) != new.view(unit)).nonzero()
    values = new.view(unit)[positions]
    indices = positions.astype(numpy.int32 if old.size < tensor.itemsize << 31 else numpy.int64)
    if hasattr(tensor, "data_ptr"):
        as_torch = sys.modules["torch"].from_numpy
        return as_torch(indices), as_torch(values.view(numpy.uint8)).view(tensor.dtype)
    return indices, values.view(tensor.dtype)


def _split(delta: Delta) -> Iterator[Delta]:
    """Returns a delta for each tensor."""
    data, at = delta.data, 64
    entries = delta.entries()
    body = at + int(struct.unpack_from("<Q", data, 16)[0])
    for entry in entries:
        length, _, dimensions = struct.unpack_from("<HBB", data, at)
        size = -(-(8 + 8 * dimensions + length) // 8) * 8
        directory = data[at : at + size] + bytes(-size % 16)
        total = 64 + len(directory) + entry.bytes
        head = data[:8] + struct.pack("<QQQ32x", total, len(directory), 1)
        frame = bytearray(head + directory + data[body : body + entry.bytes])
        [checksum] = _files.checksums([("", "i8", [total])], [numpy.frombuffer(frame, "u1")], 1)
        frame[56:64] = checksum.to_bytes(8, "little")
        yield Delta(bytes(frame))
        at, body = at + size, body + entry.bytes
