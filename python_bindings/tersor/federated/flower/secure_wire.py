"""What both sides of a secure sum know: stages, the vector of a model, numbers beside it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import tersor.federated.sums
from tersor._core import InvalidArgumentError
from tersor.federated.flower.wire import KEY, Values, flat, is_float, model_name, with_values
from tersor.federated.sums import Lanes

STAGES = ("keys", "shares", "masked", "confirm", "unmask")
COUNT_BYTES = 8  #: of each count: a sum of counts wraps around at 2**64
Fields = dict[str, Any]
SECRETS = ("own", "mask")  #: of each client: the key of its own mask, the key of pairs' masks
_COMMON = ("run", "round", "clients", "cohort")  # sent to all clients of a round alike


class SumVector:
    """The numbers that clients sum: a code for each value, in ``lanes``, then ``counts``."""

    def __init__(self, lane_bytes: int, values: int, counts: int) -> None:
        self.data = np.zeros(values * lane_bytes + counts * COUNT_BYTES, np.uint8)
        self.lanes: Lanes = self.data[: values * lane_bytes].view(f"<u{lane_bytes}")
        self.counts: Lanes = self.data[values * lane_bytes :].view(f"<u{COUNT_BYTES}")
        self.parts = self.lanes, self.counts  #: arrays whose elements wrap around

    def add(self, other: SumVector) -> None:
        """Adds another vector of the same format."""
        for own, its in zip(self.parts, other.parts, strict=True):
            np.add(own, its, out=own)


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
        """Raises InvalidArgumentError where the codes of so many do not fit their lanes."""
        if self.bits + math.ceil(math.log2(max(clients, 1))) > self.lanes:
            raise InvalidArgumentError(
                f"lanes={self.lanes} hold the sum of codes of {self.bits} bits of "
                f"{2 ** (self.lanes - self.bits)} clients, not of {clients}: give larger lanes="
            )

    def zeros(self, sizes: Sequence[int]) -> SumVector:
        """A vector for arrays of these sizes: their codes, the weight, each array's cut values."""
        return SumVector(self.lanes // 8, sum(sizes), 1 + len(sizes))

    def vector_of(self, array: Array, sizes: Sequence[int]) -> SumVector:
        """A received vector. Raises InvalidArgumentError for an array of another length."""
        made = self.zeros(sizes)
        if len(array.data) != made.data.size:
            raise InvalidArgumentError(
                f"the vector has {len(array.data)} bytes instead of {made.data.size}"
            )
        made.data[:] = np.frombuffer(array.data, np.uint8)
        return made

    def encode(self, parts: Sequence[Values], weight: int, norm: float = math.inf) -> SumVector:
        """Codes of the parts times the client's share of the weight that most can have, its weight,
        and how many values of each array were cut. Raises InvalidArgumentError for what is not
        finite.

        Rounding lengthens a vector. If ``norm`` bounds an update, the update is scaled down and
        rounded again until the norm of the decoded codes is at most ``norm``.
        """
        vector = self.zeros([part.size for part in parts])
        share = weight / self.most_examples if self.most_examples else 1.0
        cut = self._encode_lanes(parts, share, vector.lanes)
        while norm < math.inf and (found := self._norm(vector.lanes)) > norm:
            share *= 0.999 * norm / found
            cut = self._encode_lanes(parts, share, vector.lanes)
        vector.counts[:] = [weight, *cut]
        return vector

    def _encode_lanes(self, parts: Sequence[Values], share: float, lanes: Lanes) -> list[int]:
        cut, first = [0] * len(parts), 0
        for place, part in enumerate(parts):
            codes = lanes[first : first + part.size]
            if share:
                _, cut[place] = tersor.federated.sums.encode(
                    part, self.scale / share, bits=self.bits, lanes=self.lanes, out=codes
                )
            first += part.size
        return cut

    def _norm(self, lanes: Lanes) -> float:
        codes = lanes.view(f"<i{lanes.itemsize}").astype(np.float64)
        return float(np.linalg.norm(codes)) * self.scale * (1 + 2**-20)  # decoding rounds to f32

    def decode(self, sums: SumVector, sizes: Sequence[int]) -> tuple[list[Values], int, list[int]]:
        """The sums of arrays, of weights, and of each array's cut values."""
        values = tersor.federated.sums.decode(sums.lanes, self.scale, bits=self.bits)
        weight, *cut = map(int, sums.counts)
        return np.split(values, np.cumsum(sizes)[:-1]) if sizes else [], weight, cut


def round_digest(content: RecordDict, threshold: int) -> bytes:
    """32 bytes of all that the clients of a round must be told alike: format, weights,
    configuration, cohort, threshold and round. A server that tells clients different values gets
    masks that do not cancel."""
    told: Any = content[KEY]
    common = SumFormat.of(told).record() | {name: told[name] for name in _COMMON}
    others = {name: one for name, one in content.items() if name not in content.array_records}
    values = {**others, KEY: common | {"threshold": threshold}}
    digest = hashlib.sha256(json.dumps(values, default=_plain, sort_keys=True).encode())
    for key, record in sorted(content.array_records.items()):
        for name, array in record.items():
            head = key, name, array.dtype, list(array.shape), array.stype, len(array.data)
            digest.update(repr(head).encode())
            digest.update(array.data)
    return digest.digest()


def _plain(value: Any) -> dict[str, Any]:
    """A record, or bytes, as JSON has them."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else dict(value)


def names_of(arrays: ArrayRecord) -> list[str]:
    """What is summed: floating arrays, in the order of their names."""
    return sorted(name for name, one in arrays.items() if is_float(one))


def changes_of(arrays: ArrayRecord, start: ArrayRecord) -> list[Values]:
    """What training changed, an array for each that is summed."""
    if model_name(arrays) != model_name(start):
        raise InvalidArgumentError("the app returned arrays with other names or shapes")
    changes = (flat(arrays[name]) - flat(start[name]) for name in names_of(start))
    return [np.ascontiguousarray(one, np.float32) for one in changes]


def moved_by(start: ArrayRecord, changes: Sequence[Values]) -> ArrayRecord:
    """The arrays that changes lead to; what is no float stays."""
    moved = ArrayRecord(dict(start.items()))
    for name, change in zip(names_of(start), changes, strict=True):
        moved[name] = with_values(start[name], flat(start[name]) + change)
    return moved


def packed(fields: Mapping[str, Any]) -> ConfigRecord:
    """A record of these fields. A table by node becomes one field for each node."""
    record = ConfigRecord()
    for name, value in fields.items():
        if isinstance(value, dict):
            record.update({f"{name}.{node}": one for node, one in value.items()})
        else:
            record[name] = value
    return record


def unpacked(record: Mapping[str, Any]) -> Fields:
    """The fields of a record. A missing field is an empty table."""
    fields: Fields = defaultdict(dict)
    for key, value in record.items():
        name, _, node = key.partition(".")
        if node:
            fields[name][int(node)] = value
        else:
            fields[name] = value
    return fields


def is_of(fields: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """True if fields are of this round and run."""
    return all(fields.get(name) == told[name] for name in ("run", "round"))
