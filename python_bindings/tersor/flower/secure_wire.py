"""What both sides of a secure sum know: stages, the vector of a model, numbers beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

import tersor.lanes
from tersor._core import InvalidArgument
from tersor.flower.wire import Values, flat, is_float, model_name, with_values
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
    weight_key: str  #: else the metric that says how much

    @property
    def scale(self) -> float:
        return self.clip / ((1 << (self.bits - 1)) - 1)

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def of(record: Mapping[str, Any]) -> SumFormat:
        return SumFormat(**{one.name: record[one.name] for one in dataclasses.fields(SumFormat)})

    def check_room(self, clients: int) -> None:
        """Raises InvalidArgument where the codes of so many do not fit their lanes."""
        if self.bits + math.ceil(math.log2(max(clients, 1))) > self.lanes:
            raise InvalidArgument(
                f"lanes={self.lanes} hold the sum of codes of {self.bits} bits of "
                f"{2 ** (self.lanes - self.bits)} clients, not of {clients}: take wider ones"
            )

    def length(self, sizes: Sequence[int]) -> int:
        """Lanes of a vector of arrays of these sizes."""
        return sum(sizes) + (1 + len(sizes)) * self._digits

    @property
    def _digits(self) -> int:
        return math.ceil(_NUMBER_BITS / self.bits)

    def encode(self, parts: Sequence[Values], weight: int) -> Lanes:
        """Codes of the parts times the client's share of the weight that most can have, its weight,
        and how many values of each array were cut. Raises InvalidArgument for what is not finite.
        """
        out = np.zeros(self.length([part.size for part in parts]), f"u{self.lanes // 8}")
        share = weight / self.most_examples if self.most_examples else 1.0
        numbers, first = self._digits_of(weight), 0
        for part in parts:
            codes, cut = out[first : first + part.size], 0
            if share:
                _, cut = tersor.lanes.encode(
                    part, self.scale / share, bits=self.bits, lanes=self.lanes, out=codes
                )
            numbers += self._digits_of(cut)
            first += part.size
        out[first:] = numbers
        return out

    def decode(self, sums: Lanes, sizes: Sequence[int]) -> tuple[list[Values], int, list[int]]:
        """The sums of arrays, of weights, and of each array's cut values."""
        count = sum(sizes)
        values = tersor.lanes.decode(sums[:count], self.scale, bits=self.bits)
        weight, *cut = (self._number(part) for part in np.split(sums[count:], 1 + len(sizes)))
        return np.split(values, np.cumsum(sizes)[:-1]) if sizes else [], weight, cut

    def _digits_of(self, number: int) -> list[int]:
        number = min(number, 2**_NUMBER_BITS - 1)
        mask = 2**self.bits - 1
        return [number >> (self.bits * place) & mask for place in range(self._digits)]

    def _number(self, digits: Lanes) -> int:
        return sum(int(digit) << (self.bits * place) for place, digit in enumerate(digits))


def names_of(arrays: ArrayRecord) -> list[str]:
    """What is summed: floating arrays, in the order of their names."""
    return sorted(name for name, one in arrays.items() if is_float(one))


def changes_of(arrays: ArrayRecord, start: ArrayRecord) -> list[Values]:
    """What training changed, an array for each that is summed."""
    if model_name(arrays) != model_name(start):
        raise InvalidArgument("the app returned arrays of other names or shapes")
    changes = (flat(arrays[name]) - flat(start[name]) for name in names_of(start))
    return [np.ascontiguousarray(one, np.float32) for one in changes]


def moved_by(start: ArrayRecord, changes: Sequence[Values]) -> ArrayRecord:
    """The arrays that changes lead to; what is no float stays."""
    moved = ArrayRecord(dict(start.items()))
    for name, change in zip(names_of(start), changes, strict=True):
        moved[name] = with_values(start[name], flat(start[name]) + change)
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


def is_of(record: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a record is of this round, and of this start of the server's."""
    return all(record.get(name) == told[name] for name in ("run", "round"))


def require_stage(record: ConfigRecord | None, stage: str, told: Mapping[str, Any]) -> ConfigRecord:
    """A client's own record. Raises InvalidArgument where this stage is not what comes next."""
    before = STAGES[STAGES.index(stage) - 1]
    if record is None or not is_of(record, told) or record["stage"] != before:
        raise InvalidArgument(
            f"round {told['round']}, {stage!r}: this client is not behind {before!r} of that round"
        )
    return record
