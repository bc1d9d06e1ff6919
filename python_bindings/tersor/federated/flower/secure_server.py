"""The server of a secure sum: it learns what clients' updates add up to, and nothing of one."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from tersor._core import InvalidArgumentError
from tersor.federated.flower.secure_round import (
    Disputes,
    Round,
    TooFewError,
    enough_neighbours,
    failure_probability,
    ring,
    usual_threshold,
)
from tersor.federated.flower.secure_wire import SumFormat, SumVector, moved_by, names_of
from tersor.federated.flower.strategy import Wrapper
from tersor.federated.flower.wire import is_float, only_arrays

_log = logging.getLogger("flwr")


_LIKELY = 0.05  # a round that fails with a larger probability is announced

# What wants each client's own reply, or bounds it.
_SINGLE = tuple(
    getattr(flower, name)
    for name in (
        "Bulyan",
        "DifferentialPrivacyClientSideAdaptiveClipping",
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
# Adds noise for a number of clients, which it is told.
_NOISE = flower.DifferentialPrivacyClientSideFixedClipping


class SecureStrategy(Wrapper):
    """Wraps one of Flower's strategies, which gets one reply a round: the mean of all clients.

    Its clients' functions are decorated by ``secure``. A round has five exchanges, which
    ``secure_client`` describes. ``clip``: what one value of an update is cut to, either way, before
    it becomes a code of ``bits`` bits in ``lanes``; ``cut`` of the round's metrics is the share of
    values that were, and above 1 % the log says so. Updates count the same, or by
    ``most_examples``: as many examples as a client has, up to that. The server then learns each
    client's number over the rounds: docs/explain/security.md.

    ``neighbours``: of each client in a random ring, all where there are no more. By default, the
    number follows the cohort: if each client goes with the probability ``dropouts``, at most the
    share ``failure_rate`` of rounds has no sum. ``threshold`` neighbours of each client must stay:
    by default two thirds, rounded up; more than half, and at most all. The log warns before a round
    that has no sum with a probability of more than 5 %.

    A round of which too few stay ends without a sum, and nothing is unmasked: ``failures`` says
    why, by round. A client that sent a wrong value takes no part in later rounds of the run;
    ``left_out`` has these clients. Weights that are no floats stay as they are; clients' own
    metrics are not asked for, but in an evaluation, which is as ever. ``timeout``: seconds that
    clients have for keys, for shares, for confirmations, for their last answer. Flower's
    ``DifferentialPrivacyClientSideFixedClipping`` may be wrapped: its noise is for the number of
    clients in the sum. Raises InvalidArgumentError for options that are none, for strategies that
    look at each client's reply, and before a round whose sums lanes do not hold.
    """

    def __init__(
        self,
        strategy: flower.Strategy,
        *,
        clip: float,
        bits: int = 8,
        lanes: int = 16,
        neighbours: int | Literal["auto"] = "auto",
        threshold: int | None = None,
        dropouts: float = 0.05,
        failure_rate: float = 1e-3,
        most_examples: int = 0,
        timeout: float = 3600.0,
    ) -> None:
        super().__init__(strategy)
        for one in _with_wrapped(strategy):
            if isinstance(one, _SINGLE):
                raise InvalidArgumentError(
                    f"{type(one).__name__} reads each client's reply, but a secure sum has only one"
                )
        if most_examples and isinstance(strategy, _NOISE):
            raise InvalidArgumentError(
                "most_examples: leave it out, because differential privacy needs equal weights"
            )
        weight = _option(strategy, "weighted_by_key", "num-examples")
        self._format = SumFormat(bits, lanes, clip, most_examples, weight)
        if not 2 <= bits <= min(14, lanes) or lanes not in (8, 16, 32):
            raise InvalidArgumentError(
                f"bits={bits}, lanes={lanes}: give 2 to 14 bits and lanes of 8, 16 or 32"
            )
        if not 0 < clip < float("inf") or most_examples < 0:
            raise InvalidArgumentError(
                f"clip={clip}, most_examples={most_examples}: give numbers above 0"
            )
        if neighbours != "auto" and (neighbours < 2 or neighbours % 2):
            raise InvalidArgumentError(
                f'neighbours={neighbours}: give "auto" or an even number of at least 2'
            )
        if not 0 <= dropouts < 1 or not 0 < failure_rate < 1:
            raise InvalidArgumentError(
                f"dropouts={dropouts}, failure_rate={failure_rate}: give numbers between 0 and 1"
            )
        self._neighbours, self._threshold, self._timeout = neighbours, threshold, timeout
        self._odds = dropouts, failure_rate
        if threshold is not None and threshold < 1:
            raise InvalidArgumentError(f"threshold={threshold}: give 1 or more")
        if _option(strategy, "fraction_evaluate", 0) > 0:
            _log.warning(
                "tersor: evaluations reveal each client's result: fraction_evaluate=0 disables them"
            )
        self._disputes = Disputes()
        self._round: Round | None = None
        self._start, self._key, self._sizes = ArrayRecord(), "arrays", [0]
        self.failures: dict[int, str] = {}

    @property
    def left_out(self) -> set[int]:
        """Clients that take no part in later rounds of this run, because they sent wrong values."""
        return self._disputes.at_fault()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keys and shares are exchanged here; what is returned asks for masked updates."""
        self._round = None
        before = self._run
        if self._run_of(server_round) != before:
            self._disputes = Disputes()
        if "clipping_norm" in config and not isinstance(self._wrapped, _NOISE):
            raise InvalidArgumentError(
                "a strategy around SecureStrategy adds noise for a fixed number of clients: wrap "
                "DifferentialPrivacyClientSideFixedClipping in SecureStrategy instead"
            )
        messages = list(self._wrapped.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        first = messages[0].content
        if any(one.content is not first and one.content != first for one in messages):
            raise InvalidArgumentError(
                "the strategy sends clients different arrays or configurations"
            )
        self._start, (self._key, _) = arrays, only_arrays(first)
        self._sizes = [math.prod(arrays[name].shape) for name in names_of(arrays)]
        self._format.check_room(len(messages))
        asked = {int(one.metadata.dst_node_id) for one in messages}
        for node in sorted(asked & self.left_out):
            _log.warning("tersor: node %d sent wrong values in this run; it is left out", node)
        try:
            made = self._begin(server_round, sorted(asked - self.left_out), grid)
            made.agree()
        except TooFewError as error:
            self._fail(server_round, error)
            return []
        self._round = made
        return made.ask_for_updates(first)

    def _begin(self, number: int, nodes: list[int], grid: Grid) -> Round:
        """A round's graph and threshold."""
        if not nodes:
            raise TooFewError("no node was selected")
        dropouts, failure_rate = self._odds
        count = self._neighbours
        if count == "auto":
            count = enough_neighbours(len(nodes), dropouts, failure_rate)
        graph = ring(nodes, count)
        most = len(graph[nodes[0]])
        threshold = self._threshold if self._threshold is not None else usual_threshold(most)
        if threshold > most:
            raise TooFewError(
                f"threshold={threshold}: give at most {most}, the neighbours of a node"
            )
        if 2 * threshold <= most:
            raise InvalidArgumentError(
                f"threshold={threshold} of {most} neighbours: give more than half, otherwise the "
                "server could learn both of a node's secrets"
            )
        odds = failure_probability(len(nodes), most, threshold, dropouts)
        if odds > _LIKELY:
            _log.warning(
                "tersor: round %d has no sum with a probability of up to %.0f %%, if %.0f %% of %d "
                "clients fail: each needs %d of %d neighbours; add clients or set neighbours=",
                *(number, 100 * odds, 100 * dropouts, len(nodes), threshold, most),
            )
        told = {"run": self._run, "round": number}
        send = functools.partial(grid.send_and_receive, timeout=self._timeout)
        return Round(told, threshold, graph, self._format, self._sizes, self._disputes, send)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the masks off the sum of updates; the wrapped strategy gets their mean."""
        made, self._round = self._round, None
        if made is None:
            return self._hand_over(server_round, [])
        found = list(replies)
        try:
            sums, nodes = made.sum(found)
            content = self._mean(sums, len(nodes))
        except TooFewError as error:
            self._fail(server_round, error)
            return self._hand_over(server_round, [])
        first = next(one for one in found if one.metadata.src_node_id == min(nodes))
        mean = Message(content=content, metadata=first.metadata)
        arrays, metrics = self._hand_over_mean(server_round, mean, len(nodes))
        if arrays is not None:  # Flower averages integers to f64
            arrays.update({n: one for n, one in self._start.items() if not is_float(one)})
        return arrays, metrics

    def _hand_over_mean(
        self, server_round: int, mean: Message, clients: int
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """To a strategy that adds noise, the mean counts as the reply of each client in the sum."""
        inner: Any = self._wrapped
        if not isinstance(inner, _NOISE):
            return self._hand_over(server_round, [mean])
        sampled, inner.num_sampled_clients = inner.num_sampled_clients, clients
        try:
            return self._hand_over(server_round, [mean] * clients)
        finally:
            inner.num_sampled_clients = sampled

    def _mean(self, sums: SumVector, clients: int) -> RecordDict:
        changes, weight, cut = self._format.decode(sums, self._sizes)
        if weight == 0:
            raise TooFewError("the clients' weights are 0")
        for name, change, count in zip(names_of(self._start), changes, cut, strict=True):
            share = count / (change.size * clients)
            if share > 0.01:
                _log.warning(
                    "tersor: %s: %.1f %% was clipped; give a larger clip", name, 100 * share
                )
        factor = np.float32((self._format.most_examples or 1) / weight)
        arrays = moved_by(self._start, [change * factor for change in changes])
        values = max(1, sum(self._sizes) * clients)
        told = {self._format.weight_key: weight, "clients": clients, "cut": sum(cut) / values}
        return RecordDict({self._key: arrays, "metrics": MetricRecord(told)})

    def _fail(self, number: int, error: TooFewError) -> None:
        self.failures[number] = str(error)
        _log.error("tersor: round %d has no sum: %s", number, error)


def _with_wrapped(strategy: Any) -> Iterator[Any]:
    """A strategy, and those that it wraps."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def _option(strategy: Any, name: str, default: Any) -> Any:
    """An attribute of a strategy, or of one that it wraps."""
    found = (getattr(one, name) for one in _with_wrapped(strategy) if hasattr(one, name))
    return next(found, default)
