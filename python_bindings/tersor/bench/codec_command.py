"""``codec``: encode and decode from Python, in turns with a plain copy of as many bytes.

The speed is the bytes that must be read and written (gradient and payload) per second. The ratio is
relative to NumPy's copy, in slices on as many threads. Input: NumPy arrays.
"""

import argparse
import concurrent.futures
from collections.abc import Callable, Iterator

import numpy as np

from tersor.arrays import empty_bytes
from tersor.bench.errors import check_error, stateless_codec
from tersor.bench.records import Record, add, columns, compare_times, report

DEFAULT_CODECS = ["none", "bf16", "int8", "int4", "topk:density=0.01"]
COLUMNS = columns(
    "codec=codec, operation=operation, time=seconds:s, GB/s=gigabytes_per_second:.1f, "
    "of copy=ratio:.2f, payload=payload_bytes:B, error=relative_error:.1e"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "codec", DEFAULT_CODECS, "codecs, without +ef", metavar="SPEC")
    add(parser, "mib", 64, "size of the float32 gradient in MiB")
    add(parser, "threads", 1, "threads of the codec and of the copy")
    add(parser, "repetitions", 15, "number of measurements, of which the median counts")


def run(chosen: argparse.Namespace) -> None:
    measured = (record for spec in chosen.codec for record in _measure(spec, chosen))
    report(chosen, measured, COLUMNS)


def _measure(spec: str, chosen: argparse.Namespace) -> Iterator[Record]:
    """The records of ``tersor-bench report``; frames carry a checksum, the library's default."""
    gradient = np.random.default_rng(1).standard_normal(chosen.mib * 2**18, dtype=np.float32)
    codec = stateless_codec(spec, chosen.threads)
    frame = empty_bytes(codec.max_payload_bytes(gradient), gradient)
    decoded = np.zeros_like(gradient)
    payload = codec.encode(gradient, out=frame)
    codec.decode(payload, out=decoded)
    error = float(np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient))
    check_error(spec, "the decoded values", error)
    actions: dict[str, Callable[[], object]] = {
        "encode, Python": lambda: codec.encode(gradient, out=frame),
        "decode, Python": lambda: codec.decode(payload, out=decoded),
    }
    moved_bytes = gradient.nbytes + payload.nbytes
    for name, action in actions.items():
        seconds, copy_seconds = _times(action, moved_bytes, chosen.threads, chosen.repetitions)
        yield {
            "codec": spec,
            "operation": name,
            "benchmark": "codecs",
            "dtype": "f32",
            "isa": "best",
            "threads": chosen.threads,
            "seconds": seconds,
            "baseline": "copy",
            "baseline_seconds": copy_seconds,
            "ratio": copy_seconds / seconds,
            "gigabytes_per_second": moved_bytes / seconds / 1e9,
            "checksum": True,
            "payload_bytes": payload.nbytes,
            "relative_error": error,
            "count": gradient.size,
        }


def _times(
    action: Callable[[], object], moved_bytes: int, threads: int, repetitions: int
) -> tuple[float, float]:
    """Medians of the action and of a copy that reads and writes as many bytes, in turns."""
    source = np.ones(moved_bytes // 2 // 4, dtype=np.float32)
    target = np.empty_like(source)
    parts = np.array_split(target, threads), np.array_split(source, threads)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        each: Callable[..., Iterator[None]] = map if threads == 1 else pool.map
        return compare_times(action, lambda: list(each(np.copyto, *parts)), repetitions)[:2]
