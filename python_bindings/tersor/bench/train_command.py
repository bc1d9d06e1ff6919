"""``train``: accuracy, bytes and time of a training, for each hook, learning rate and seed.

All hooks of a seed start with the same weights, and see the same batches in the same order.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

import tersor
from tersor.bench import hooks, split_hooks
from tersor.bench.errors import fail_if
from tersor.bench.measures import parameter_count
from tersor.bench.models import GPT_SIZES
from tersor.bench.records import (
    Record,
    RecordFile,
    add,
    columns,
    positive,
    positive_number,
    read_records,
    table,
)
from tersor.bench.tasks import TASKS, TaskOptions, TextTask
from tersor.bench.training import Pace, Training
from tersor.bench.world import World, add_world, run_on_ranks

DEFAULT_HOOKS = ["none", "torch:bf16", "torch:fp16", "torch:powersgd", "bf16", "int8", "int4+ef"]
COLUMNS = columns(
    "hook=codec, rate=learning_rate:g, accuracy=accuracy:.2%, loss=loss:.4f, "
    "test loss=test_loss:.4f, =mark, sent a step=wire_bytes:B, interface=interface_bytes:B, "
    "step=step_seconds:s, exposed=exposed_seconds:s, training=seconds:s"
)
# The fields that are different in each training of a command.
TRAINING: tuple[str, ...] = ("model", "size", "data_sha256", "codec", "seed", "ranks", "device")
TRAINING += ("transport", "link", "torch", "tersor", "epochs", "steps", "batch", "learning_rate")
TRAINING += ("extra_seconds", "slow", "uneven")

LINE = (
    "  epoch {epoch}  accuracy {accuracy:.2%}  loss {loss:.4f}  test loss {test_loss:.4f}  "
    "step {step_seconds:.3g} s  {seconds:.3g} s of training"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "model", "cnn", "model and task", choices=sorted(TASKS))
    hooks.add_hooks(parser, DEFAULT_HOOKS, split_hooks.HELP)
    add_world(parser)
    text = "parameters of a GPT; default: 86m on GPUs, otherwise 0.8m"
    add(parser, "size", None, text, choices=list(GPT_SIZES))
    text = "folder of IDX files, or a text file (see `corpus`); default: Debian's packages"
    add(parser, "data", None, text, pathlib.Path)
    add(parser, "epochs", None, "number of epochs; default: the task's", positive)
    add(parser, "steps", None, "steps of an epoch; default: the task's", positive)
    add(parser, "batch", None, "samples of a rank in a step; default: the task's", positive)
    text = "factors of the model's learning rate; the summary marks each hook's best"
    add(parser, "rate", [1.0], text, metavar="FACTOR")
    text = "additional seconds of each step, for the backward pass of a larger model"
    add(parser, "step-seconds", None, text, positive_number)
    text = "in each step one rank, drawn from the seed, waits this many times as long"
    add(parser, "slow", 1.0, text, metavar="FACTOR")
    text = "each rank has images of its own, with classes from Dirichlet's distribution: the "
    text += "smaller ALPHA, the more unlike the others'"
    add(parser, "uneven", None, text, positive_number, metavar="ALPHA")
    add(parser, "seed", [1], "seeds of the trainings", int)
    text = "leave out the trainings that are complete in the file of --json"
    parser.add_argument("--resume", action="store_true", help=text)


def run(chosen: argparse.Namespace) -> int:
    """Trains on all ranks. Returns the exit status."""
    task = TASKS[chosen.model]
    text = "--slow needs --step-seconds, which a slow rank multiplies"
    fail_if(chosen.slow != 1.0 and chosen.step_seconds is None, text)
    fail_if(chosen.size and not issubclass(task, TextTask), "--size is for GPTs")
    fail_if(chosen.resume and chosen.json is None, "--resume needs --json FILE")
    chosen.hooks = chosen.hooks or (split_hooks.DEFAULT if task.splits else DEFAULT_HOOKS)
    for name in chosen.hooks:
        (split_hooks if task.splits else hooks).check(name)
    return run_on_ranks(_train_all, chosen)


def _train_all(chosen: argparse.Namespace, world: World) -> None:
    options = TaskOptions(
        *(chosen.data, chosen.batch, chosen.epochs, chosen.steps),
        *(world.device, world.ranks, world.ranks_here),
        uneven=chosen.uneven,
        size=chosen.size,
    )
    tasks = [TASKS[chosen.model](dataclasses.replace(options, rate=rate)) for rate in chosen.rate]
    earlier = read_records(chosen.json) if chosen.resume and world.is_main else []
    records = RecordFile(chosen.json if world.is_main else None, earlier)
    pace = None if chosen.step_seconds is None else Pace(chosen.step_seconds, chosen.slow)
    Training(tasks[0], "none", 0, world).warm_up()
    cases = list(itertools.product(chosen.hooks, tasks))
    final: list[list[Record]] = [[] for _ in cases]
    for seed in chosen.seed:
        for runs, (name, task) in zip(final, cases, strict=True):
            training = Training(task, name, seed, world, pace)
            runs.append(_train_once(training, records, chosen, earlier))
    if world.is_main:
        _print_summary(final)


def _training_of(record: Record) -> Record:
    return {field: record.get(field) for field in TRAINING}


def _train_once(
    training: Training, records: RecordFile, chosen: argparse.Namespace, earlier: Sequence[Record]
) -> Record:
    """One run, unless rank 0 has the record of its last epoch. Returns this record."""
    world, setting = training.world, _setting(training, chosen)
    same = [one for one in earlier if _training_of(one) == _training_of(setting)]
    found: list[Any] = [next((one for one in same if one["epoch"] == one["epochs"]), None)]
    dist.broadcast_object_list(found)
    record: Record = found[0] or {}
    if world.is_main:
        head = f"{training.name}, seed {training.seed}, {world.ranks} ranks"
        state = ", complete" if record else ""
        print(f"{head}, {setting['parameters']:,} parameters{state}", flush=True)
    if not record:
        records.remove(lambda one: any(one is other for other in same))
    for epoch in () if found[0] else training.epochs():
        record = {**setting, **epoch}
        if world.is_main:
            records.add(record)
            print(LINE.format(**epoch), flush=True)
    training.hook.close()
    return record


def _setting(training: Training, chosen: argparse.Namespace) -> Record:
    """The fields that are equal in all epochs."""
    recipe = training.task.recipe
    method, options = hooks.method_of(training.name)
    others = ["torchft"] if method == "torchft" else []
    return {
        "benchmark": "train",
        "model": training.task.name,
        "codec": training.name,
        "method": method,
        "options": options,
        "seed": training.seed,
        **training.world.fields(chosen.link),
        "tersor": tersor.__version__,
        **{name: importlib.metadata.version(name) for name in others},
        "parameters": parameter_count(training.hook.model),
        **training.task.fields,
        "epochs": recipe.epochs,
        "steps": recipe.steps,  # of an epoch
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
        "wire_bytes_are": training.hook.bytes_are,
        **({} if training.pace is None else dataclasses.asdict(training.pace)),
        **({} if chosen.uneven is None else {"uneven": chosen.uneven}),
    }


def _print_summary(final: Sequence[Sequence[Record]]) -> None:
    """A row per hook and rate: means over the seeds, of the last epoch."""
    rows = [_mean(runs) for runs in final]
    for row in rows:
        rivals = [one["test_loss"] for one in rows if one["codec"] == row["codec"]]
        row["mark"] = "*" if row["test_loss"] == min(rivals) else " "
    print(f"\n{table(COLUMNS, rows)}", flush=True)
    print(
        "\nsent: by one rank; computed for PyTorch's ways, counted for others. interface: "
        "counted by the kernel, with headers and other traffic. *: the best rate of the hook"
    )


def _mean(runs: Sequence[Mapping[str, Any]]) -> Record:
    fields = [field for field, _ in COLUMNS.values() if field in runs[0] and field != "codec"]
    known = {field: [run[field] for run in runs] for field in fields}
    means = {k: None if None in found else statistics.fmean(found) for k, found in known.items()}
    return {**means, "codec": runs[0]["codec"]}
