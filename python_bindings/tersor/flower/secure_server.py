"""The server of a secure sum: it learns what clients' updates add up to, and nothing of one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from tersor import Error as TersorError
from tersor._core import InvalidArgument
from tersor.flower import masks
from tersor.flower.secure_round import (
    Round,
    TooFewError,
    are_opened,
    are_shares,
    is_key,
    of_own_keys,
    ring,
    secret_of,
    shares_by_owner,
)
from tersor.flower.secure_wire import SumFormat, is_of, lanes_of, moved_by, names_of
from tersor.flower.strategy import Wrapper
from tersor.flower.wire import KEY, Runs, is_float, only_arrays
from tersor.lanes import Lanes, add

_log = logging.getLogger("flwr")


# What wants each client's own reply, or bounds it.
_SINGLE = tuple(
    getattr(flower, name)
    for name in (
        "Bulyan",
        "DifferentialPrivacyServerSideAdaptiveClipping",
        "DifferentialPrivacyServerSideFixedClipping",
        "FedMedian",
        "FedTrimmedAvg",
        "FedXgbBagging",
        "FedXgbCyclic",
        "Krum",
        "MultiKrum",
        "QFedAvg",
    )
)


class SecureStrategy(Wrapper):
    """Wraps one of Flower's strategies, which gets one reply a round: the mean of all clients.

    Its clients' functions are decorated by ``secure``. A round has four exchanges (Bell et al.
    2020): keys; shares of each client's two secrets, sealed for its neighbours; updates, as codes
    of ``bits`` bits in ``lanes`` with masks that the sum is free of; shares of what is left over
    from who has gone. ``clip``: what one value of an update is cut to, either way; ``cut`` of the
    round's metrics is the share of values that were, and above 1 % the log says so. ``neighbours``:
    of each client in a random ring, all where there are no more; ``threshold`` of them must stay,
    more than half (the default) and at most all. Updates count the same, or by ``most_examples``:
    as many examples as a client has, up to that.

    A round of which too few stay ends without a sum, and nothing is unmasked: ``failures`` says
    why, by round. Weights that are no floats stay as they are; clients' own metrics are not asked
    for, but in an evaluation, which is as ever. ``timeout``: seconds that clients have for keys,
    for shares, for their last answer. Raises InvalidArgument for options that are none, for
    strategies that look at each client's reply, and before a round whose sums lanes do not hold.
    """

    def __init__(
        self,
        strategy: flower.Strategy,
        *,
        clip: float,
        bits: int = 8,
        lanes: int = 16,
        neighbours: int = 8,
        threshold: int | None = None,
        most_examples: int = 0,
        timeout: float = 3600.0,
    ) -> None:
        super().__init__(strategy)
        if isinstance(strategy, _SINGLE):
            raise InvalidArgument(
                f"{type(strategy).__name__} looks at each client's reply, and there is one of all"
            )
        weight = getattr(strategy, "weighted_by_key", "num-examples")
        self._format = SumFormat(bits, lanes, clip, most_examples, weight)
        if not 2 <= bits <= min(14, lanes) or lanes not in (8, 16, 32):
            raise InvalidArgument(f"bits={bits}, lanes={lanes}: 2 to 14 bits in lanes of 8, 16, 32")
        if not 0 < clip < float("inf") or most_examples < 0:
            raise InvalidArgument(f"clip={clip}, most_examples={most_examples}: not above 0")
        if neighbours < 2 or neighbours % 2:
            raise InvalidArgument(f"neighbours={neighbours}: an even number, at least 2")
        self._neighbours, self._threshold, self._timeout = neighbours, threshold, timeout
        if threshold is not None and threshold < 1:
            raise InvalidArgument(f"threshold={threshold}: 1 or more")
        if getattr(strategy, "fraction_evaluate", 0) > 0:
            _log.warning("tersor: an evaluation tells of each client: fraction_evaluate=0 has none")
        self._runs = Runs()
        self._round: Round | None = None
        self._start, self._key = ArrayRecord(), "arrays"
        self._send: Callable[..., list[Message]] = lambda *_, **__: []
        self.failures: dict[int, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keys and shares are exchanged here; what is returned asks for masked updates."""
        self._round = None
        run = self._runs.of(server_round)
        messages = list(self._wrapped.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        self._send, self._start = grid.send_and_receive, arrays
        asked = {one.metadata.dst_node_id: one.content for one in messages}
        self._key, _ = only_arrays(messages[0].content)
        self._format.check_room(len(asked))
        try:
            made, nodes = self._agree(run, server_round, sorted(asked))
        except TooFewError as error:
            self._fail(server_round, error)
            return []
        self._round = made
        return [
            Message(
                RecordDict({**asked[node], KEY: self._order(made, node, nodes)}),
                dst_node_id=node,
                message_type="train.masked",
            )
            for node in sorted(nodes)
        ]

    def _agree(self, run: str, number: int, nodes: list[int]) -> tuple[Round, set[int]]:
        """The exchanges of keys and of shares; who is still there."""
        graph = ring(nodes, self._neighbours)
        most = len(graph[nodes[0]])
        threshold = self._threshold if self._threshold is not None else most // 2 + 1
        if threshold > most:
            raise TooFewError(f"threshold={threshold}, and a node has {most} neighbours")
        if 2 * threshold <= most:
            raise InvalidArgument(
                f"threshold={threshold} of {most} neighbours: more than half, or the server could "
                "learn both of a node's secrets"
            )
        made = Round(run, number, threshold, graph, {})
        made.keys = of_own_keys(self._ask(made, "keys", {node: {} for node in nodes}, is_key))
        there = made.sustained(made.keys)
        self._require(there, nodes, "keys")
        made.neighbours = {node: made.around(node, there) for node in there}
        orders = {node: self._shares_order(made, node) for node in there}
        made.shares = self._ask(made, "shares", orders, are_shares)
        there = made.sustained(made.shares)
        self._require(there, nodes, "shares")
        made.shares = {node: made.shares[node] for node in there}
        return made, there

    @staticmethod
    def _require(there: set[int], nodes: list[int], stage: str) -> None:
        if not there:
            raise TooFewError(f"too few of {len(nodes)} nodes answered for {stage!r}")

    @staticmethod
    def _shares_order(made: Round, node: int) -> dict[str, Any]:
        around = made.neighbours[node]
        return {
            "nodes": around,
            "masks": [made.keys[one]["mask"] for one in around],
            "seals": [made.keys[one]["seal"] for one in around],
            "threshold": made.threshold,
        }

    def _order(self, made: Round, node: int, nodes: set[int]) -> ConfigRecord:
        """Of a masked update: the shares that its neighbours sealed for a node."""
        senders = made.around(node, nodes)
        sealed = [made.shares[one]["sealed"][made.neighbours[one].index(node)] for one in senders]
        told = made.told | {"from": senders, "sealed": sealed}
        return ConfigRecord(told | self._format.record())

    def _ask(
        self,
        made: Round,
        stage: str,
        orders: Mapping[int, Mapping[str, Any]],
        is_sound: Callable[[Round, int, Mapping[str, Any]], bool],
    ) -> dict[int, ConfigRecord]:
        """What nodes answer for a stage; who fails or answers twice is out, and named."""
        messages = [
            Message(
                RecordDict({KEY: ConfigRecord(made.told | _filled(order))}),
                dst_node_id=node,
                message_type=f"train.{stage}",
            )
            for node, order in orders.items()
        ]
        replies = list(self._send(messages, timeout=self._timeout)) if messages else []
        answers: dict[int, ConfigRecord] = {}
        twice: set[int] = set()
        for node, reply in _by_node(replies):
            record = None if reply.has_error() else reply.content.config_records.get(KEY)
            if node in answers:
                twice.add(node)
            elif record is None or not is_of(record, made.told) or node not in orders:
                _log.warning("tersor: node %d, %r: %s", node, stage, _why(reply))
            elif not is_sound(made, node, record):
                _log.warning("tersor: node %d, %r: not what it was asked for", node, stage)
            else:
                answers[node] = record
        for node in twice:
            _log.warning("tersor: node %d answered %r twice; it is left out", node, stage)
            del answers[node]
        return answers

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the masks off the sum of updates; the wrapped strategy gets their mean."""
        made, self._round = self._round, None
        if made is None:
            return self._hand_over(server_round, [])
        found = list(replies)
        try:
            updates = self._updates(made, found)
            content = self._mean(self._unmask(made, updates), len(updates))
        except TooFewError as error:
            self._fail(server_round, error)
            return self._hand_over(server_round, [])
        there = next(one for node, one in _by_node(found) if node in updates)
        mean = Message(content=content, metadata=there.metadata)
        arrays, metrics = self._hand_over(server_round, [mean])
        if arrays is not None:  # Flower averages integers to f64
            for name, one in self._start.items():
                if not is_float(one):
                    arrays[name] = one
        return arrays, metrics

    def _updates(self, made: Round, replies: list[Message]) -> dict[int, Lanes]:
        """Masked vectors by node; one that is none is named, and its node counted as gone."""
        length = self._format.length(self._sizes())
        found: dict[int, Lanes] = {}
        for node, reply in _by_node(replies):
            try:
                if reply.has_error() or node in found or node not in made.shares:
                    raise InvalidArgument(_why(reply))
                told = reply.content[KEY]
                if not is_of(told, made.told):
                    raise InvalidArgument(f"an update of round {told['round']}")
                for bad in told.get("bad", []):
                    _log.warning("tersor: node %d's share for %d does not authenticate", bad, node)
                _, arrays = only_arrays(reply.content)
                found[node] = lanes_of(arrays[KEY], self._format, length)
            except (TersorError, ValueError, KeyError, TypeError) as error:
                _log.warning("tersor: node %d: %s", node, error)
        return found

    def _unmask(self, made: Round, updates: dict[int, Lanes]) -> Lanes:
        """The sum. Nobody is asked for a share where the secrets could not be put together."""
        if not updates:
            raise TooFewError("too few updates: none came")
        gone = {node for node in made.shares if node not in updates and made.around(node, updates)}
        for node in [*updates, *gone]:
            self._require_shares(made, node, len(made.around(node, updates)))
        orders = {
            node: {"alive": made.around(node, updates), "gone": made.around(node, gone)}
            for node in updates
        }
        shares = shares_by_owner(made, self._ask(made, "unmask", orders, are_opened))
        for node in [*updates, *gone]:
            self._require_shares(made, node, len(shares.get(node, {})))
        secrets = {node: secret_of(made, node, shares[node]) for node in updates}
        secrets |= {node: secret_of(made, node, shares[node], of_mask_key=True) for node in gone}
        total = np.zeros_like(next(iter(updates.values())))
        for node, update in updates.items():
            add(total, update)
            masks.apply_mask(total, secrets[node], -1)
        for node in gone:
            for other in made.around(node, updates):
                public = made.keys[other]["mask"]
                pair = masks.pair_key(secrets[node], public, made.number, node, other)
                masks.apply_mask(total, pair, -1 if other < node else +1)
        return total

    @staticmethod
    def _require_shares(made: Round, node: int, there: int) -> None:
        if there < made.threshold:
            raise TooFewError(
                f"{there} neighbours of node {node} are left, {made.threshold} are needed to take "
                "its masks off"
            )

    def _sizes(self) -> list[int]:
        return [math.prod(self._start[name].shape) for name in names_of(self._start)]

    def _mean(self, sums: Lanes, clients: int) -> RecordDict:
        changes, weight, cut = self._format.decode(sums, self._sizes())
        if weight == 0:
            raise TooFewError("the clients' weights are 0")
        for name, change, count in zip(names_of(self._start), changes, cut, strict=True):
            share = count / (change.size * clients)
            if share > 0.01:
                _log.warning("tersor: %s: %.1f %% was cut; give a larger clip", name, 100 * share)
        factor = np.float32((self._format.most_examples or 1) / weight)
        arrays = moved_by(self._start, [change * factor for change in changes])
        values = max(1, sum(self._sizes()) * clients)
        told = {self._format.weight_key: weight, "clients": clients, "cut": sum(cut) / values}
        return RecordDict({self._key: arrays, "metrics": MetricRecord(told)})

    def _fail(self, number: int, error: TooFewError) -> None:
        self.failures[number] = str(error)
        _log.error("tersor: round %d has no sum: %s", number, error)


def _filled(order: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty lists, which Flower's counts of bytes do not bear."""
    return {name: one for name, one in order.items() if one != []}


def _by_node(replies: Iterable[Message]) -> list[tuple[int, Message]]:
    found = ((int(one.metadata.src_node_id), one) for one in replies)
    return sorted(found, key=lambda pair: pair[0])


def _why(reply: Message) -> str:
    return str(reply.error.reason) if reply.has_error() else "not what it was asked for"
