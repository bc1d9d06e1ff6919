"""``train``: accuracy against bytes and time, once for each hook and seed.

All hooks of a seed begin with the same weights and see the same batches in the same order.
"""

import argparse
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tersor import _text
from tersor.bench import hooks, launch, options, split_hooks
from tersor.bench.records import Record, RecordFile
from tersor.bench.tasks import TASKS, TaskOptions
from tersor.bench.training import Epoch, Training
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
        default=1.0,
        metavar="FACTOR",
        help="times the model's learning rate (1)",
    )
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    options.add_records(parser)


def run(chosen: argparse.Namespace) -> int:
    """Trains on all ranks. Returns the exit status."""
    task = TASKS[chosen.model]
    chosen.hooks = chosen.hooks or (split_hooks.DEFAULT if task.splits else DEFAULT_HOOKS)
    for name in chosen.hooks:
        (split_hooks if task.splits else hooks).check(name)
    return launch.run_on_ranks(_train_all, chosen)


def _train_all(chosen: argparse.Namespace, world: World) -> None:
    sizes = (chosen.batch, chosen.epochs, chosen.steps)
    told = TaskOptions(chosen.data, *sizes, world.device, world.ranks, chosen.rate)
    task = TASKS[chosen.model](told)
    records = RecordFile(chosen.json if world.leads else None)
    Training(task, "none", 0, world).warm_up()
    last: dict[str, list[Record]] = {name: [] for name in chosen.hooks}
    for seed in chosen.seed:
        for name in last:
            last[name].append(_train_once(Training(task, name, seed, world), records, chosen.link))
    if world.leads:
        _print_summary(last)


def _train_once(training: Training, records: RecordFile, link: str) -> Record:
    """One run; returns the record of its last epoch."""
    world, setting = training.world, _setting(training, link)
    if world.leads:
        head = f"{training.name}, seed {training.seed}, {world.ranks} ranks"
        print(f"{head}, {setting['parameters']:,} parameters", flush=True)
    record: Record = {}
    for epoch in training.epochs():
        compute_seconds = epoch.step_seconds - epoch.exposed_seconds
        record = {**setting, **hooks.fields_of(epoch), "compute_seconds": compute_seconds}
        if world.leads:
            records.add(record)
            _print_epoch(epoch)
    training.hook.close()
    return record


def _setting(training: Training, link: str) -> Record:
    """What does not change from epoch to epoch."""
    recipe = training.task.recipe
    return {
        "benchmark": "train",
        "model": training.task.name,
        "codec": training.name,
        "seed": training.seed,
        **training.world.described(link),
        "parameters": hooks.parameter_count(training.hook.model),
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
        "wire_bytes_are": training.hook.bytes_are,
    }


def _print_epoch(epoch: Epoch) -> None:
    print(
        f"  epoch {epoch.epoch}  accuracy {100 * epoch.accuracy:.2f} %  loss {epoch.loss:.4f}  "
        f"step {_text.seconds(epoch.step_seconds)}  {_text.seconds(epoch.seconds)} of training",
        flush=True,
    )


def _print_summary(last: dict[str, list[Record]]) -> None:
    head = ["hook", "accuracy", "loss", "sent a step", "interface", "step", "exposed", "training"]
    print()
    print(_text.table(head, [_summary_row(name, runs) for name, runs in last.items()]), flush=True)
    print(
        "\nsent: by one rank; computed for PyTorch's ways, counted for ours. interface: counted "
        "by the kernel, with headers and whatever else went there"
    )


def _summary_row(name: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Means over the seeds, of the last epoch."""

    def mean(field: str) -> float:
        return statistics.fmean(run[field] for run in runs)

    return [
        name,
        f"{100 * mean('accuracy'):.2f} %",
        f"{mean('loss'):.4f}",
        _text.byte_count(mean("wire_bytes")),
        _text.byte_count(mean("interface_bytes")),
        _text.seconds(mean("step_seconds")),
        _text.seconds(mean("exposed_seconds")),
        _text.seconds(mean("seconds")),
    ]
