"""Nodes of Flower in this process, for tests. Each node is a client app with a separate state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from tersor.bench import federated_nodes

federated_nodes.name_this_process()

SHAPES = {"layer.weight": (64, 96), "layer.bias": (96,), "other.bias": (96,), "norm": (1,)}
NODES = (11, 7, 23, 5)


def model(seed: int = 0, dtype: Any = np.float32) -> ArrayRecord:
    draw = np.random.default_rng(seed)
    arrays = {name: Array(draw.standard_normal(s).astype(dtype)) for name, s in SHAPES.items()}
    return ArrayRecord({**arrays, "seen": Array(np.array(3, np.int64))})


def update_of(node: int, round_: int) -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng([node, round_])
    return {name: 0.01 * draw.standard_normal(s, np.float32) for name, s in SHAPES.items()}


def adds(arrays: dict[str, Any], node: int, round_: int) -> dict[str, Any]:
    update = update_of(node, round_)
    moved = {name: arrays[name] + update[name].astype(arrays[name].dtype) for name in SHAPES}
    return {**moved, "seen": arrays["seen"] + 1}


def fedavg(**options: Any) -> flower.FedAvg:
    return flower.FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1, **options)


class Nodes(federated_nodes.Nodes):
    """Nodes that record all messages. ``answers`` may change or drop an answer."""

    def __init__(self, app: ClientApp, nodes: Iterable[int] = NODES) -> None:
        super().__init__(app, nodes)
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.seen: list[Message] = []  # all that ever came
        self.rounds = 0
        self.answers: Callable[[Message, Message], list[Message]] = lambda asked, reply: [reply]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        sent = list(messages)
        if not sent:  # Flower asks for an evaluation by nobody
            return []
        self.sent, self.replies = sent, []
        for one, reply in zip(sent, super().send_and_receive(sent), strict=True):
            self.replies += self.answers(one, reply)
        self.rounds += 1
        self.seen += self.replies
        return self.replies
