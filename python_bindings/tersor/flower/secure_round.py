"""What the server of a secure sum knows of a round, and what it makes of clients' answers."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message

from tersor.flower import masks

_log = logging.getLogger("flwr")
_TRIES = 200  # subsets of shares that are tried for one secret


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

    def divide(self, one: int, other: int) -> bool:
        """True if the two nodes are in dispute."""
        return (one, other) in self._pairs or (other, one) in self._pairs

    def counts(self) -> Counter[int]:
        """The number of disputes of each node."""
        return Counter(node for pair in self._pairs for node in pair)

    def at_fault(self) -> set[int]:
        """Of each pair the node with more disputes; if both have the same number, the sender."""
        counts = self.counts()
        return {a if counts[a] >= counts[b] else b for a, b in self._pairs}


@dataclass
class Round:
    """What the server knows of a round; nodes are those that are still in it."""

    run: str
    number: int
    threshold: int
    neighbours: dict[int, list[int]]  #: by node, as its shares are numbered
    keys: dict[int, ConfigRecord] = field(default_factory=dict)
    shares: dict[int, ConfigRecord] = field(default_factory=dict)
    tags: dict[int, dict[int, bytes]] = field(default_factory=dict)  #: of updates, by receiver
    digest: bytes = b""  #: of what all clients are told alike
    disputes: Disputes = field(default_factory=Disputes)
    send: Callable[..., Iterable[Message]] = lambda _: []

    @property
    def told(self) -> dict[str, Any]:
        """What each message of the round says of it."""
        return {"run": self.run, "round": self.number}

    def around(self, node: int, those: Iterable[int]) -> list[int]:
        """The neighbours of a node that are among those."""
        among = set(those)
        return [one for one in self.neighbours[node] if one in among]

    def require_holders(self, owners: Iterable[int], those: Iterable[int]) -> None:
        """Raises TooFewError if those nodes hold too few shares of an owner's secrets."""
        there = list(those)
        for owner in owners:
            around = self.around(owner, there)
            found = sum(not self.disputes.divide(owner, one) for one in around)
            if found < self.threshold:
                raise TooFewError(
                    f"{found} neighbours of node {owner} are left that hold valid shares of its "
                    f"secrets, {self.threshold} are needed to remove its masks"
                )

    def sustained(self, nodes: Iterable[int]) -> set[int]:
        """Those that have enough neighbours among themselves; who has not leaves, and so on."""
        left = set(nodes)
        while lonely := {one for one in left if len(self.around(one, left)) < self.threshold}:
            left -= lonely
        return left


def ring(nodes: list[int], neighbours: int) -> dict[int, list[int]]:
    """Each node's neighbours on a ring that nobody chose; all others where there are no more."""
    if len(nodes) <= neighbours + 1:
        return {node: [one for one in nodes if one != node] for node in nodes}
    order = random.SystemRandom().sample(nodes, len(nodes))
    steps = [step for step in range(-neighbours // 2, neighbours // 2 + 1) if step != 0]
    return {
        node: sorted(order[(place + step) % len(order)] for step in steps)
        for place, node in enumerate(order)
    }


def usual_threshold(neighbours: int) -> int:
    """Two thirds of the neighbours."""
    return max(1, -(-2 * neighbours // 3))


def failure_probability(clients: int, neighbours: int, threshold: int, dropouts: float) -> float:
    """An upper bound of the probability that a round has no sum, if each client goes with the
    probability ``dropouts``: a sum over the clients, as Bell et al. (2020) choose graphs."""
    tries, events = (neighbours, clients) if neighbours < clients - 1 else (clients, 1)
    spare = neighbours - threshold
    one = sum(
        math.comb(tries, gone) * dropouts**gone * (1 - dropouts) ** (tries - gone)
        for gone in range(spare + 1, tries + 1)
    )
    return min(1.0, events * one)


def enough_neighbours(clients: int, dropouts: float, failures: float) -> int:
    """The fewest neighbours, 8 or more, with which at most that share of rounds fails; all other
    clients if fewer are not enough."""
    for count in range(8, clients - 1, 2):
        if failure_probability(clients, count, usual_threshold(count), dropouts) <= failures:
            return count
    return max(2, clients - 1 + (clients - 1) % 2)


def is_key(_: Round, __: int, record: Mapping[str, Any]) -> bool:
    return all(masks.is_public(record.get(name)) for name in ("mask", "seal"))


def are_shares(made: Round, node: int, record: Mapping[str, Any]) -> bool:
    sealed, told = record.get("sealed"), record.get("commitment")
    if not isinstance(sealed, list) or len(sealed) != len(made.neighbours[node]):
        return False
    return all(isinstance(one, bytes) for one in [*sealed, told])


def are_tags(made: Round, node: int, record: Mapping[str, Any]) -> bool:
    return _are_of_neighbours(made, node, record, "tags", masks.TAG_BYTES)


def are_opened(made: Round, node: int, record: Mapping[str, Any]) -> bool:
    return _are_of_neighbours(made, node, record, "shares", masks.SECRET_BYTES)


def _are_of_neighbours(
    made: Round, node: int, record: Mapping[str, Any], name: str, size: int
) -> bool:
    """Whether a record has a value of this size for each of its neighbours."""
    nodes, values, bad = (record.get(one, []) for one in ("nodes", name, "bad"))
    if not all(isinstance(one, list) for one in (nodes, values, bad)) or len(nodes) != len(values):
        return False
    are_known = {*nodes, *bad} <= set(made.neighbours[node]) and len(set(nodes)) == len(nodes)
    return are_known and all(isinstance(one, bytes) and len(one) == size for one in values)


def of_own_keys(found: dict[int, ConfigRecord]) -> dict[int, ConfigRecord]:
    """Without those that share a key: one of them has taken another's."""
    owners: dict[Any, set[int]] = {}
    for node, record in found.items():
        for name in ("mask", "seal"):
            owners.setdefault(record[name], set()).add(node)
    alike = {node for nodes in owners.values() if len(nodes) > 1 for node in nodes}
    alike |= {node for node, record in found.items() if record["mask"] == record["seal"]}
    for node in sorted(alike):
        _log.warning("tersor: node %d has another node's key; it is left out", node)
    return {node: record for node, record in found.items() if node not in alike}


def secret_of(
    made: Round, node: int, shares: Mapping[int, bytes], of_mask_key: bool = False
) -> bytes:
    """A node's own mask, or the key of those it shared. Tries further subsets if a share is wrong,
    and notes which nodes are in dispute. Raises TooFewError if no subset gives the secret."""

    def is_right(secret: bytes) -> bool:
        if of_mask_key:
            return bool(masks.public_of(secret) == made.keys[node]["mask"])
        return bool(masks.commitment(secret) == made.shares[node]["commitment"])

    around, counts = made.neighbours[node], made.disputes.counts()
    order = sorted(shares, key=lambda place: counts[around[place]])
    for attempt, chosen in enumerate(_subsets(order, made.threshold)):
        secret = masks.combine({place: shares[place] for place in chosen})
        if not is_right(secret):
            continue
        for place in set(order) - set(chosen) if attempt else ():
            others = {other: shares[other] for other in (*chosen[1:], place)}
            if masks.combine(others) != secret:
                made.disputes.add(around[place], node, "share")
        return secret
    for holder in around:
        made.disputes.add(node, holder, "share")
    raise TooFewError(f"the shares of node {node} do not fit together")


def _subsets(places: list[int], count: int) -> Iterator[tuple[int, ...]]:
    if math.comb(len(places), count) <= _TRIES:
        return itertools.combinations(places, count)
    first, draw = tuple(places[:count]), random.SystemRandom()
    return itertools.chain([first], (tuple(draw.sample(places, count)) for _ in range(_TRIES)))


def shares_by_owner(
    made: Round, answers: Mapping[int, ConfigRecord]
) -> dict[int, dict[int, bytes]]:
    """For each node the shares of its secret, by their place among its neighbours."""
    shares: dict[int, dict[int, bytes]] = {}
    for holder, record in answers.items():
        nodes: Any = record.get("nodes", [])
        held: Any = record.get("shares", [])
        for node, share in zip(nodes, held, strict=True):
            around = made.neighbours.get(node, [])
            if holder in around:
                shares.setdefault(node, {})[around.index(holder)] = share
    return shares
