"""The codec entropy, and a decoder written from docs/reference/wire-format.md alone."""

from __future__ import annotations

import importlib
import pathlib
import sys
import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy
import pytest

import tersor
import tersor.local

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
FIELDS = {0: (32, 8), 1: (16, 8), 2: (16, 5)}  # dtype: bits of a value, of its exponent


def padded(count: int, step: int) -> int:
    return -(-count // step) * step


def bits_of(data: bytes) -> Any:
    return numpy.unpackbits(numpy.frombuffer(data, numpy.uint8), bitorder="little")


def decode_block(block: bytes, n: int, table: list[int], width: int, exponent: int) -> list[int]:
    mantissa = width - 1 - exponent
    rest_bits, size = mantissa + 1, padded(n, 64)
    k = int.from_bytes(block[:4], "little")
    at, rests, ranks = 4, [0] * n, [0] * n
    for j in range(rest_bits // 8):
        for i in range(n):
            rests[i] |= block[at + i] << 8 * j
        at += size
    for j in range(rest_bits % 8):
        plane = bits_of(block[at : at + size // 8])
        for i in range(n):
            rests[i] |= int(plane[i]) << (rest_bits // 8 * 8 + j)
        at += size // 8
    for j in range(k):
        plane = bits_of(block[at : at + size // 8])
        for i in range(n):
            ranks[i] |= int(plane[i]) << j
        at += size // 8
    ones = numpy.flatnonzero(bits_of(block[at:]))
    assert len(ones) == n
    assert padded(int(ones[-1]) + 1, 32) == 8 * len(block[at:])
    values, before = [], -1
    for i, one in enumerate(int(one) for one in ones):
        rank = (one - before - 1) << k | ranks[i]
        before = one
        sign = rests[i] >> mantissa
        values.append(
            sign << (width - 1) | table[rank] << mantissa | rests[i] & ((1 << mantissa) - 1)
        )
    return values


def decode(frame: bytes, counts: list[int]) -> list[list[int]]:
    """Returns the bits of the values of each segment."""
    width, exponent = FIELDS[frame[8]]
    payload, at, segments = frame[64:], 0, []
    for count in counts:
        segments.append([])
        if count == 0:
            continue
        blocks = -(-count // 4096)
        table = list(payload[at + 1 : at + 1 + payload[at]])
        table += [one for one in range(1 << exponent) if one not in table]
        at += padded(1 + payload[at], 16)
        sizes = numpy.frombuffer(payload[at : at + 2 * blocks], "<u2").tolist()
        at += padded(2 * blocks, 16) + padded((blocks - 1) // 64 * 8, 16)
        for i, size in enumerate(sizes):
            n = min(4096, count - 4096 * i)
            words = -(-n * width // 32) if size == 0x8000 else size
            block = payload[at : at + 4 * words]
            at += 4 * words
            if size == 0x8000:
                plain = numpy.frombuffer(block[: n * width // 8], f"<u{width // 8}")
                segments[-1] += plain.tolist()
            else:
                segments[-1] += decode_block(block, n, table, width, exponent) if size else [0] * n
        at = padded(at, 16)
    assert at == len(payload)
    return segments


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("entropy", [601]),
        ("entropy-ef", [601]),
        ("entropy-bf16", [5000]),
        ("entropy-f16", [5000]),
        ("entropy-segments", [0, 3, 9000]),
    ],
)
def test_documented_format_decodes_golden_frames(name: str, counts: list[int]) -> None:
    frame = (GOLDEN / f"{name}.bin").read_bytes()
    spec = "entropy+ef" if name.endswith("ef") else "entropy"
    dtype = {0: numpy.float32, 1: numpy.uint16, 2: numpy.float16}[frame[8]]
    found = decode(frame, counts)
    assert [len(one) for one in found] == counts
    if frame[8] == 1:
        pytest.importorskip("ml_dtypes")
        dtype = numpy.dtype("bfloat16")
    outs = [numpy.empty(count, dtype) for count in counts]
    first = [512 * i for i in range(len(counts))]
    tersor.Codec(spec).decode(
        numpy.frombuffer(frame, numpy.uint8).copy(),
        outs,
        parameter=7,
        first_index=first,
        signature=0x1122334455667788,
    )
    for values, out in zip(found, outs, strict=True):
        assert out.view(f"<u{out.itemsize}").tolist() == values


def test_every_bf16_bit_pattern_round_trips() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = numpy.arange(1 << 16, dtype=numpy.uint16).view(ml_dtypes.bfloat16)
    codec = tersor.Codec("entropy")
    back = codec.decode(codec.encode(values), numpy.empty_like(values))
    assert back.tobytes() == values.tobytes()


def test_bf16_weights_shrink_by_a_third() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = numpy.random.default_rng(3)
    weights = (0.02 * random.standard_normal(1 << 18)).astype(ml_dtypes.bfloat16)
    assert 8 * len(tersor.Codec("entropy").encode(weights)) < 10.7 * len(weights)


def test_allgather_and_broadcast_keep_every_bit() -> None:
    pytest.importorskip("ml_dtypes")
    patterns = numpy.arange(6000, dtype=numpy.uint16) * numpy.uint16(11)

    def exchange(transport: Any) -> tuple[bytes, bytes]:
        own = (patterns + numpy.uint16(transport.rank)).view("bfloat16")
        gathered = numpy.empty(2 * len(own), own.dtype)
        tersor.allgather(transport, own, gathered, codec="entropy")
        sent = own.copy()
        tersor.broadcast(transport, sent, codec="entropy")
        return gathered.tobytes(), sent.tobytes()

    expected = [(patterns + numpy.uint16(rank)).tobytes() for rank in range(2)]
    for gathered, sent in tersor.local.run(2, exchange):
        assert gathered == b"".join(expected)
        assert sent == expected[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [10_000, 100_003])
def test_collectives_match_uncompressed_results_bit_for_bit(dtype: str, count: int) -> None:
    pytest.importorskip("ml_dtypes")

    def values(rank: int, length: int) -> Any:
        random = numpy.random.default_rng(rank)
        return (0.02 * random.standard_normal(length)).astype(numpy.dtype(dtype))

    def exchange(transport: Any, codec: str) -> list[bytes]:
        rank, n = transport.rank, 3
        results, options = [], {"codec": codec, "chunk_count": 8192}
        for algorithm in ("two-shot", "one-shot"):
            summed = values(rank, count)
            tersor.allreduce(transport, summed, algorithm=algorithm, reduction="mean", **options)
            results.append(summed)
        whole, shard = numpy.empty(n * count, summed.dtype), numpy.empty(count, summed.dtype)
        tersor.allgather(transport, values(rank, count), whole, **options)
        tersor.reduce_scatter(transport, values(rank, n * count), shard, **options)
        results += [whole, shard.copy()]
        sent = values(rank, count)
        tersor.broadcast(transport, sent, root=1, **options)
        results.append(sent)
        total = numpy.zeros(count, summed.dtype) if rank == 1 else None
        tersor.reduce(transport, values(rank, count), total, root=1, **options)
        results += [] if total is None else [total]
        tersor.gather(
            transport, values(rank, count), whole if rank == 1 else None, root=1, **options
        )
        tersor.scatter(
            transport, values(1, n * count) if rank == 1 else None, shard, root=1, **options
        )
        return [one.tobytes() for one in [*results, whole, shard]]

    for found, expected in zip(
        tersor.local.run(3, lambda transport: exchange(transport, "entropy")),
        tersor.local.run(3, lambda transport: exchange(transport, "none")),
        strict=True,
    ):
        assert [a == b for a, b in zip(found, expected, strict=True)] == [True] * len(found)


def test_native_sum_is_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="entropy"):
        tersor.Codec("entropy").require("native")


class Variable:
    """A variable of TensorFlow."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.value.copy()

    def assign(self, value: Any) -> None:
        self.value = value


def test_tensorflow_broadcast_keeps_integer_bits() -> None:
    stub: Any = SimpleNamespace(__version__="2.21.0", float32=0, bfloat16=1, float16=2)
    stub.distribute = SimpleNamespace(ReductionToOneDevice=object)
    stub.keras = SimpleNamespace(utils=SimpleNamespace(get_custom_objects=dict))
    sent = numpy.array([0x7F800001, -1], numpy.int32)  # as floats: a signalling and a quiet NaN
    own = threading.local()

    def rank(transport: tersor.Transport) -> None:
        own.transport = transport
        variables = [Variable(sent * (transport.rank == 0)), Variable(numpy.zeros(0))]
        module.broadcast_variables(variables)
        assert variables[0].value.tobytes() == sent.tobytes()

    with mock.patch.dict(sys.modules, {"tensorflow": stub}):
        module = importlib.import_module("tersor.tensorflow")
        with mock.patch.object(module, "transport", side_effect=lambda: own.transport):
            tersor.local.run(2, rank)
