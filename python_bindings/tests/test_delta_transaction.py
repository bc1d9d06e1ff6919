"""Deltas over ranks and tensors: all or nothing."""

from __future__ import annotations

import itertools
import pathlib
import time
from typing import Any

import numpy
import pytest
from delta_models import interrupted, same, stepped, weights

import tersor
import tersor.local
from tersor import delta
from tersor.delta import _memory, _transaction


def each(base: dict[str, Any], new: dict[str, Any]) -> list[delta.Delta]:
    """A delta for each tensor."""
    return [delta.encode({name: base[name]}, {name: new[name]}) for name in base]


def versions(count: int) -> list[dict[str, Any]]:
    found = [weights()]
    while len(found) < count:
        found.append(stepped(found[-1], len(found)))
    return found


def as_torch(values: dict[str, Any]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def as_numpy(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in values.items()}


@pytest.mark.parametrize("split", [False, True])
def test_ranks_change_their_own_tensors(split: bool) -> None:
    def rank(transport: tersor.Transport) -> bool:
        base, new = weights(transport.rank), stepped(weights(transport.rank))
        if transport.rank == 1:  # a shard
            base, new = {"layer.bias": base["layer.bias"]}, {"layer.bias": new["layer.bias"]}
        made: Any = each(base, new) if split else delta.encode(base, new)
        delta.apply(base, made, transport=transport, version=7)
        return same(base, new)

    assert tersor.local.run(3, rank) == [True] * 3


def test_error_on_one_rank_raises_on_all_ranks_and_writes_nothing() -> None:
    def rank(transport: tersor.Transport) -> tuple[str, str, bool]:
        base, new = weights(), stepped(weights())
        made = each(base, new)
        if transport.rank == 1:
            base["steps"][3] += 1
        kept = {name: value.copy() for name, value in base.items()}
        with pytest.raises(tersor.Error) as caught:
            delta.apply(base, made, transport=transport)
        return type(caught.value).__name__, str(caught.value), same(base, kept)

    results = tersor.local.run(3, rank)
    assert len(set(results)) == 1
    kind, text, kept = results[0]
    assert (kind, kept) == ("BaseMismatchError", True)
    assert text.startswith('rank 1: delta: tensor "steps" is not the base')


def test_version_mismatch_raises_on_all_ranks() -> None:
    def rank(transport: tersor.Transport) -> bool:
        base = weights()
        made = delta.encode(base, stepped(base))
        with pytest.raises(tersor.InvalidArgumentError, match="rank 2 has version 6, rank 0 has v"):
            delta.apply(base, made, transport=transport, version=7 - (transport.rank == 2))
        return same(base, weights())

    assert all(tersor.local.run(3, rank))


def test_timeout_names_late_rank_and_writes_nothing() -> None:
    def rank(transport: tersor.Transport) -> bool:
        base = weights()
        made = delta.encode(base, stepped(base))
        if transport.rank == 1:
            time.sleep(2)
        with pytest.raises(tersor.TransportError, match=None if transport.rank == 1 else "rank 1"):
            delta.apply(base, made, transport=transport, timeout=0.5)
        return same(base, weights())

    assert all(tersor.local.run(3, rank))


def test_rank_lost_during_the_write_restores_the_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = _transaction.Part.write

    def write(part: Any, undo: list[Any]) -> None:
        real(part, undo)
        if "lost" in part.tensors:
            lost[0].abort("rank 1 was lost")

    lost: list[tersor.Transport] = []
    monkeypatch.setattr(_transaction.Part, "write", write)

    def rank(transport: tersor.Transport) -> bool:
        base, new = weights(), stepped(weights())
        if transport.rank == 1:
            lost.append(transport)
            base["lost"], new["lost"] = numpy.zeros(1, numpy.int8), numpy.ones(1, numpy.int8)
        with pytest.raises(tersor.TransportError, match="rank 1 was lost"):
            delta.apply(base, each(base, new), transport=transport)
        return same(weights(), base)

    assert tersor.local.run(3, rank) == [True] * 3


@pytest.mark.parametrize("device", [False, True])
def test_interrupt_at_any_line_leaves_a_complete_version(
    device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = versions(3)
    made, base, line = each(one, two) + each(two, three), weights(), 1
    if device:  # tensors of a device are copied to the host and back
        base = as_torch(base)
        monkeypatch.setattr(_memory, "is_on_host", lambda _: False)
    values = as_numpy(base) if device else base
    restored = 0
    while interrupted(lambda: delta.apply(base, made), line):
        line += 3
        if same(values, one):
            restored += 1
        else:  # the last line was reached
            assert same(values, three)
            for name, value in one.items():
                values[name][...] = value
    assert same(values, three)
    assert restored > 200


def test_a_failed_copy_to_the_device_restores_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(_memory, "is_on_host", lambda _: False)
    real = _transaction.Part._store
    failed = []

    def store(part: Any, values: list[Any]) -> None:
        real(part, values)
        if "bad" in part.tensors and not failed:
            failed.append(1)
            raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(_transaction.Part, "_store", store)

    def rank(transport: tersor.Transport) -> bool:
        name = "bad" if transport.rank == 1 else "good"
        base = {"first": numpy.arange(9.0), name: numpy.arange(5.0)}
        new = {key: value + 1 for key, value in base.items()}
        tensors = as_torch(base)
        with pytest.raises(tersor.Error, match="rank 1: CUDA error"):
            delta.apply(tensors, each(base, new), transport=transport)
        return same(as_numpy(tensors), base)

    assert tersor.local.run(3, rank) == [True] * 3
    assert failed


def test_failed_restore_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(_memory, "is_on_host", lambda _: False)

    def store(*_: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(_transaction.Part, "_store", store)
    base = {"a": numpy.zeros(3)}
    with pytest.raises(tersor.Error, match="could not be restored, load a full copy: no device"):
        delta.apply(as_torch(base), each(base, {"a": numpy.ones(3)}))


def test_chain_is_verified_before_any_write() -> None:
    found = versions(5)
    links = [each(*pair) for pair in itertools.pairwise(found)]
    base = weights()
    with pytest.raises(delta.BaseMismatchError):
        delta.apply(base, links[0] + links[2])  # a link is missing
    with pytest.raises(delta.BaseMismatchError):
        delta.apply(base, links[1])
    for at in range(0, len(links[1][0].data), 97):
        bad = bytearray(links[1][0].data)
        bad[at] ^= 1
        with pytest.raises(tersor.WireError):
            delta.apply(base, [*links[0], delta.Delta(bytes(bad)), *links[1][1:]])
    assert same(base, found[0])
    delta.apply(base, [one for link in links for one in link])
    assert same(base, found[-1])


def test_invalid_lists_of_deltas_are_rejected() -> None:
    base, new = weights(), stepped(weights())
    made = each(base, new)
    both = {name: base[name] for name in ("layer.bias", "steps")}
    cases: list[tuple[dict[str, Any], list[delta.Delta], str]] = [
        (base, made[1:], 'the delta has no tensor "layer.weight"'),
        ({k: v for k, v in base.items() if k != "scale"}, made, 'have no tensor "scale"'),
        (base, [*made, delta.encode(both, both)], '"layer.bias" is in two deltas with different'),
    ]
    for given, deltas, words in cases:
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            delta.apply(given, deltas)
    whole = numpy.zeros(12, numpy.float32)
    tied = {"a": whole[:8], "b": whole[4:]}
    with pytest.raises(tersor.InvalidArgumentError, match='"a" and "b" overlap: pass shared'):
        delta.apply(tied, each(tied, {name: value + 1 for name, value in tied.items()}))
    base["steps"].flags.writeable = False
    with pytest.raises(tersor.InvalidArgumentError, match='"steps" is not writable'):
        delta.apply(base, made)
    assert same(base, weights())
    assert not whole.any()


def test_dtensor_is_rejected(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        from torch.distributed.tensor import DeviceMesh, distribute_tensor

        tensor = distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0]))
        with pytest.raises(tersor.InvalidArgumentError, match='"a" is a DTensor'):
            delta.encode({"a": tensor}, {"a": tensor})
    finally:
        distributed.destroy_process_group()


@pytest.mark.gpu
def test_torch_tensors_change_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    base, new = weights(), stepped(weights())
    tensors = {name: value.cuda() for name, value in as_torch(base).items()}
    delta.apply(tensors, delta.encode(base, new))
    assert same({name: value.cpu().numpy() for name, value in tensors.items()}, new)
