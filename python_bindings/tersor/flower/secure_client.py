"""A client of a secure sum: what it sends is masked, and the masks go only in the sum of many.

The protocol of a round follows Bell et al. (2020), with the acknowledgements of their malicious
variant. A client has ``m`` neighbours. The threshold ``t`` is more than half of ``m``. The digest
``D`` covers all values that clients must be told alike (``round_digest``). Two neighbours derive a
channel key that nobody else knows. Shares are encrypted and authenticated with that key. A tag is
a MAC under that key over a stage, ``D``, the sender and the receiver.

1. ``keys``: the client sends two new public keys, one for masks and one for channels.
2. ``shares``: the client gets its neighbours' keys and ``t``. The client splits its private mask
   key and the seed of its own mask into ``m`` shares each. Any ``t`` shares give the secret. Each
   neighbour gets one encrypted share of both.
3. ``masked``: the client gets the shares that its neighbours encrypted, and trains. The client
   sends its update plus its own mask, plus or minus one mask for each sender of a share. The keys
   of these pair masks depend on ``D``. Each sender also gets a tag: "my update has a mask with
   you".
4. ``confirm``: the server divides the senders into alive and gone, and relays the tags of the
   alive. The client keeps this division. Each alive neighbour with a correct tag gets a second
   tag: "I was told that you are alive".
5. ``unmask``: the client gets the second tags. With ``t`` correct tags the client reveals one
   share for each neighbour: of the own mask if the neighbour is alive, of the mask key if it is
   gone.

Why ``confirm`` suffices: a victim's own mask needs shares from ``t`` neighbours. Each of these
neighbours has ``t`` confirmations. At most ``m - t`` nodes remain that could reveal shares of such
a neighbour's mask key, which are fewer than ``t``. Each of these neighbours has the victim's tag,
so the victim's update has a mask with each of them. These masks cancel only in a sum with all of
them. A sum therefore has at least ``t + 1`` clients, whatever the server tells to whom. If up to
``c`` neighbours of each client collude with the server, and ``c < 2 t - m``, a sum has at least
``t + 1 - c`` clients that do not collude. The keys must be the clients' own: docs/federated.md.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tersor._core import InvalidArgument
from tersor.flower import masks
from tersor.flower.client import Call, Mod
from tersor.flower.secure_wire import (
    SumFormat,
    SumVector,
    changes_of,
    filled,
    require_stage,
    round_digest,
)
from tersor.flower.wire import KEY, only_arrays

_STATE = KEY + ".secure"


@dataclass(frozen=True)
class Bounds:
    """What a client accepts from a server."""

    min_clients: int
    min_neighbours: int
    max_clip: float
    example_step: int

    def check_neighbours(self, count: int, threshold: int) -> None:
        """Raises InvalidArgument for too few neighbours, or for too low a threshold."""
        if not count < 2 * threshold <= 2 * count:
            raise InvalidArgument(
                f"threshold={threshold} of {count} neighbours: more than half, and no more than "
                "all, or the server could learn both of a node's secrets"
            )
        if count < self.min_neighbours:
            raise InvalidArgument(
                f"{count} neighbours: this client accepts no fewer than {self.min_neighbours}"
            )
        if threshold + 1 < self.min_clients:
            raise InvalidArgument(
                f"threshold={threshold}: a sum could have {threshold + 1} clients; this client "
                f"accepts no fewer than {self.min_clients}"
            )

    def check_clip(self, clip: float) -> None:
        """Raises InvalidArgument for a larger clip."""
        if not 0 < clip <= self.max_clip:
            raise InvalidArgument(f"clip={clip}: this client accepts up to {self.max_clip}")

    def rounded(self, examples: int) -> int:
        """A multiple of ``example_step``, rounded up."""
        return -(-examples // self.example_step) * self.example_step


def secure(
    app: ClientApp,
    mods: Sequence[Mod] = (),
    *,
    min_clients: int = 3,
    min_neighbours: int = 2,
    max_clip: float = math.inf,
    example_step: int = 1,
) -> Callable[[Call], Call]:
    """A decorator of a training function, which then answers ``SecureStrategy`` alone.

    ``mods`` are Flower's, around the function: what is masked is what they let out. The server
    learns the sum of the clients' updates, of their weights and of how many values were cut;
    neither arrays nor metrics of one client. A client refuses what is out of turn: a stage twice,
    keys that two nodes share, a threshold that would let the server ask for both of a node's
    secrets. Its own secrets lie in ``context.state`` until the round's end for it, or the next one.

    The client refuses a round if a sum of fewer than ``min_clients`` could be unmasked, if the
    client has fewer than ``min_neighbours``, or if ``clip`` exceeds ``max_clip``. With
    ``SecureStrategy(most_examples=)``, the client rounds its number of examples up to a multiple of
    ``example_step``. If the configuration has Flower's ``clipping_norm``, the norm of the rounded
    update stays within that norm.
    """
    if min_clients < 2 or min_neighbours < 1 or not max_clip > 0 or example_step < 1:
        raise InvalidArgument(
            f"min_clients={min_clients}, min_neighbours={min_neighbours}, max_clip={max_clip}, "
            f"example_step={example_step}: at least 2, 1, more than 0, at least 1"
        )
    bounds = Bounds(min_clients, min_neighbours, max_clip, example_step)

    def register(train: Call) -> Call:
        call = train
        for mod in reversed(mods):
            call = functools.partial(_through, mod, call)
        client = _SecureClient(call, bounds)
        app.train("keys")(client.keys)
        app.train("shares")(client.shares)
        app.train("masked")(client.masked)
        app.train("confirm")(client.confirm)
        app.train("unmask")(client.unmask)
        return train

    return register


def _through(mod: Mod, call: Call, message: Message, context: Context) -> Message:
    return mod(message, context, call)


def _reply(message: Message, **fields: Any) -> Message:
    record = ConfigRecord(_of(message.content[KEY]) | filled(fields))
    return Message(RecordDict({KEY: record}), reply_to=message)


def _of(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": told["run"], "round": told["round"]}


class _SecureClient:
    def __init__(self, call: Call, bounds: Bounds) -> None:
        self._call, self._bounds = call, bounds

    def keys(self, message: Message, context: Context) -> Message:
        """New keys for each round: one for masks, one for the channels to neighbours."""
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
        own, nodes, threshold = context.node_id, list(told["nodes"]), int(told["threshold"])
        _check_nodes(own, nodes, [*told["masks"], *told["seals"]])
        self._bounds.check_neighbours(len(nodes), threshold)
        own_mask = os.urandom(masks.SECRET_BYTES)
        channels = [
            masks.agreed_key(
                state["seal"], public, "channel", told["round"], min(own, node), max(own, node)
            )
            for node, public in zip(nodes, told["seals"], strict=True)
        ]
        pairs = zip(
            masks.split(state["mask"], threshold, len(nodes)),
            masks.split(own_mask, threshold, len(nodes)),
            strict=True,
        )
        sealed = [
            masks.seal(masks.derived(channel, "share", own, node), key_share + own_share)
            for node, channel, (key_share, own_share) in zip(nodes, channels, pairs, strict=True)
        ]
        del state["seal"]
        state["nodes"], state["masks"], state["channels"] = nodes, list(told["masks"]), channels
        state["own"], state["threshold"], state["stage"] = own_mask, threshold, "shares"
        return _reply(message, sealed=sealed, commitment=masks.commitment(own_mask))

    def masked(self, message: Message, context: Context) -> Message:
        """Trains, and masks what that changed."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "masked", told)
        senders, format = list(told["from"]), SumFormat.of(told)
        distinct = set(senders)
        if not distinct <= set(state["nodes"]) or len(distinct) != len(senders):
            raise InvalidArgument("shares came of other nodes, or of a node twice")
        if len(senders) < state["threshold"]:
            raise InvalidArgument("shares came of fewer nodes than the threshold")
        self._bounds.check_clip(format.clip)
        state["digest"] = round_digest(message.content, state["threshold"])
        try:
            key, vector = self._trained(message, context, format)
        except Exception:
            _forget(context, told)
            raise
        if vector is None:
            _forget(context, told)
            return key
        masks.apply_mask(vector.parts, state["own"], +1)
        publics = dict(zip(state["nodes"], state["masks"], strict=True))
        for node in senders:
            pair = masks.pair_key(
                state["mask"], publics[node], state["digest"], context.node_id, node
            )
            masks.apply_mask(vector.parts, pair, +1 if context.node_id < node else -1)
        bad = _open_shares(state, told, context.node_id)
        for name in ("mask", "masks", "own"):
            del state[name]
        state["stage"] = "masked"
        arrays = ArrayRecord({KEY: vector.array(KEY)})
        answer = filled({"tags": _tags(state, "masked", context.node_id, senders), "bad": bad})
        content = RecordDict({key: arrays, KEY: ConfigRecord(_of(told) | answer)})
        return Message(content, reply_to=message)

    def _trained(
        self, message: Message, context: Context, format: SumFormat
    ) -> tuple[Any, SumVector | None]:
        """The key of a record of arrays, and their codes; or the app's own error."""
        key, start = only_arrays(message.content)
        message.content = RecordDict({k: one for k, one in message.content.items() if k != KEY})
        reply = self._call(message, context)
        if reply.has_error():
            return reply, None
        changes = changes_of(only_arrays(reply.content)[1], start)
        weight = 1
        if format.most_examples:
            weight = self._bounds.rounded(_examples(reply, format.weight_key))
        weight = min(weight, format.most_examples or 1)
        return key, format.encode(changes, weight, _norm_of(message))

    def confirm(self, message: Message, context: Context) -> Message:
        """Acknowledges each neighbour of which the server and a tag say that it is alive."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "confirm", told)
        alive, gone = list(told.get("alive", [])), list(told.get("gone", []))
        if sorted([*alive, *gone]) != sorted(state["from"]):
            raise InvalidArgument(
                "the nodes alive and gone are not those that sent shares, each once"
            )
        right = _right(state, "masked", context.node_id, zip(alive, told["tags"], strict=True))
        if len(right) < state["threshold"]:
            raise InvalidArgument(
                f"{len(right)} of {len(alive)} neighbours masked an update of this round and "
                f"digest, {state['threshold']} are needed: the server told them other things"
            )
        state["alive"], state["gone"], state["stage"] = right, gone, "confirm"
        bad = sorted(set(alive) - set(right))
        tags = _tags(state, "alive", context.node_id, right)
        return _reply(message, nodes=right, tags=tags, bad=bad)

    def unmask(self, message: Message, context: Context) -> Message:
        """Of a neighbour that is there the share of its own mask, of one that is gone that of its
        key; never both. Nothing before enough neighbours confirmed that this client is there."""
        told = message.content[KEY]
        state = require_stage(context.state.get(_STATE), "unmask", told)
        senders = list(told.get("nodes", []))
        known = set(state["alive"]) & set(senders)
        tags = dict(zip(senders, told.get("tags", []), strict=True))
        right = _right(state, "alive", context.node_id, [(one, tags[one]) for one in known])
        if len(right) < state["threshold"]:
            raise InvalidArgument(
                f"{len(right)} neighbours confirm that this client is there, "
                f"{state['threshold']} are needed"
            )
        shares = dict(zip(state["kept"], state["opened"], strict=True))
        half = masks.SECRET_BYTES
        found = {node: shares[node][half:] for node in state["alive"] if node in shares}
        found |= {node: shares[node][:half] for node in state["gone"] if node in shares}
        _forget(context, told)
        bad = sorted(known - set(right))
        return _reply(message, nodes=list(found), shares=list(found.values()), bad=bad)


def _open_shares(state: ConfigRecord, told: ConfigRecord, own: int) -> list[int]:
    """Keeps the neighbours' shares; those nodes whose shares do not authenticate."""
    channels = dict(zip(state["nodes"], state["channels"], strict=True))
    opened = {
        node: masks.unseal(masks.derived(channels[node], "share", node, own), sealed)
        for node, sealed in zip(told["from"], told["sealed"], strict=True)
    }
    right = {
        node: share
        for node, share in opened.items()
        if share is not None and len(share) == 2 * masks.SECRET_BYTES
    }
    state["from"], state["kept"], state["opened"] = list(opened), list(right), list(right.values())
    return sorted(set(opened) - set(right))


def _tags(state: ConfigRecord, stage: str, own: int, nodes: Sequence[int]) -> list[bytes]:
    """For each of these neighbours."""
    channels = dict(zip(state["nodes"], state["channels"], strict=True))
    return [masks.tag(channels[node], stage, state["digest"], own, node) for node in nodes]


def _right(
    state: ConfigRecord, stage: str, own: int, found: Iterable[tuple[int, object]]
) -> list[int]:
    """The nodes whose tags are right."""
    channels = dict(zip(state["nodes"], state["channels"], strict=True))
    return [
        node
        for node, tag in found
        if masks.is_tag(tag, masks.tag(channels[node], stage, state["digest"], node, own))
    ]


def _forget(context: Context, told: Mapping[str, Any]) -> None:
    """The round is over for this client, whose secrets go."""
    context.state[_STATE] = ConfigRecord({**_of(told), "stage": "done"})


def _check_nodes(own: int, nodes: list[int], keys: list[bytes]) -> None:
    if own in nodes or len(set(nodes)) != len(nodes):
        raise InvalidArgument("a node is named twice among the neighbours, or is this one")
    if len(set(keys)) != len(keys):
        raise InvalidArgument("two nodes have the same key")


def _examples(reply: Message, name: str) -> int:
    (metrics,) = reply.content.metric_records.values()
    examples = int(metrics[name])
    if examples < 0:
        raise InvalidArgument(f"{name} is {examples}: give 0 or more")
    return examples


def _norm_of(message: Message) -> float:
    """The norm that bounds an update: Flower's strategies send it to their clipping mods."""
    records = message.content.config_records.values()
    return min(
        (float(one["clipping_norm"]) for one in records if "clipping_norm" in one), default=math.inf
    )
