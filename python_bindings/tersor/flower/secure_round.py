"""What the server of a secure sum knows of a round, and what it makes of clients' answers."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord

from tersor.flower import masks

_log = logging.getLogger("flwr")


class TooFewError(Exception):
    """Too few nodes are left for a round's sum: nothing is unmasked."""


@dataclass
class Round:
    """What the server knows of a round; nodes are those that are still in it."""

    run: str
    number: int
    threshold: int
    neighbours: dict[int, list[int]]  #: by node, as its shares are numbered
    keys: dict[int, ConfigRecord]
    shares: dict[int, ConfigRecord] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, Any]:
        """What each message of the round says of it."""
        return {"run": self.run, "round": self.number}

    def around(self, node: int, those: Iterable[int]) -> list[int]:
        """The neighbours of a node that are among those."""
        among = set(those)
        return [one for one in self.neighbours[node] if one in among]

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


def is_key(_: Round, __: int, record: Mapping[str, Any]) -> bool:
    return all(masks.is_public(record.get(name)) for name in ("mask", "seal"))


def are_shares(made: Round, node: int, record: Mapping[str, Any]) -> bool:
    sealed, told = record.get("sealed"), record.get("commitment")
    if not isinstance(sealed, list) or len(sealed) != len(made.neighbours[node]):
        return False
    return all(isinstance(one, bytes) for one in [*sealed, told])


def are_opened(_: Round, __: int, record: Mapping[str, Any]) -> bool:
    nodes, shares = record.get("nodes", []), record.get("shares", [])
    if not isinstance(nodes, list) or not isinstance(shares, list) or len(nodes) != len(shares):
        return False
    return all(isinstance(one, bytes) and len(one) == masks.SECRET_BYTES for one in shares)


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
    """A node's own mask, or the key of those it shared. Raises TooFewError where the shares are
    of no such secret."""
    secret = masks.combine(dict(list(shares.items())[: made.threshold]))
    if of_mask_key:
        is_right = masks.public_of(secret) == made.keys[node]["mask"]
    else:
        is_right = masks.commitment(secret) == made.shares[node]["commitment"]
    if not is_right:
        raise TooFewError(f"the shares of node {node} do not fit together")
    return secret


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
