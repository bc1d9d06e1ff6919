"""The graph of a secure sum, and the nodes that gave wrong values."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter

_log = logging.getLogger("flwr")


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
        return not self._pairs.isdisjoint({(one, other), (other, one)})

    def at_fault(self) -> set[int]:
        """Of each pair the node with more disputes; if both have the same number, the sender."""
        counts = Counter(node for pair in self._pairs for node in pair)
        return {a if counts[a] >= counts[b] else b for a, b in self._pairs}


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
