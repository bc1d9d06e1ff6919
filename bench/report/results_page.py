#!/usr/bin/env python3
"""Writes docs/results/index.md and its charts from the records in bench/results.

    results_page.py            write the page and the charts
    results_page.py --check    compare them with the committed files; status 1 if a file differs

Every figure on the page comes from a record. The text of the page is in results_page.md.
"""

import argparse
import pathlib
import string
import sys

sys.dont_write_bytecode = True  # the folder may be a source tree

import results_charts as charts  # noqa: E402
import results_tables as tables  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
OUTPUT = FOLDER.parents[1] / "docs" / "results"
DATED = {
    "mpi": tables.MPI,
    "backward": tables.BACKWARD[2],
    "gpt": tables.GPT_SLOW_LINK,
    "fashion": tables.FASHION,
    "gpt_2000": tables.GPT_2000,
    "kernels": tables.GPU_KERNELS,
}


def all_reduce_chart() -> str:
    names = {"MPI_Allreduce": "MPI_Allreduce, f32", "topk:density=0.01": "top-k, 1 % of the values"}
    count = tables.sizes()[-1]
    seconds = {
        names.get(codec, f"Tersor {codec}"): tables.only(tables.MPI, codec=codec, count=count)
        for codec in tables.MPI_CODECS
    }
    return _time_bars(
        "All-reduce of 64 MiB, 4 ranks, 1 Gbit/s links",
        {name: one["seconds"] for name, one in seconds.items()},
    )


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
    return _time_bars(title, seconds)


def _time_bars(title: str, seconds: dict[str, float]) -> str:
    rows = [
        charts.Bar(name, value, tables.ms(value), name.startswith(("nccl", "MPI")))
        for name, value in seconds.items()
    ]
    return charts.bars(title, "milliseconds; shorter is better", rows)


def loss_chart() -> str:
    def series(name: str, colour: str, codecs: dict[str, str], *look: int) -> charts.Series:
        best = {label: tables.best(codec) for label, codec in codecs.items()}
        points = [charts.Point(name, one.sent / 1024, one.loss.mean) for name, one in best.items()]
        return charts.Series(name, colour, points, *look)

    adamw = {
        "1 %": "adamw:blocktopk:density=0.01+ef",
        "3 %": "adamw:blocktopk:density=0.03+ef",
        "1 bit": "adamw:hadamard:bits=1+ef",
    }
    muon = {
        "1 %": "muon,momentum=0.7:blocktopk:density=0.01+ef",
        "3 %": "muon:blocktopk:density=0.03+ef",
        "1 bit": "muon:hadamard:bits=1+ef",
        "2 bits": "muon,momentum=0.9:hadamard:bits=2+ef",
    }
    peers = {"PowerSGD, rank 4": "torch:powersgd=4", "1-bit Adam": "onebit-adam=400"}
    lines = [
        series("CompressedAdamW", charts.TERSOR, adamw),
        series("CompressedMuon", charts.MUON, muon, charts.LABELS_BELOW),
        *(series(name, charts.PEER, {name: codec}) for name, codec in peers.items()),
    ]
    levels = [
        (f"{name}, uncompressed, 3,204 KiB", tables.best(codec).loss.mean)
        for name, codec in (("AdamW", "none"), ("Muon", "muon"))
    ]
    title = "Test loss of a GPT after 2,000 steps, best learning rate of each optimizer"
    note = "mean of three seeds; lower and further left is better; the axis does not start at zero"
    return charts.losses(title, note, lines, levels)


def figures() -> dict[str, str]:
    """The figures within the sentences of the page."""
    return {
        **_gpu_figures(),
        **_training_figures(),
        **_cpu_figures(),
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
    step = tables.only("gpu-h200-step.json", optimizer="adamw", parameters=1000)
    return found | {
        "gpu_ddp_int8": tables.times(hook["none"] / hook["int8"]),
        "gpu_ddp_int8_bf16": tables.times(hook["torch:bf16"] / hook["int8"]),
        "gpu_ddp_int4": tables.times(hook["none"] / hook["int4+ef"]),
        "gpu_ddp_none": tables.times(hook["none"] / hook["tersor:none"]),
        "gpu_hadamard": tables.kernel_share("hadamard:bits=4+ef", "reduce"),
        "gpu_blocktopk": tables.kernel_share("blocktopk:density=0.01+ef", "reduce"),
        "step_gpu": f"{step['ratio']:.2f}",
    }


def _training_figures() -> dict[str, str]:
    [gpt] = tables.training(tables.GPT_SLOW_LINK)
    last = {codec: runs.runs[0].last for codec, runs in gpt.codecs.items()}
    muon, sparse = (
        tables.best(codec).loss.mean
        for codec in ("muon", "muon,momentum=0.7:blocktopk:density=0.01+ef")
    )
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
        "pipeline": tables.times(tables.pipeline()),
        **{name: tables.signed(value, 2) for name, value in points.items()},
    }


def _cpu_figures() -> dict[str, str]:
    fsdp = tables.seconds("python-backward-fsdp-1gbit-2.json")
    four = tables.seconds(tables.BACKWARD[4])
    kills = tables.values("tcp-loss-1gbit.json", "next_step_seconds")
    pauses = tables.values("python-goodput-deaths.json", "pause_seconds")
    overlap = tables.values("allreduce-1gbit-overlap.json", "hidden")
    steps = {
        (one["optimizer"], one["parameters"]): one["ratio"]
        for one in tables.entries("python-step.json", shape="64x64")
    }
    feedback = {"codec": "topk:density=0.01+ef", "operation": "encode+feedback"}
    triad = tables.only("codecs-topk-64mi.json", **feedback)["ratio"]
    return {
        "wire_ms": f"{1e3 * tables.wire_seconds():.0f} ms",
        "fsdp_int8": tables.times(fsdp["none"] / fsdp["int8"]),
        "fsdp_ahead": tables.times(fsdp["torch:ahead"] / fsdp["int8"]),
        "fsdp_none_ms": tables.ms(fsdp["none"]),
        "fsdp_int8_ms": tables.ms(fsdp["int8"]),
        "ddp_none": tables.times(four["none"] / four["tersor:none"]),
        "hidden_low": f"{100 * min(overlap):.0f}",
        "hidden_high": f"{100 * max(overlap):.0f}",
        "recover_low": f"{1e3 * min(kills):.0f}",
        "recover_high": f"{1e3 * max(kills):.0f}",
        "pause_tersor": f"{pauses[0]:.2f} s",
        "pause_torchft_quick": f"{pauses[1]:.2f} s",
        "pause_torchft": f"{pauses[3]:.1f} s",
        "step_adamw_few": f"{steps['adamw', 10]:.2f}",
        "step_adamw_many": f"{steps['adamw', 1000]:.2f}",
        "step_sgd": f"{steps['sgd', 1000]:.2f}",
        "step_muon": f"{steps['muon', 1000]:.2f}",
        "topk_triad": f"{100 * triad:.0f} %",
    }


def pages() -> dict[str, str]:
    """The text of each file in docs/results."""
    parts = {one.__name__: one() for one in tables.TABLES}
    text = (FOLDER / "results_page.md").read_text(encoding="utf-8")
    return {
        "index.md": string.Template(text).substitute(parts, **figures()),
        "all-reduce.svg": all_reduce_chart(),
        "losses.svg": loss_chart(),
        "nccl.svg": nccl_chart(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="results_page", description="Writes docs/results.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = OUTPUT / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            print(f"{path} is stale: run {pathlib.Path(__file__).name}")
            stale = 1
        elif not check:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
