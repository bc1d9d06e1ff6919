"""The server's exchanges of a secure sum. ``secure_client`` describes the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from tersor.flower import masks
from tersor.flower.secure_round import (
    Round,
    TooFewError,
    are_opened,
    are_shares,
    are_tags,
    is_key,
    of_own_keys,
    secret_of,
    shares_by_owner,
)
from tersor.flower.secure_wire import SumVector, filled, is_of
from tersor.flower.wire import KEY, printable

_log = logging.getLogger("flwr")


def agree(made: Round, nodes: list[int]) -> set[int]:
    """The exchanges of keys and of shares. Returns the remaining nodes."""
    made.keys = of_own_keys(_ask(made, "keys", {node: {} for node in nodes}, is_key))
    there = _sustained(made, made.keys, nodes, "keys")
    made.neighbours = {node: made.around(node, there) for node in there}
    orders = {node: _shares_order(made, node) for node in there}
    made.shares = _ask(made, "shares", orders, are_shares)
    there = _sustained(made, made.shares, nodes, "shares")
    made.shares = {node: made.shares[node] for node in there}
    return there


def _sustained(made: Round, found: Iterable[int], nodes: list[int], stage: str) -> set[int]:
    there = made.sustained(found)
    if not there:
        raise TooFewError(f"too few of {len(nodes)} nodes answered for {stage!r}")
    return there


def _shares_order(made: Round, node: int) -> dict[str, Any]:
    around = made.neighbours[node]
    return {
        "nodes": around,
        "masks": [made.keys[one]["mask"] for one in around],
        "seals": [made.keys[one]["seal"] for one in around],
        "threshold": made.threshold,
    }


def sealed_for(made: Round, node: int) -> dict[str, Any]:
    """The shares sealed by a node's neighbours for the node."""
    senders = made.around(node, made.shares)
    sealed = [made.shares[one]["sealed"][made.neighbours[one].index(node)] for one in senders]
    return {"from": senders, "sealed": sealed}


def note_update(made: Round, node: int, record: Mapping[str, Any]) -> bool:
    """Keeps the tags of a node's update. Returns False if the tags are malformed."""
    senders = made.around(node, made.shares)
    if not are_tags(made, node, {**record, "nodes": senders}):
        return False
    made.tags[node] = dict(zip(senders, record["tags"], strict=True))
    _note_bad(made, node, record)
    return True


def remove_masks(made: Round, total: SumVector, updates: Iterable[int]) -> None:
    """Subtracts all masks from the sum of these nodes' updates. Raises TooFewError before any
    node reveals a share if the secrets cannot be reconstructed."""
    alive = set(updates)
    gone = {node for node in made.shares if node not in alive and made.around(node, alive)}
    shares = _collect(made, alive, gone)
    secrets = {node: secret_of(made, node, shares[node]) for node in sorted(alive)}
    secrets |= {
        node: secret_of(made, node, shares[node], of_mask_key=True) for node in sorted(gone)
    }
    for node in alive:
        masks.apply_mask(total.parts, secrets[node], -1)
    for node in gone:
        for other in made.around(node, alive):
            public = made.keys[other]["mask"]
            pair = masks.pair_key(secrets[node], public, made.digest, node, other)
            masks.apply_mask(total.parts, pair, -1 if other < node else +1)


def _collect(made: Round, alive: set[int], gone: set[int]) -> dict[int, dict[int, bytes]]:
    """Shares of one secret of each node, after neighbours confirmed the survivors to each other."""
    owners = sorted(alive | gone)
    made.require_holders(owners, alive)
    orders: dict[int, dict[str, Any]] = {}
    for node in alive:
        there = made.around(node, alive)
        tags = [made.tags[one][node] for one in there]
        orders[node] = {"alive": there, "gone": made.around(node, gone), "tags": tags}
    confirmed = _by_receiver(_ask(made, "confirm", orders, are_tags))
    orders = {
        node: {"nodes": list(tags), "tags": list(tags.values())}
        for node, tags in confirmed.items()
        if len(tags) >= made.threshold
    }
    made.require_holders(owners, orders)
    shares = shares_by_owner(made, _ask(made, "unmask", orders, are_opened))
    for node in owners:
        if len(shares.get(node, {})) < made.threshold:
            raise TooFewError(
                f"{len(shares.get(node, {}))} neighbours gave a share of a secret of node {node}, "
                f"{made.threshold} are needed to remove its masks"
            )
    return shares


def _by_receiver(found: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[int, bytes]]:
    """The tags of each node by their senders."""
    tags: dict[int, dict[int, bytes]] = {node: {} for node in found}
    for sender, record in found.items():
        pairs = zip(record.get("nodes", []), record.get("tags", []), strict=True)
        for node, tag in pairs:
            if node in tags:
                tags[node][sender] = tag
    return tags


def _ask(
    made: Round,
    stage: str,
    orders: Mapping[int, Mapping[str, Any]],
    is_sound: Callable[[Round, int, Mapping[str, Any]], bool],
) -> dict[int, ConfigRecord]:
    """The nodes' replies of a stage. A node that fails or replies twice is left out by name."""
    messages = [
        Message(
            RecordDict({KEY: ConfigRecord(made.told | filled(order))}),
            dst_node_id=node,
            message_type=f"train.{stage}",
        )
        for node, order in orders.items()
    ]
    replies = list(made.send(messages)) if messages else []
    answers: dict[int, ConfigRecord] = {}
    twice: set[int] = set()
    for node, reply in by_node(replies):
        record = None if reply.has_error() else reply.content.config_records.get(KEY)
        if node in answers:
            twice.add(node)
        elif record is None or not is_of(record, made.told) or node not in orders:
            _log.warning("tersor: node %d, %r: %s", node, stage, why(reply))
        elif not is_sound(made, node, record):
            _log.warning("tersor: node %d, %r: not what it was asked for", node, stage)
        else:
            answers[node] = record
            _note_bad(made, node, record)
    for node in twice:
        _log.warning("tersor: node %d answered %r twice; it is left out", node, stage)
        del answers[node]
    return answers


def _note_bad(made: Round, node: int, record: Mapping[str, Any]) -> None:
    """Records the nodes with a share or tag that a node found wrong."""
    for bad in made.around(node, record.get("bad", [])):
        made.disputes.add(bad, node, "share or tag")


def by_node(replies: Iterable[Message]) -> list[tuple[int, Message]]:
    """Replies in the order of their nodes."""
    found = ((int(one.metadata.src_node_id), one) for one in replies)
    return sorted(found, key=lambda pair: pair[0])


def why(reply: Message) -> str:
    """The reason that a reply is unusable."""
    return printable(reply.error.reason) if reply.has_error() else "not what it was asked for"
