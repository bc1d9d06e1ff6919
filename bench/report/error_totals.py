"""The loss of codecs on all tensors of a data set, by bits per value."""

import dataclasses

import records
from palette import in_order
from records import ErrorRecord


@dataclasses.dataclass(frozen=True)
class Data:
    """The encoded data."""

    name: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Loss:
    """A codec's loss over all tensors."""

    codec: str
    bits: float  # per value
    energy: float  # lost share, from 0 to 1
    count: int
    tensors: int
    ranks: int


def losses(found: list[records.Record]) -> dict[Data, list[Loss]]:
    """Returns the losses of each data set, with codecs in the palette's order."""
    errors = records.select(found, ErrorRecord)
    groups = records.grouped(errors, lambda r: Data(r.data, r.dtype))
    return {data: _by_codec(group) for data, group in groups.items()}


def _by_codec(group: list[ErrorRecord]) -> list[Loss]:
    by_codec = records.grouped(group, lambda r: r.codec)
    return [_together(codec, by_codec[codec]) for codec in in_order({*by_codec})]


def _together(codec: str, found: list[ErrorRecord]) -> Loss:
    of_tensors = {record.tensor: record for record in found}.values()  # last of repeated records
    count = sum(record.count for record in of_tensors)
    bits = sum(record.bits * record.count for record in of_tensors)
    energy = sum(record.norm**2 for record in of_tensors)
    lost = sum(record.energy_lost * record.norm**2 for record in of_tensors)
    ranks = max(record.ranks for record in of_tensors)
    return Loss(
        codec, bits / count, lost / energy if energy else 0.0, count, len(of_tensors), ranks
    )
