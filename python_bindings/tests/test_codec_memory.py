"""Damaged headers without an output array, and overlapping arrays of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from framed import FRAMED

import tersor
import tersor.local


@pytest.mark.parametrize("name", FRAMED)
def test_any_flipped_header_bit_raises_wire_error(name: str) -> None:
    codec = tersor.Codec(name)
    payload = bytearray(codec.encode(numpy.arange(1, 601, dtype="f4")).tobytes())
    assert codec.decode(bytes(payload)).shape == (600,)
    for bit in range(512):
        payload[bit // 8] ^= 1 << bit % 8
        with pytest.raises(tersor.WireError):
            codec.decode(bytes(payload))
        payload[bit // 8] ^= 1 << bit % 8


def test_huge_count_without_checksum_raises_wire_error() -> None:
    codec = tersor.Codec("int8")
    payload = bytearray(codec.encode(numpy.ones(600, "f4"), checksum=False).tobytes())
    payload[23] ^= 1 << 5  # of the count
    with pytest.raises(tersor.WireError):
        codec.decode(bytes(payload), checksum=False)


@pytest.mark.parametrize(
    "numbers",
    [{"step": 2**32}, {"seed": -1}, {"first_index": -1}, {"parameter": -1}, {"signature": 2**64}],
)
def test_out_of_range_numbers_are_rejected(numbers: dict[str, int]) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=next(iter(numbers))):
        tersor.Codec("int8").encode(numpy.ones(10, "f4"), **numbers)


def test_numpy_integers_are_accepted() -> None:
    values = numpy.ones(600, "f4")
    one: Any = numpy.int64(512)
    payload = int8.encode(values, first_index=one)
    assert payload.tobytes() == int8.encode(values, first_index=512).tobytes()
    assert (int8.decode(payload, first_index=one) == 1).all()
    assert int8.max_payload_bytes(one) == int8.max_payload_bytes(512)


Call = Callable[[Any], object]
int8, fed = tersor.Codec("int8"), tersor.Codec("int8+ef")


def payload_of(values: Any) -> Any:
    """Returns a payload in aligned memory, which ``decode`` reads without a copy."""
    memory = numpy.zeros(4096, numpy.uint8)
    return int8.encode(values, memory[-memory.ctypes.data % 16 :][:2048])


CODECS: dict[str, Call] = {
    "out over the gradient": lambda a: int8.encode(a, a.view(numpy.uint8)),
    "out over the residual": lambda a: fed.encode(a[:300], a[512:].view("u1"), residual=a[600:900]),
    "one array as gradient and residual": lambda a: fed.encode(a, residual=a),
    "one residual for two": lambda a: fed.encode(
        [a[:10], a[10:20]], residual=[a[100:110], a[105:115]]
    ),
    "outputs of a list": lambda a: int8.decode(
        int8.encode([a[:300], a[300:600]]), [a[:300], a[299:599]]
    ),
    "out over the payload": lambda a: int8.decode(
        (p := payload_of(a[:300])), numpy.frombuffer(p.base, "f4")[:300]
    ),
}


@pytest.mark.parametrize("what", CODECS)
def test_overlapping_arrays_are_rejected_and_unchanged(what: str) -> None:
    memory = numpy.zeros(4096 + 16, numpy.uint8)
    array = memory[-memory.ctypes.data % 16 :][:4096].view("f4")
    array[:] = numpy.arange(1024)
    with pytest.raises(tersor.InvalidArgumentError, match="overlaps"):
        CODECS[what](array)
    assert array.tolist() == list(range(1024))


def test_adjacent_or_shared_gradients_are_accepted() -> None:
    values, left = numpy.arange(64, dtype="f4"), numpy.zeros(64, "f4")
    fed.encode([values[:20], values[20:40]], residual=[left[20:40], left[:20]])
    fed.encode([values[:20], values[:20]], residual=[left[:20], left[20:40]])


def test_collectives_reject_overlap_except_in_place() -> None:
    def body(transport: tersor.Transport) -> None:
        rank, values = transport.rank, numpy.ones(64, "f4")
        whole, place = values[:32], values[16 * rank : 16 * rank + 16]
        for shard in (values[1:17], values[8:24]):
            with pytest.raises(tersor.InvalidArgumentError, match="overlaps"):
                tersor.reduce_scatter(transport, whole, shard, codec="int8")
            with pytest.raises(tersor.InvalidArgumentError, match="overlaps"):
                tersor.allgather(transport, shard, whole, codec="int8")
        if rank == 0:
            with pytest.raises(tersor.InvalidArgumentError, match="overlaps"):
                tersor.reduce(transport, whole, values[8:40], codec="int8")
        tersor.reduce_scatter(transport, whole, place, codec="none")
        assert place.tolist() == [2.0] * 16
        tersor.allgather(transport, place, whole, codec="none")
        assert whole.tolist() == [2.0] * 32
        tersor.reduce(transport, whole, whole if rank == 0 else None, codec="none")
        assert whole.tolist() == [4.0 if rank == 0 else 2.0] * 32

    tersor.local.run(2, body)


def test_reducer_rejects_overlapping_gradients_in_flight() -> None:
    def body(transport: tersor.Transport) -> None:
        memory = numpy.ones(300, "f4")
        learning = tersor.GradientReducer(transport, codec="none", timeout=20)
        reducer = tersor.GradientReducer(transport, codec="none", order="ready_order", timeout=20)
        for name in ("a", "b", "c"):
            learning.add(name, numpy.ones(100, "f4"))
            reducer.add(name, numpy.ones(100, "f4"))
        learning.ready("a", memory[:100])  # the first step is sent at its end
        with pytest.raises(tersor.InvalidArgumentError, match='"b" overlaps that of "a"'):
            learning.ready("b", memory[50:150])
        with pytest.raises(tersor.InvalidArgumentError, match="overlaps"):
            learning.ready_flat(["b", "c"], memory[:200])
        learning.ready_flat(["b", "c"], memory[100:])
        learning.wait()
        reducer.ready("a", memory[:100]).wait()
        reducer.ready("b", memory[50:150]).wait()
        reducer.ready("c", memory[200:])
        reducer.wait()
        assert memory.tolist() == [1.0] * 300

    tersor.local.run(2, body)
