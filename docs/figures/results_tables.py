"""The eight tables of the results page, computed from the records in bench/results."""

import calendar
import datetime
import functools
import json
import pathlib
import statistics
import typing

import loss_points
import records
import summary

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
GPU_NCCL = "gpu-h200.json"
GPU_NCCL_AGAIN = "gpu-h200-again.json"
GPU_KERNELS = "gpu-h200-format-3.json"
MPI = "mpi-1gbit.json"
GPT_2000 = "python-train-gpt-2000.json"
GPT_RANKS = "python-train-gpt-2000-ranks.json"
GPT_SLOW_LINK = "python-train-gpt-100mbit.json"
FASHION = "train-fashion-mnist-1gbit.json"
PACKET, PAYLOAD = 1514, 1448  # bytes of a full Ethernet packet, and of its TCP payload
MPI_CODECS = ("MPI_Allreduce", "none", "bf16", "int8", "int4", "topk:density=0.01")

Entry = dict[str, typing.Any]


@functools.cache
def _read(name: str) -> list[Entry]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def entries(name: str, **fields: typing.Any) -> list[Entry]:
    """The records of a file whose fields have the given values."""
    return [one for one in _read(name) if all(one.get(key) == fields[key] for key in fields)]


def only(name: str, **fields: typing.Any) -> Entry:
    found = entries(name, **fields)
    if len(found) != 1:
        raise records.ReportError(f"{name}: {len(found)} records with {fields}, expected one")
    return found[0]


def values(name: str, field: str, **fields: typing.Any) -> list[float]:
    return [one[field] for one in entries(name, **fields)]


def seconds(name: str) -> dict[str, float]:
    """Seconds by codec."""
    return {one["codec"]: one["seconds"] for one in entries(name)}


def load(name: str) -> list[records.Record]:
    return records.load([RESULTS / name])


@functools.cache
def training(name: str) -> list[summary.Training]:
    return summary.trainings(load(name))


def day(name: str) -> str:
    """The day of the first record, as in 26 November 2026."""
    date = datetime.date.fromisoformat(entries(name)[0]["date"][:10])
    return f"{date.day} {calendar.month_name[date.month]} {date.year}"


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are figures."""
    ruler = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, ruler, *rows])


def ms(seconds: float) -> str:
    value = 1e3 * seconds
    decimals = 0 if value >= 99.5 else 1 if value >= 9.95 else 2
    return f"{value:,.{decimals}f} ms"


def times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def kib(count: float) -> str:
    value = count / 1024
    return f"{value / 1024:.2f} MiB" if value >= 1024 else f"{value:.0f} KiB"


def percent(fraction: float) -> str:
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.2g} %"


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def spread(values: summary.Spread, digits: int, scale: float = 1.0) -> str:
    mean = f"{scale * values.mean:.{digits}f}"
    if values.known_deviation is None:
        return mean
    return f"{mean} ± {scale * values.known_deviation:.{digits}f}"


def sizes() -> list[int]:
    """The numbers of values of the MPI table."""
    return sorted({one["count"] for one in entries(MPI)})


def all_reduce() -> str:
    """Four ranks over shaped links, compared with MPI_Allreduce."""
    counts = sizes()
    peer = only(MPI, codec="MPI_Allreduce", count=counts[-1])["seconds"]
    rows = []
    for codec in MPI_CODECS:
        calls = [only(MPI, codec=codec, count=count) for count in counts]
        sent, error = calls[-1]["wire_bytes"], calls[-1]["relative_error"]
        rows.append([
            f"`{codec}`{', ring' if codec == 'MPI_Allreduce' else ''}",
            *[ms(call["seconds"]) for call in calls],
            times(peer / calls[-1]["seconds"]),
            f"{sent / 1e6:.1f} MB" if sent else "not counted",
            percent(error) if error > 1e-5 else "f32 rounding",
        ])  # fmt: skip
    names = [f"{4 * count >> 20} MiB" for count in counts]
    speed = f"speed-up at {names[-1]}"
    return table(["codec", *names, speed, f"sent per rank at {names[-1]}", "relative error"], rows)


def wire_seconds() -> float:
    """The time of the f32 values of the MPI table on a link of 1 Gbit/s, with packet headers."""
    ranks = 4
    sent = 2 * (ranks - 1) / ranks * 4 * sizes()[-1]
    return sent * PACKET / PAYLOAD * 8 / 1e9


BACKWARD = {2: "python-backward-1gbit-2.json", 4: "python-backward-1gbit-4.json"}
WAYS = {
    "none": "DDP without a hook",
    "torch:fp16": "PyTorch's `fp16_compress_hook`",
    "tersor:none": "Tersor `none`",
    "bf16": "Tersor `bf16`",
    "int8": "Tersor `int8`",
    "int4+ef": "Tersor `int4+ef`",
    "topk:density=0.01+ef": "Tersor `topk:density=0.01+ef`",
    "auto": "Tersor `auto` (settled on `int8`)",
}


def backward() -> str:
    """DDP's backward pass on two and four ranks."""
    rows = []
    for codec, name in WAYS.items():
        row = [name]
        for file in BACKWARD.values():
            own = only(file, codec=codec)["seconds"]
            row += [ms(own), times(only(file, codec="none")["seconds"] / own)]
        rows.append(row)
    heading = ["gradient exchange"]
    for ranks in BACKWARD:
        heading += [f"{ranks} ranks", "speed-up"]
    return table(heading, rows)


def slow_link() -> str:
    """A GPT over 100 Mbit/s, one seed."""
    [one] = training(GPT_SLOW_LINK)
    rows = []
    order = ["none", "torch:fp16", "int8", "int4+ef", "torch:powersgd", "topk:density=0.01+ef"]
    names = {**WAYS, "torch:powersgd": "PyTorch's `powerSGD_hook`, rank 1"}
    for codec in order:
        runs = one.codecs[codec]
        last = runs.runs[0].last
        mean = runs.step_mean
        rows.append([
            names[codec], f"{100 * last.accuracy:.2f} %", f"{last.loss:.3f}",
            kib(mean("wire_bytes")), ms(mean("step_seconds")), ms(mean("exposed_seconds")),
            f"{last.seconds:.0f} s", times(one.codecs["none"].runs[0].last.seconds / last.seconds),
        ])  # fmt: skip
    heading = ["gradient exchange", "accuracy", "training loss", "sent per step", "step"]
    return table([*heading, "of it waiting", "training", "speed-up"], rows)


def fashion() -> str:
    """Six paired seeds on Fashion-MNIST."""
    [one] = training(FASHION)
    order = ["none", "bf16", "int8", "int4+ef", "topk:density=0.01+ef", "topk:density=0.01"]
    step = one.codecs["none"].step_mean("step_seconds")
    rows = []
    for codec in order:
        runs = one.codecs[codec]
        paired = summary.Spread.of(one.paired(codec, "none").values())
        change = "" if codec == "none" else signed(100 * paired.mean, 2)
        rows.append([
            f"`{codec}`",
            f"{spread(runs.accuracy, 2, 100)} %",
            f"{change} ± {100 * paired.deviation:.2f}" if change else "",
            ms(runs.step_mean("step_seconds")),
            times(step / runs.step_mean("step_seconds")),
            kib(runs.step_mean("wire_bytes")),
        ])  # fmt: skip
    heading = ["codec", "test accuracy", "difference in points, same seeds", "step", "speed-up"]
    return table([*heading, "sent per step"], rows)


SEEDS = 3  # of each optimizer, as the page says
OPTIMIZERS = {
    "none": "AdamW, uncompressed",
    "onebit-adam=400": "1-bit Adam (f32 for 400 steps)",
    "torch:powersgd=4": "AdamW, PyTorch's `powerSGD_hook`, rank 4 (f32 for 10 steps)",
    "torch:powersgd=4,start=200": "AdamW, PyTorch's `powerSGD_hook`, rank 4 (f32 for 200 steps)",
    "adamw:hadamard:bits=1+ef": "`CompressedAdamW`, 1 bit",
    "adamw:blocktopk:density=0.03+ef": "`CompressedAdamW`, 3 % of the values",
    "adamw:blocktopk:density=0.01+ef": "`CompressedAdamW`, 1 % of the values",
    "muon": "PyTorch's Muon, uncompressed, momentum 0.95",
    "muon,momentum=0.9:hadamard:bits=2+ef": "`CompressedMuon`, 2 bits, momentum 0.9",
    "muon:hadamard:bits=1+ef": "`CompressedMuon`, 1 bit, momentum 0.8",
    "muon:blocktopk:density=0.03+ef": "`CompressedMuon`, 3 % of the values, momentum 0.8",
    "muon,momentum=0.7:blocktopk:density=0.01+ef": (
        "`CompressedMuon`, 1 % of the values, momentum 0.7"
    ),
}


def optimizer_points() -> list[loss_points.Point]:
    """Each optimizer at its best learning rate in 2,000 steps of a GPT."""
    return loss_points.points(training(GPT_2000), "test_loss")


def best(codec: str) -> loss_points.Point:
    return next(one for one in optimizer_points() if one.codec == codec)


def final_loss(name: str, codec: str, rate: float) -> float:
    """The test loss at the end of the training with seed 1."""
    epochs = entries(name, codec=codec, learning_rate=rate, seed=1)
    return max(epochs, key=lambda one: one["epoch"])["test_loss"]


def optimizers() -> str:
    """2,000 steps of a GPT, each optimizer at its best learning rate."""
    rows = []
    for codec, name in OPTIMIZERS.items():
        one = best(codec)
        if one.loss.count != SEEDS:
            raise records.ReportError(f"{codec} has {one.loss.count} seeds instead of {SEEDS}")
        sent = best("none").sent / one.sent
        rows.append([
            name, spread(one.loss, 3), f"{one.rate:g}", f"{one.sent / 1024:,.0f} KiB",
            f"1/{sent:.0f}" if sent > 1.5 else "1",
        ])  # fmt: skip
    heading = ["optimizer", "test loss", "best rate", "sent per step", "of AdamW's bytes"]
    return table(heading, rows)


KERNELS = ("none", "bf16", "int8", "int4", "hadamard:bits=4", "hadamard:bits=1")
KERNELS += ("topk:density=0.01", "blocktopk:density=0.01")


def kernel_share(codec: str, operation: str, checksum: bool = False) -> str:
    """The speed of an operation on 64 Mi f32 values as a share of a copy; empty if unmeasured."""
    found = entries(GPU_KERNELS, benchmark="codecs", codec=codec, operation=operation,
                    dtype="f32", count=2**26, checksum=checksum)  # fmt: skip
    return f"{100 * found[0]['ratio']:.0f} %" if found else ""


def kernels() -> str:
    """Codecs on a GPU as shares of the speed of a copy."""
    rows = [
        [f"`{codec}`", kernel_share(codec, "encode"), kernel_share(codec, "decode"),
         kernel_share(codec + "+ef", "encode+feedback"), kernel_share(codec + "+ef", "reduce")]
        for codec in KERNELS
    ]  # fmt: skip
    checked = [
        kernel_share("int8", "encode", True), kernel_share("int8", "decode", True), "",
        kernel_share("int8+ef", "reduce", True),
    ]  # fmt: skip
    rows.insert(3, ["`int8` with checksums", *checked])
    heading = ["codec", "encode", "decode", "encode with error feedback", "reduce of 8 frames"]
    return table(heading, rows)


def nccl(file: str) -> dict[tuple[str, str, str], float]:
    """Seconds of 256 MiB by (codec, dtype, algorithm), without CUDA graphs; of the first run."""
    found: dict[tuple[str, str, str], float] = {}
    for one in entries(file, benchmark="allreduce", count=2**26, graph=False):
        found.setdefault((one["codec"], one["dtype"], one["algorithm"]), one["seconds"])
    return found


def nccl_topk(file: str) -> float:
    """The time of ncclAllReduce by that of top-k, measured in turns in one run."""
    reference = 0.0
    for one in entries(file, benchmark="allreduce", count=2**26, graph=False):
        if one["codec"] == "ncclAllReduce" and one["dtype"] == "f32":
            reference = one["seconds"]
        if one["codec"] == "topk:density=0.01":
            return reference / one["seconds"]
    raise records.ReportError(f"{file}: no top-k over NCCL")


DELTA, DELTA_SPEED = "python-delta.json", "python-delta-speed.json"
NAMES = {"adamw": "AdamW", "muon": "Muon"}
CLASSES = ("delta:classes=1", "delta:classes=4")
PEERS = ("16-bit gaps + XOR, zstd-1", "dense XOR, zstd-1")


def delta_pairs(*optimizers: str) -> list[Entry]:
    """A record per pair, from few changed values to many. By default of both optimizers."""
    found = [
        one for one in entries(DELTA, codec=PEERS[0]) if one["optimizer"] in (optimizers or NAMES)
    ]
    return sorted(found, key=lambda one: one["changed_share"])


def _delta_row(pair: Entry) -> list[str]:
    rate, steps = f"{pair['learning_rate']:g}".replace("e-0", "e-"), pair["steps"]
    updates = f"{steps} step{'s' if steps > 1 else ''} of {rate}"
    return [f"{NAMES[pair['optimizer']]}, {updates}", f"{100 * pair['changed_share']:.1f} %"]


def delta_sizes() -> str:
    """Bytes per changed value, all bytes counted."""
    codings = [CLASSES[0], "delta:classes=2", CLASSES[1], *PEERS]
    rows = []
    for pair in delta_pairs():
        found = entries(DELTA, data=pair["data"], tensors=1)
        sizes = {one["codec"]: one["bytes_per_change"] for one in found}
        rows.append([*_delta_row(pair), *(f"{sizes[codec]:.2f}" for codec in codings)])
    heading = ["steps", "changed", "1 class", "2 classes", "4 classes", *PEERS]
    return table(heading, rows)


def delta_speed() -> str:
    """Times after steps of AdamW, as numbers of copies, with 1 and 4 classes."""
    rows = []
    for pair in delta_pairs("adamw"):
        times = []
        for codec in CLASSES:
            found = entries(DELTA_SPEED, data=pair["data"], codec=codec)
            copies = {one["operation"]: one["copies"] for one in found}
            trusted = [copies[f"{call}, trusted base"] for call in ("check", "apply")]
            times.append([copies["encode"], *trusted, copies["apply"]])
        cells = (f"{one:.1f} / {four:.1f}" for one, four in zip(*times, strict=True))
        rows.append([*_delta_row(pair), *cells])
    calls = ["encode", "check, trusted base", "apply, trusted base", "apply"]
    return table(["steps", "changed", *calls], rows)


def entropy(file: str, kind: str, field: str, **fields: typing.Any) -> str:
    """The least and the largest figure of the codec `entropy` on a kind of values."""
    found = entries(file, codec="entropy", **fields)
    figures = [one[field] for one in found if one["data"].startswith(kind)]
    return " to ".join(sorted({f"{one:.2f}" for one in (min(figures), max(figures))}, key=float))


def pipeline() -> float:
    """How many times longer a pipeline stage waits for the link with bf16 than with int8.

    Waiting without a link is the bubble of the pipeline, and is subtracted.
    """
    waiting = []
    for codec in ("torch:bf16", "int8"):
        first, again, bubble = (
            values(f"python-pipeline-{name}.json", "exposed_seconds", codec=codec)
            for name in ("100mbit", "100mbit-again", "no-link")
        )
        waiting.append(statistics.fmean(first + again) - statistics.fmean(bubble))
    return waiting[0] / waiting[1]


def paired_points(file: str, codec: str) -> float:
    """Mean difference to `none` in percentage points over common seeds."""
    [one] = training(file)
    return 100 * statistics.fmean(one.paired(codec, "none").values())


TABLES = (all_reduce, backward, slow_link, fashion, optimizers, kernels, delta_sizes, delta_speed)
