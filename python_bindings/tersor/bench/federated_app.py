"""The app of ``bench federated``: a net of two layers on Fashion-MNIST, with different classes on
each client. Flower's own processes, or this process, load ``client`` and ``server``.

For each message, a client writes its costs to a line of ``RESULTS/client-N.jsonl``.
"""

import functools
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import flwr.client
import flwr.server
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import tersor.federated.flower
from tersor.bench import data

PLAIN, THEIRS, OURS = "plain", "secagg+", "secure"  # the ways without a codec name
SIZES = (784, 128, 10)
BATCH, RATE = 50, 0.1
UNEVEN = 0.5  # Dirichlet's concentration of classes

Config = Mapping[str, Any]
Weights = list[np.ndarray]


def initial(seed: int) -> Weights:
    """Weights and biases of each layer (He et al. 2015)."""
    draw, weights = np.random.default_rng(seed), []
    for inputs, outputs in itertools.pairwise(SIZES):
        deviation = np.float32(np.sqrt(2 / inputs))
        weights.append(deviation * draw.standard_normal((inputs, outputs), np.float32))
        weights.append(np.zeros(outputs, np.float32))
    return weights


def train(weights: Weights, config: Config, partition: int, draw: np.random.Generator) -> int:
    """One pass of SGD over a client's images, in place. Returns the number of images."""
    pixels, labels = _part(config["data"], config["clients"], partition)
    rate = np.float32(RATE)
    for batch in np.array_split(draw.permutation(len(labels)), -(-len(labels) // BATCH)):
        hidden, errors = _forward(weights, pixels[batch])
        errors[np.arange(len(batch)), labels[batch]] -= 1
        errors /= len(batch)
        back = (errors @ weights[2].T) * (hidden > 0)
        weights[2] -= rate * (hidden.T @ errors)
        weights[3] -= rate * errors.sum(0)
        weights[0] -= rate * (pixels[batch].T @ back)
        weights[1] -= rate * back.sum(0)
    return len(labels)


def accuracy(weights: Weights, folder: str) -> float:
    """The accuracy on the test images."""
    pixels, labels = _images(folder, "t10k")
    return float((_forward(weights, pixels)[1].argmax(1) == labels).mean())


def _forward(weights: Weights, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer after ReLU, and the probability of each class."""
    hidden = np.maximum(pixels @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, powers / powers.sum(1, keepdims=True)


@functools.lru_cache(maxsize=2)
def _images(folder: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = data.load_images(pathlib.Path(folder), part)
    pixels = images.pixels.reshape(len(images.labels), -1).astype(np.float32) / 255 - 0.5
    return 2 * pixels, images.labels.astype(np.int64)


@functools.lru_cache(maxsize=64)
def _part(folder: str, clients: int, partition: int) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = _images(folder, "train")
    own = data.uneven_parts(labels, clients, UNEVEN)[partition]
    return pixels[own], labels[own]


def _max_examples(config: Config) -> int:
    """The largest number of examples of a client, for the weights of secure sums."""
    _, labels = _images(config["data"], "train")
    return max(len(part) for part in data.uneven_parts(labels, config["clients"], UNEVEN))


_training = 0.0  # CPU seconds of this process in `train`


def _train(weights: Weights, context: Context, round_: int) -> int:
    global _training
    start = time.process_time()
    config, partition = context.run_config, int(context.node_config["partition-id"])
    draw = np.random.default_rng([int(config["seed"]), round_, partition])
    examples = train(weights, config, partition, draw)
    _training += time.process_time() - start
    return examples


def _clock(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """The outermost mod: measures the answer's bytes, and CPU seconds of all and of training."""
    start, before = time.process_time(), _training
    line: dict[str, Any] = {}
    try:
        reply = call_next(message, context)
        line["bytes"] = sum(record.count_bytes() for record in reply.content.values())
        return reply
    except Exception as error:
        line["error"] = str(error)
        raise
    finally:
        line["seconds"] = time.process_time() - start
        line["training"] = _training - before
        name = f"client-{context.node_config['partition-id']}.jsonl"
        with pathlib.Path(context.run_config["results"], name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _coded(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Applies the run's way: Flower's SecAgg+, frames, or nothing."""
    way = str(context.run_config["way"])
    if way == THEIRS:
        return _legacy(message, context)
    if way == PLAIN:
        return call_next(message, context)
    return tersor.federated.flower.compress(way)(message, context, call_next)


class _Legacy(flwr.client.NumPyClient):
    """For Flower's SecAgg+, which needs Flower's old interface."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def fit(self, parameters: Weights, config: Config) -> tuple[Weights, int, dict[str, float]]:
        weights = [one.astype(np.float32) for one in parameters]  # Flower sends f64
        return weights, _train(weights, self._context, int(config["round"])), {}


_legacy = ClientApp(lambda context: _Legacy(context).to_client(), mods=[secaggplus_mod])
client = ClientApp(mods=[_clock])


@tersor.federated.flower.secure(client)
@client.train(mods=[_coded])
def _reply(message: Message, context: Context) -> Message:
    record = message.content["arrays"]
    weights = [one.numpy().copy() for one in record.values()]
    examples = _train(weights, context, int(message.content["config"]["server-round"]))
    arrays = ArrayRecord({k: Array(one) for k, one in zip(record, weights, strict=True)})
    metrics = MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def serve(grid: Grid, context: Context) -> list[float]:
    """Trains. Returns the test accuracy after each round."""
    config = context.run_config
    run = _serve_legacy if config["way"] == THEIRS else _serve
    found: list[float] = []
    run(grid, context, lambda weights: found.append(accuracy(weights, config["data"])))
    path = pathlib.Path(config["results"], "server.json")
    path.write_text(json.dumps(found[1:]), encoding="utf-8")  # the first is of the initial weights
    return found[1:]


def _serve(grid: Grid, context: Context, evaluate: Callable[[Weights], None]) -> None:
    config = context.run_config
    clients = int(config["clients"])
    strategy: Strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
    )
    if config["way"] == OURS:
        strategy = tersor.federated.flower.SecureStrategy(
            strategy, clip=float(config["clip"]), max_examples=_max_examples(config)
        )
    elif config["way"] != PLAIN:
        strategy = tersor.federated.flower.Strategy(strategy, str(config["way"]))
    names = [f"{i // 2}.{'bias' if i % 2 else 'weight'}" for i in range(4)]
    start = zip(names, initial(int(config["seed"])), strict=True)
    strategy.start(
        grid,
        ArrayRecord({name: Array(one) for name, one in start}),
        num_rounds=int(config["rounds"]),
        evaluate_fn=lambda _, arrays: evaluate([one.numpy() for one in arrays.values()]),
    )


def _serve_legacy(grid: Grid, context: Context, evaluate: Callable[[Weights], None]) -> None:
    config = context.run_config
    clients = int(config["clients"])
    strategy = flwr.server.strategy.FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(initial(int(config["seed"]))),
        on_fit_config_fn=lambda round_: {"round": round_},
        evaluate_fn=lambda _, weights, __: evaluate(weights),
    )
    legacy = flwr.server.LegacyContext(
        context, flwr.server.ServerConfig(int(config["rounds"])), strategy
    )
    shares = min(clients, 9)  # 8 neighbours, as ours
    secagg = SecAggPlusWorkflow(shares, shares // 2 + 1, max_weight=_max_examples(config))
    DefaultWorkflow(secagg)(grid, legacy)


server = ServerApp()


@server.main()
def _main(grid: Grid, context: Context) -> None:
    serve(grid, context)
