"""The messages of a secure sum: stages, fields, and the vector of an update."""

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

from tersor._core import InvalidArgumentError
from tersor.federated import sums as accumulators
from tersor.federated.flower.wire import (
    KEY,
    WRONG_ARRAYS,
    Values,
    flat,
    is_float,
    model_name,
    with_values,
)
from tersor.federated.sums import Accumulators

STAGES = ("keys", "shares", "masked", "confirm", "unmask")
COUNT_BYTES = 8  #: of each count: a sum of counts wraps around at 2**64
Fields = dict[str, Any]
SECRETS = ("own", "mask")  #: of each client: the key of its own mask, the key of pairs' masks
_COMMON = ("run", "round", "clients", "cohort")  # sent to all clients of a round alike


class SumVector:
    """The numbers that clients sum: a code per value in ``codes``, then ``counts``."""

    def __init__(self, code_bytes: int, values: int, counts: int) -> None:
        self.data = np.zeros(values * code_bytes + counts * COUNT_BYTES, np.uint8)
        self.codes: Accumulators = self.data[: values * code_bytes].view(f"<u{code_bytes}")
        self.counts: Accumulators = self.data[values * code_bytes :].view(f"<u{COUNT_BYTES}")
        self.parts = self.codes, self.counts  #: arrays whose elements wrap around

    def add(self, other: SumVector) -> None:
        """Adds another vector of the same format."""
        for own, its in zip(self.parts, other.parts, strict=True):
            np.add(own, its, out=own)


@dataclass(frozen=True)
class SumFormat:
    """The format of a vector: codes of ``bits`` bits, clipped to ``clip``, then counts."""

    bits: int
    accumulator_bits: int
    clip: float
    max_examples: int  #: 0: equal weights of all clients
    weight_key: str  #: otherwise the metric with a client's weight

    @property
    def scale(self) -> float:
        return self.clip / ((1 << (self.bits - 1)) - 1)

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> SumFormat:
        names = [one.name for one in dataclasses.fields(SumFormat)]
        if absent := [name for name in names if name not in record]:
            raise InvalidArgumentError(
                f"the server sent no {', '.join(absent)}: install the same release of Tersor on "
                "the server and on all clients"
            )
        return SumFormat(**{name: record[name] for name in names})

    def check_capacity(self, clients: int) -> None:
        """Raises InvalidArgumentError if the accumulators cannot hold the codes of the clients."""
        if self.bits + math.ceil(math.log2(max(clients, 1))) > self.accumulator_bits:
            raise InvalidArgumentError(
                f"accumulator_bits={self.accumulator_bits} hold the sum of codes of {self.bits} "
                f"bits of {2 ** (self.accumulator_bits - self.bits)} clients, not of {clients}: "
                "give a larger accumulator_bits="
            )

    def zeros(self, sizes: Sequence[int]) -> SumVector:
        """A vector for arrays of these sizes: their codes, the weight, each array's cut values."""
        return SumVector(self.accumulator_bits // 8, sum(sizes), 1 + len(sizes))

    def vector_of(self, array: Array, sizes: Sequence[int]) -> SumVector:
        """A received vector. Raises InvalidArgumentError for an array of another length."""
        vector = self.zeros(sizes)
        if len(array.data) != vector.data.size:
            raise InvalidArgumentError(
                f"the vector has {len(array.data)} bytes instead of {vector.data.size}"
            )
        vector.data[:] = np.frombuffer(array.data, np.uint8)
        return vector

    def encode(self, parts: Sequence[Values], weight: int, norm: float = math.inf) -> SumVector:
        """Encodes the parts times ``weight / max_examples``, the weight, and the clipped counts.

        Raises InvalidArgumentError for a value that is not finite, and a norm below 0.

        Rounding lengthens a vector. If ``norm`` bounds an update, the update is scaled down and
        rounded again until the norm of the decoded codes is at most ``norm``.
        """
        if not norm >= 0:
            raise InvalidArgumentError(f"clipping_norm is {norm}: give 0 or more")
        vector = self.zeros([part.size for part in parts])
        share = weight / self.max_examples if self.max_examples else 1.0
        cut = self._encode_codes(parts, share, vector.codes)
        while norm < math.inf and (found := self._norm(vector.codes)) > norm:
            is_possible = norm >= self.scale  # the norm of a single code of 1
            share *= 0.999 * norm / found if is_possible else 0.0
            cut = self._encode_codes(parts, share, vector.codes)
        vector.counts[:] = [weight, *cut]
        return vector

    def _encode_codes(self, parts: Sequence[Values], share: float, out: Accumulators) -> list[int]:
        cut, first = [0] * len(parts), 0
        for index, part in enumerate(parts):
            codes = out[first : first + part.size]
            codes[:] = 0
            if share:
                options = {"bits": self.bits, "accumulator_bits": self.accumulator_bits}
                _, cut[index] = accumulators.encode(part, self.scale / share, **options, out=codes)
            first += part.size
        return cut

    def _norm(self, codes: Accumulators) -> float:
        signed = codes.view(f"<i{codes.itemsize}").astype(np.float64)
        return float(np.linalg.norm(signed)) * self.scale * (1 + 2**-20)  # decoding rounds to f32

    def decode(self, sums: SumVector, sizes: Sequence[int]) -> tuple[list[Values], int, list[int]]:
        """The sums of the arrays, of the weights, and of each array's clipped values."""
        values = accumulators.decode(sums.codes, self.scale, bits=self.bits)
        weight, *cut = map(int, sums.counts)
        return np.split(values, np.cumsum(sizes)[:-1]) if sizes else [], weight, cut


def round_digest(content: RecordDict, threshold: int) -> bytes:
    """A hash of the values that all clients of a round must receive alike: format, parameters,
    configuration, cohort, threshold and round. If a server sends clients different values, their
    masks do not cancel."""
    fields: Any = content[KEY]
    common = SumFormat.from_record(fields).record() | {name: fields[name] for name in _COMMON}
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
    """A record, or bytes, for JSON."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else dict(value)


def names_of(arrays: ArrayRecord) -> list[str]:
    """The names of the summed arrays, which are floating, in sorted order."""
    return sorted(name for name, one in arrays.items() if is_float(one))


def changes_of(arrays: ArrayRecord, start: ArrayRecord) -> list[Values]:
    """The change of each summed array by training."""
    if model_name(arrays) != model_name(start):
        raise InvalidArgumentError(WRONG_ARRAYS)
    changes = (flat(arrays[name]) - flat(start[name]) for name in names_of(start))
    return [np.ascontiguousarray(one, np.float32) for one in changes]


def apply_changes(start: ArrayRecord, changes: Sequence[Values]) -> ArrayRecord:
    """The arrays after the changes. Arrays that are not floating stay."""
    arrays = ArrayRecord(dict(start.items()))
    for name, change in zip(names_of(start), changes, strict=True):
        arrays[name] = with_values(start[name], flat(start[name]) + change)
    return arrays


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


def is_same_round(fields: Mapping[str, Any], round_id: Mapping[str, Any]) -> bool:
    """True if fields are of this round and run."""
    return all(fields.get(name) == round_id[name] for name in ("run", "round"))
