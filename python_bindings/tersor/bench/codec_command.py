"""``codec``: encode and decode from Python, in turns with a plain copy of as many bytes.

Speed is the bytes that must be read and written (gradient and payload), per second; the ratio is
to what NumPy's copy moves per second, slices on as many threads. For NumPy arrays.
"""

import argparse
import concurrent.futures
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tersor import _text
from tersor.arrays import empty_bytes
from tersor.bench.errors import BenchmarkError, check_error, stateless_codec
from tersor.bench.records import Record, RecordFile, add_option

DEFAULT_CODECS = ["none", "bf16", "int8", "int4", "topk:density=0.01"]
Action = Callable[[], object]


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
    frame = empty_bytes(codec.max_payload_bytes(gradient), gradient)
    decoded = np.zeros_like(gradient)
    payload = codec.encode(gradient, out=frame)
    codec.decode(payload, out=decoded)
    error = float(np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient))
    check_error(spec, "what was decoded", error)
    actions: dict[str, Action] = {
        "encode, Python": lambda: codec.encode(gradient, out=frame),
        "decode, Python": lambda: codec.decode(payload, out=decoded),
    }
    moved_bytes = gradient.nbytes + payload.nbytes
    told = {"payload_bytes": payload.nbytes, "relative_error": error, "count": gradient.size}
    return [
        {
            "codec": spec,
            "operation": name,
            **_times(action, moved_bytes, chosen.threads, chosen.repetitions),
            **told,
        }
        for name, action in actions.items()
    ]


def _times(action: Action, moved_bytes: int, threads: int, repetitions: int) -> Record:
    """Medians of the action and of a copy of as many bytes, read and written, in turns.

    The records of ``tersor-bench report``; frames carry a checksum, the library's default.
    """
    source = np.ones(moved_bytes // 2 // 4, dtype=np.float32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            if threads == 1:
                np.copyto(target, source)
                return
            for done in [pool.submit(np.copyto, *part) for part in parts]:
                done.result()

        pairs = [(_seconds(action), _seconds(copy)) for _ in range(1 + repetitions)]
    runs = zip(*pairs[1:], strict=True)  # the first touches memory for the first time
    seconds, copy_seconds = map(statistics.median, runs)
    return {
        "benchmark": "codecs",
        "dtype": "f32",
        "isa": "best",
        "threads": threads,
        "seconds": seconds,
        "baseline": "copy",
        "baseline_seconds": copy_seconds,
        "ratio": copy_seconds / seconds,
        "gigabytes_per_second": moved_bytes / seconds / 1e9,
        "checksum": True,
    }


def _seconds(action: Action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


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
