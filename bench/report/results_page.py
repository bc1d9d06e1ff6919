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


def all_reduce_chart() -> str:
    names = {"MPI_Allreduce": "MPI_Allreduce, f32", "topk:density=0.01": "top-k, 1 % of the values"}
    count = max(one["count"] for one in tables.entries(tables.MPI))
    rows = []
    for codec in ("MPI_Allreduce", "none", "bf16", "int8", "int4", "topk:density=0.01"):
        seconds = tables.only(tables.MPI, codec=codec, count=count)["seconds"]
        label = names.get(codec, f"Tersor {codec}")
        is_peer = codec == "MPI_Allreduce"
        rows.append(charts.Bar(label, seconds, tables.ms(seconds), is_peer))
    title = "All-reduce of 64 MiB, 4 ranks, 1 Gbit/s links"
    return charts.bars(title, "milliseconds; shorter is better", rows)


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
    rows = [
        charts.Bar(name, value, tables.ms(value), name.startswith("nccl"))
        for name, value in seconds.items()
    ]
    title = "All-reduce of 256 MiB, 2 ranks on one H200, NCCL over 3 GB/s sockets"
    return charts.bars(title, "milliseconds; shorter is better", rows)


def loss_chart() -> str:
    found = tables.training(tables.GPT_2000)

    def point(label: str, codec: str) -> charts.Point:
        one = tables.best(codec, found)
        return charts.Point(label, one.kib, one.loss.mean)

    def level(label: str, codec: str, colour: str) -> charts.Level:
        return charts.Level(label, tables.best(codec, found).loss.mean, colour)

    adamw = [
        point("1 %", "adamw:blocktopk:density=0.01+ef"),
        point("3 %", "adamw:blocktopk:density=0.03+ef"),
        point("1 bit", "adamw:hadamard:bits=1+ef"),
    ]
    muon = [
        point("1 %", "muon,momentum=0.7:blocktopk:density=0.01+ef"),
        point("3 %", "muon:blocktopk:density=0.03+ef"),
        point("1 bit", "muon:hadamard:bits=1+ef"),
        point("2 bits", "muon,momentum=0.9:hadamard:bits=2+ef"),
    ]
    peers = {
        "PowerSGD, rank 4": "torch:powersgd=4",
        "1-bit Adam": "onebit-adam=400",
    }
    series = [
        charts.Series("CompressedAdamW", charts.TERSOR, adamw),
        charts.Series("CompressedMuon", charts.MUON, muon, charts.LABELS_BELOW),
        *(charts.Series(name, charts.PEER, [point(name, codec)]) for name, codec in peers.items()),
    ]
    levels = [
        level("AdamW, uncompressed, 3,204 KiB", "none", charts.QUIET),
        level("Muon, uncompressed, 3,204 KiB", "muon", charts.QUIET),
    ]
    title = "Test loss of a GPT after 2,000 steps, best learning rate of each optimizer"
    note = "mean of three seeds; lower and further left is better; the axis does not start at zero"
    return charts.losses(title, note, series, levels)


def figures() -> dict[str, str]:
    """The figures within the sentences of the page."""
    return {
        **_gpu_figures(),
        **_training_figures(),
        **_cpu_figures(),
        "date_mpi": tables.day(tables.MPI),
        "date_backward": tables.day("python-backward-1gbit-2.json"),
        "date_gpt": tables.day(tables.GPT_SLOW_LINK),
        "date_fashion": tables.day(tables.FASHION),
        "date_gpt_2000": tables.day(tables.GPT_2000),
        "date_kernels": tables.day(tables.GPU_KERNELS),
        "torch": tables.entries("python-backward-1gbit-2.json")[0]["torch"].split("+")[0],
    }


def _gpu_figures() -> dict[str, str]:
    seconds = tables.nccl(tables.GPU_NCCL)
    again = tables.nccl(tables.GPU_NCCL_AGAIN)
    nccl, nccl_again = (one["ncclAllReduce", "f32", "library"] for one in (seconds, again))
    topk, topk_again = (tables.nccl_topk(one) for one in (tables.GPU_NCCL, tables.GPU_NCCL_AGAIN))
    hooks = tables.entries("gpu-h200-python-backward.json")
    hook = {one["codec"]: one["seconds"] for one in hooks}
    step = tables.only("gpu-h200-step.json", optimizer="adamw", parameters=1000)
    return {
        "nccl_int8": tables.times(nccl / seconds["int8", "f32", "two-shot"]),
        "nccl_int4": tables.times(nccl / seconds["int4", "f32", "two-shot"]),
        "nccl_topk": f"{topk[0] / topk[1]:.0f}x",
        "again_int8": tables.times(nccl_again / again["int8", "f32", "two-shot"]),
        "again_int4": tables.times(nccl_again / again["int4", "f32", "two-shot"]),
        "again_topk": f"{topk_again[0] / topk_again[1]:.0f}x",
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
    last = {codec: runs.runs[0].epochs[-1] for codec, runs in gpt.codecs.items()}
    found = tables.training(tables.GPT_2000)
    muon, sparse = (
        tables.best(codec, found).loss.mean
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
    fsdp_records = tables.entries("python-backward-fsdp-1gbit-2.json")
    fsdp = {one["codec"]: one["seconds"] for one in fsdp_records}
    four = {one["codec"]: one["seconds"] for one in tables.entries(tables.BACKWARD[4])}
    kills = [one["next_step_seconds"] for one in tables.entries("tcp-loss-1gbit.json")]
    pauses = [one["pause_seconds"] for one in tables.entries("python-goodput-deaths.json")]
    reducers = tables.entries("allreduce-1gbit-overlap.json")
    overlap = [one["hidden"] for one in reducers]
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
    parts = {
        "all_reduce": tables.all_reduce(),
        "backward": tables.backward(),
        "slow_link": tables.slow_link(),
        "fashion": tables.fashion(),
        "optimizers": tables.optimizers(),
        "kernels": tables.kernels(),
    }
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
