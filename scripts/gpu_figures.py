"""Compares the records of gpu-check with the aims.

A record is an entry of `tersor-bench … --json FILE`, or a benchmark of `tersor-microbench`. A
figure uses a ratio of an operation, or the times of two records of the same gradient. Allreduces
have a separate table, and have no aims if ranks share a GPU.
"""

import collections.abc
import dataclasses
import typing

Record = dict[str, typing.Any]
MI = 2**20
LIST_VALUES = 500 * 64 * 1024  # of multi-tensor
NARROW = "encode+feedback, far miss"
SORT, SELECT = "encode+feedback (CUB sort)", "encode+feedback (CUB select)"

# Divisor of the values in a rehearsal. The radix path begins at 1 Mi values. The interpreter is
# slow for blocks that wait for each other, as in CUB.
FEWER = 1024
FEWER_OF = {NARROW: 64, SORT: 2**14, SELECT: 2**14, "small": 1, "small, graph": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """Selects a record: an operation of a codec on a gradient."""

    codec: str
    operation: str
    count: int = 64 * MI
    dtype: str = "f32"
    checksum: bool = False

    def matches(self, record: Record) -> bool:
        return all(record.get(f.name) == getattr(self, f.name) for f in dataclasses.fields(self))


@dataclasses.dataclass(frozen=True)
class Figure:
    """The ratio `field` of `of`; with `to`, the time of `to` divided by the time of `of`."""

    name: str
    of: Case
    aim: float | None = None
    field: str = "ratio"
    to: Case | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    name: str
    value: float | None
    aim: float | None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not run"
        if self.aim is None:
            return ""
        return "met" if self.value >= self.aim else "missed"


def measure(figure: Figure, records: list[Record]) -> Measured:
    of = _find(figure.of, records)
    value = of.get(figure.field) if of else None
    if figure.to is not None:
        to = _find(figure.to, records)
        value = to["seconds"] / of["seconds"] if of and to else None
    return Measured(figure.name, value, figure.aim)


def _find(case: Case, records: list[Record]) -> Record | None:
    """Returns the last record of a repeated case."""
    return next((r for r in reversed(records) if case.matches(r)), None)


def figures(rehearsed: bool = False) -> list[Figure]:
    """Returns every figure with an aim, and the figures next to it, in the order of the summary.

    A rehearsal has fewer values and no aims.
    """
    whole = [*_dense(), *_feedback(), *_topk(), *_others_ways(), *_launches(), *_with_checksum()]
    return [_of_fewer(figure) for figure in whole] if rehearsed else whole


def _of_fewer(figure: Figure) -> Figure:
    def shrunk(case: Case) -> Case:
        return dataclasses.replace(case, count=rehearsed_count(case.count, case.operation))

    to = None if figure.to is None else shrunk(figure.to)
    return dataclasses.replace(figure, of=shrunk(figure.of), to=to, aim=None)


def rehearsed_count(count: int, operation: str) -> int:
    """Returns the number of values in this run."""
    return count // FEWER_OF.get(operation, FEWER)


def _dense() -> collections.abc.Iterator[Figure]:
    encode, decode = Case("int8", "encode"), Case("int8", "decode")
    yield Figure("int8 encode, of a copy", encode, 0.92)
    yield Figure("int8 encode, of a read", encode, field="read_ratio")
    yield Figure("int8 decode, of a copy", decode, 0.88)
    yield Figure("int8 decode, of a memset", decode, field="memset_ratio")
    yield Figure("bf16 to int4 encode, of a copy", Case("int4", "encode", 128 * MI, "bf16"), 0.88)
    yield Figure("bf16 from int4 decode, of a copy", Case("int4", "decode", 128 * MI, "bf16"))
    yield Figure("int4 encode, of a copy", Case("int4", "encode"))
    yield Figure("int4 decode, of a copy", Case("int4", "decode"))
    for codec, aim in (("int8", 0.95), ("int4", 0.95), ("bf16", None)):
        stochastic = Case(f"{codec}:rounding=stochastic", "encode")
        yield Figure(
            f"{codec} stochastic encode, of nearest's speed", stochastic, aim,
            to=Case(codec, "encode"),
        )  # fmt: skip
    for codec in ("none", "bf16", "f16"):
        yield Figure(f"{codec} encode, of a copy", Case(codec, "encode"))
        yield Figure(f"{codec} decode, of a copy", Case(codec, "decode"))


def _feedback() -> collections.abc.Iterator[Figure]:
    for codec, aim in (("int8", 0.80), ("int4", 0.65)):
        yield Figure(
            f"{codec} encode with feedback, of a copy", Case(f"{codec}+ef", "encode+feedback"), 0.88
        )
        yield Figure(f"{codec} reduce of 8, of a copy", Case(f"{codec}+ef", "reduce"), aim)


def _topk() -> collections.abc.Iterator[Figure]:
    for count, size, aim in ((256 * MI, "1 GiB", 0.80), (64 * MI, "256 MiB", 0.70)):
        for density in ("0.01", "0.001"):
            codec = f"topk:density={density}+ef"
            name = f"topk {density} encode with feedback, {size}"
            yield Figure(f"{name}, of a copy", Case(codec, "encode+feedback", count), aim)
            yield Figure(f"{name}, radix path, of a copy", Case(codec, NARROW, count), 0.35)
    plain = Case("topk:density=0.01", "decode")
    yield Figure("topk 0.01 decode, 256 MiB, of a copy", plain)


def _others_ways() -> collections.abc.Iterator[Figure]:
    yield Figure(
        "int8 encode, times two kernels' speed", Case("int8", "encode"), 1.6,
        to=Case("int8", "encode (two kernels, plain CUDA)"),
    )  # fmt: skip
    for count, size in ((64 * MI, "256 MiB"), (256 * MI, "1 GiB")):
        for density in ("0.01", "0.001"):
            codec = f"topk:density={density}+ef"
            for kind, operation in (("sort", SORT), ("select", SELECT)):
                yield Figure(
                    f"topk {density}, {size}, times CUB {kind}'s speed",
                    Case(codec, "encode+feedback", count), 5.0, to=Case(codec, operation, count),
                )  # fmt: skip


def _launches() -> collections.abc.Iterator[Figure]:
    for codec in ("int8", "int4", "none", "bf16"):
        of = Case(codec, "multi-tensor", LIST_VALUES)
        yield Figure(f"{codec}, 500 tensors, of one flat tensor's speed", of, 0.90)
        captured = dataclasses.replace(of, operation="multi-tensor, graph")
        yield Figure(f"{codec}, 500 tensors in a graph, of one flat tensor's speed", captured)
    for codec, aim in (("int8", 0.5), ("int4", 0.5), ("topk:density=0.01", None)):
        of = Case(codec, "small", MI // 4)
        yield Figure(f"{codec}, 1 MiB in a queue, of an empty kernel's speed", of, aim)
        captured = dataclasses.replace(of, operation="small, graph")
        yield Figure(f"{codec}, 1 MiB in a graph, of an empty kernel's speed", captured)


def _with_checksum() -> collections.abc.Iterator[Figure]:
    for codec, operation in (("int8", "encode"), ("int8", "decode"), ("int8+ef", "reduce")):
        of = Case(codec, operation, checksum=True)
        yield Figure(f"int8 {operation} with checksum, of a copy", of)


def summary(
    records: list[Record], steps: list[dict[str, typing.Any]], gpu: str, rehearsed: bool = False
) -> str:
    """Returns the page: the runs, then all figures."""
    lines = ["# GPU check", "", f"GPU: {gpu}", ""]
    lines += ["| step | result | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {s['name']} | {s['result']} | {s['seconds']:.0f} |" for s in steps]
    measured = [measure(figure, records) for figure in figures(rehearsed)]
    counts = {v: sum(m.verdict == v for m in measured) for v in ("met", "missed", "not run")}
    said = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    lines += ["", f"Figures: {said}.", ""]
    lines += ["| figure | measured | aim | |", "| --- | ---: | ---: | --- |", *map(_row, measured)]
    lines += _allreduces([r for r in records if r.get("benchmark") == "allreduce"])
    return "\n".join(lines) + "\n"


def _allreduces(records: list[Record]) -> list[str]:
    """Returns the table of exchanges over NCCL."""
    if not records:
        return []
    lines = ["", f"Allreduce, {records[0].get('nccl')}."]
    lines += [f"**{note}.**" for note in sorted({r["note"] for r in records if r.get("note")})]
    titles = ["MiB of f32", "type", "codec", "algorithm", "time, ms", "busbw, GB/s",
              "speed, of f32's", "host, us", "wrong"]  # fmt: skip
    lines += ["", f"| {' | '.join(titles)} |", "| ---: | --- | --- | --- |" + " ---: |" * 5]
    return lines + [_allreduce_row(record) for record in records]


def _allreduce_row(record: Record) -> str:
    algorithm = record["algorithm"] + (", graph" if record.get("graph") else "")
    cells = [
        f"{record['count'] * 4 / MI:g}", record["dtype"], record["codec"], algorithm,
        f"{record['seconds'] * 1e3:.3f}", f"{record['busbw']:.2f}",
        _number(record.get("speed_of_f32")), f"{record['host_seconds'] * 1e6:.0f}",
        str(record.get("wrong", "N/A")),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _row(found: Measured) -> str:
    value, aim = _number(found.value), _number(found.aim)
    return f"| {found.name} | {value} | {aim} | {found.verdict} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
