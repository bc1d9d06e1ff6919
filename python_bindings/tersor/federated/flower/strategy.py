"""The server: a strategy of Flower's whose clients send frames."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from tersor import Codec
from tersor import Error as TersorError
from tersor._core import InvalidArgumentError
from tersor.federated.flower import wire
from tersor.federated.flower.down import make_sender
from tersor.federated.flower.wire import KEY, Header

_log = logging.getLogger("flwr")


class Wrapper(flower.Strategy):
    """A strategy around one of Flower's strategies. The wrapped strategy evaluates."""

    def __init__(self, strategy: flower.Strategy) -> None:
        self._wrapped = strategy
        self._run, self._last_round = "", 0

    def _run_for(self, round_: int) -> str:
        """The run of the next round. Each start of the strategy counts rounds from 1."""
        if not self._run or round_ <= self._last_round:
            self._run = secrets.token_hex(8)
        self._last_round = round_
        return self._run

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Calls the wrapped strategy."""
        messages: Iterable[Message]
        messages = self._wrapped.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Calls the wrapped strategy."""
        return self._wrapped.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Calls the wrapped strategy."""
        self._wrapped.summary()

    def _forward(
        self, server_round: int, replies: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found: tuple[ArrayRecord | None, MetricRecord | None]
        found = self._wrapped.aggregate_train(server_round, replies)
        return found


def nested_strategies(strategy: Any) -> Iterator[Any]:
    """A strategy, and the strategies inside."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def option(strategy: Any, name: str, default: Any) -> Any:
    """An attribute of a strategy, or of a strategy inside."""
    found = (getattr(one, name) for one in nested_strategies(strategy) if hasattr(one, name))
    return next(found, default)


class Strategy(Wrapper):
    """Wraps one of Flower's strategies. Clients send frames; the wrapped strategy gets arrays.

    Sampling, weights, metrics and rounds are the wrapped strategy's. Replies are decoded in the
    order of the nodes, so results do not depend on the order of arrival. These replies count as
    failures of their nodes, with a reason in the log: another round, model or codec, damaged
    frames, and values that are not finite. The round then continues. Evaluation is not compressed.

    Args:
        strategy: Flower's strategy.
        codec: The spec of updates, the same as in the clients' ``compress``.
        down: The encoding of parameters for clients: ``"none"``, ``"bf16"``, or
            ``"difference:CODEC"``, the change since the client's last round. The client then keeps
            the parameters. The server's own parameters are never rounded.

    Attributes:
        bytes_up: For each round, the bytes of frames, and of the same arrays uncompressed.

    Raises:
        InvalidArgumentError: An option is invalid.

    Example:
        >>> strategy = tersor.federated.flower.Strategy(FedAvg(), "int8+ef")
        >>> strategy.start(grid, initial_arrays)
    """

    def __init__(
        self, strategy: flower.Strategy, codec: str = "int8+ef", *, down: str = "none"
    ) -> None:
        """See the class."""
        super().__init__(strategy)
        self._codec, self._down = Codec(codec), make_sender(down)
        self._header = Header("", 0, self._codec.spec, "")
        self._exact = ArrayRecord()
        self.bytes_up: dict[int, tuple[int, int]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the parameters to clients.

        Args:
            server_round, arrays, config, grid: As for Flower's strategies.

        Returns:
            The wrapped strategy's messages, with encoded arrays.

        Raises:
            InvalidArgumentError: The wrapped strategy sends different arrays to the nodes.
        """
        messages = list(self._wrapped.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        run = self._run_for(server_round)
        self._header = Header(run, server_round, self._codec.spec, wire.model_name(arrays))
        self._exact = arrays
        self._down.set_arrays(self._header, arrays)
        for message in messages:
            key, given = wire.only_arrays(message.content)
            if given is not arrays and given != arrays:
                raise InvalidArgumentError(
                    "the strategy sends different arrays to the nodes: send one model to all"
                )
            record, fields = self._down.message_for(message.metadata.dst_node_id)
            header = self._header.record(**fields)
            message.content = RecordDict({**message.content, key: record, KEY: header})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decodes the replies, and passes arrays to the wrapped strategy.

        Args:
            server_round, replies: As for Flower's strategies.

        Returns:
            The wrapped strategy's arrays and metrics.
        """
        frames = plain = 0
        decoded: list[Message] = []
        for reply in sorted(replies, key=lambda one: one.metadata.src_node_id):
            try:
                if decoded and _node(decoded[-1]) == _node(reply):
                    raise InvalidArgumentError(wire.ANSWERED_TWICE)
                if not reply.has_error():
                    self._require_weight(reply.content)
                    sizes = self._decode(reply)
                    frames, plain = frames + sizes[0], plain + sizes[1]
            except Exception as error:  # the parsers of a client's bytes raise errors of many types
                reply = _as_failure(reply, error)
            self._down.confirm(reply.metadata.src_node_id, not reply.has_error())
            decoded.append(reply)
        self.bytes_up[server_round] = frames, plain
        if frames:
            _log.info("tersor: received %d bytes as %d bytes", plain, frames)
        return self._forward(server_round, decoded)

    def _decode(self, reply: Message) -> tuple[int, int]:
        """Decodes the frames of a reply. Returns the bytes of frames and of plain arrays."""
        if KEY not in reply.content.config_records:
            raise InvalidArgumentError(
                "the client does not compress: add tersor.federated.flower.compress to it"
            )
        record: Any = reply.content.config_records[KEY]
        self._header.require(Header.from_record(record), "the reply")
        key, received = wire.only_arrays(reply.content)
        if wire.model_name(received) != self._header.model:
            raise InvalidArgumentError(wire.WRONG_ARRAYS)
        arrays, frames, plain = ArrayRecord(), 0, 0
        for name, own in self._exact.items():
            array = received[name]
            if array.stype == KEY and wire.is_compressed(own):
                frames += len(array.data)
                change = wire.decode(self._codec, self._header, name, array)
                with np.errstate(over="ignore", invalid="ignore"):
                    array = wire.with_values(own, wire.flat(own) + change)
                plain += len(array.data)
            else:
                _check_plain(name, array, own)
            wire.require_plain(name, array, then="the reply is left out")
            arrays[name] = array
        if record.get("forgot"):
            _log.info("tersor: node %d discarded an old residual", _node(reply))
        rest = {name: one for name, one in reply.content.items() if name != KEY}
        reply.content = RecordDict({**rest, key: arrays})
        return frames, plain

    def _require_weight(self, content: RecordDict) -> None:
        """Checks the weight of a reply in Flower's mean."""
        key = option(self._wrapped, "weighted_by_key", None)
        for record in content.metric_records.values():
            weight: Any = record.get(key, 0)
            if not 0 <= weight < float("inf"):
                raise InvalidArgumentError(
                    f"{key} is {weight}: expected a finite weight of at least 0"
                )

    def summary(self) -> None:
        """Logs the wrapped strategy's settings and the codec."""
        super().summary()
        _log.info("\t└──> Compressed: %s", self._codec.spec)


def _check_plain(name: str, array: Array, own: Array) -> None:
    """Raises InvalidArgumentError or ValueError for an invalid plain array."""
    if wire.is_compressed(array, own):
        raise InvalidArgumentError(f"{name}: the array is not compressed")
    wire.require_size(name, array)
    if array.numpy().shape != own.shape:
        raise InvalidArgumentError(f"{name}: the array has another shape than its header")


def _node(message: Message) -> int:
    return int(message.metadata.src_node_id)


def _as_failure(reply: Message, error: Exception) -> Message:
    """A failure of the reply's node."""
    text = error if isinstance(error, TersorError) else repr(error)
    reason = f"node {_node(reply)}: {wire.printable(text)}"
    _log.warning("tersor: %s", reason)
    return Message(error=Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), metadata=reply.metadata)
