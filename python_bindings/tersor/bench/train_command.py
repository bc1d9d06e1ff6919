"""``train``: accuracy against bytes and time, once for each hook, learning rate and seed.

All hooks of a seed begin with the same weights and see the same batches in the same order.
"""

import argparse
import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tersor import _text
from tersor.bench import hooks, launch, loose_hooks, options, split_hooks
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile
from tersor.bench.tasks import TASKS, TaskOptions
from tersor.bench.traffic import fields_of, parameter_count
from tersor.bench.training import Epoch, Pace, Training
from tersor.bench.world import World

DEFAULT_HOOKS = ["none", "torch:bf16", "torch:fp16", "torch:powersgd", "bf16", "int8", "int4+ef"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--model", choices=sorted(TASKS), default="cnn")
    options.add_hooks(parser, DEFAULT_HOOKS)
    options.add_world(parser)
    parser.add_argument(
        "--data", type=pathlib.Path, help="folder of IDX files, or a text; default: Debian's"
    )
    parser.add_argument("--epochs", type=options.positive)
    parser.add_argument("--steps", type=options.positive, help="an epoch")
    parser.add_argument("--batch", type=options.positive, help="what a rank sees in a step")
    parser.add_argument(
        "--rate",
        type=options.positive_number,
        nargs="+",
        default=[1.0],
        metavar="FACTOR",
        help="times the model's learning rate (1); of several, the summary marks each hook's best",
    )
    parser.add_argument(
        "--step-seconds",
        type=options.positive_number,
        help="that each step waits, for a larger model's backward pass",
    )
    parser.add_argument(
        "--slow",
        type=options.positive_number,
        default=1.0,
        metavar="FACTOR",
        help="in each step one rank, drawn from the seed, waits so many times as long (1)",
    )
    parser.add_argument(
        "--uneven",
        type=options.positive_number,
        metavar="ALPHA",
        help="of images, each rank has its own, whose classes are drawn from Dirichlet's "
        "distribution: the more unlike the others' the smaller ALPHA",
    )
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    options.add_records(parser)


def run(chosen: argparse.Namespace) -> int:
    """Trains on all ranks. Returns the exit status."""
    task = TASKS[chosen.model]
    if chosen.slow != 1.0 and chosen.step_seconds is None:
        raise BenchmarkError("--slow needs --step-seconds, of which a slow rank waits more")
    chosen.hooks = chosen.hooks or (split_hooks.DEFAULT if task.splits else DEFAULT_HOOKS)
    for name in chosen.hooks:
        whole = loose_hooks if loose_hooks.has(name) else hooks
        (split_hooks if task.splits else whole).check(name)
    return launch.run_on_ranks(_train_all, chosen)


def _train_all(chosen: argparse.Namespace, world: World) -> None:
    sizes = (chosen.batch, chosen.epochs, chosen.steps)
    told = TaskOptions(chosen.data, *sizes, world.device, world.ranks, uneven=chosen.uneven)
    tasks = [TASKS[chosen.model](dataclasses.replace(told, rate=rate)) for rate in chosen.rate]
    records = RecordFile(chosen.json if world.leads else None)
    Training(tasks[0], "none", 0, world).warm_up()
    ways = list(itertools.product(chosen.hooks, tasks))
    last: list[list[Record]] = [[] for _ in ways]
    for seed in chosen.seed:
        for runs, (name, task) in zip(last, ways, strict=True):
            training = Training(task, name, seed, world, _pace(chosen))
            runs.append(_train_once(training, records, chosen))
    if world.leads:
        _print_summary(last)


def _pace(chosen: argparse.Namespace) -> Pace | None:
    return None if chosen.step_seconds is None else Pace(chosen.step_seconds, chosen.slow)


def _train_once(training: Training, records: RecordFile, chosen: argparse.Namespace) -> Record:
    """One run; returns the record of its last epoch."""
    world, setting = training.world, _setting(training, chosen)
    if world.leads:
        head = f"{training.name}, seed {training.seed}, {world.ranks} ranks"
        print(f"{head}, {setting['parameters']:,} parameters", flush=True)
    record: Record = {}
    for epoch in training.epochs():
        compute_seconds = epoch.step_seconds - epoch.exposed_seconds
        record = {**setting, **fields_of(epoch), "compute_seconds": compute_seconds}
        if world.leads:
            records.add(record)
            _print_epoch(epoch)
    training.hook.close()
    return record


def _setting(training: Training, chosen: argparse.Namespace) -> Record:
    """What does not change from epoch to epoch."""
    recipe = training.task.recipe
    return {
        "benchmark": "train",
        "model": training.task.name,
        "codec": training.name,
        "seed": training.seed,
        **training.world.described(chosen.link),
        "parameters": parameter_count(training.hook.model),
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
        "wire_bytes_are": training.hook.bytes_are,
        **({} if training.pace is None else dataclasses.asdict(training.pace)),
        **({} if chosen.uneven is None else {"uneven": chosen.uneven}),
    }


def _print_epoch(epoch: Epoch) -> None:
    print(
        f"  epoch {epoch.epoch}  accuracy {100 * epoch.accuracy:.2f} %  loss {epoch.loss:.4f}  "
        f"tested {epoch.test_loss:.4f}  step {_text.seconds(epoch.step_seconds)}  "
        f"{_text.seconds(epoch.seconds)} of training",
        flush=True,
    )


def _print_summary(last: Sequence[Sequence[Record]]) -> None:
    head = ["hook", "rate", "accuracy", "loss", "test loss", "sent a step", "interface", "step"]
    best: dict[Any, float] = {}
    for runs in last:
        name, loss = runs[0]["codec"], _mean(runs, "test_loss")
        best[name] = min(loss, best.get(name, loss))
    rows = [_summary_row(runs, best[runs[0]["codec"]]) for runs in last]
    print()
    print(_text.table([*head, "exposed", "training"], rows), flush=True)
    print(
        "\nsent: by one rank; computed for PyTorch's ways, counted for ours. interface: counted "
        "by the kernel, with headers and whatever else went there. *: the best of the hook's rates"
    )


def _summary_row(runs: Sequence[Mapping[str, Any]], best_loss: float) -> list[str]:
    """Means over the seeds, of the last epoch."""
    test_loss = _mean(runs, "test_loss")
    return [
        runs[0]["codec"],
        f"{runs[0]['learning_rate']:g}",
        f"{100 * _mean(runs, 'accuracy'):.2f} %",
        f"{_mean(runs, 'loss'):.4f}",
        f"{test_loss:.4f}{' *' if test_loss == best_loss else ''}",
        _text.byte_count(_mean(runs, "wire_bytes")),
        _text.byte_count(_mean(runs, "interface_bytes")),
        _text.seconds(_mean(runs, "step_seconds")),
        _text.seconds(_mean(runs, "exposed_seconds")),
        _text.seconds(_mean(runs, "seconds")),
    ]


def _mean(runs: Sequence[Mapping[str, Any]], field: str) -> float:
    return statistics.fmean(run[field] for run in runs)
