"""The text of docs/results/index.md and its charts, from the records in bench/results.

Every figure on the page comes from a record. The text of the page is in results_page.md.in.
"""

import pathlib
import string

import results_tables as tables
from svg import Axis, Drawing, axes

SOAK = "python-soak.json"
EIGHT_RANKS = "hadamard:bits=1,result=hadamard:bits=2+ef"  # the default codec
FOLDER = pathlib.Path(__file__).resolve().parent
DATED = {
    "mpi": tables.MPI,
    "backward": tables.BACKWARD[2],
    "gpt": tables.GPT_SLOW_LINK,
    "fashion": tables.FASHION,
    "gpt_2000": tables.GPT_2000,
    "kernels": tables.GPU_KERNELS,
    "delta": tables.DELTA,
    "soak": SOAK,
}


def all_reduce_chart() -> str:
    names = {"MPI_Allreduce": "MPI_Allreduce, f32", "topk:density=0.01": "top-k, 1 % of the values"}
    count = tables.sizes()[-1]
    seconds = {
        names.get(codec, f"Tersor {codec}"): tables.only(tables.MPI, codec=codec, count=count)
        for codec in tables.MPI_CODECS
    }
    title = "All-reduce of 64 MiB, 4 ranks, 1 Gbit/s links"
    return time_bars(title, {name: one["seconds"] for name, one in seconds.items()})


def nccl_chart() -> str:
    found = tables.nccl(tables.GPU_NCCL)
    seconds = {
        "ncclAllReduce, f32": found["ncclAllReduce", "f32", "library"],
        "ncclAllReduce, bf16": found["ncclAllReduce", "bf16", "library"],
        "Tersor bf16, sums in f32": found["bf16", "f32", "two-shot"],
        "Tersor int8": found["int8", "f32", "two-shot"],
        "Tersor int4": found["int4", "f32", "two-shot"],
        "Tersor top-k, 1 % of the values": found["topk:density=0.01", "f32", "one-shot"],
    }
    title = "All-reduce of 256 MiB, 2 ranks on one H200, NCCL over 3 GB/s sockets"
    return time_bars(title, seconds)


def time_bars(title: str, seconds: dict[str, float]) -> str:
    """Horizontal bars from the first name down, with peers in grey. Equal figures give equal text.

    A browser shows the exact figure of a bar under the pointer.
    """
    note = "milliseconds; shorter is better"
    drawing = Drawing(760, 78 + 32 * len(seconds), title, note)
    drawing.heading(title, note, size=15)
    left, longest = 265, max(seconds.values())
    for number, (name, value) in enumerate(seconds.items()):
        top, length = 66 + 32 * number, 390 * value / longest
        drawing.text(left - 10, top + 15, name, size=13, anchor="end")
        colour = "grey" if name.startswith(("nccl", "MPI")) else "blue"
        shown = f"{name}: {tables.ms(value)}"
        drawing.box(left, top, length, 20, colour=colour, hover=shown)
        drawing.text(left + length + 8, top + 15, tables.ms(value), size=13)
    return drawing.svg()


def soak_chart() -> str:
    """Memory of rank 0 by steps, in a line per transport."""
    title = "Memory of rank 0 while ranks are lost and replaced"
    note = "resident memory in MiB, by thousands of steps; a flat line is better"
    drawing = Drawing(760, 300, title, note)
    drawing.heading(title, note, size=15)
    runs = {kind: tables.entries(SOAK, transport=kind) for kind in ("tcp", "threads")}
    last = max(one["step"] for run in runs.values() for one in run)
    highest = max(one["rss_bytes"] for run in runs.values() for one in run) / 2**20
    x, y = Axis(0, last, 60, 660), Axis(0, 1.25 * highest, 262, 70)
    steps = [(last * part / 4, f"{last * part / 4000:g}") for part in range(5)]
    memory = [(highest * part / 2, f"{highest * part / 2:.0f}") for part in range(3)]
    axes(drawing, x, y, steps, memory)
    for (kind, run), colour in zip(runs.items(), ("blue", "orange"), strict=True):
        points = [(x(one["step"]), y(one["rss_bytes"] / 2**20)) for one in run]
        drawing.line(points, colour=colour, width=2.5)
        drawing.text(668, points[-1][1] + 4, kind, size=13, colour=colour, bold=True)
    return drawing.svg()


def _soak_figures() -> dict[str, str]:
    found = tables.entries(SOAK)
    figures = {
        "soak_steps": f"{max(one['step'] for one in found):,}",
        "soak_losses": f"{max(one['losses'] for one in found):,}",
    }
    for kind in ("tcp", "threads"):
        run = [one for one in found if one["transport"] == kind]
        run = run[1:]  # the first record may come before all caches are filled
        for field, unit in (("rss_bytes", 2**20), ("threads", 1), ("descriptors", 1)):
            values = [one[field] / unit for one in run]
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            name = f"soak_{kind}_{field.removesuffix('_bytes')}"
            figures[name] = low if low == high else f"{low} to {high}"
    return figures


def figures() -> dict[str, str]:
    """The figures within the sentences of the page."""
    return {
        **_gpu_figures(),
        **_training_figures(),
        **_cpu_figures(),
        **_soak_figures(),
        **_delta_figures(),
        **{f"date_{name}": tables.day(file) for name, file in DATED.items()},
        "torch": tables.entries(tables.BACKWARD[2])[0]["torch"].split("+")[0],
    }


def _gpu_figures() -> dict[str, str]:
    found: dict[str, str] = {}
    for run, file in (("nccl", tables.GPU_NCCL), ("again", tables.GPU_NCCL_AGAIN)):
        seconds = tables.nccl(file)
        for codec in ("int8", "int4"):
            ratio = seconds["ncclAllReduce", "f32", "library"] / seconds[codec, "f32", "two-shot"]
            found[f"{run}_{codec}"] = tables.times(ratio)
        found[f"{run}_topk"] = f"{tables.nccl_topk(file):.0f}x"
    hook = tables.seconds("gpu-h200-python-backward.json")
    step = {
        (one["optimizer"], one["shape"]): f"{one['ratio']:.2f}"
        for one in tables.entries("gpu-h200-step.json")
        if (one["shape"], one["parameters"]) in (("64x64", 1000), ("1024x1024", 100))
    }
    return found | {
        "gpu_ddp_int8": tables.times(hook["none"] / hook["int8"]),
        "gpu_ddp_int8_bf16": tables.times(hook["torch:bf16"] / hook["int8"]),
        "gpu_ddp_int4": tables.times(hook["none"] / hook["int4+ef"]),
        "gpu_ddp_none": tables.times(hook["none"] / hook["tersor:none"]),
        "gpu_hadamard": tables.kernel_share("hadamard:bits=4+ef", "reduce"),
        "gpu_blocktopk": tables.kernel_share("blocktopk:density=0.01+ef", "reduce"),
        "step_gpu": step["adamw", "64x64"],
        "step_gpu_sgd": step["sgd", "64x64"],
        "step_gpu_large": step["adamw", "1024x1024"],
        "step_gpu_sgd_large": step["sgd", "1024x1024"],
    }


def _delta_figures() -> dict[str, str]:
    pair, timed = tables.delta_pairs()[0], tables.entries(tables.DELTA_SPEED)[0]
    parts = tables.entries(tables.DELTA, codec=tables.CLASSES[1], data=pair["data"])
    [listed] = tables.entries(tables.DELTA, codec="index + value", data=pair["data"])
    bits = {
        f"entropy_{kind}": tables.entropy(tables.DELTA, kind, "bits_per_value")
        for kind in ("weights", "activations", "gradients")
    }
    speeds = {
        f"entropy_{name}": tables.entropy(
            tables.DELTA_SPEED, "weights", "gigabytes_per_second", operation=name
        )
        for name in ("encode", "decode")
    }
    return {
        **bits,
        **speeds,
        "delta_count": f"{pair['count']:,}",
        "delta_warm": str(pair["warm_steps"]),
        "delta_tensors": str(max(one["tensors"] for one in parts)),
        "delta_named": f"{max(one['bytes_per_change'] for one in parts):.2f}",
        "delta_list": f"{listed['bytes_per_change']:.2f}",
        "delta_isa": {"avx2": "AVX2", "avx512": "AVX-512"}.get(timed["isa"], timed["isa"]),
        "delta_mib": f"{timed['count'] >> 19}",
        "delta_load": f"{timed['load']:.1f}",
    }


def _training_figures() -> dict[str, str]:
    [gpt] = tables.training(tables.GPT_SLOW_LINK)
    last = {codec: runs.runs[0].last for codec, runs in gpt.codecs.items()}
    muon, sparse = (
        tables.best(codec).loss.mean
        for codec in ("muon", "muon,momentum=0.7:blocktopk:density=0.01+ef")
    )
    sent = tables.values(tables.GPT_RANKS, "wire_bytes", codec=f"adamw:{EIGHT_RANKS}", epoch=5)
    eight = {
        name: tables.final_loss(tables.GPT_RANKS, f"{name}:{EIGHT_RANKS}", rate)
        - tables.final_loss(tables.GPT_2000, dense, dense_rate)
        for name, rate, dense, dense_rate in (
            ("adamw", 0.008, "none", 0.008),
            ("muon", 0.032, "muon", 0.004),
        )
    }
    hooks, sgd = "python-train-convnet.json", "python-train-convnet-sgd.json"
    points = {
        "hook_bit": tables.paired_points(hooks, "hadamard:bits=1+ef"),
        "sgd_bit": tables.paired_points(sgd, "sgd:hadamard:bits=1+ef"),
        "hook_top": tables.paired_points(hooks, "blocktopk:density=0.01+ef"),
        "sgd_top": tables.paired_points(sgd, "sgd:blocktopk:density=0.01+ef"),
    }
    return {
        "gpt_int8": tables.times(last["none"].seconds / last["int8"].seconds),
        "gpt_int4": tables.times(last["none"].seconds / last["int4+ef"].seconds),
        "gpt_int4_points": f"{100 * (last['none'].accuracy - last['int4+ef'].accuracy):.2f}",
        "topk_points": f"{-tables.paired_points(tables.FASHION, 'topk:density=0.01'):.2f}",
        "muon_sparse": f"{sparse - muon:.3f}",
        "eight_sent": tables.kib(sent[0]),
        **{f"eight_{name}": tables.signed(value, 3) for name, value in eight.items()},
        "pipeline": tables.times(tables.pipeline()),
        **{name: tables.signed(value, 2) for name, value in points.items()},
    }


def _cpu_figures() -> dict[str, str]:
    fsdp = tables.seconds("python-backward-fsdp-1gbit-2.json")
    four = tables.seconds(tables.BACKWARD[4])
    plain = tables.only(tables.BACKWARD[4], codec="none")
    kills = tables.values("tcp-loss-1gbit.json", "next_step_seconds")
    pauses = {
        (one["way"], one.get("heartbeat"), one.get("grace")): one
        for one in tables.entries("python-goodput-deaths.json")
    }
    own = pauses["ddp", None, None]
    patient = pauses["torchft-ddp", 5.0, 60.0]["pause_seconds"]
    overlap = tables.values("allreduce-1gbit-overlap.json", "hidden")
    steps = {
        (one["optimizer"], one["parameters"]): one["ratio"]
        for one in tables.entries("python-step.json", shape="64x64")
    }
    feedback = {"codec": "topk:density=0.01+ef", "operation": "encode+feedback"}
    triad = tables.only("codecs-topk-64mi.json", **feedback)["ratio"]
    return {
        "wire_ms": f"{1e3 * tables.wire_seconds():.0f} ms",
        "backward_compute": tables.ms(plain["compute_seconds"]),
        "backward_pass": tables.ms(plain["seconds"]),
        "fsdp_int8": tables.times(fsdp["none"] / fsdp["int8"]),
        "fsdp_ahead": tables.times(fsdp["torch:ahead"] / fsdp["int8"]),
        "fsdp_none_ms": tables.ms(fsdp["none"]),
        "fsdp_int8_ms": tables.ms(fsdp["int8"]),
        "ddp_none": tables.times(four["none"] / four["tersor:none"]),
        "hidden_low": f"{100 * min(overlap):.0f}",
        "hidden_high": f"{100 * max(overlap):.0f}",
        "recover_low": f"{1e3 * min(kills):.0f}",
        "recover_high": f"{1e3 * max(kills):.0f}",
        "pause_tersor": f"{own['pause_seconds']:.2f} s",
        "pause_deaths": str(own["deaths"]),
        "pause_torchft_quick": f"{pauses['torchft-ddp', 0.6, 0.2]['pause_seconds']:.2f} s",
        "pause_torchft": f"{patient:.1f} s",
        "step_adamw_few": f"{steps['adamw', 10]:.2f}",
        "step_adamw_many": f"{steps['adamw', 1000]:.2f}",
        "step_sgd": f"{steps['sgd', 1000]:.2f}",
        "step_muon": f"{steps['muon', 1000]:.2f}",
        "topk_triad": f"{100 * triad:.0f} %",
    }


def pages() -> dict[str, str]:
    """The text of each file in docs/results."""
    parts = {one.__name__: one() for one in tables.TABLES}
    text = (FOLDER / "results_page.md.in").read_text(encoding="utf-8")
    return {
        "index.md": string.Template(text).substitute(parts, **figures()),
        "all-reduce.svg": all_reduce_chart(),
        "nccl.svg": nccl_chart(),
        "soak.svg": soak_chart(),
    }
