"""``backward``: a bare backward pass of so many MiB of gradients, all hooks in turns.

The median over iterations of the slowest rank, once DDP has made its buckets. More rows of input
make the arithmetic longer, for hooks to hide behind. With --parallel fsdp each layer is sharded by
FSDP2, whose steps gather the weights too. With --parallel experts there is a mixture of eight
experts, spread over the ranks, and all times are of a whole step. With --speeds a rank is as much
slower as its number is below 1: a step waits --row-seconds for each row, the longer the slower it
is; beside hooks weighted:CODEC it has as many rows fewer.
"""

import argparse
import os

from tersor import _text
from tersor.bench import hooks, launch, loose_hooks, options, sharded_hooks, split_hooks
from tersor.bench.backward import EXPERTS, Result, Shape, measure
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile
from tersor.bench.traffic import fields_of
from tersor.bench.world import World

GRADIENT_HOOKS = ["none", "torch:fp16", "torch:bf16", "bf16", "int8", "auto"]
DEFAULT_HOOKS = {"ddp": GRADIENT_HOOKS, "fsdp": GRADIENT_HOOKS, "experts": split_hooks.DEFAULT}
CHECKS = {"ddp": hooks.check, "fsdp": sharded_hooks.check, "experts": split_hooks.check}
PARALLEL = {
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP2",
    "experts": f"{EXPERTS} experts, whole steps",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    options.add_hooks(parser, GRADIENT_HOOKS)
    options.add_world(parser)
    parser.add_argument(
        "--parallel",
        choices=list(PARALLEL),
        default="ddp",
        help="what the layers go through: DistributedDataParallel, or fully_shard each; or experts",
    )
    parser.add_argument(
        "--weights",
        type=options.stateless,
        metavar="CODEC",
        help="with fsdp: for the all-gathers, beside our codecs; default: as they are",
    )
    parser.add_argument("--mib", type=options.positive, default=64, help="of gradients (64)")
    parser.add_argument("--rows", type=options.positive, default=2, help="of input (2)")
    parser.add_argument(
        "--speeds",
        type=options.positive_number,
        nargs="+",
        default=[],
        metavar="SPEED",
        help="of each rank; default: 1",
    )
    parser.add_argument(
        "--row-seconds",
        type=options.positive_number,
        default=0.0,
        metavar="SECONDS",
        help="that a step waits for each row, on a rank of speed 1; default: none",
    )
    parser.add_argument("--bucket", type=float, metavar="MIB", help="of a bucket; default: DDP's")
    parser.add_argument("--iterations", type=options.positive, default=9, help="of each hook (9)")
    options.add_records(parser)


def run(chosen: argparse.Namespace) -> int:
    """Measures on all ranks. Returns the exit status."""
    chosen.hooks = chosen.hooks or DEFAULT_HOOKS[chosen.parallel]
    for name in chosen.hooks:
        if not (hooks.in_optimizer(name) or loose_hooks.has(name)):
            continue
        raise BenchmarkError(f"{name}: exchanges in the optimizer's step; use it with train only")
    for name in chosen.hooks:
        CHECKS[chosen.parallel](name)
    if chosen.weights is not None and chosen.parallel != "fsdp":
        raise BenchmarkError("--weights are gathered with --parallel fsdp only")
    if chosen.bucket is not None and chosen.parallel != "ddp":
        raise BenchmarkError(
            "--bucket is for DDP only; elsewhere the gradients of a layer are sent together"
        )
    if chosen.speeds:
        _check_speeds(chosen)
    if chosen.parallel != "ddp" and any(name.startswith(hooks.WEIGHTED) for name in chosen.hooks):
        raise BenchmarkError(
            f"{hooks.WEIGHTED}CODEC is for DDP only, where each rank has its own rows"
        )
    return launch.run_on_ranks(_measure_and_tell, chosen)


def _check_speeds(chosen: argparse.Namespace) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", chosen.ranks))
    if len(chosen.speeds) != ranks:
        raise BenchmarkError(
            f"--speeds has {len(chosen.speeds)} numbers for {ranks} ranks: give one per rank"
        )
    if not chosen.row_seconds:
        raise BenchmarkError("--speeds needs --row-seconds, the time that a slower rank multiplies")


def _measure_and_tell(chosen: argparse.Namespace, world: World) -> None:
    records = RecordFile(chosen.json if world.leads else None)
    shape = Shape(
        chosen.mib,
        chosen.rows,
        chosen.bucket,
        chosen.parallel,
        chosen.weights,
        tuple(chosen.speeds),
        chosen.row_seconds,
    )
    compute_seconds, results = measure(chosen.hooks, shape, chosen.iterations, world)
    if not world.leads:
        return
    for result in results:
        setting = _setting(chosen, world, shape)
        records.add(setting | fields_of(result) | {"compute_seconds": compute_seconds})
    print(
        f"{_title(shape)}: {shape.layers * 4} MiB of gradients, {world.ranks} ranks "
        f"over {world.backend}, link {chosen.link}; without communication "
        f"{_text.seconds(compute_seconds)}\n"
    )
    _print_results(results)


def _title(shape: Shape) -> str:
    weights = "" if shape.weights is None else f", weights by {shape.weights} beside our codecs"
    return PARALLEL[shape.parallel] + weights


def _setting(chosen: argparse.Namespace, world: World, shape: Shape) -> Record:
    return {
        "benchmark": "backward",
        "parallel": shape.parallel,
        "weights": shape.weights,
        **world.described(chosen.link),
        "dtype": "f32",
        "rows": shape.rows,
        **({"speeds": list(shape.speeds)} if shape.speeds else {}),
        **({"row_seconds": shape.row_seconds} if shape.row_seconds else {}),
        "iterations": chosen.iterations,
    }


def _print_results(results: list[Result]) -> None:
    seconds = {result.codec: result.seconds for result in results}

    def speed(result: Result, reference: str) -> float | None:
        return seconds[reference] / result.seconds if reference in seconds else None

    head = ["hook", "time", "of none", "of fp16", "of bf16", "with forward"]
    head += ["sent", "interface", "error"]
    rows = [
        [
            result.codec,
            _text.seconds(result.seconds),
            _text.ratio(speed(result, "none")),
            _text.ratio(speed(result, "torch:fp16")),
            _text.ratio(speed(result, "torch:bf16")),
            _text.seconds(result.step_seconds),
            _text.byte_count(result.traffic.sent_bytes),
            _text.byte_count(result.interface_bytes),
            f"{result.relative_error:.1e}",
        ]
        for result in results
    ]
    print(_text.table(head, rows), flush=True)
