"""``python -m tersor check``: does compression pay on this machine and link?

One process measures the codecs. Several processes also measure the link::

    python -m tersor check
    torchrun --nproc-per-node 2 -m tersor check          # needs PyTorch
    mpirun -n 2 python -m tersor check                   # needs mpi4py
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tersor import _core, _text, collectives
from tersor._build import build_info
from tersor._core import InvalidArgumentError, Transport, TransportError
from tersor.codec import Codec

__all__ = ["CODECS", "CodecResult", "LinkResult", "Report", "main"]
__dir__ = __all__.copy

CODECS = ("bf16", "int8", "int4+ef", "hadamard:bits=1+ef", "topk:density=0.01+ef")
_VALUE_BYTES = 4  # float32
_CODEC_COUNT = 1 << 22  # values per codec measurement: 16 MiB, larger than most caches per core


@dataclass(frozen=True)
class CodecResult:
    """Speed and error of a codec on one thread, for normally distributed float32 values.

    Example:
        >>> report = json.loads(pathlib.Path("check.json").read_text())
        >>> results = [CodecResult(**one) for one in report["codecs"]]
    """

    codec: str
    device: str
    """``"cpu"`` or the name of a GPU."""
    bits_per_value: float
    encode_seconds: float
    """Per value; median."""
    decode_seconds: float
    """Per value; median."""
    squared_error: float
    """Squared error of one encoding without feedback, divided by the squared values (NMSE)."""


@dataclass(frozen=True)
class LinkResult:
    """Time of all-reduces of float32 values; on each rank the slowest rank counts.

    Example:
        >>> report = json.loads(pathlib.Path("check.json").read_text())
        >>> times = [LinkResult(**one) for one in report["link"]]
    """

    codec: str
    bytes: int
    """Size of the uncompressed gradient."""
    seconds: float
    """Median."""
    calls: int


@dataclass(frozen=True)
class Report:
    """The JSON file of a check.

    Example:
        >>> report = Report(**json.loads(pathlib.Path("check.json").read_text()))
        >>> print("\\n".join(report.verdict))
    """

    version: str
    date: str
    machine: dict[str, Any]
    ranks: int
    transport: str
    codecs: list[CodecResult]
    link: list[LinkResult]
    verdict: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Rank 0 prints the report.

    Args:
        arguments: Command-line arguments. Default: those of the process.

    Returns:
        The exit status: 0, or 1 if a rank failed.

    Raises:
        SystemExit: The command line is invalid.

    Example:
        >>> status = main(["--seconds", "10", "--json", "check.json"])
    """
    options = _parse(arguments)
    try:
        name, transport, close = _launched()
        if transport.rank == 0 and options.json is not None:
            options.json.open("a").close()  # an error comes before the measurements
        report = _measure(options, name, transport)
    except (InvalidArgumentError, TransportError, ImportError, OSError) as error:
        print(f"tersor check: {error}", file=sys.stderr)
        return 1
    if transport.rank == 0:
        print(_text_of(report))
        if options.json is not None:
            options.json.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
            print(f"\nThe figures are in {options.json}.")
    close()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "Measures codecs and links, and reports whether compression saves time."
    hint = "Start with torchrun or mpirun to measure the link between processes or machines."
    parser = argparse.ArgumentParser("python -m tersor check", description=about, epilog=hint)
    count = "number of float32 gradient values in the verdict (default: 25e6)"
    compute = "time of a training step without communication, for the verdict on step time"
    seconds = "time for the measurements (default: 60)"
    codecs = f"codecs to compare (default: {' '.join(CODECS)})"
    add = parser.add_argument
    add("--parameters", type=_number, default=25e6, metavar="N", help=count)
    add("--compute-ms", type=_number, metavar="MS", help=compute)
    add("--seconds", type=_number, default=60.0, metavar="S", help=seconds)
    add("--codecs", nargs="+", default=list(CODECS), metavar="SPEC", help=codecs)
    add("--json", type=pathlib.Path, metavar="FILE", help="write the figures here")
    return parser.parse_args(arguments)


def _number(text: str) -> float:
    if not 0 < (value := float(text)) < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1e15")
    return value


_number.__name__ = "number"  # in argparse's errors


def _launched() -> tuple[str, Transport, Callable[[], None]]:
    """Joins the ranks that torchrun or mpirun started. The function ends the connection."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        import torch.distributed as dist

        import tersor.torch

        dist.init_process_group("gloo")
        return "tcp", tersor.torch.transport(), dist.destroy_process_group
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE", "1"))) > 1:
        from mpi4py import MPI

        import tersor.mpi

        return "mpi", tersor.mpi.transport(MPI.COMM_WORLD), lambda: None
    return "none", _core.InProcessWorld(1).transport(0), lambda: None


def _measure(options: argparse.Namespace, name: str, transport: Transport) -> Report:
    specs: list[str] = options.codecs
    for spec in specs:
        Codec(spec)  # an unknown codec raises before any measurement
    half = options.seconds / 2
    codecs = [_measure_codec(spec, half / len(specs)) for spec in specs]
    ranks = transport.ranks
    link = _measure_link(transport, specs, half) if ranks > 1 else []
    version = build_info().version
    date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    machine = _machine()
    verdict = _verdict(codecs, link, ranks, options.parameters, options.compute_ms)
    return Report(version, date, machine, ranks, name, codecs, link, verdict)


def _machine() -> dict[str, Any]:
    info = {name: str(value) for name, value in dataclasses.asdict(build_info()).items()}
    info["cpu"] = _cpu_name()
    info["cores"] = str(os.cpu_count())
    info["system"] = platform.platform()
    if (torch := sys.modules.get("torch")) is not None:
        info["torch"] = torch.__version__
        if torch.cuda.is_available():
            info["gpu"] = torch.cuda.get_device_name()
            info["gpus"] = str(torch.cuda.device_count())
            info["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return info


def _cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _measure_codec(spec: str, seconds: float) -> CodecResult:
    codec = Codec(spec)
    values = np.random.default_rng(0).standard_normal(_CODEC_COUNT, dtype=np.float32)
    residual = np.zeros_like(values) if codec.has_feedback else None
    out = np.empty_like(values)
    payload = codec.encode(values, residual=residual)
    codec.decode(payload, out)
    error = float(np.square(out - values, dtype=np.float64).sum())
    encode = _median(lambda: codec.encode(values, residual=residual), seconds / 2)
    decode = _median(lambda: codec.decode(payload, out), seconds / 2)
    bits = 8 * payload.nbytes / _CODEC_COUNT
    times = encode / _CODEC_COUNT, decode / _CODEC_COUNT
    squared_error = error / float(np.square(values, dtype=np.float64).sum())
    return CodecResult(codec.spec, "cpu", bits, *times, squared_error)


def _median(call: Callable[[], object], seconds: float) -> float:
    """Returns the median time of at least five calls."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _measure_link(transport: Transport, specs: list[str], seconds: float) -> list[LinkResult]:
    """All-reduces 64 KiB, 1 MiB and 16 MiB, the codecs in turn, for an equal load."""
    results = []
    for size in (1 << 16, 1 << 20, 1 << 24):
        calls = {spec: _all_reduce(transport, spec, size) for spec in ("none", *specs)}
        times: dict[str, list[float]] = {spec: [] for spec in calls}
        until = time.perf_counter() + seconds / 3
        # The sum is the same on all ranks: 0 while every rank has time left.
        while _sum(transport, [time.perf_counter() >= until]) == [0] or len(times["none"]) < 3:
            for spec, call in calls.items():
                times[spec].append(call())
        pairs = times.items()
        results += [LinkResult(one, size, statistics.median(own), len(own)) for one, own in pairs]
    return results


def _all_reduce(transport: Transport, spec: str, size: int) -> Callable[[], float]:
    """Returns a function that all-reduces ``size`` bytes and returns the slowest rank's time."""
    count = size // _VALUE_BYTES
    gradient = np.random.default_rng(transport.rank).standard_normal(count, dtype=np.float32)
    values = gradient.copy()
    options: collectives.CollectiveOptions = {"codec": spec, "workspace": _core.Workspace()}
    options["reduction"] = "mean"
    if spec != "none" and Codec(spec).has_feedback:
        options["state"] = collectives.FeedbackState(transport, values, codec=spec)

    def timed() -> float:
        values[:] = gradient
        _sum(transport, [0.0])  # a barrier
        begin = time.perf_counter()
        collectives.allreduce(transport, values, **options)
        own = time.perf_counter() - begin
        return max(_sum(transport, [own * (rank == transport.rank) for rank in ranks]))

    ranks = range(transport.ranks)
    timed()  # makes connections and buffers
    return timed


def _sum(transport: Transport, values: list[float]) -> list[float]:
    sums = np.array(values, np.float32)
    collectives.allreduce(transport, sums, codec="none")
    return list(map(float, sums))


def _verdict(
    codecs: list[CodecResult],
    link: list[LinkResult],
    ranks: int,
    parameters: float,
    compute_ms: float | None,
) -> list[str]:
    """Returns one sentence per codec."""
    sentences = []
    count = max(ranks, 2)
    for result in codecs:
        limit = _break_even(result, count)
        sentence = f"{result.codec} saves time on links below {limit / 1e9:.2g} Gbit/s per rank"
        if limit <= 0:
            sentence = f"{result.codec} saves no time"
        sentences.append(f"{sentence} ({count} ranks, one codec thread).")
    if not link:
        sentences.append("Start with torchrun or mpirun to measure the link of several ranks.")
        return sentences
    size = max(one.bytes for one in link)
    scale = parameters * _VALUE_BYTES / size
    times = {one.codec: one.seconds * scale for one in link if one.bytes == size}
    dense = times.pop("none")
    rate = 2 * (ranks - 1) / ranks * parameters * _VALUE_BYTES * 8 / dense
    sentences.append(
        f"The link carries {rate / 1e9:.2g} Gbit/s per rank: an uncompressed all-reduce of "
        f"{parameters * _VALUE_BYTES / 1e6:.4g} MB takes {_text.seconds(dense)}."
    )
    if not times:
        return sentences
    best = min(times, key=lambda codec: times[codec])
    for codec, own in times.items():
        change = f"{dense / own:.2g}x faster" if own < dense else f"{own / dense:.2g}x slower"
        sentences.append(f"{codec} takes {_text.seconds(own)}: {change} than uncompressed.")
    if times[best] >= dense:
        sentences.append("No codec pays on this link.")
    elif compute_ms is not None:
        step = compute_ms / 1000
        gain = (step + dense) / (step + times[best])
        sentences.append(
            f"{best} would make a step with {compute_ms:g} ms of computation {gain:.2g}x faster, "
            "if communication and computation do not overlap."
        )
    return sentences


def _break_even(codec: CodecResult, ranks: int) -> float:
    """Returns the link speed in bit/s at which the saved transfer time equals the codec time.

    In a two-shot all-reduce each rank sends ``2 (n - 1) / n`` values per value, encodes each value
    ``1 + 1 / n`` times and decodes each value twice. A one-shot codec encodes once, and each rank
    sends its frame to all others and decodes the frames of all ranks.
    """
    plain = 2 * (ranks - 1) / ranks
    if Codec(codec.codec).supports("two-shot"):
        sent, seconds = plain, (1 + 1 / ranks) * codec.encode_seconds + 2 * codec.decode_seconds
    else:
        sent, seconds = ranks - 1, codec.encode_seconds + ranks * codec.decode_seconds
    return (plain * 8 * _VALUE_BYTES - sent * codec.bits_per_value) / seconds


def _text_of(report: Report) -> str:
    machine = report.machine
    cells = []
    for codec in report.codecs:
        seconds = codec.encode_seconds, codec.decode_seconds
        speeds = [f"{_VALUE_BYTES / each / 1e9:.3g} GB/s" for each in seconds]
        bits, error = f"{codec.bits_per_value:.3g}", f"{codec.squared_error:.2g}"
        cells.append((codec.codec, bits, *speeds, error))
    lines = [
        f"Tersor {report.version} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instruction_set']}; {report.ranks} rank{'s' if report.ranks > 1 else ''}",
        "",
        _text.table(("codec", "bits/value", "encode", "decode", "squared error"), cells),
    ]
    if report.link:
        sizes = sorted({one.bytes for one in report.link})
        rows: dict[str, list[str]] = {}
        for one in report.link:
            rows.setdefault(one.codec, []).append(_text.seconds(one.seconds))
        head = ("all-reduce", *map(_text.byte_count, sizes))
        lines += ["", _text.table(head, [(spec, *row) for spec, row in rows.items()])]
    return "\n".join([*lines, "", *report.verdict])
