"""The server's messages: parameters uncompressed, in bf16, or as differences."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from tersor import Codec
from tersor._core import InvalidArgumentError
from tersor.federated.flower import wire
from tersor.federated.flower.wire import KEY, Header, Values, flat, is_compressed

_DIFFERENCE = "difference:"
_MODEL = KEY + ".model"  # a client's parameters, for differences
_HISTORY = 4  # differences in a message; a client that missed more gets all parameters


class Plain:
    """Uncompressed parameters, or frames of a codec without feedback. The server's stay exact."""

    def __init__(self, codec: Codec | None = None) -> None:
        self._codec: Any = codec

    def set_arrays(self, header: Header, arrays: ArrayRecord) -> None:
        """Sets the server's arrays of a round."""
        self._arrays = _encoded(self._codec, header, arrays) if self._codec else arrays

    def message_for(self, _node: int) -> tuple[ArrayRecord, dict[str, Any]]:
        """A node's arrays, and the fields of Tersor's record."""
        return self._arrays, {"down": self._codec.spec} if self._codec else {}

    def confirm(self, _node: int, _confirmed: bool) -> None:
        """Notes whether a node confirmed the last message."""


class Differences(Plain):
    """Differences of the clients' parameters. The next difference contains the rounding error. A
    client that missed a few rounds gets their differences; otherwise all parameters."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self._frames: deque[tuple[int, int, ArrayRecord]] = deque(maxlen=_HISTORY)
        self._public: ArrayRecord | None = None
        self._header = Header("", 0, "", "")  # of the public weights
        self._known: dict[int, int] = {}  # the round of the weights that a node has

    def set_arrays(self, header: Header, arrays: ArrayRecord) -> None:
        if self._public is None or dataclasses.replace(self._header, round=header.round) != header:
            self._frames.clear()
            self._known.clear()
            self._public = arrays
        else:
            sent = _encoded(self._codec, header, arrays, self._public)
            self._public = _decoded(self._codec, header, sent, self._public)
            self._frames.append((self._header.round, header.round, sent))
        self._header = header

    def message_for(self, node: int) -> tuple[ArrayRecord, dict[str, Any]]:
        assert self._public is not None
        fields: dict[str, Any] = {"down": _DIFFERENCE + self._codec.spec, "whole": True}
        frames = [f for f in self._frames if f[0] >= self._known.get(node, self._header.round)]
        if not frames or frames[0][0] != self._known.get(node):
            return self._public, fields
        record = ArrayRecord()
        for _, end, sent in frames:
            for name, array in sent.items():
                record[f"{end}:{name}"] = array
        fields |= {"whole": False, "from": frames[0][0], "rounds": [end for _, end, _ in frames]}
        return record, fields

    def confirm(self, node: int, confirmed: bool) -> None:
        if confirmed:
            self._known[node] = self._header.round
        else:
            self._known.pop(node, None)


def make_sender(down: str) -> Plain:
    """The sender for ``Strategy``'s option. Raises InvalidArgumentError for an invalid option."""
    if down == "none":
        return Plain()
    codec = Codec(down.removeprefix(_DIFFERENCE))
    if codec.has_feedback:
        raise InvalidArgumentError(
            f'down={down!r}: leave out "+ef"; the next difference contains the error'
        )
    if down.startswith(_DIFFERENCE):
        return Differences(codec)
    if codec.spec != "bf16":
        raise InvalidArgumentError(f'down={down!r}: give "none", "bf16" or "difference:CODEC"')
    return Plain(codec)


def receive(content: ArrayRecord, request: ConfigRecord, context: Context) -> ArrayRecord:
    """The plain arrays of a message. Raises InvalidArgumentError if this client lacks the base of
    the differences. The server then sends all parameters in the next round."""
    down = str(request.get("down", ""))
    if not down:
        return content
    header, codec = Header.from_record(request), Codec(down.removeprefix(_DIFFERENCE))
    if not down.startswith(_DIFFERENCE):
        return _decoded(codec, header, content)
    arrays = content if request["whole"] else _from_base(content, request, header, codec, context)
    context.state[_MODEL] = arrays
    context.state[_MODEL + ".told"] = header.record()
    return arrays


def _from_base(
    content: ArrayRecord, request: Mapping[str, Any], new: Header, codec: Codec, context: Context
) -> ArrayRecord:
    record = context.state.config_records.get(_MODEL + ".told")
    old = Header.from_record(record) if record else None
    rounds = [int(request["from"]), *request["rounds"]]
    if old is None or old.round not in rounds or old != dataclasses.replace(new, round=old.round):
        raise InvalidArgumentError(
            "this client does not have the weights that the difference is based on"
        )
    arrays = context.state.array_records[_MODEL]
    for round_ in rounds[rounds.index(old.round) + 1 :]:  # it has some after a lost reply
        head = f"{round_}:"
        sent = {n.removeprefix(head): one for n, one in content.items() if n.startswith(head)}
        arrays = _decoded(codec, dataclasses.replace(new, round=round_), sent, arrays)
    return arrays


def _encoded(
    codec: Codec, header: Header, arrays: ArrayRecord, base: ArrayRecord | None = None
) -> ArrayRecord:
    """Frames of parameters, or of their difference to earlier parameters."""
    header = dataclasses.replace(header, codec=codec.spec)
    sent = ArrayRecord()
    for name, array in arrays.items():
        if is_compressed(array):
            values = flat(array) if base is None else flat(array) - flat(base[name])
            frame = wire.encode(codec, header, name, values, None)
            array = Array(array.dtype, array.shape, KEY, frame)
        sent[name] = array
    return sent


def _decoded(
    codec: Codec, header: Header, sent: Mapping[str, Array], base: Mapping[str, Array] | None = None
) -> ArrayRecord:
    """The parameters of frames, with equal bits on the server and on every client."""
    header = dataclasses.replace(header, codec=codec.spec)
    arrays = ArrayRecord()
    for name, array in sent.items():
        if is_compressed(array):
            values: Values = wire.decode(codec, header, name, array)
            values = values if base is None else flat(base[name]) + values
            array = wire.with_values(array, values)
        arrays[name] = array
    return arrays
