"""Frames in Flower's records, and the description of the frames."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor.arrays import FLOATS, narrowed, require_finite, require_numbers
from tersor.codec import text_hash

KEY = "tersor"  #: of Tersor's records, and the stype of encoded arrays
Values = np.ndarray[Any, Any]


def is_float(array: Array) -> bool:
    """True for an array of a floating type with at least one value."""
    return array.dtype in FLOATS and math.prod(array.shape) > 0


def is_compressed(array: Array, other: Array | None = None) -> bool:
    """True if the difference of two arrays is encoded: several values of floating types. Single
    values may be counters, which Flower averages to f64."""
    return is_float(array) and math.prod(array.shape) > 1 and (other is None or is_float(other))


def require_size(name: str, array: Array) -> None:
    """Raises InvalidArgumentError or ValueError if an array's header claims a wrong size. NumPy
    would allocate this size."""
    file = io.BytesIO(array.data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise InvalidArgumentError(f"{name}: the array is not in version 1.0 of NumPy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if math.prod(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise InvalidArgumentError(f"{name}: the array has another size than its header claims")


def copied(arrays: ArrayRecord) -> ArrayRecord:
    """A copy for an app. The app may change the record and the arrays in place."""
    return ArrayRecord(
        {n: Array(one.dtype, one.shape, one.stype, one.data) for n, one in arrays.items()}
    )


def require_plain(name: str, array: Array, then: str) -> None:
    """Raises InvalidArgumentError for an array with another dtype than its description, with other
    values than NumPy's integers and floats, or with a value that is not finite."""
    values = array.numpy()
    if str(values.dtype) != array.dtype:
        raise InvalidArgumentError(f"{name}: the array is {values.dtype}, not {array.dtype}")
    require_numbers(name, values, then)


def flat(array: Array) -> Values:
    """The values: f64 for f64, otherwise f32."""
    values: Values = array.numpy().reshape(-1)
    return values if array.dtype == "float64" else values.astype(np.float32)


def with_values(like: Array, values: Values) -> Array:
    """An array with new values, in the shape and dtype of another array."""
    return Array(narrowed(values.reshape(like.shape), like.dtype))


def model_name(arrays: ArrayRecord) -> str:
    """A hash of a model's names and shapes."""
    shapes = sorted((name, list(one.shape)) for name, one in arrays.items())
    return f"{text_hash(repr(shapes)):016x}"


# Messages of several stages. A node with two answers is left out.
ANSWERED_TWICE = "the node answered twice: start one SuperNode per node, with a key of its own"
WRONG_ARRAYS = (
    "arrays with other names or shapes came back: return what the app received, with new values"
)


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """A message's record of arrays, and the record's key. Raises InvalidArgumentError for none or
    several."""
    if len(content.array_records) != 1:
        found = ", ".join(content.array_records) or "none"
        raise InvalidArgumentError(
            f"a message needs one record of arrays to compress; found: {found}"
        )
    ((key, arrays),) = content.array_records.items()
    return key, arrays


def printable(text: object) -> str:
    """Text of another machine for a log: short, in one line, without control characters."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(text)[:300])


@dataclass(frozen=True)
class Header:
    """The description of a frame. Sender and receiver compare descriptions before bytes."""

    run: str  #: drawn by the server, because each start counts rounds from 1
    round: int
    codec: str
    model: str

    def record(self, **more: Any) -> ConfigRecord:
        """The record for a message."""
        return ConfigRecord({**dataclasses.asdict(self), **more})

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Header:
        run, codec, model = (str(record[name]) for name in ("run", "codec", "model"))
        return Header(run, int(record["round"]), codec, model)

    def signature(self, name: str) -> int:
        """The signature of a parameter's frame."""
        return text_hash(repr((self.run, self.round, self.codec, self.model, name)))

    def require(self, other: Header, sender: str) -> None:
        """Raises InvalidArgumentError with the first difference."""
        for field in ("round", "codec", "model", "run"):
            own, found = getattr(self, field), getattr(other, field)
            if own != found:
                raise InvalidArgumentError(f"{sender} has {field} {found!r}, here it is {own!r}")


def encode(
    codec: Codec, header: Header, name: str, values: Values, residual: Values | None, seed: int = 0
) -> bytes:
    """A parameter's frame; updates ``residual`` in place. Raises InvalidArgumentError, without a
    change, for values that are not finite."""
    values = np.ascontiguousarray(values, np.float32)
    require_finite(name, values)
    frame = codec.encode(
        values, residual=residual, signature=header.signature(name), seed=seed, step=header.round
    )
    return bytes(np.asarray(frame))


def decode(codec: Codec, header: Header, name: str, array: Array) -> Values:
    """The flat f32 values. Raises InvalidArgumentError or WireError for a wrong frame."""
    if array.stype != KEY:
        raise InvalidArgumentError(f"{name}: the array is {array.stype}, not compressed")
    out = np.empty(math.prod(array.shape), np.float32)
    frame = np.frombuffer(array.data, np.uint8).copy()
    codec.decode(frame, out, signature=header.signature(name))
    return out
