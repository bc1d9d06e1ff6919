"""``federated``: trainings on Flower side by side: bytes up, CPU of a client, accuracy.

Fashion-MNIST, of which each client has other classes (Dirichlet 0.5), a net of two layers, FedAvg
by examples, a pass a round. Ways: plain, a codec of ``tersor.federated.flower.compress``,
``secure`` (secure sums of the same module), ``secagg+`` (Flower's own). Clients are Flower's
processes on the loopback, or with ``--in-process`` take turns in this one: the same code, but for
the transport.
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

from tersor import _text
from tersor.bench import data, federated_app
from tersor.bench.errors import BenchmarkError, stateless_codec
from tersor.bench.federated_link import Link
from tersor.bench.federated_nodes import Nodes
from tersor.bench.records import Record, RecordFile, add_option

WAYS = [federated_app.PLAIN, "int8", "int4+ef", federated_app.THEIRS, federated_app.OURS]
Config = dict[str, Any]
Run = Callable[[Config], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--ways", nargs="+", default=WAYS, help=f"({' '.join(WAYS)})")
    parser.add_argument("--clients", type=int, default=4, help="(4)")
    parser.add_argument("--rounds", type=int, default=30, help="(30)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each way (3)")
    parser.add_argument("--clip", type=float, default=0.25, help="of secure sums (0.25)")
    parser.add_argument("--in-process", action="store_true", help="no processes of Flower")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds of a run (3600)")
    parser.add_argument(
        "--data", type=pathlib.Path, default=data.FASHION_MNIST_FOLDER, metavar="FOLDER"
    )
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Trains in each way. Returns the exit status."""
    if min(chosen.clients - 1, chosen.rounds, chosen.seeds) < 1:
        raise BenchmarkError("federated: give at least 2 clients, 1 round and 1 seed")
    if len(set(chosen.ways)) != len(chosen.ways) or not chosen.clip > 0:
        raise BenchmarkError("--ways: give each once; --clip: a number above 0")
    if federated_app.THEIRS in chosen.ways and chosen.clients < 3:
        raise BenchmarkError("secagg+ needs 3 clients: give more, or other --ways")
    for way in chosen.ways:
        if way not in WAYS:
            stateless_codec(way.removesuffix("+ef"))
    data.load_images(chosen.data, "train")
    records, found = RecordFile(chosen.json), []
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, _runs(chosen, pathlib.Path(folder)) as train:
        for way in chosen.ways:
            found.append(_measure(way, train, chosen, pathlib.Path(folder)))
            records.add(found[-1])
    plain = next((one["wire_bytes"] for one in found if one["way"] == WAYS[0]), None)
    head = ["way", "up, a round", "of plain", "CPU beside training", "accuracy", "sigma"]
    print(_text.table(head, [_row(record, plain) for record in found]))
    return 0


def _row(record: Record, plain: Any) -> list[str]:
    size = float(str(record["wire_bytes"]))
    return [
        str(record["way"]),
        _text.byte_count(size),
        f"{size / plain:.3f}" if plain else "—",
        _text.seconds(float(str(record["cpu_seconds"]))),
        f"{record['accuracy']:.2%}",
        f"{record['deviation']:.2%}",
    ]


@contextlib.contextmanager
def _runs(chosen: argparse.Namespace, folder: pathlib.Path) -> Iterator[Run]:
    """What runs the app with a configuration."""
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
        train(
            {
                **{name: getattr(chosen, name) for name in ("clients", "rounds", "clip")},
                "way": way,
                "seed": seed,
                "data": str(chosen.data),
                "results": str(results),
            }
        )
        accuracies.append(json.loads((results / "server.json").read_text())[-1])
        for path in results.glob("client-*.jsonl"):
            messages += [json.loads(line) for line in path.read_text().splitlines()]
    parts = chosen.clients * chosen.rounds * chosen.seeds
    errors = [one["error"] for one in messages if "error" in one]
    trained = sum(one["training"] > 0 for one in messages) - len(errors)
    if errors or trained != parts:
        reason = f": {errors[0]}" if errors else ""
        raise BenchmarkError(f"{way}: clients answered {trained} rounds, not {parts}{reason}")
    training = sum(one["training"] for one in messages) / parts
    return {
        "benchmark": "federated",
        "way": way,
        "flower": flwr.__version__,
        "in_process": chosen.in_process,
        "clients": chosen.clients,
        "rounds": chosen.rounds,
        "seeds": chosen.seeds,
        "count": sum(one.size for one in federated_app.initial(0)),
        "wire_bytes": sum(one["bytes"] for one in messages) / parts,
        "cpu_seconds": sum(one["seconds"] for one in messages) / parts - training,
        "training_cpu_seconds": training,
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
    }
