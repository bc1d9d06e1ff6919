"""What both sides of a secure sum know: stages, the vector of a model, numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

import tersor.lanes
from tersor._core import InvalidArgument
from tersor.flower.wire import Values, flat, is_compressed, with_values
from tersor.lanes import Lanes

STAGES = ("keys", "shares", "masked", "unmask")
_NUMBER_BITS = 32  # of each number that is summed beside the values


@dataclass(frozen=True)
class SumFormat:
    """How a vector travels: values as codes of ``bits`` bits, cut to ``clip``, then numbers."""

    bits: int
    lanes: int
    clip: float
    most_examples: int  #: 0: each client counts the same

    @property
    def scale(self) -> float:
        return self.clip / ((1 << (self.bits - 1)) - 1)

    def record(self) -> dict[str, Any]:
        return {
            "bits": self.bits,
            "lanes": self.lanes,
            "clip": self.clip,
            "most_examples": self.most_examples,
        }

    @staticmethod
    def of(record: Mapping[str, Any]) -> SumFormat:
        return SumFormat(*(record[name] for name in ("bits", "lanes", "clip", "most_examples")))

    def check_room(self, clients: int) -> None:
        """Raises InvalidArgument where the codes of so many do not fit their lanes."""
        if self.bits + math.ceil(math.log2(max(clients, 1))) > self.lanes:
            raise InvalidArgument(
                f"lanes={self.lanes} hold the sum of codes of {self.bits} bits of "
                f"{2 ** (self.lanes - self.bits)} clients, not of {clients}: take wider ones"
            )

    def length(self, values: int) -> int:
        """Lanes of a vector of so many values."""
        return values + 2 * self._digits

    @property
    def _digits(self) -> int:
        return math.ceil(_NUMBER_BITS / self.bits)

    def encode(self, values: Values, weight: int) -> Lanes:
        """Codes, the client's weight, and how many values were cut. Raises InvalidArgument for
        what is not finite."""
        out = np.empty(self.length(values.size), f"u{self.lanes // 8}")
        codes = out[: values.size]
        _, cut = tersor.lanes.encode(
            values, self.scale, bits=self.bits, lanes=self.lanes, out=codes
        )
        out[values.size :] = self._digits_of(weight) + self._digits_of(cut)
        return out

    def decode(self, sums: Lanes) -> tuple[Values, int, int]:
        """The sums of values, weights and cut values."""
        count = sums.size - 2 * self._digits
        values = tersor.lanes.decode(sums[:count], self.scale, bits=self.bits)
        weight, cut = (self._number(part) for part in np.split(sums[count:], 2))
        return values, weight, cut

    def _digits_of(self, number: int) -> list[int]:
        number = min(number, 2**_NUMBER_BITS - 1)
        mask = 2**self.bits - 1
        return [number >> (self.bits * place) & mask for place in range(self._digits)]

    def _number(self, digits: Lanes) -> int:
        return sum(int(digit) << (self.bits * place) for place, digit in enumerate(digits))


def names_of(arrays: ArrayRecord) -> list[str]:
    """What is summed: floating arrays, in the order of their names."""
    return sorted(name for name, one in arrays.items() if is_compressed(one))


def vector_of(arrays: ArrayRecord, start: ArrayRecord) -> Values:
    """What training changed, as one vector of f32."""
    changes = [flat(arrays[name]) - flat(start[name]) for name in names_of(start)]
    return np.concatenate([np.asarray(one, np.float32) for one in changes] or [np.empty(0, "f4")])


def moved_by(start: ArrayRecord, vector: Values) -> ArrayRecord:
    """The arrays that a vector leads to; what is no float stays."""
    moved, first = ArrayRecord(dict(start.items())), 0
    for name in names_of(start):
        values = flat(start[name])
        moved[name] = with_values(start[name], values + vector[first : first + values.size])
        first += values.size
    return moved


def array_of(vector: Lanes, key: str) -> Array:
    """As a message carries it."""
    little = vector.astype(vector.dtype.newbyteorder("<"), copy=False)
    return Array(f"uint{8 * vector.itemsize}", (vector.size,), key, little.tobytes())


def lanes_of(array: Array, format: SumFormat, length: int) -> Lanes:
    """Its lanes. Raises InvalidArgument for an array that is no vector of this format."""
    if len(array.data) != length * format.lanes // 8:
        raise InvalidArgument(
            f"the vector has {len(array.data)} bytes, not {length} lanes of {format.lanes} bits"
        )
    return np.frombuffer(array.data, f"<u{format.lanes // 8}").astype(f"u{format.lanes // 8}")


def require_stage(record: ConfigRecord | None, stage: str, round_: int) -> ConfigRecord:
    """A client's own record. Raises InvalidArgument where this stage is not what comes next."""
    before = {"shares": "keys", "masked": "shares", "unmask": "masked"}[stage]
    if record is None or record["round"] != round_ or record["stage"] != before:
        raise InvalidArgument(
            f"round {round_}, {stage!r}: this client is not behind {before!r} of that round"
        )
    return record
