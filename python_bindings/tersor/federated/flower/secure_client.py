"""A client of a secure sum. The update is masked. Masks cancel only in a sum of many updates.

The protocol of a round follows Bell et al. (2020), with the acknowledgements of the paper's
malicious variant. A client has ``m`` neighbours. The threshold ``t`` is more than half of ``m``.
The digest ``D`` (``round_digest``) covers all values required to be equal on all clients. Two
neighbours derive a channel key unknown to all other nodes. Each share is encrypted and
authenticated with a separate key, derived from the channel key. A tag is a MAC under the channel
key over a stage, ``D``, the sender and the receiver.

1. ``keys``: the client sends three new public keys: for the own mask, for the masks of pairs, and
   for channels. The public key of the own mask later serves to check a reconstructed secret.
2. ``shares``: the client gets the neighbours' keys and ``t``. The client splits two secrets, the
   private keys of the own mask and of the pairs' masks, into ``m`` shares each. Any ``t`` shares
   give the secret. Each neighbour gets one encrypted share of each secret.
3. ``masked``: the client gets the neighbours' encrypted shares, and trains. The client sends the
   update plus the own mask, plus or minus a pair mask for each sender of a share. The keys of pair
   masks depend on ``D``. Each sender also gets a tag: "my update has a mask with you".
4. ``confirm``: the server divides the senders into alive and gone nodes, and relays the tags of
   the alive nodes. The client keeps this division. Each alive neighbour with a correct tag gets a
   second tag: "the server lists you as alive".
5. ``unmask``: the client gets the second tags. With ``t`` correct tags, the client reveals one
   share for each neighbour: of the own mask if the neighbour is alive, of the mask key if the
   neighbour is gone. The client sends the key of the encrypted share, and the server decrypts the
   share. A holder therefore cannot change a share, and a wrong secret is the fault of the owner.

Why ``confirm`` suffices: the server needs shares from ``t`` neighbours to remove a victim's own
mask. Each of the ``t`` neighbours has ``t`` confirmations. At most ``m - t`` other nodes could
therefore reveal shares of a neighbour's mask key, fewer than the required ``t``. Each of the ``t``
neighbours also has the victim's tag. The victim's update therefore has a mask with each of the
``t`` neighbours. The pair masks cancel only in a sum with all ``t`` neighbours. A sum therefore has
at least ``t + 1`` clients, regardless of the server's messages. If up to ``c`` neighbours of each
client collude with the server, and ``c < 2 t - m``, a sum has at least ``t + 1 - c`` clients
without collusion. The keys must be the clients' own: docs/explain/security.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tersor._core import InvalidArgumentError
from tersor.federated.flower import masks, secure_wire
from tersor.federated.flower.client import Call, Mod
from tersor.federated.flower.secure_wire import SECRETS, STAGES, Fields, SumFormat, SumVector
from tersor.federated.flower.wire import KEY, copied, only_arrays

_STATE = KEY + ".secure"
Bounds = tuple[int, int, float, int]


def secure(
    app: ClientApp,
    mods: Sequence[Mod] = (),
    *,
    min_clients: int = 3,
    min_neighbours: int = 2,
    max_clip: float = math.inf,
    example_step: int = 1,
) -> Callable[[Call], Call]:
    """A decorator for a training function, for clients of ``SecureStrategy``.

    The server learns the sums of the clients' updates, weights and clipped counts. The server
    learns neither the arrays nor the metrics of a single client. The client refuses requests out of
    order, equal keys of two nodes, and a threshold for which the server could ask for both secrets
    of a node. The client's secrets stay in ``context.state`` until the end of the round.

    Args:
        app: The client app. The decorator registers all stages of the protocol.
        mods: Flower's mods around the function. The result of the mods is masked.
        min_clients: The client refuses a round if the sum could have fewer clients.
        min_neighbours: The client refuses a round with fewer neighbours.
        max_clip: The client refuses a round with a larger ``clip``.
        example_step: With ``SecureStrategy(max_examples=)``, the number of examples is rounded up
            to a multiple of this number. If the configuration has Flower's ``clipping_norm``, the
            norm of the rounded update stays within ``clipping_norm``.

    Returns:
        The decorator, which returns the function unchanged.

    Raises:
        InvalidArgumentError: An option is invalid.

    Example:
        >>> @tersor.federated.flower.secure(app)
        ... def train(message, context): ...
    """
    if min_clients < 2 or min_neighbours < 1 or not max_clip > 0 or example_step < 1:
        raise InvalidArgumentError(
            f"min_clients={min_clients}, min_neighbours={min_neighbours}, max_clip={max_clip}, "
            f"example_step={example_step}: give at least 2, at least 1, above 0, at least 1"
        )

    def register(train: Call) -> Call:
        inner = ClientApp()
        inner.train("masked", mods=list(mods))(train)
        bounds = min_clients, min_neighbours, max_clip, example_step
        for stage in STAGES:
            app.train(stage)(functools.partial(_handle, stage, inner, bounds))
        return train

    return register


def _handle(stage: str, call: Call, bounds: Bounds, message: Message, context: Context) -> Message:
    """The reply of a stage. Raises InvalidArgumentError for a request out of turn."""
    request = secure_wire.unpacked(message.content[KEY])
    state = secure_wire.unpacked(context.state.config_records.get(_STATE, {}))
    _check_order(stage, request, state)
    round_id = {name: request[name] for name in ("run", "round")}
    if stage == "masked":  # if this stage raises, the round is over for this client
        context.state[_STATE] = secure_wire.packed({**round_id, "stage": "done"})
    handler = _StageHandler(call, *bounds, message, context, context.node_id, request, state)
    fields = getattr(handler, stage)()
    context.state[_STATE] = secure_wire.packed({**state, **round_id, "stage": stage})
    arrays = fields.pop("arrays", {})
    record = secure_wire.packed(round_id | fields)
    return Message(RecordDict({**arrays, KEY: record}), reply_to=message)


def _check_order(stage: str, request: Fields, state: Fields) -> None:
    number = request["round"]
    if stage == "keys":
        if state.get("run") == request["run"] and state["round"] >= number:
            raise InvalidArgumentError(f"round {number} began before on this client")
        return
    before = STAGES[STAGES.index(stage) - 1]
    if not secure_wire.is_same_round(state, request) or state["stage"] != before:
        raise InvalidArgumentError(
            f"round {number}, {stage!r}: this client has not completed {before!r} of that round"
        )


@dataclass
class _StageHandler:
    """A request, and the state between stages: fields, and tables by neighbour."""

    call: Call
    min_clients: int
    min_neighbours: int
    max_clip: float
    example_step: int
    message: Message
    context: Context
    own: int  #: this node
    request: Fields
    state: Fields

    def keys(self) -> Fields:
        """New keys for each round: of the own mask, of the masks of pairs, of channels."""
        pairs = {name: masks.new_key() for name in (*SECRETS, "seal")}
        self.state.clear()
        self.state.update({name: private for name, (private, _) in pairs.items()})
        return {name: public for name, (_, public) in pairs.items()}

    def shares(self) -> Fields:
        """The client's two secrets, in sealed shares for the neighbours."""
        own, request, state = self.own, self.request, self.state
        keys = [*request["mask"].values(), *request["seal"].values()]
        if own in request["mask"] or request["mask"].keys() != request["seal"].keys():
            raise InvalidArgumentError("this node is among its neighbours, or a key is missing")
        if len(set(keys)) != len(keys):
            raise InvalidArgumentError("two nodes have the same key")
        self._check_neighbours(len(request["mask"]), request["threshold"])
        seal = state.pop("seal")
        state["channel"] = {
            node: masks.agreed_key(seal, public, "channel", request["round"], *sorted((own, node)))
            for node, public in request["seal"].items()
        }
        state["public"], state["threshold"] = request["mask"], request["threshold"]
        return {name: self.sealed(name) for name in SECRETS}

    def _check_neighbours(self, count: int, threshold: int) -> None:
        if not count < 2 * threshold <= 2 * count:
            raise InvalidArgumentError(
                f"threshold={threshold} of {count} neighbours: give more than half and at most "
                "all, otherwise the server could learn both of a node's secrets"
            )
        if count < self.min_neighbours:
            raise InvalidArgumentError(
                f"{count} neighbours: this client accepts no fewer than {self.min_neighbours}"
            )
        if threshold + 1 < self.min_clients:
            raise InvalidArgumentError(
                f"threshold={threshold}: a sum could have {threshold + 1} clients; this client "
                f"accepts no fewer than {self.min_clients}"
            )

    def masked(self) -> Fields:
        """Trains, and masks the change."""
        own, request, state = self.own, self.request, self.state
        senders, format = request["own"], SumFormat.from_record(request)
        if not senders.keys() == request["mask"].keys() <= state["channel"].keys():
            raise InvalidArgumentError("received shares of other nodes")
        if len(senders) < state["threshold"]:
            raise InvalidArgumentError("received shares of fewer nodes than the threshold")
        if not 0 < format.clip <= self.max_clip:
            raise InvalidArgumentError(
                f"clip={format.clip}: this client accepts up to {self.max_clip}"
            )
        state["digest"] = secure_wire.round_digest(self.message.content, state["threshold"])
        key, vector = self._trained(format)
        private, publics, own_mask = (state.pop(name) for name in ("mask", "public", "own"))
        pairs = {own: (own_mask, masks.public_of(own_mask))}
        pairs |= {node: (private, publics[node]) for node in senders}
        for node, (secret, public) in pairs.items():
            mask = masks.pair_key(secret, public, state["digest"], own, node)
            masks.apply_mask(vector.parts, mask, +1 if own <= node else -1)
        state["channel"] = {node: state["channel"][node] for node in senders}
        bad = {
            node: True
            for node in senders
            for name in SECRETS
            if masks.unseal(self.share_key(name, node), request[name][node]) is None
        }
        array = Array("uint8", vector.data.shape, KEY, vector.data.tobytes())
        arrays = {key: ArrayRecord({KEY: array})}
        return {"arrays": arrays, "tags": self.tags("masked", senders), "bad": bad}

    def _trained(self, format: SumFormat) -> tuple[str, SumVector]:
        """The key of the record of arrays, and the codes of the change."""
        key, start = only_arrays(self.message.content)
        del self.message.content[KEY]
        self.message.content[key] = copied(start)
        reply = self.call(self.message, self.context)
        if reply.has_error():
            raise InvalidArgumentError(str(reply.error.reason))
        changes = secure_wire.changes_of(only_arrays(reply.content)[1], start)
        weight = 1
        if format.max_examples:
            (metrics,) = reply.content.metric_records.values()
            examples = int(metrics[format.weight_key])
            if examples < 0:
                raise InvalidArgumentError(f"{format.weight_key} is {examples}: give 0 or more")
            weight = -(-examples // self.example_step) * self.example_step
            weight = min(weight, format.max_examples)
        return key, format.encode(changes, weight, _norm_of(self.message))

    def confirm(self) -> Fields:
        """Acknowledges each alive neighbour with a correct tag. The server sends the tags of
        alive neighbours. All other senders of shares are gone."""
        alive, state = self.request["tags"], self.state
        if not alive.keys() <= state["channel"].keys():
            raise InvalidArgumentError("the server lists a node without shares as alive")
        valid = self.valid("masked", alive)
        if len(valid) < state["threshold"]:
            raise InvalidArgumentError(
                f"{len(valid)} of {len(alive)} neighbours masked an update of this round and "
                f"digest, {state['threshold']} are needed: the server sent other data to the rest"
            )
        gone = state["channel"].keys() - alive.keys()
        state["secret"] = dict.fromkeys(valid, "own") | dict.fromkeys(gone, "mask")
        bad = dict.fromkeys(alive.keys() - valid, True)
        return {"tags": self.tags("alive", valid), "bad": bad}

    def unmask(self) -> Fields:
        """A share per neighbour: of an alive neighbour's own mask, or of a gone neighbour's mask
        key. The client reveals nothing before ``t`` neighbours confirm this client as alive."""
        secrets, threshold = self.state["secret"], self.state["threshold"]
        found = {n: tag for n, tag in self.request["tags"].items() if secrets.get(n) == "own"}
        valid = self.valid("alive", found)
        if len(valid) < threshold:
            raise InvalidArgumentError(
                f"{len(valid)} neighbours confirm that this client is alive, {threshold} are needed"
            )
        shares = {node: self.share_key(name, node) for node, name in secrets.items()}
        self.state.clear()
        return {"shares": shares, "bad": dict.fromkeys(found.keys() - valid, True)}

    def sealed(self, name: str) -> dict[int, bytes]:
        """The sealed shares of a secret, for the neighbours in ascending order."""
        own, channels = self.own, self.state["channel"]
        nodes = sorted(channels)
        shares = masks.split(self.state[name], self.state["threshold"], len(nodes))
        keys = [masks.share_key(channels[node], name, own, node) for node in nodes]
        return dict(zip(nodes, map(masks.seal, keys, shares), strict=True))

    def share_key(self, name: str, owner: int) -> bytes:
        """The key of a neighbour's sealed share."""
        return masks.share_key(self.state["channel"][owner], name, owner, self.own)

    def tags(self, stage: str, nodes: Iterable[int]) -> dict[int, bytes]:
        """A tag for each neighbour."""
        own, channels, digest = self.own, self.state["channel"], self.state["digest"]
        return {node: masks.tag(channels[node], stage, digest, own, node) for node in nodes}

    def valid(self, stage: str, tags: Mapping[int, object]) -> set[int]:
        """The nodes with correct tags."""
        own, channels, digest = self.own, self.state["channel"], self.state["digest"]
        expected = {node: masks.tag(channels[node], stage, digest, node, own) for node in tags}
        return {node for node, tag in tags.items() if masks.is_tag(tag, expected[node])}


def _norm_of(message: Message) -> float:
    """The limit of an update's norm. Flower's strategies send the limit to clipping mods."""
    records = message.content.config_records.values()
    norms = (float(one["clipping_norm"]) for one in records if "clipping_norm" in one)
    return min(norms, default=math.inf)
