"""Records as ``tersor-bench`` writes them: one JSON object a measurement, an array a file."""

import argparse
import datetime
import functools
import json
import os
import pathlib
import subprocess

from tersor.bench.errors import BenchmarkError

Field = str | int | float | bool | None
Record = dict[str, Field]


def add_option(parser: argparse.ArgumentParser) -> None:
    """Where the records go."""
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the records here")


def _cpu_name() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


@functools.cache
def machine_name() -> str:
    """Processor and cores: "AMD EPYC, 2 cores"."""
    cores = os.cpu_count() or 1
    return f"{_cpu_name()}, {cores} core{'' if cores == 1 else 's'}"


@functools.cache
def commit() -> str:
    """Of the source tree that this file lies in; "unknown" where it is installed."""
    folder = pathlib.Path(__file__).resolve().parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


class RecordFile:
    """An array of records in a file, written again after each: a run cut short keeps what it has.

    No path: records go nowhere. Raises BenchmarkError where the file cannot be written, so before
    anything was measured.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path = path
        self._records: list[Record] = []
        if path is not None:
            self._write(path, "a", "")

    def add(self, record: Record) -> None:
        """Adds machine, date (UTC) and commit, and writes."""
        date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        origin: Record = {"machine": machine_name(), "date": date, "commit": commit()}
        self._records.append({**record, **origin})
        if self._path is not None:
            self._write(self._path, "w", json.dumps(self._records, indent=1) + "\n")

    @staticmethod
    def _write(path: pathlib.Path, mode: str, text: str) -> None:
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise BenchmarkError(f"cannot write {path}: {error.strerror}") from error
