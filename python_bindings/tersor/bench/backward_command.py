"""``backward``: the time of a backward pass with the given size of gradients, all hooks in turns.

The time is the median over iterations of the slowest rank, after DDP has made its buckets. More
rows of input make the computation longer, so hooks can hide behind it. With --parallel fsdp, FSDP2
shards each layer, and steps gather the weights. With --parallel experts, a mixture of eight experts
is spread over the ranks, and all times are of a whole step. With --speeds, a rank is slower by its
number below 1: a step waits --row-seconds for each row, divided by the speed. Beside hooks
weighted:CODEC, a slower rank has fewer rows.
"""

import argparse
import os

import torch.distributed as dist

from tersor import _text
from tersor.bench import hooks, sharded_hooks, split_hooks
from tersor.bench.backward import EXPERTS, Shape, measure
from tersor.bench.errors import BenchmarkError, fail_if, stateless_codec
from tersor.bench.records import Record, RecordFile, add, columns, pick, positive_number, table
from tersor.bench.world import World, add_world, run_on_ranks

GRADIENT_HOOKS = ["none", "torch:fp16", "torch:bf16", "bf16", "int8", "auto"]
DEFAULT_HOOKS = {"ddp": GRADIENT_HOOKS, "fsdp": GRADIENT_HOOKS, "experts": split_hooks.DEFAULT}
CHECKS = {"ddp": hooks.check, "fsdp": sharded_hooks.check, "experts": split_hooks.check}
PARALLEL = {
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP2",
    "experts": f"{EXPERTS} experts, whole steps",
}
REFERENCES = {"of none": "none", "of fp16": "torch:fp16", "of bf16": "torch:bf16"}
COLUMNS = columns(
    "hook=codec, time=seconds:s, of none=of none:x, of fp16=of fp16:x, of bf16=of bf16:x, "
    "with forward=step_seconds:s, sent=wire_bytes:B, interface=interface_bytes:B, "
    "error=relative_error:.1e"
)


def _stateless(text: str) -> str:
    """The spec of a codec without feedback, for argparse."""
    try:
        stateless_codec(text)
    except BenchmarkError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    hooks.add_hooks(parser, GRADIENT_HOOKS, split_hooks.HELP)
    add_world(parser)
    text = "DistributedDataParallel, fully_shard of each layer, or experts"
    add(parser, "parallel", "ddp", text, choices=list(PARALLEL))
    text = "codec of the all-gathers with fsdp and Tersor's codecs; default: uncompressed"
    add(parser, "weights", None, text, _stateless, metavar="CODEC")
    add(parser, "mib", 64, "size of the gradients in MiB")
    add(parser, "rows", 2, "rows of input")
    text = "speeds of the ranks; default: 1 for all"
    add(parser, "speeds", [], text, positive_number, metavar="SPEED")
    text = "seconds that a step waits for each row on a rank of speed 1; default: none"
    add(parser, "row-seconds", None, text, positive_number, metavar="SECONDS")
    add(parser, "bucket", None, "size of a bucket in MiB; default: DDP's", float, metavar="MIB")
    add(parser, "iterations", 9, "iterations of each hook")


def run(chosen: argparse.Namespace) -> int:
    """Measures on all ranks. Returns the exit status."""
    chosen.hooks = chosen.hooks or DEFAULT_HOOKS[chosen.parallel]
    kind, speeds = chosen.parallel, chosen.speeds
    for name in chosen.hooks:
        text = f"{name}: exchanges in the optimizer's step; use it with train only"
        fail_if(hooks.in_optimizer(name), text)
        CHECKS[kind](name)
        text = f"{hooks.WEIGHTED}CODEC is for DDP only, where each rank has its own rows"
        fail_if(kind != "ddp" and name.startswith(hooks.WEIGHTED), text)
    text = "--weights are gathered with --parallel fsdp only"
    fail_if(chosen.weights is not None and kind != "fsdp", text)
    text = "--bucket is for DDP only; elsewhere the gradients of a layer are sent together"
    fail_if(chosen.bucket is not None and kind != "ddp", text)
    ranks = int(os.environ.get("WORLD_SIZE", chosen.ranks))
    text = f"--speeds has {len(speeds)} numbers for {ranks} ranks: give one per rank"
    fail_if(speeds and len(speeds) != ranks, text)
    text = "--speeds needs --row-seconds, the time that a slower rank multiplies"
    fail_if(speeds and not chosen.row_seconds, text)
    return run_on_ranks(_measure, chosen)


def _measure(chosen: argparse.Namespace, world: World) -> None:
    records = RecordFile(chosen.json if world.is_main else None)
    shape = Shape(**pick(chosen, "mib rows bucket parallel weights speeds row_seconds"))
    compute_seconds, results = measure(chosen.hooks, shape, chosen.iterations, world)
    if not world.is_main:
        return
    setting = _setting(chosen, world)
    for result in results:
        records.add({**setting, **result, "compute_seconds": compute_seconds})
    weights = "" if shape.weights is None else f", weights by {shape.weights} beside our codecs"
    print(
        f"{PARALLEL[shape.parallel]}{weights}: {shape.layers * 4} MiB of gradients, {world.ranks} "
        f"ranks over {dist.get_backend()}, link {chosen.link}; without communication "
        f"{_text.seconds(compute_seconds)}\n"
    )
    seconds = {one["codec"]: one["seconds"] for one in results}
    for one in results:
        for head, hook in REFERENCES.items():
            one[head] = seconds[hook] / one["seconds"] if hook in seconds else None
    print(table(COLUMNS, results), flush=True)


def _setting(chosen: argparse.Namespace, world: World) -> Record:
    given = pick(chosen, "speeds row_seconds")
    return {
        "benchmark": "backward",
        **pick(chosen, "parallel weights"),
        **world.fields(chosen.link),
        "dtype": "f32",
        "rows": chosen.rows,
        **{name: value for name, value in given.items() if value},
        "iterations": chosen.iterations,
    }
