"""Sends versions of weights from one rank to the other ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from tersor import collectives
from tersor._core import BaseMismatchError, InvalidArgumentError, Transport, WireError
from tersor.delta import _files, _memory
from tersor.delta._memory import Delta, Weights
from tersor.delta._publisher import Publisher
from tersor.delta._transaction import Part, parts_of, write
from tersor.delta._vote import EXACT, on_all_ranks

_PLAN_BYTES = 1 << 24


def broadcast_delta(
    transport: Transport,
    weights: Weights | Publisher,
    version: int | None = None,
    *,
    root: int = 0,
    threads: int = 1,
    timeout: float = 300.0,
) -> int:
    """Brings the weights of all ranks to the version of one rank, on all ranks or on no rank.

    Each rank first reports a version, and gets the deltas since this version. New ranks and ranks
    without a chain of deltas get all weights, and need memory for a second copy. Ranks with the
    newest version get nothing, and check their weights.

    Args:
        transport: The ranks. Host memory is sent: with NCCL, pass ``tersor.torch.transport()``.
        weights: On the root, a ``Publisher(None)`` with a published version. On the other ranks,
            names and tensors of the same model, as in :func:`apply`.
        version: On the other ranks: the version of the weights, or None if unknown.
        root: The sender.
        threads: Number of threads; 0: one per core.
        timeout: Seconds for each exchange.

    Returns:
        The version of the weights.

    Raises:
        InvalidArgumentError: A rank has another model, or the root has no version.
        BaseMismatchError: The weights of a rank are not the reported version. Call again on all
            ranks, with ``version=None`` on the rank in the message.
        WireError: Received bytes are damaged.
        TransportError: A rank is late or lost. The weights have their old version.

    Example:
        >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
        >>> publisher = tersor.delta.Publisher(None)
        >>> manifest = publisher.publish(1, {"bias": numpy.ones(3, numpy.float32)})
        >>> source = publisher if transport.rank == 0 else weights
        >>> tersor.delta.broadcast_delta(transport, source)
        1
    """

    def own() -> tuple[dict[str, Any], str]:
        if isinstance(weights, Publisher) != (transport.rank == root):
            raise InvalidArgumentError(f"only rank {root}, the root, passes a Publisher")
        if isinstance(weights, Publisher) and weights.version is None:
            raise InvalidArgumentError("publish a version before the broadcast")
        tensors = weights.weights if isinstance(weights, Publisher) else _files.separate(weights)[0]
        return dict(sorted(tensors.items())), _files.model_of(_files.tensor_entries(tensors, {}))

    tensors, model = on_all_ranks(transport, own, "", timeout)
    rows = collectives.gather_texts(transport, f"{version} {model}", timeout)
    texts = [text.split() for text in rows]
    for rank, (_, other) in enumerate(texts):
        if other != texts[root][1]:
            raise InvalidArgumentError(f"rank {rank} has another model than rank {root}, the root")
    limit = sum(size for _, size in map(_memory.address_of, tensors.values()))

    def planned() -> tuple[bytes, dict[int, bytes]]:
        if not isinstance(weights, Publisher):
            return b"", {}
        return _plan(weights, root, [text for text, _ in texts], limit)

    data, own_links = on_all_ranks(transport, planned, "", timeout)
    plan = json.loads(_broadcast(transport, data, root, _PLAN_BYTES, timeout).tobytes())
    chain, full = [], {}
    if group := _group(transport, root, plan["chain"]):
        inner, source = group
        chain = [
            (base, _broadcast(inner, own_links.get(one, b""), source, limit, timeout))
            for one, base in plan["links"]
        ]
    if group := _group(transport, root, plan["full"]):
        inner, source = group
        for name, tensor in tensors.items():
            value = _memory.bytes_of(name, tensor) if transport.rank == root else b""
            size = _memory.address_of(tensor)[1]
            full[name] = _broadcast(inner, value, source, size, timeout)

    def parts() -> list[Part]:
        if transport.rank in plan["full"]:
            return [_full_part(name, tensors[name], full[name], plan, threads) for name in full]
        if transport.rank not in plan["chain"]:
            if transport.rank != root:
                _check(tensors, plan, threads)
            return []
        links = itertools.dropwhile(lambda link: link[0] != version, chain)
        return parts_of(tensors, [one for _, link in links for one in _frames(link)], threads)

    write(parts, False, transport, timeout, f"version {plan['version']}")
    return int(plan["version"])


def _plan(
    publisher: Publisher, root: int, versions: Sequence[str], limit: int
) -> tuple[bytes, dict[int, bytes]]:
    """Returns the ranks that get deltas and all weights, and the deltas by version."""
    newest = publisher.version
    chain: list[int] = []
    full: list[int] = []
    links: list[tuple[int, int]] = []
    for rank, text in enumerate(versions):
        if rank == root or text == str(newest):
            continue
        path, at, size = list[tuple[int, int]](), newest, 0
        while at in publisher._links and str(at) != text:
            base, deltas = publisher._links[at]
            size += sum(len(one.data) for one in deltas)
            path.insert(0, (at, base))
            at = base
        is_linked = str(at) == text and size <= limit
        (chain if is_linked else full).append(rank)
        links = max(links, path, key=len) if is_linked else links
    sums = publisher._checksums
    plan = {"version": newest, "chain": chain, "full": full, "links": links, "checksums": sums}
    data = {one: b"".join(delta.data for delta in publisher._links[one][1]) for one, _ in links}
    return json.dumps(plan).encode(), data


def _group(transport: Transport, root: int, ranks: Sequence[int]) -> tuple[Transport, int] | None:
    """Returns the transport of the root and some ranks, and the root's number there."""
    members = sorted({root, *ranks})
    if not ranks or transport.rank not in members:
        return None
    inner = transport if len(members) == transport.ranks else transport.split(members)
    return inner, members.index(root)


def _broadcast(transport: Transport, data: Any, root: int, limit: int, timeout: float) -> Any:
    """Broadcasts bytes, at most ``limit``, and returns an array of the bytes."""
    options: Any = {"codec": EXACT, "timeout": timeout}
    count = numpy.array([len(data)], numpy.uint64)
    collectives.broadcast(transport, count.view(numpy.float32), root, **options)
    size = int(count[0])
    if size > limit:
        transport.abort(reason := f"rank {root} sends {size} bytes; at most {limit} are expected")
        raise WireError(reason)
    buffer = numpy.zeros(-(-size // 4) * 4, numpy.uint8)
    if transport.rank == root:
        buffer[:size] = numpy.frombuffer(data, numpy.uint8)
    if size:
        collectives.broadcast(transport, buffer.view(numpy.float32), root, **options)
    return buffer[:size]


def _frames(data: Any) -> Iterable[Delta]:
    """Returns the deltas in received bytes."""
    while len(data):
        count = max(int.from_bytes(data[8:16].tobytes(), "little"), 64)
        yield Delta(data[:count].tobytes())
        data = data[count:]


def _check(tensors: Weights, plan: Any, threads: int) -> None:
    """Raises BaseMismatchError if weights do not have their version, the newest."""
    found = _files.checksums(*_memory.tensors_of(tensors), threads)
    for name, one in zip(tensors, found, strict=True):
        if one != plan["checksums"].get(name):
            raise BaseMismatchError(f'tensor "{name}" is not of version {plan["version"]}')


def _full_part(name: str, tensor: Any, value: Any, plan: Any, threads: int) -> Part:
    """Returns the part that writes received values, after a check."""
    described = _memory.described({name: tensor})
    if _files.checksums(described, [value], threads) != [plan["checksums"].get(name)]:
        raise WireError(f'tensor "{name}" does not have the checksum of the sender')
    return Part({name: tensor}, threads, read=lambda: [value])
