"""The mod of a client: trains on the server's arrays, and sends the change in frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor.codec import text_hash
from tersor.federated.flower import down, wire
from tersor.federated.flower.wire import KEY, Header, Values, flat

Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]

_RESIDUALS = KEY + ".residuals"


def compress(
    codec: str = "int8+ef", *, keep: Literal["client", "nothing"] = "client", forget_after: int = 10
) -> Mod:
    """A mod of ``flwr.clientapp.ClientApp`` that compresses the client's updates.

    List the mod first, outside of mods that clip and add noise. The client sends the change of each
    floating array in a frame, and other arrays unchanged. On the client, a round fails if the
    server has another codec, if an update is not finite, and for ``+ef`` if Flower bounds the norm
    of each round's update.

    Args:
        codec: The spec of updates, the same as in ``Strategy``.
        keep: ``"client"`` keeps the residuals of ``+ef`` in ``context.state``, on the client alone,
            for the next round. ``"nothing"`` keeps no residual.
        forget_after: A residual that is this number of rounds old is discarded. The server's log
            reports discarded residuals.

    Returns:
        The mod.

    Raises:
        InvalidArgumentError: The codec or an option is invalid, or ``+ef`` with
            ``keep="nothing"``.

    Example:
        >>> app = ClientApp()
        >>> @app.train(mods=[tersor.federated.flower.compress("int8+ef")])
        ... def train(message, context): ...
    """
    parsed = Codec(codec)
    if keep not in ("client", "nothing"):
        raise InvalidArgumentError(f'keep={keep!r}: give "client" or "nothing"')
    if keep == "nothing" and parsed.has_feedback:
        raise InvalidArgumentError(
            f'{codec}: "+ef" needs keep="client": set it, or leave "+ef" out'
        )
    if forget_after < 1:
        raise InvalidArgumentError(f"forget_after={forget_after}: give 1 or more rounds")
    return _Client(parsed, forget_after)


class _Client:
    def __init__(self, codec: Codec, forget_after: int) -> None:
        self._codec, self._max_age = codec, forget_after

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        request = message.content.config_records.get(KEY)
        if request is None:
            if message.metadata.message_type.split(".")[0] == "train":
                raise InvalidArgumentError(
                    "the server does not decode: wrap its strategy in "
                    "tersor.federated.flower.Strategy"
                )
            return call_next(message, context)
        header = Header.from_record(request)
        header.require(dataclasses.replace(header, codec=self._codec.spec), "the client")
        self._reject_clipping(message)
        key, received = wire.only_arrays(message.content)
        start = down.receive(received, request, context)
        if wire.model_name(start) != header.model:
            raise InvalidArgumentError(
                "the received arrays do not match the model that the server announced"
            )
        del message.content[KEY]
        message.content[key] = wire.copied(start)
        reply = call_next(message, context)
        if not reply.has_error():
            self._encode_reply(reply, start, header, context)
        return reply

    def _encode_reply(
        self, reply: Message, start: ArrayRecord, header: Header, context: Context
    ) -> None:
        key, trained = wire.only_arrays(reply.content)
        if wire.model_name(trained) != header.model:
            raise InvalidArgumentError(wire.WRONG_ARRAYS)
        residuals, expired = self._residuals(header, context)
        seed = text_hash(str(context.node_id))  # clients round independently
        updated: dict[str, Values] = {}
        sent = ArrayRecord()
        for name, array in trained.items():
            if wire.is_compressed(array, start[name]):
                change = flat(array) - flat(start[name])
                if self._codec.has_feedback:
                    updated[name] = residuals.get(name, np.zeros(change.size, np.float32))
                frame = wire.encode(self._codec, header, name, change, updated.get(name), seed)
                array = Array(array.dtype, array.shape, KEY, frame)
            else:
                wire.require_plain(name, array, then="nothing is sent")
            sent[name] = array
        if self._codec.has_feedback:
            context.state[_RESIDUALS] = ArrayRecord({n: Array(one) for n, one in updated.items()})
            context.state[KEY] = header.record()
        reply.content = RecordDict({**reply.content, key: sent, KEY: header.record(forgot=expired)})

    def _reject_clipping(self, message: Message) -> None:
        records = message.content.config_records.values()
        if self._codec.has_feedback and any("clipping_norm" in one for one in records):
            raise InvalidArgumentError(
                f"{self._codec.spec}: a norm that bounds each round's update needs a codec without "
                '"+ef", because a residual adds updates of earlier rounds'
            )

    def _residuals(self, header: Header, context: Context) -> tuple[dict[str, Values], bool]:
        """The kept residuals, and True if they are too old or of another model."""
        saved = context.state.config_records.get(KEY)
        if saved is None or not self._codec.has_feedback:
            return {}, False
        old = Header.from_record(saved)
        age = header.round - old.round
        if dataclasses.replace(old, round=header.round) != header or not 0 < age <= self._max_age:
            return {}, True
        record = context.state.array_records[_RESIDUALS]
        return {name: one.numpy() for name, one in record.items()}, False
