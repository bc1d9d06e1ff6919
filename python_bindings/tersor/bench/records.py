"""Options, records and tables of all commands. Records have the form of ``tersor-bench``."""

import argparse
import datetime
import functools
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tersor import _text
from tersor.bench.errors import BenchmarkError, fail_if

Field = Any  # a string, a number, a bool or None
Record = dict[str, Field]
Show = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Show]]  # by head: a field and the format of the field


def positive(text: str) -> int:
    """An integer above 0, for argparse."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0, for argparse."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return value


def not_negative(text: str) -> float:
    """A finite number, 0 or more, for argparse."""
    if not 0 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number, 0 or more")
    return value


def add(
    parser: argparse.ArgumentParser,
    name: str,
    default: Any,
    text: str,
    kind: Any = None,
    **more: Any,
) -> None:
    """Adds an option. The default type is the type of ``default``. Numbers are above 0."""
    first = default[0] if isinstance(default, list) and default else default
    kind = kind or {int: positive, float: positive_number}.get(type(first))
    if isinstance(default, list):
        more.setdefault("nargs", "+")
    if default is not None and default != []:
        shown = default if isinstance(default, list) else [default]
        words = (f"{one:g}" if type(one) is float else str(one) for one in shown)
        text += f"; default: {' '.join(words)}"
    parser.add_argument(f"--{name}", default=default, type=kind, help=text, **more)


def seconds_of(action: Callable[[], object], clock: Any = time.perf_counter) -> float:
    start = clock()
    action()
    return float(clock() - start)


def compare_times(
    own: Callable[[], object],
    other: Callable[[], object],
    count: int,
    seconds: Callable[[Callable[[], object]], float] = seconds_of,
) -> tuple[float, float, float]:
    """Medians of the seconds of two calls that take turns, and of the ratio of each turn. The first
    turn does not count."""
    turns = [(seconds(own), seconds(other)) for _ in range(1 + count)][1:]
    medians = map(statistics.median, zip(*((a, b, a / b) for a, b in turns), strict=True))
    return next(medians), next(medians), next(medians)


@functools.cache
def machine_name() -> str:
    """Processor and cores: "AMD EPYC, 2 cores"."""
    text, cores = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), os.cpu_count() or 1
    found = re.search(r"^model name\s*: *(.*)", text, re.MULTILINE)
    return f"{found[1] if found else 'unknown CPU'}, {cores} core{'' if cores == 1 else 's'}"


@functools.cache
def commit() -> str:
    """The commit of the source tree of this file; "unknown" in an installed package."""
    folder = pathlib.Path(__file__).resolve().parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def command_line() -> str:
    """The command line of this process; "python -m tersor.bench …" for the package's commands."""
    program = pathlib.Path(sys.argv[0])
    is_package = program.name == "__main__.py"
    words = ["python", "-m", "tersor.bench"] if is_package else [program.name]
    return shlex.join([*words, *sys.argv[1:]])


class RecordFile:
    """An array of records in a file, written after each record, so aborted runs keep records.

    Without a path, records are not written. Raises BenchmarkError before any measurement if the
    file cannot be written. ``earlier`` are the file's records so far.
    """

    def __init__(self, path: pathlib.Path | None, earlier: Iterable[Record] = ()) -> None:
        self._path = path
        self._records = list(earlier)
        self._write("a", "")

    def add(self, record: Record) -> None:
        """Adds command line, machine, date (UTC) and commit to a record, and writes the file."""
        date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        origin: Record = {"command": command_line(), "machine": machine_name()}
        self._records.append({**record, **origin, "date": date, "commit": commit()})
        self._write("w", json.dumps(self._records, indent=1) + "\n")

    def remove(self, matches: Callable[[Record], bool]) -> None:
        """Removes records, from the next ``add`` on."""
        self._records = [one for one in self._records if not matches(one)]

    def _write(self, mode: str, text: str) -> None:
        if self._path is None:
            return
        whole = mode == "w" and (self._path.is_file() or not self._path.exists())
        path = self._path.with_name(f".{self._path.name}.tmp") if whole else self._path
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
            if whole:  # an aborted write leaves the records before
                path.replace(self._path)
        except OSError as error:
            raise BenchmarkError(f"cannot write {self._path}: {error.strerror}") from error


def read_records(path: pathlib.Path) -> list[Record]:
    """The records of a file; none if there is no file. Raises BenchmarkError for another file."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        found: list[Record] = json.loads(text) if text else []
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"cannot read {path}: {error}") from error
    is_wrong = not isinstance(found, list) or not all(isinstance(one, dict) for one in found)
    fail_if(is_wrong, f"{path} has no records")
    return found


def columns(text: str) -> Columns:
    """Columns from "head=field:format, …". Formats: s, B, x (a ratio), or a format of Python."""
    kinds: dict[str, Show] = {"": str, "s": _text.seconds, "B": _text.byte_count, "x": _text.ratio}
    found = {}
    for part in text.split(", "):
        head, field, *form = re.split("[=:]", part)
        kind = form[0] if form else ""
        found[head] = field, kinds.get(kind) or f"{{:{kind}}}".format
    return found


def table(columns: Columns, records: Iterable[Record]) -> str:
    """A row per record."""
    rows = [[show(record[field]) for field, show in columns.values()] for record in records]
    return _text.table(list(columns), rows)


def save(chosen: argparse.Namespace, measured: Iterable[Record]) -> list[Record]:
    """Writes records as they are measured. Returns the records."""
    file, records = RecordFile(chosen.json), []
    for record in measured:
        file.add(record)
        records.append(record)
    return records


def report(chosen: argparse.Namespace, measured: Iterable[Record], columns: Columns) -> None:
    """Writes records as they are measured, and then prints a table of all."""
    print(table(columns, save(chosen, measured)), flush=True)


def pick(chosen: argparse.Namespace, names: str) -> Record:
    """Options as fields of a record."""
    return {name: getattr(chosen, name) for name in names.split()}
