"""The server of a secure sum. The server learns the sum of the updates, and no single update."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from tersor._core import InvalidArgumentError
from tersor._renamed import renamed_keywords
from tersor.federated.flower import secure_round
from tersor.federated.flower.secure_round import Disputes, Round, TooFewError
from tersor.federated.flower.secure_wire import SumFormat, SumVector, apply_changes, names_of
from tersor.federated.flower.strategy import Wrapper, nested_strategies, option
from tersor.federated.flower.wire import is_float, only_arrays

_log = logging.getLogger("flwr")


_WARNING_LEVEL = 0.05  # a round that fails with a larger probability is announced

# Strategies that read or bound the reply of each client.
_PER_CLIENT = tuple(
    getattr(flower, name)
    for name in (
        "Bulyan", "DifferentialPrivacyClientSideAdaptiveClipping",
        "DifferentialPrivacyServerSideAdaptiveClipping",
        "DifferentialPrivacyServerSideFixedClipping", "FedMedian", "FedTrimmedAvg",
        "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg",
    )
)  # fmt: skip
# Adds noise for a number of clients, which Tersor sets.
_NOISY = flower.DifferentialPrivacyClientSideFixedClipping


class SecureStrategy(Wrapper):
    """Wraps one of Flower's strategies. The wrapped strategy gets the mean of all clients.

    Decorate the clients' functions with ``secure``. Each round has five exchanges; the module
    ``secure_client`` describes the protocol. ``docs/explain/security.md`` has the threat model.
    Sources: SecAgg+ (Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic
    overhead", sections 4 and 5; Bonawitz et al. 2017).

    If too few clients of a round stay, the round ends without a sum, and no client is unmasked. A
    client that sent a wrong value takes no part in later rounds of the run. Arrays of integers
    keep the server's values. Clients' metrics are not requested. Evaluation is unchanged. You may
    wrap Flower's ``DifferentialPrivacyClientSideFixedClipping``: its noise is then for the number
    of clients in the sum.

    Args:
        strategy: Flower's strategy. It must not read the reply of each client.
        clip: The largest magnitude of one value of an update, in both directions. With
            ``max_examples``, of the update times the client's weight / ``max_examples``. The metric
            ``cut`` of a round is the share of clipped values. The log names arrays above 1 %.
        bits: Bits per code, 2 to 14.
        accumulator_bits: Bits per sent value: 8, 16 or 32, at least bits + ceil(log2(clients)).
        neighbours: The number of neighbours of each client in a random ring, even. ``"auto"``: the
            smallest number, 8 or more, that satisfies ``failure_rate``.
        threshold: The number of neighbours of each client that must stay, more than half. None:
            two thirds, rounded up.
        dropouts: The probability that a client leaves a round.
        failure_rate: The largest share of rounds without a sum. The log warns before a round that
            fails with a probability above 5 %.
        max_examples: Weighs updates by the clients' examples, up to this number. 0: equal weights.
            Over several rounds the server learns each client's number.
        timeout: Seconds for each of the exchanges of keys, shares, confirmations and last answers.

    Attributes:
        failures: By round, the reason for a round without a sum.

    Raises:
        InvalidArgumentError: An option or the strategy is not supported, or a round has more
            clients than the accumulators hold.

    Example:
        >>> strategy = SecureStrategy(FedAvg(fraction_evaluate=0.0), clip=0.05)
        >>> strategy.start(grid, initial_arrays)
    """

    @renamed_keywords(lanes="accumulator_bits", most_examples="max_examples")
    def __init__(
        self,
        strategy: flower.Strategy,
        *,
        clip: float,
        bits: int = 8,
        accumulator_bits: int = 16,
        neighbours: int | Literal["auto"] = "auto",
        threshold: int | None = None,
        dropouts: float = 0.05,
        failure_rate: float = 1e-3,
        max_examples: int = 0,
        timeout: float = 3600.0,
    ) -> None:
        """See the class."""
        super().__init__(strategy)
        for one in nested_strategies(strategy):
            if isinstance(one, _PER_CLIENT):
                raise InvalidArgumentError(
                    f"{type(one).__name__} reads each client's reply, but a secure sum has only one"
                )
        if max_examples and isinstance(strategy, _NOISY):
            raise InvalidArgumentError(
                "max_examples: leave it out, because differential privacy needs equal weights"
            )
        weight = option(strategy, "weighted_by_key", "num-examples")
        self._format = SumFormat(bits, accumulator_bits, clip, max_examples, weight)
        if not 2 <= bits <= min(14, accumulator_bits) or accumulator_bits not in (8, 16, 32):
            raise InvalidArgumentError(
                f"bits={bits}, accumulator_bits={accumulator_bits}: give 2 to 14 bits, and "
                "accumulators of 8, 16 or 32 bits"
            )
        if not 0 < clip < float("inf") or max_examples < 0:
            raise InvalidArgumentError(
                f"clip={clip}, max_examples={max_examples}: give a finite clip "
                "above 0, and 0 or more examples"
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
        self._rates = dropouts, failure_rate
        if threshold is not None and threshold < 1:
            raise InvalidArgumentError(f"threshold={threshold}: give 1 or more")
        if option(strategy, "fraction_evaluate", 0) > 0:
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
        """Exchanges keys and shares.

        Args:
            server_round, arrays, config, grid: As for Flower's strategies.

        Returns:
            The messages that ask for masked updates; none if too few clients remain.

        Raises:
            InvalidArgumentError: The wrapped strategy sends different arrays to the nodes, a round
                has more clients than the accumulators hold, ``threshold`` is at most half of the
                neighbours, or a strategy outside adds noise.
        """
        self._round = None
        before = self._run
        if self._run_for(server_round) != before:
            self._disputes = Disputes()
        if "clipping_norm" in config and not isinstance(self._wrapped, _NOISY):
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
        self._format.check_capacity(len(messages))
        selected = {int(one.metadata.dst_node_id) for one in messages}
        for node in sorted(selected & self.left_out):
            _log.warning("tersor: node %d sent wrong values in this run; it is left out", node)
        try:
            current = self._make_round(server_round, sorted(selected - self.left_out), grid)
            current.exchange_keys()
        except TooFewError as error:
            self._fail(server_round, error)
            return []
        self._round = current
        return current.request_updates(first)

    def _make_round(self, number: int, nodes: list[int], grid: Grid) -> Round:
        """A round's graph and threshold."""
        if not nodes:
            raise TooFewError("no node was selected")
        dropouts, failure_rate = self._rates
        count = self._neighbours
        if count == "auto":
            count = secure_round.required_neighbours(len(nodes), dropouts, failure_rate)
        graph = secure_round.ring(nodes, count)
        limit = len(graph[nodes[0]])
        default = secure_round.default_threshold(limit)
        threshold = default if self._threshold is None else self._threshold
        if threshold > limit:
            raise TooFewError(
                f"threshold={threshold}: give at most {limit}, the neighbours of a node"
            )
        if 2 * threshold <= limit:
            raise InvalidArgumentError(
                f"threshold={threshold} of {limit} neighbours: give more than half, otherwise the "
                "server could learn both of a node's secrets"
            )
        probability = secure_round.failure_probability(len(nodes), limit, threshold, dropouts)
        if probability > _WARNING_LEVEL:
            _log.warning(
                "tersor: round %d has no sum with a probability of up to %.0f %%, if %.0f %% of %d "
                "clients fail: each needs %d of %d neighbours; add clients or set neighbours=",
                *(number, 100 * probability, 100 * dropouts, len(nodes), threshold, limit),
            )
        round_id = {"run": self._run, "round": number}
        send = functools.partial(grid.send_and_receive, timeout=self._timeout)
        return Round(round_id, threshold, graph, self._format, self._sizes, self._disputes, send)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Removes the masks from the sum, and passes the mean to the wrapped strategy.

        Args:
            server_round, replies: As for Flower's strategies.

        Returns:
            The wrapped strategy's arrays and metrics.
        """
        current, self._round = self._round, None
        if current is None:
            return self._forward(server_round, [])
        found = list(replies)
        try:
            sums, nodes = current.sum(found)
            content = self._mean(sums, len(nodes))
        except TooFewError as error:
            self._fail(server_round, error)
            return self._forward(server_round, [])
        first = next(one for one in found if one.metadata.src_node_id == min(nodes))
        mean = Message(content=content, metadata=first.metadata)
        arrays, metrics = self._forward_mean(server_round, mean, len(nodes))
        if arrays is not None:  # Flower averages integers to f64
            arrays.update({n: one for n, one in self._start.items() if not is_float(one)})
        return arrays, metrics

    def _forward_mean(
        self, server_round: int, mean: Message, clients: int
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A strategy with noise gets the mean as the reply of each client in the sum."""
        inner: Any = self._wrapped
        if not isinstance(inner, _NOISY):
            return self._forward(server_round, [mean])
        sampled, inner.num_sampled_clients = inner.num_sampled_clients, clients
        try:
            return self._forward(server_round, [mean] * clients)
        finally:
            inner.num_sampled_clients = sampled

    def _mean(self, sums: SumVector, clients: int) -> RecordDict:
        changes, weight, cut = self._format.decode(sums, self._sizes)
        if weight == 0:
            raise TooFewError("the clients' weights are 0")
        for name, change, count in zip(names_of(self._start), changes, cut, strict=True):
            share = count / (change.size * clients)
            if share > 0.01:
                text = "tersor: %s: %.1f %% was clipped; give a larger clip"
                _log.warning(text, name, 100 * share)
        factor = np.float32((self._format.max_examples or 1) / weight)
        arrays = apply_changes(self._start, [change * factor for change in changes])
        values = max(1, sum(self._sizes) * clients)
        metrics = {self._format.weight_key: weight, "clients": clients, "cut": sum(cut) / values}
        return RecordDict({self._key: arrays, "metrics": MetricRecord(metrics)})

    def _fail(self, number: int, error: TooFewError) -> None:
        self.failures[number] = str(error)
        _log.error("tersor: round %d has no sum: %s", number, error)
