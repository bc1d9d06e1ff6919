"""The records that `tersor-bench … --json FILE` or `python -m tersor.bench` wrote, checked.

A file is a JSON array of objects. `benchmark` says which kind an object is: codecs, allocate,
allreduce, predict, train or backward. Every field of that kind's class below must be there, but for
those with a default; other fields are ignored. `count` is values, `*_seconds` and `seconds` are
seconds, `*_bytes` are bytes. A field that may be None may be null, which is how a JSON library
writes a NaN.

codecs     One operation of one codec, timed against a plain copy, read or triad (`baseline`) in the
           same process. `ratio` = speed of the operation / speed of the baseline, both by the bytes
           that must move. `aim`: the ratio to reach. `checksum`: frames carried one.
           With operation "error" nothing was timed: what a codec loses of one `tensor` of `data`.
           `bits` = payload bits a value, `energy_lost` = |p - d|^2 / |p|^2 of what was sent (p) and
           decoded (d), `norm` = |p|; `ranks` share the levels of a codec that sends bare values.
allocate   What `codec` makes of one `parameter` of `data`, or of all where that is null: payload
           bytes, `energy` = |p|^2 of what was sent (p) and `energy_lost` = |p - d|^2 of what was
           decoded (d), over all samples. `chosen`: within the budget that was asked for. Of all
           parameters either one codec, as a reducer sends, or "allocated": one chosen for each.
allreduce  One call. `algbw` and `busbw` are in GB/s (1e9 bytes), as in nccl-tests: algbw = bytes of
           the gradient / seconds, busbw = algbw * 2 (ranks - 1) / ranks; half of that where
           `collective` is reduce_scatter. `wire_bytes`: sent by one rank. `identical`: all ranks ended with the same bits. Through the reducer: `parameters`
           became ready one after the other in `backward_seconds`, `seconds` is of the whole step,
           and `hidden` is the share of the wire's time in which nobody waited, 0 to 1. `dims`, where
           there are some, here and in predict: the grid of two-shot, a part of the algorithm's name.
predict    One call as the cost model sees it: nothing was measured. `hosts` share a link each;
           `wire_bytes`: sent by one rank. Records of allreduce with the same link, dtype, count and
           ranks are drawn beside it.
train      One epoch of one run (codec, seed, ranks, link). `epoch` counts from 1. `seconds`: wall
           clock from the start of training to the end of this epoch. `step_seconds`: the mean step
           of this epoch. `wire_bytes`: what one rank sent in a step (mean). Compute, encode, wire,
           decode and exposed seconds are of one step, mean over the ranks; exposed is communication
           that the backward pass did not hide. Encode, wire and decode are null where nobody can
           tell; of a model in stages, waiting that the pipeline's bubble needs is exposed too.
           `accuracy`: on the test set, 0 to 1; `test_loss`: the mean loss on it, where it was
           measured. `hidden_seconds`: if absent, encode + wire + decode - exposed, at least 0.
           `model`: what was trained, where there are several; `learning_rate`: the highest, where
           it was chosen.
backward   A bare backward pass under PyTorch. `parallel`: "ddp" (DistributedDataParallel), as where
           it is absent, "fsdp" (FSDP2), or "experts", whose times are of a whole step, and where
           `codec` is how rows travel. `weights`: the codec of FSDP2's all-gathers, where
           gradients have one too; else null. `codec`: how gradients travel, by PyTorch or a codec.
           `rows`: of the input. `seconds`: of the slowest rank. `compute_seconds`: the same without
           communication. `wire_bytes` were sent by one rank, `wire_bytes_are` "counted" or
           "computed"; `interface_bytes`: of one rank, counted by the kernel, headers included.

`machine`, `date` and `commit` are text that the report shows; every kind may have them.
"""

import dataclasses
import json
import math
import pathlib
import types
import typing


class ReportError(Exception):
    """What the user must mend; the message is one line."""


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
        """The work of communication in a step, whether hidden or not."""
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
    """Reads all files. Raises ReportError, which names file, record (from 1) and field."""
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
    """In the order in which keys are seen first."""
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
    """A wrong unit would go unseen in a picture, so algbw is held against count and seconds."""
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
