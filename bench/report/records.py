"""The records of `tersor-bench … --json FILE` and `python -m tersor.bench`, with checks.

bench/records.md explains the fields. A file of `tersor-microbench --benchmark_out=FILE` becomes
records of `codecs` (microbench.py). Any other file is a JSON array of objects.
`benchmark` is the kind of an object: codecs, allocate, allreduce, predict, train or backward. Every
field of the kind's class below is required unless the field has a default. Other fields are
ignored. If None is allowed, null is also allowed, because JSON libraries write NaN as null. The
text fields `machine`, `date` and `commit` are shown in the report.
"""

import dataclasses
import json
import math
import pathlib
import types
import typing

import microbench


class ReportError(Exception):
    """An error for the user to correct, with a message of one line."""


def _range(low: float = 0.0, high: float = math.inf) -> typing.Any:
    return dataclasses.field(metadata={"low": low, "high": high})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    codec: str
    machine: str | None = None
    date: str | None = None
    commit: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodecRecord(Record):
    operation: str
    dtype: str
    count: int = _range()
    isa: str
    threads: int = _range(low=1)
    seconds: float = _range()
    baseline: str
    baseline_seconds: float | None = _range()
    ratio: float | None = _range()
    payload_bytes: int = _range()
    relative_error: float | None = _range()
    aim: float | None = None
    checksum: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRecord(Record):
    dtype: str
    count: int = _range(low=1)
    data: str
    tensor: str
    ranks: int = _range(low=1)
    bits: float = _range()
    energy_lost: float = _range()
    norm: float = _range()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateRecord(Record):
    data: str
    parameter: str | None
    count: int = _range(low=1)
    payload_bytes: int = _range()
    energy: float = _range()
    energy_lost: float | None = _range()
    chosen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllreduceRecord(Record):
    algorithm: str
    transport: str
    link: str
    ranks: int = _range(low=1)
    dtype: str
    count: int = _range()
    seconds: float = _range()
    algbw: float = _range()
    busbw: float = _range()
    wire_bytes: float = _range()
    relative_error: float | None = _range()
    identical: bool
    collective: str = "allreduce"
    parameters: int | None = None
    backward_seconds: float | None = None
    hidden: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictRecord(Record):
    algorithm: str
    link: str
    ranks: int = _range(low=1)
    hosts: int = _range(low=1)
    dtype: str
    count: int = _range()
    seconds: float = _range()
    busbw: float = _range()
    wire_bytes: float = _range()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRecord(Record):
    model: str | None = None
    learning_rate: float | None = None
    seed: int = _range()
    ranks: int = _range(low=1)
    link: str
    epoch: int = _range(low=1)
    step_seconds: float = _range()
    seconds: float = _range()
    accuracy: float = _range(high=1.0)
    loss: float | None = _range(low=-math.inf)
    test_loss: float | None = None
    wire_bytes: float = _range()
    compute_seconds: float = _range()
    encode_seconds: float | None = _range()
    wire_seconds: float | None = _range()
    decode_seconds: float | None = _range()
    exposed_seconds: float = _range()
    hidden_seconds: float | None = None

    @property
    def communication_seconds(self) -> float:
        """The work of communication in a step, both hidden and exposed."""
        parts = (self.encode_seconds, self.wire_seconds, self.decode_seconds)
        return sum(part for part in parts if part is not None)

    @property
    def hidden(self) -> float:
        if self.hidden_seconds is not None:
            return self.hidden_seconds
        return max(0.0, self.communication_seconds - self.exposed_seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackwardRecord(Record):
    parallel: str = "ddp"
    weights: str | None = None
    transport: str
    link: str
    ranks: int = _range(low=1)
    dtype: str
    count: int = _range()
    rows: int = _range(low=1)
    seconds: float = _range()
    compute_seconds: float = _range()
    wire_bytes: float = _range()
    wire_bytes_are: str
    interface_bytes: float | None = None
    relative_error: float | None = _range()


KINDS: dict[str, type[Record]] = {
    "codecs": CodecRecord,
    "allocate": AllocateRecord,
    "allreduce": AllreduceRecord,
    "predict": PredictRecord,
    "train": TrainRecord,
    "backward": BackwardRecord,
}
NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


def load(paths: list[pathlib.Path]) -> list[Record]:
    """Reads all files. Raises ReportError with the file, the record (from 1) and the field."""
    records = [record for path in paths for record in _load_file(path)]
    if not records:
        raise ReportError(
            f"{', '.join(map(str, paths))}: no records; run tersor-bench with --json FILE"
        )
    _check_runs(records)
    return records


def select(records: list[Record], kind: type) -> list[typing.Any]:
    return [record for record in records if isinstance(record, kind)]


def gradient_bytes(record: typing.Any) -> int:
    return record.count * DTYPE_BYTES.get(record.dtype, 4)


def grouped(records: list, key: typing.Callable) -> dict[typing.Any, list]:
    """Groups in the order of first occurrence."""
    groups: dict[typing.Any, list] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def median(repeats: list) -> typing.Any:
    """The record of median time."""
    return sorted(repeats, key=lambda r: r.seconds)[(len(repeats) - 1) // 2]


def _load_file(path: pathlib.Path) -> list[Record]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise ReportError(f"{path}: nested too deeply") from error
    except ValueError as error:
        raise ReportError(f"{path}: not JSON: {error}") from error
    if microbench.is_microbench(entries):
        entries = _from_microbench(entries, path)
    if not isinstance(entries, list):
        raise ReportError(f"{path}: expected an array of records, found {type(entries).__name__}")
    return [_parse(entry, f"{path}: record {i}") for i, entry in enumerate(entries, start=1)]


def _from_microbench(document: dict[str, typing.Any], path: pathlib.Path) -> list[typing.Any]:
    try:
        return microbench.records_of(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path}: no JSON of tersor-microbench: {error!r}") from error


def _parse(entry: typing.Any, where: str) -> Record:
    if not isinstance(entry, dict):
        raise ReportError(f"{where}: expected an object, found {type(entry).__name__}")
    if "benchmark" not in entry:
        raise ReportError(f'{where}: field "benchmark" is missing')
    name = entry["benchmark"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is CodecRecord and entry.get("operation") == "error":
        kind = ErrorRecord
    if kind is None:
        raise ReportError(
            f'{where}: field "benchmark" is {json.dumps(name)}, expected one of {", ".join(KINDS)}'
        )
    entry = _with_grid(entry)
    values = {
        field.name: _value(entry, field, where)
        for field in dataclasses.fields(kind)
        if field.name in entry or field.default is dataclasses.MISSING
    }
    record = kind(**values)
    _check_bandwidth(record, where)
    return record


def _with_grid(entry: dict[str, typing.Any]) -> dict[str, typing.Any]:
    dims = entry.get("dims")
    if not isinstance(dims, list) or not dims or entry.get("algorithm") != "two-shot":
        return entry
    return {**entry, "algorithm": f"two-shot {' x '.join(map(str, dims))}"}


def _value(entry: dict[str, typing.Any], field: dataclasses.Field, where: str) -> typing.Any:
    if field.name not in entry:
        raise ReportError(f'{where}: field "{field.name}" is missing')
    value = entry[field.name]
    allowed = _types(field)
    if type(value) is int and abs(value) >= 2**64:
        raise ReportError(f'{where}: field "{field.name}" is a number of {len(str(value))} digits')
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        found = json.dumps(value)[:40]
        raise ReportError(f'{where}: field "{field.name}" is {found}, expected {NAMES[allowed[0]]}')
    low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
    if isinstance(value, (int, float)) and not (math.isfinite(value) and low <= value <= high):
        raise ReportError(f'{where}: field "{field.name}" is {value}, expected {_span(low, high)}')
    return value


def _types(field: dataclasses.Field) -> tuple[type, ...]:
    is_union = isinstance(field.type, types.UnionType)
    return typing.get_args(field.type) if is_union else (field.type,)


def _span(low: float, high: float) -> str:
    if math.isinf(low):
        return "a finite number"
    return f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"


def _check_bandwidth(record: Record, where: str) -> None:
    """Compares algbw with count and seconds, because a picture would not reveal a wrong unit."""
    if not isinstance(record, AllreduceRecord) or not record.count or not record.seconds:
        return
    expected = gradient_bytes(record) / record.seconds / 1e9
    if not expected / 4 <= record.algbw <= expected * 4:
        raise ReportError(
            f'{where}: field "algbw" is {record.algbw:.3g}, '
            f"but bytes / seconds is {expected:.3g} GB/s"
        )


def _check_runs(records: list[Record]) -> None:
    seen = set()
    for record in select(records, TrainRecord):
        setting = (record.model, record.learning_rate)
        key = (record.codec, record.seed, record.ranks, record.link, record.epoch, *setting)
        if key in seen:
            raise ReportError(
                f"two train records for codec {key[0]}, seed {key[1]}, {key[2]} ranks, "
                f"link {key[3]}, epoch {key[4]}: give each run once"
            )
        seen.add(key)
