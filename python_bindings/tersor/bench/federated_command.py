"""``federated``: trainings on Flower side by side: bytes sent, CPU time of a client, accuracy.

The task is Fashion-MNIST with different classes on each client (Dirichlet 0.5), a net of two
layers, and FedAvg by examples with one pass per round. Ways: ``plain``, a codec of
``tersor.federated.flower.compress``, ``secure`` (secure sums of the same module), and ``secagg+``
(Flower's own). Clients are Flower's processes on the loopback. With ``--in-process``, clients take
turns in this process: the same code without the transport.
"""

import argparse
import contextlib
import json
import logging
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import flwr
from flwr.app import Context, RecordDict

from tersor.bench import data, federated_app
from tersor.bench.errors import fail_if, stateless_codec
from tersor.bench.federated_link import Link
from tersor.bench.federated_nodes import Nodes
from tersor.bench.records import Record, add, columns, pick, save, table

WAYS = [federated_app.PLAIN, "int8", "int4+ef", federated_app.THEIRS, federated_app.OURS]
COLUMNS = columns(
    "way=way, sent a round=wire_bytes:B, of plain=of_plain:x, CPU without training=cpu_seconds:s, "
    "accuracy=accuracy:.2%, sigma=deviation:.2%"
)
Config = dict[str, Any]
Run = Callable[[Config], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "ways", WAYS, "ways to send updates")
    add(parser, "clients", 4, "number of clients")
    add(parser, "rounds", 30, "rounds of a training")
    add(parser, "seeds", 3, "trainings of each way")
    add(parser, "clip", 0.25, "clip of secure sums", float)
    text = "run the clients in this process instead of Flower's processes"
    parser.add_argument("--in-process", action="store_true", help=text)
    add(parser, "timeout", 3600.0, "seconds of a run", float)
    folder = data.FASHION_MNIST_FOLDER
    add(parser, "data", folder, "folder of the images", pathlib.Path, metavar="FOLDER")


def run(chosen: argparse.Namespace) -> None:
    fail_if(chosen.clients < 2, "federated: give at least 2 clients, 1 round and 1 seed")
    is_wrong = len(set(chosen.ways)) != len(chosen.ways) or not chosen.clip > 0
    fail_if(is_wrong, "--ways: give each once; --clip: a number above 0")
    is_wrong = federated_app.THEIRS in chosen.ways and chosen.clients < 3
    fail_if(is_wrong, "secagg+ needs 3 clients: give more, or other --ways")
    for way in chosen.ways:
        if way not in WAYS:
            stateless_codec(way.removesuffix("+ef"))
    data.load_images(chosen.data, "train")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name, _runs(chosen, pathlib.Path(name)) as train:
        measured = (_measure(way, train, chosen, pathlib.Path(name)) for way in chosen.ways)
        found = save(chosen, measured)
    plain = next((one["wire_bytes"] for one in found if one["way"] == WAYS[0]), None)
    for one in found:
        one["of_plain"] = plain and one["wire_bytes"] / plain
    print(table(COLUMNS, found))


@contextlib.contextmanager
def _runs(chosen: argparse.Namespace, folder: pathlib.Path) -> Iterator[Run]:
    """A function that runs the app with a configuration."""
    if chosen.in_process:
        yield _run_here
        return
    with contextlib.closing(Link(folder, chosen.clients)) as link:
        link.open()
        yield lambda config: link.run(config, chosen.timeout)


def _run_here(config: Config) -> None:
    nodes = Nodes(federated_app.client, range(1, 1 + config["clients"]), config)
    federated_app.serve(nodes, Context(1, 0, {}, RecordDict(), config))


def _measure(way: str, train: Run, chosen: argparse.Namespace, folder: pathlib.Path) -> Record:
    accuracies, messages = [], []
    for seed in range(1, 1 + chosen.seeds):
        results = folder / f"{way}-{seed}"
        results.mkdir()
        own = {"way": way, "seed": seed, "data": str(chosen.data), "results": str(results)}
        train({**pick(chosen, "clients rounds clip"), **own})
        accuracies.append(json.loads((results / "server.json").read_text())[-1])
        for path in results.glob("client-*.jsonl"):
            messages += [json.loads(line) for line in path.read_text().splitlines()]
    parts = chosen.clients * chosen.rounds * chosen.seeds
    errors = [f": {one['error']}" for one in messages if "error" in one]
    trained = sum(one["training"] > 0 for one in messages) - len(errors)
    text = f"{way}: clients answered {trained} rounds, not {parts}" + "".join(errors[:1])
    fail_if(errors or trained != parts, text)
    training = sum(one["training"] for one in messages) / parts
    return {
        "benchmark": "federated",
        "way": way,
        "flower": flwr.__version__,
        **pick(chosen, "in_process clients rounds seeds"),
        "count": sum(one.size for one in federated_app.initial(0)),
        "wire_bytes": sum(one["bytes"] for one in messages) / parts,
        "cpu_seconds": sum(one["seconds"] for one in messages) / parts - training,
        "training_cpu_seconds": training,
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
    }
