"""A client of a secure sum: what it sends is masked, and the masks go only in the sum of many."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tersor._core import InvalidArgument
from tersor.flower import masks
from tersor.flower.client import Call, Mod
from tersor.flower.secure_wire import (
    SumFormat,
    array_of,
    changes_of,
    require_stage,
)
from tersor.flower.wire import KEY, only_arrays
from tersor.lanes import Lanes

_STATE = KEY + ".secure"


def secure(app: ClientApp, mods: Sequence[Mod] = ()) -> Callable[[Call], Call]:
    """A decorator of a training function, which then answers ``SecureStrategy`` alone.

    ``mods`` are Flower's, around the function: what is masked is what they let out. The server
    learns the sum of the clients' updates, of their weights and of how many values were cut;
    neither arrays nor metrics of one client. A client refuses what is out of turn: a stage twice,
    keys that two nodes share, a threshold that would let the server ask for both of a node's
    secrets. Its own secrets lie in ``context.state`` until the round's end for it, or the next one.
    """

    def register(train: Call) -> Call:
        call = train
        for mod in reversed(mods):
            call = functools.partial(_through, mod, call)
        client = _SecureClient(call)
        app.train("keys")(client.keys)
        app.train("shares")(client.shares)
        app.train("masked")(client.masked)
        app.train("unmask")(client.unmask)
        return train

    return register


def _through(mod: Mod, call: Call, message: Message, context: Context) -> Message:
    return mod(message, context, call)


def _reply(message: Message, **fields: Any) -> Message:
    content = RecordDict({KEY: ConfigRecord(_of(message.content[KEY]) | fields)})
    return Message(content, reply_to=message)


def _of(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": told["run"], "round": told["round"]}


class _SecureClient:
    def __init__(self, call: Call) -> None:
        self._call = call

    def keys(self, message: Message, context: Context) -> Message:
        """New keys for each round: one for masks, one to seal shares with."""
        told = message.content[KEY]
        before = context.state.config_records.get(_STATE)
        if before is not None and before["run"] == told["run"] and before["round"] >= told["round"]:
            raise InvalidArgument(f"round {told['round']} has begun already on this client")
        mask, mask_public = masks.new_key()
        seal, seal_public = masks.new_key()
        context.state[_STATE] = ConfigRecord(
            {**_of(told), "stage": "keys", "mask": mask, "seal": seal}
        )
        return _reply(message, mask=mask_public, seal=seal_public)

    def shares(self, message: Message, context: Context) -> Message:
        """Its two secrets, in sealed shares for its neighbours."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "shares", told)
        nodes, threshold = list(told["nodes"]), int(told["threshold"])
        _check_neighbours(context.node_id, nodes, [*told["masks"], *told["seals"]], threshold)
        own_mask = os.urandom(masks.SECRET_BYTES)
        pairs = zip(
            masks.split(state["mask"], threshold, len(nodes)),
            masks.split(own_mask, threshold, len(nodes)),
            strict=True,
        )
        sealed = []
        for node, public, (key_share, own_share) in zip(nodes, told["seals"], pairs, strict=True):
            key = masks.agreed_key(
                state["seal"], public, "share", told["round"], context.node_id, node
            )
            sealed.append(masks.seal(key, key_share + own_share))
        for name in ("nodes", "masks", "seals"):
            state[name] = list(told[name])
        state["own"], state["threshold"], state["stage"] = own_mask, threshold, "shares"
        return _reply(message, sealed=sealed, commitment=masks.commitment(own_mask))

    def masked(self, message: Message, context: Context) -> Message:
        """Trains, and masks what that changed."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "masked", told)
        senders = list(told["from"])
        if not set(senders) <= set(state["nodes"]) or len(set(senders)) < state["threshold"]:
            raise InvalidArgument("shares came of other nodes, or of fewer than the threshold")
        try:
            key, sums = self._trained(message, context, SumFormat.of(told))
        except Exception:
            _forget(context, told)
            raise
        if sums is None:
            _forget(context, told)
            return key
        masks.apply_mask(sums, state["own"], +1)
        publics = dict(zip(state["nodes"], state["masks"], strict=True))
        for node in set(senders):
            pair = masks.pair_key(
                state["mask"], publics[node], told["round"], context.node_id, node
            )
            masks.apply_mask(sums, pair, +1 if context.node_id < node else -1)
        bad = self._open_shares(state, told, context.node_id)
        for name in ("mask", "own", "seal"):
            del state[name]
        state["stage"] = "masked"
        answer = _of(told) | ({"bad": bad} if bad else {})  # Flower's counts bear no empty lists
        arrays = ArrayRecord({KEY: array_of(sums, KEY)})
        return Message(RecordDict({key: arrays, KEY: ConfigRecord(answer)}), reply_to=message)

    def _trained(
        self, message: Message, context: Context, format: SumFormat
    ) -> tuple[Any, Lanes | None]:
        """The key of a record of arrays, and their codes; or the app's own error."""
        key, start = only_arrays(message.content)
        message.content = RecordDict({k: one for k, one in message.content.items() if k != KEY})
        reply = self._call(message, context)
        if reply.has_error():
            return reply, None
        changes = changes_of(only_arrays(reply.content)[1], start)
        weight = _weight_of(reply, format)
        return key, format.encode(changes, weight)

    @staticmethod
    def _open_shares(state: ConfigRecord, told: ConfigRecord, own: int) -> list[int]:
        """Keeps the neighbours' shares; those nodes whose shares do not authenticate."""
        publics = dict(zip(state["nodes"], state["seals"], strict=True))
        kept, opened, bad = [], [], []
        for node, sealed in zip(told["from"], told["sealed"], strict=True):
            key = masks.agreed_key(state["seal"], publics[node], "share", told["round"], node, own)
            share = masks.unseal(key, sealed)
            if share is None:
                bad.append(node)
            else:
                kept.append(node)
                opened.append(share)
        state["kept"], state["opened"] = kept, opened
        return bad

    def unmask(self, message: Message, context: Context) -> Message:
        """Of a neighbour that is there the share of its own mask, of one that is gone that of its
        key; never both."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "unmask", told)
        alive, gone = set(told.get("alive", [])), set(told.get("gone", []))
        known = set(state["nodes"])
        if alive & gone or len(alive & known) < state["threshold"]:
            raise InvalidArgument(
                "the server asks for both secrets of a node, or too few of the neighbours are there"
            )
        shares = dict(zip(state["kept"], state["opened"], strict=True))
        _forget(context, told)
        half = masks.SECRET_BYTES
        own = {node: shares[node][half:] for node in alive if node in shares}
        keys = {node: shares[node][:half] for node in gone if node in shares}
        found = own | keys
        if not found:
            return _reply(message)
        return _reply(message, nodes=list(found), shares=list(found.values()))


def _forget(context: Context, told: Mapping[str, Any]) -> None:
    """The round is over for this client, whose secrets go."""
    context.state[_STATE] = ConfigRecord({**_of(told), "stage": "done"})


def _check_neighbours(own: int, nodes: list[int], keys: list[bytes], threshold: int) -> None:
    if own in nodes or len(set(nodes)) != len(nodes):
        raise InvalidArgument("a node is named twice among the neighbours, or is this one")
    if len(set(keys)) != len(keys):
        raise InvalidArgument("two nodes have the same key")
    if not len(nodes) < 2 * threshold <= 2 * len(nodes):
        raise InvalidArgument(
            f"threshold={threshold} of {len(nodes)} neighbours: more than half, and no more than "
            "all, or the server could learn both of a node's secrets"
        )


def _weight_of(reply: Message, format: SumFormat) -> int:
    """Its number of examples; 1 where all clients count the same."""
    if format.most_examples == 0:
        return 1
    (metrics,) = reply.content.metric_records.values()
    weight = int(metrics[format.weight_key])
    if weight < 0:
        raise InvalidArgument(f"{format.weight_key} is {weight}: give 0 or more")
    return min(weight, format.most_examples)
