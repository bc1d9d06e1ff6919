"""``train``: accuracy against bytes and time, once for each hook and seed.

All hooks of a seed begin with the same weights and see the same batches in the same order.
"""

import argparse
import pathlib
import typing

import torch

from tersor import _text
from tersor.bench import hooks, launch, options, split_hooks
from tersor.bench.records import Record, RecordFile
from tersor.bench.tasks import TASKS, Task, TaskOptions
from tersor.bench.training import Epoch, Training
from tersor.bench.world import World

DEFAULT_HOOKS = ["none", "torch:bf16", "torch:fp16", "torch:powersgd", "bf16", "int8", "int4+ef"]


def add_to(commands: typing.Any) -> None:
    """Adds the command to the parsers that `add_subparsers` made."""
    parser = commands.add_parser("train", help=__doc__.splitlines()[0], description=__doc__)
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
    options.add_link(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    task = TASKS[chosen.model]
    chosen.hooks = chosen.hooks or (split_hooks.DEFAULT if task.splits else DEFAULT_HOOKS)
    for name in chosen.hooks:
        (split_hooks if task.splits else hooks).check(name)
    return launch.run_on_ranks(_train_all, chosen)


def _train_all(chosen: argparse.Namespace, world: World) -> None:
    task = TASKS[chosen.model](_task_options(chosen, world))
    records = RecordFile(chosen.json if world.leads else None)
    Training(task, "none", 0, world).warm_up()
    last: dict[str, list[Record]] = {name: [] for name in chosen.hooks}
    for seed in chosen.seed:
        for name in last:
            last[name].append(_train_once(chosen, world, task, (name, seed), records))
    if world.leads:
        _print_summary(last)


def _task_options(chosen: argparse.Namespace, world: World) -> TaskOptions:
    return TaskOptions(
        chosen.data,
        chosen.batch,
        chosen.epochs,
        chosen.steps,
        world.device,
        world.ranks,
        chosen.rate,
    )


def _train_once(
    chosen: argparse.Namespace,
    world: World,
    task: Task,
    run_of: tuple[str, int],
    records: RecordFile,
) -> Record:
    """One run; returns the record of its last epoch."""
    name, seed = run_of
    training = Training(task, name, seed, world)
    if world.leads:
        count = hooks.parameter_count(training.hook.model)
        print(f"{name}, seed {seed}, {world.ranks} ranks, {count:,} parameters", flush=True)
    record: Record = {}
    for epoch in training.epochs():
        record = _record(chosen, world, task, run_of, training.hook) | hooks.fields_of(epoch)
        record["compute_seconds"] = epoch.step_seconds - epoch.exposed_seconds
        if world.leads:
            records.add(record)
            _print_epoch(epoch)
    training.hook.close()
    return record


def _record(
    chosen: argparse.Namespace, world: World, task: Task, run_of: tuple[str, int], hook: hooks.Hook
) -> Record:
    """What does not change from epoch to epoch."""
    return {
        "benchmark": "train",
        "model": task.name,
        "codec": run_of[0],
        "seed": run_of[1],
        "transport": world.backend,
        "ranks": world.ranks,
        "link": chosen.link,
        "device": world.device_name,
        "torch": torch.__version__,
        "parameters": hooks.parameter_count(hook.model),
        "epochs": task.recipe.epochs,
        "batch": task.recipe.batch,
        "learning_rate": task.recipe.learning_rate,
        "wire_bytes_are": hook.bytes_are,
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


def _summary_row(name: str, runs: list[Record]) -> list[str]:
    """Means over the seeds, of the last epoch."""

    def mean(field: str) -> float:
        return sum(float(typing.cast(float, run[field])) for run in runs) / len(runs)

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
