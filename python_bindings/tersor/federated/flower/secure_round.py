"""The server's side of a round of a secure sum: its graph, and its exchanges. ``secure_client``
describes the protocol."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict

from tersor import Error as TersorError
from tersor._core import InvalidArgumentError
from tersor.federated.flower import masks, secure_wire
from tersor.federated.flower.secure_wire import SECRETS, Fields, SumFormat, SumVector
from tersor.federated.flower.wire import ANSWERED_TWICE, KEY, only_arrays, printable

_log = logging.getLogger("flwr")
_KEYS = (*SECRETS, "seal")  # of the keys of a node
# The tables in the reply of a stage: the name, the bytes of a value, True if all nodes are needed.
_TABLES = {
    "shares": [(name, masks.SEALED_BYTES, True) for name in SECRETS],
    "masked": [("tags", masks.TAG_BYTES, True)],
    "confirm": [("tags", masks.TAG_BYTES, False)],
    "unmask": [("shares", masks.SECRET_BYTES, False)],
}


class TooFewError(Exception):
    """Too few nodes are left for a round's sum: nothing is unmasked."""


class Disputes:
    """Pairs of nodes of which one gave a wrong value, over the rounds of a run."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()  # who gave a value, and who says it is wrong

    def add(self, sender: int, other: int, what: str) -> None:
        """Notes and logs that the sender's value is wrong, as the other node says or shows."""
        _log.warning("tersor: node %d's %s for node %d is wrong", sender, what, other)
        self._pairs.add((sender, other))

    def between(self, one: int, other: int) -> bool:
        """True if the two nodes are in dispute."""
        return not self._pairs.isdisjoint({(one, other), (other, one)})

    def at_fault(self) -> set[int]:
        """The node with more disputes of each pair; with equal numbers, the sender."""
        counts = Counter(node for pair in self._pairs for node in pair)
        return {a if counts[a] >= counts[b] else b for a, b in self._pairs}


def ring(nodes: list[int], neighbours: int) -> dict[int, list[int]]:
    """The neighbours of each node in a random ring; all other nodes in a small cohort."""
    if len(nodes) <= neighbours + 1:
        return {node: [one for one in nodes if one != node] for node in nodes}
    order = random.SystemRandom().sample(nodes, len(nodes))
    steps = [step for step in range(-neighbours // 2, neighbours // 2 + 1) if step != 0]
    count, indices = len(order), enumerate(order)
    return {node: sorted(order[(i + step) % count] for step in steps) for i, node in indices}


def default_threshold(neighbours: int) -> int:
    """Two thirds of the neighbours."""
    return max(1, -(-2 * neighbours // 3))


def failure_probability(clients: int, neighbours: int, threshold: int, dropouts: float) -> float:
    """An upper bound of the probability that a round has no sum, if each client leaves with
    the probability ``dropouts``: the union bound of Bell et al. (2020)."""
    tries, events = (neighbours, clients) if neighbours < clients - 1 else (clients, 1)
    spare = neighbours - threshold
    gone = range(spare + 1, tries + 1)
    one = sum(math.comb(tries, n) * dropouts**n * (1 - dropouts) ** (tries - n) for n in gone)
    return min(1.0, events * one)


def required_neighbours(clients: int, dropouts: float, failures: float) -> int:
    """The smallest number of neighbours, 8 or more, with at most this share of failed rounds; at
    most all other clients."""
    for count in range(8, clients - 1, 2):
        if failure_probability(clients, count, default_threshold(count), dropouts) <= failures:
            return count
    return max(2, clients - 1 + (clients - 1) % 2)


@dataclass
class Round:
    """The server's record of a round, and the exchanges with the nodes of the round."""

    round_id: Fields  #: the run and the round
    threshold: int
    neighbours: dict[int, list[int]]
    format: SumFormat
    sizes: list[int]  #: of the arrays that are summed
    disputes: Disputes
    send: Callable[..., Iterable[Message]]
    keys: dict[int, Fields] = field(default_factory=dict)
    shares: dict[int, Fields] = field(default_factory=dict)
    digest: bytes = b""  #: of the values common to all clients

    def exchange_keys(self) -> None:
        """The exchanges of keys and of shares. Raises TooFewError if too few nodes remain."""
        answers = self._request("keys", {node: {} for node in self.neighbours})
        self.keys = self._drop_isolated("keys", _with_unique_keys(answers))
        self.neighbours = {node: self._peers_in(node, self.keys) for node in self.keys}
        requests: dict[int, Fields] = {node: {"threshold": self.threshold} for node in self.keys}
        for node, name in itertools.product(self.keys, ("mask", "seal")):
            requests[node][name] = {one: self.keys[one][name] for one in self.neighbours[node]}
        self.shares = self._drop_isolated("shares", self._request("shares", requests))

    def request_updates(self, content: RecordDict) -> list[Message]:
        """The messages that send the weights and ask for masked updates."""
        cohort = hashlib.sha256(repr(list(self.shares)).encode()).digest()
        common = self.format.record() | {"clients": len(self.shares), "cohort": cohort}
        request = RecordDict({**content, KEY: secure_wire.packed(self.round_id | common)})
        self.digest = secure_wire.round_digest(request, self.threshold)
        sealed = {name: _by_receiver(self.shares, name) for name in SECRETS}
        requests = {node: {n: one[node] for n, one in sealed.items()} for node in self.shares}
        return self._messages("masked", requests, request)

    def sum(self, replies: Iterable[Message]) -> tuple[SumVector, set[int]]:
        """The sum of the updates, without masks, and its nodes. Raises TooFewError before any node
        reveals a share if the secrets cannot be reconstructed."""
        updates = self._valid_replies("masked", replies, self.shares)
        if not updates:
            raise TooFewError("too few updates: the server received no update")
        total = self.format.zeros(self.sizes)
        for one in updates.values():
            total.add(one["vector"])
        secrets = self._secrets(updates)
        for node, secret in secrets.items():
            is_alive = node in updates
            for other in [node] if is_alive else self._peers_in(node, updates):
                public = self.keys[other]["own" if is_alive else "mask"]
                key = masks.pair_key(secret, public, self.digest, node, other)
                masks.apply_mask(total.parts, key, -1 if other <= node else +1)
        return total, set(updates)

    def _secrets(self, alive: Mapping[int, Fields]) -> dict[int, bytes]:
        """The own masks of the alive nodes and the mask keys of the gone nodes, after neighbours
        confirmed the survivors to each other."""
        owners = [node for node in self.shares if node in alive or self._peers_in(node, alive)]
        self._check_holders(owners, alive)
        confirmed = self._request("confirm", _tags_for(alive))
        requests = _tags_for(confirmed)
        enough = {node: one for node, one in requests.items() if len(one["tags"]) >= self.threshold}
        self._check_holders(owners, enough)
        keys = _by_receiver(self._request("unmask", enough), "shares")
        return {node: self._secret(node, SECRETS[node not in alive], keys[node]) for node in owners}

    def _secret(self, owner: int, name: str, keys: Mapping[int, bytes]) -> bytes:
        """One of a node's two secrets, by the keys of its shares."""
        shares: dict[int, bytes] = {}
        for index, holder in enumerate(self.neighbours[owner]):
            if holder in keys:
                share = masks.unseal(keys[holder], self.shares[owner][name][holder])
                if share is not None:
                    shares[index] = share
                elif not self.disputes.between(owner, holder):
                    self.disputes.add(holder, owner, "share")
        if len(shares) < self.threshold:
            raise TooFewError(
                f"{len(shares)} neighbours gave a share of a secret of node {owner}, "
                f"{self.threshold} are needed to remove its masks"
            )
        secret = masks.combine(dict(list(shares.items())[: self.threshold]))
        if masks.public_of(secret) != self.keys[owner][name]:
            for holder in self.neighbours[owner]:
                self.disputes.add(owner, holder, "share")
            raise TooFewError(f"the shares of node {owner} are inconsistent")
        return secret

    def _peers_in(self, node: int, nodes: Collection[int]) -> list[int]:
        """The neighbours of a node among the given nodes."""
        return [one for one in self.neighbours[node] if one in nodes]

    def _drop_isolated(self, stage: str, answers: dict[int, Fields]) -> dict[int, Fields]:
        """The answers of the nodes with enough neighbours among the remaining nodes."""
        left = set(answers)
        while isolated := {one for one in left if len(self._peers_in(one, left)) < self.threshold}:
            left -= isolated
        if not left:
            raise TooFewError(f"too few of {len(self.neighbours)} nodes answered for {stage!r}")
        return {node: answers[node] for node in sorted(left)}

    def _check_holders(self, owners: Iterable[int], nodes: Collection[int]) -> None:
        """Raises TooFewError if the given nodes hold too few shares of an owner's secrets."""
        for owner in owners:
            neighbours = self._peers_in(owner, nodes)
            found = sum(not self.disputes.between(owner, one) for one in neighbours)
            if found < self.threshold:
                raise TooFewError(
                    f"{found} remaining neighbours of node {owner} hold valid shares of its "
                    f"secrets, {self.threshold} are needed to remove its masks"
                )

    def _messages(
        self, stage: str, fields: Mapping[int, Fields], content: Mapping[str, Any]
    ) -> list[Message]:
        common = content.get(KEY, self.round_id)
        packed = {node: secure_wire.packed({**common, **own}) for node, own in fields.items()}
        records = {node: RecordDict({**content, KEY: one}) for node, one in packed.items()}
        kind = f"train.{stage}"
        return [Message(one, dst_node_id=n, message_type=kind) for n, one in records.items()]

    def _request(self, stage: str, requests: Mapping[int, Fields]) -> dict[int, Fields]:
        messages = self._messages(stage, requests, {})
        return self._valid_replies(stage, self.send(messages) if messages else [], requests)

    def _valid_replies(
        self, stage: str, replies: Iterable[Message], requested: Collection[int]
    ) -> dict[int, Fields]:
        """The replies of a stage by node. The log names each node that fails or replies twice."""
        found = sorted(replies, key=lambda one: one.metadata.src_node_id)
        counts = Counter(one.metadata.src_node_id for one in found)
        answers: dict[int, Fields] = {}
        for reply in found:
            node = int(reply.metadata.src_node_id)
            try:
                if reply.has_error():
                    raise InvalidArgumentError(reply.error.reason)
                if counts[node] > 1:
                    raise InvalidArgumentError(ANSWERED_TWICE)
                if node not in requested:
                    raise LookupError
                answers[node] = self._fields(stage, node, reply)
            except Exception as error:  # the parsers of a client's bytes raise errors of many types
                reason = error if isinstance(error, TersorError) else "not the requested reply"
                _log.warning("tersor: node %d, %r: %s", node, stage, printable(reason))
        return answers

    def _fields(self, stage: str, node: int, reply: Message) -> Fields:
        """The fields of a reply. Raises InvalidArgumentError, LookupError, TypeError or ValueError
        for fields that do not fit the stage. Records the nodes whose values the sender found
        wrong."""
        fields = secure_wire.unpacked(reply.content[KEY])
        if not secure_wire.is_same_round(fields, self.round_id):
            raise InvalidArgumentError(
                f"a reply of round {fields['round']}, not {self.round_id['round']}"
            )
        for name in _KEYS if stage == "keys" else ():
            masks.agreed_key(masks.new_key()[0], fields[name], "trial")
        neighbours = set(self._peers_in(node, self.shares or self.keys))
        for name, size, needs_all in _TABLES.get(stage, ()):
            fields[name] = table = dict(fields[name])
            if table.keys() - neighbours or (needs_all and neighbours - table.keys()):
                raise ValueError(name)
            if any(not isinstance(one, bytes) or len(one) != size for one in table.values()):
                raise ValueError(name)
        if stage == "masked":
            (array,) = only_arrays(reply.content)[1].values()
            fields["vector"] = self.format.vector_of(array, self.sizes)
        for bad in neighbours & dict(fields["bad"]).keys():
            self.disputes.add(bad, node, "share or tag")
        return fields


def _with_unique_keys(found: dict[int, Fields]) -> dict[int, Fields]:
    """The answers without nodes that have a key in common: a node took another node's key."""
    owners = Counter(one[name] for one in found.values() for name in _KEYS)
    duplicates = {n for n, one in found.items() if any(owners[one[name]] > 1 for name in _KEYS)}
    for node in sorted(duplicates):
        _log.warning("tersor: node %d has another node's key; it is left out", node)
    return {node: one for node, one in found.items() if node not in duplicates}


def _by_receiver(answers: Mapping[int, Fields], name: str) -> dict[int, dict[int, bytes]]:
    """For each node, the values in the other nodes' tables, by sender."""
    found: dict[int, dict[int, bytes]] = defaultdict(dict)
    for sender, fields in answers.items():
        for node, value in fields[name].items():
            found[node][sender] = value
    return found


def _tags_for(answers: Mapping[int, Fields]) -> dict[int, Fields]:
    """For each node that answered, the tags from the others."""
    tags = _by_receiver(answers, "tags")
    return {node: {"tags": tags[node]} for node in answers}
