"""``codec``: encode and decode from Python, in turns with a plain copy of as many bytes.

Speed is the bytes that must be read and written (gradient and payload), per second; the ratio is
to what NumPy's copy moves per second, slices on as many threads. For NumPy arrays.
"""

import argparse
import concurrent.futures
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tersor import _text
from tersor.bench.errors import BenchmarkError, check_error, stateless_codec
from tersor.bench.records import Record, RecordFile, add_option

DEFAULT_CODECS = ["none", "bf16", "int8", "int4", "topk:density=0.01"]
Action = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What is timed, and the bytes that it must move."""

    name: str
    bytes: int
    run: Action


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--codec", nargs="+", default=DEFAULT_CODECS, metavar="SPEC")
    parser.add_argument("--mib", type=int, default=64, help="of gradient, f32 (64)")
    parser.add_argument("--threads", type=int, default=1, help="of codec and copy (1)")
    parser.add_argument("--repetitions", type=int, default=15, help="of which the median counts")
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Checks and times each codec. Returns the exit status."""
    if min(chosen.mib, chosen.threads, chosen.repetitions) < 1:
        raise BenchmarkError("--mib, --threads and --repetitions: give 1 or more")
    records = RecordFile(chosen.json)
    found = [record for spec in chosen.codec for record in _measure(spec, chosen)]
    for record in found:
        records.add(record)
    head = ["codec", "operation", "time", "GB/s", "of copy", "payload", "error"]
    print(_text.table(head, [_row(record) for record in found]))
    return 0


def _measure(spec: str, chosen: argparse.Namespace) -> list[Record]:
    gradient = np.random.default_rng(1).standard_normal(chosen.mib * 2**18, dtype=np.float32)
    codec = stateless_codec(spec, chosen.threads)
    room = np.empty(codec.max_payload_bytes(gradient) + 64, dtype=np.uint8)
    frame = room[-room.ctypes.data % 64 :]  # frames begin at a multiple of 16
    decoded = np.zeros_like(gradient)
    payload = codec.encode(gradient, out=frame)
    codec.decode(payload, out=decoded)
    error = float(np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient))
    check_error(spec, "what was decoded", error)
    moved_bytes = gradient.nbytes + payload.nbytes
    operations = [
        Operation("encode, Python", moved_bytes, lambda: codec.encode(gradient, out=frame)),
        Operation("decode, Python", moved_bytes, lambda: codec.decode(payload, out=decoded)),
    ]
    return [
        _record(spec, operation, chosen)
        | {"payload_bytes": payload.nbytes, "relative_error": error, "count": gradient.size}
        for operation in operations
    ]


def _time(operation: Operation, chosen: argparse.Namespace) -> tuple[float, float]:
    """Medians of the operation and of a copy of as many bytes, read and written, in turns."""
    source = np.ones(operation.bytes // 2 // 4, dtype=np.float32)
    target = np.empty_like(source)
    threads: int = chosen.threads
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            if threads == 1:
                np.copyto(target, source)
                return
            for done in [pool.submit(np.copyto, *part) for part in parts]:
                done.result()

        pairs = [(_seconds(operation.run), _seconds(copy)) for _ in range(1 + chosen.repetitions)]
    own, copies = zip(*pairs[1:], strict=True)  # the first touches memory for the first time
    return statistics.median(own), statistics.median(copies)


def _seconds(action: Action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _record(spec: str, operation: Operation, chosen: argparse.Namespace) -> Record:
    """As ``tersor-bench codecs`` writes them; frames carry a checksum, the library's default."""
    seconds, copy_seconds = _time(operation, chosen)
    return {
        "benchmark": "codecs",
        "codec": spec,
        "operation": operation.name,
        "dtype": "f32",
        "isa": "best",
        "threads": chosen.threads,
        "seconds": seconds,
        "baseline": "copy",
        "baseline_seconds": copy_seconds,
        "ratio": copy_seconds / seconds,
        "gigabytes_per_second": operation.bytes / seconds / 1e9,
        "checksum": True,
    }


def _row(record: Mapping[str, Any]) -> list[str]:
    return [
        record["codec"],
        record["operation"],
        _text.seconds(record["seconds"]),
        f"{record['gigabytes_per_second']:.1f}",
        f"{record['ratio']:.2f}",
        _text.byte_count(record["payload_bytes"]),
        f"{record['relative_error']:.1e}",
    ]
