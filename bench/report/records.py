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
import re
import pathlib
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
class Values(Record):
    """Of values of a dtype."""

    dtype: str
    count: int = _range()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange(Record):
    """Of ranks that exchange."""

    link: str
    ranks: int = _range(low=1)
    seconds: float = _range()
    wire_bytes: float = _range()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodecRecord(Values):
    operation: str
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
class ErrorRecord(Values):
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
class AllreduceRecord(Exchange, Values):
    algorithm: str
    transport: str
    algbw: float = _range()
    busbw: float = _range()
    relative_error: float | None = _range()
    identical: bool
    collective: str = "allreduce"
    parameters: int | None = None
    backward_seconds: float | None = None
    hidden: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictRecord(Exchange, Values):
    algorithm: str
    hosts: int = _range(low=1)
    busbw: float = _range()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRecord(Exchange):
    model: str | None = None
    learning_rate: float | None = None
    seed: int = _range()
    epoch: int = _range(low=1)
    step_seconds: float = _range()
    accuracy: float = _range(high=1.0)
    loss: float | None = _range(low=-math.inf)
    test_loss: float | None = None
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
class BackwardRecord(Exchange, Values):
    parallel: str = "ddp"
    weights: str | None = None
    transport: str
    rows: int = _range(low=1)
    compute_seconds: float = _range()
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
NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


def load(paths: list[pathlib.Path]) -> list[Record]:
    """Reads all files. Raises ReportError with the file, the record (from 1) and the field."""
    records = [record for path in paths for record in _load_file(path)]
    if not records:
        names = ", ".join(map(str, paths))
        raise ReportError(f"{names}: no records; run tersor-bench with --json FILE")
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
        try:
            entries = microbench.records_of(entries)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}: no JSON of tersor-microbench: {error!r}") from error
    if not isinstance(entries, list):
        raise ReportError(f"{path}: expected an array of records, found {type(entries).__name__}")
    return [_parse(entry, f"{path}: record {i}") for i, entry in enumerate(entries, start=1)]


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
        wrong = f'field "benchmark" is {json.dumps(name)}, expected one of {", ".join(KINDS)}'
        raise ReportError(f"{where}: {wrong}")
    dims = entry.get("dims")
    if dims and isinstance(dims, list) and entry.get("algorithm") == "two-shot":
        entry = {**entry, "algorithm": f"two-shot {' x '.join(map(str, dims))}"}
    values = {
        field.name: _value(entry, field, where)
        for field in sorted(dataclasses.fields(kind), key=lambda one: one.name not in entry)
        if field.name in entry or field.default is dataclasses.MISSING
    }
    record = kind(**values)
    _check_bandwidth(record, where)
    return record


def _value(entry: dict[str, typing.Any], field: dataclasses.Field, where: str) -> typing.Any:
    def wrong(what: str) -> ReportError:
        return ReportError(f'{where}: field "{field.name}" is {what}')

    if field.name not in entry:
        raise wrong("missing")
    value, allowed = entry[field.name], typing.get_args(field.type) or (field.type,)
    if type(value) is int and abs(value) >= 2**64:
        raise wrong(f"a number of {len(str(value))} digits")
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed or re.search(r"[\ud800-\udfff]", str(value)):
        raise wrong(f"{json.dumps(value)[:40]}, expected {NAMES[allowed[0]]}")
    low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
    if isinstance(value, (int, float)) and not (math.isfinite(value) and low <= value <= high):
        span = f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
        raise wrong(f"{value}, expected {'a finite number' if math.isinf(low) else span}")
    return value


def _check_bandwidth(record: Record, where: str) -> None:
    """Compares algbw with count and seconds, because a picture would not reveal a wrong unit."""
    if not isinstance(record, AllreduceRecord) or not record.count or not record.seconds:
        return
    expected = gradient_bytes(record) / record.seconds / 1e9
    if not expected / 4 <= record.algbw <= expected * 4:
        but = f"but bytes / seconds is {expected:.3g} GB/s"
        raise ReportError(f'{where}: field "algbw" is {record.algbw:.3g}, {but}')


def _check_runs(records: list[Record]) -> None:
    seen = set()
    for r in select(records, TrainRecord):
        key = (r.codec, r.seed, r.ranks, r.link, r.epoch, r.model, r.learning_rate)
        if key in seen:
            run = f"codec {r.codec}, seed {r.seed}, {r.ranks} ranks, link {r.link}, epoch {r.epoch}"
            raise ReportError(f"two train records for {run}: give each run once")
        seen.add(key)
