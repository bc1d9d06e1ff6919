"""Weight deltas, and a decoder written from docs/reference/delta-format.md alone."""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import numpy
import pytest
from delta_models import same, stepped, weights

import tersor
from tersor import delta

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "delta"
WIDTHS = [32, 16, 16, 64, 8, 8, 8, 16, 32, 64]
EXPONENTS = [8, 8, 5, 11, 4, 5, 0, 0, 0, 0]
BLOCK = 16_384


class Bits:
    """Fields and unary codes, the lowest bit first."""

    def __init__(self, data: bytes) -> None:
        self.number, self.count, self.at = int.from_bytes(data, "little"), 8 * len(data), 0

    def field(self, width: int) -> int:
        value = self.number >> self.at & ((1 << width) - 1)
        self.at += width
        return value

    def unary(self) -> int:
        rest = self.number >> self.at
        zeros = (rest & -rest).bit_length() - 1
        self.at += zeros + 1
        return zeros

    def to_word(self) -> None:
        assert self.field(-self.at % 32) == 0


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def padded(count: int, step: int = 16) -> int:
    return -(-count // step) * step


def decode_block(old: list[int], bits: Bits, dtype: int, classes: int, t: int) -> list[int]:
    """Returns the new values of a block."""
    width, exponent_bits = WIDTHS[dtype], EXPONENTS[dtype]
    half = 1 << (width - 1)

    def line(u: int) -> int:
        return u ^ (half - 1) if exponent_bits and u & half else u

    def class_of(u: int) -> int:
        e = u >> (width - 1 - exponent_bits) & ((1 << exponent_bits) - 1)
        return min(max(e - t + 1, 0), classes - 1) if exponent_bits else 0

    k, widths = [], []
    for _ in range(classes):
        k.append(bits.field(15))
        widths.append(bits.field(4))
    n, big_width, r = bits.field(15), bits.field(4), bits.field(6)
    lows = [[bits.field(widths[c]) for _ in range(k[c])] for c in range(classes)]
    big_lows = [bits.field(big_width) for _ in range(n)]
    signs = [bits.field(1) for _ in range(sum(k))]
    bits.to_word()
    gaps = [[bits.unary() << widths[c] | low for low in lows[c]] for c in range(classes)]
    big_gaps = [bits.unary() << big_width | low for low in big_lows]
    quotients = [bits.unary() for _ in range(n)]
    bits.to_word()
    magnitudes, at = [1] * sum(k), -1
    for gap, quotient in zip(big_gaps, quotients, strict=True):
        at += gap + 1
        m = 1 << quotient | bits.field(quotient) if r == 63 else (quotient << r | bits.field(r)) + 1
        magnitudes[at] = m + 1
    bits.to_word()
    assert bits.at == bits.count
    new, step = list(old), 0
    for c in range(classes):
        places = [i for i, u in enumerate(old) if class_of(u) == c]
        rank = -1
        for gap in gaps[c]:
            rank += gap + 1
            d = -magnitudes[step] if signs[step] else magnitudes[step]
            new[places[rank]] = line((line(old[places[rank]]) + d) % (2 * half))
            step += 1
    return new


def decode(data: bytes, base: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the result's bytes."""
    assert (data[:4], number(data[4:6]), number(data[8:16])) == (b"TDLT", 1, len(data))
    at, tensors = 64, []
    for _ in range(number(data[24:32])):
        length, dtype, dimensions = number(data[at : at + 2]), data[at + 2], data[at + 3]
        name = at + 8 + 8 * dimensions
        shape = [number(data[i : i + 8]) for i in range(at + 8, name, 8)]
        tensors.append((data[name : name + length].decode(), dtype, shape))
        at = padded(name + length, 8)
    at, result = 64 + number(data[16:24]), {}
    for name, dtype, shape in tensors:
        count, size = int(numpy.prod(shape, dtype=int)), WIDTHS[dtype] // 8
        classes, t, blocks = data[at], number(data[at + 2 : at + 4]), number(data[at + 4 : at + 8])
        sizes = [number(data[i : i + 2]) for i in range(at + 32, at + 32 + 2 * blocks, 2)]
        begin = at
        at = padded(at + 32 + 2 * blocks) + padded(max(blocks - 1, 0) // 64 * 8)
        old = numpy.frombuffer(base[name], f"<u{size}").tolist()
        new: list[int] = []
        for i, words in enumerate(sizes):
            n = min(BLOCK, count - i * BLOCK)
            olds = old[i * BLOCK : i * BLOCK + n]
            length = padded(n * size, 4) if words == 0x8000 else 4 * words
            block = data[at : at + length]
            at += length
            if words == 0x8000:
                new += numpy.frombuffer(block[: n * size], f"<u{size}").tolist()
            else:
                new += decode_block(olds, Bits(block), dtype, classes, t) if words else olds
        at = padded(at)
        changed = sum(a != b for a, b in zip(old, new, strict=True))
        assert changed == number(data[begin + 8 : begin + 16])
        result[name] = numpy.array(new, f"<u{size}").tobytes()
        for field, values in ((begin + 16, base[name]), (begin + 24, result[name])):
            assert number(data[field : field + 8]) == checksum(values)
    assert at == len(data)
    assert number(data[56:64]) == checksum(data[:56] + bytes(8) + data[64:])
    return result


def checksum(data: bytes) -> int:
    """The checksum of docs/reference/wire-format.md."""
    prime, mask, state, outputs = (1 << 61) - 1, (1 << 64) - 1, 1, []
    for _ in range(1025):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        outputs.append(z ^ z >> 31)
    powers = [pow(outputs[1024] >> 3, column, prime) for column in range(16)]
    words = numpy.frombuffer(data + bytes(-len(data) % 4), "<i4").tolist()
    total = 0
    for i, word in enumerate(words):
        weight = (outputs[i // 16 % 1024] >> 33) - (1 << 30)
        power = powers[i % 16] * pow(outputs[1024] >> 3, i // 16_384 * 16, prime)
        total += word * weight * power
    return total % prime


def mixed(state: int) -> int:
    mask = (1 << 64) - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def golden_base(index: int, count: int, dtype: int) -> bytes:
    """The old values of tests/codecs/delta_test.cc."""
    width, exponent, mask = WIDTHS[dtype], EXPONENTS[dtype], (1 << 64) - 1
    values = []
    for i in range(count):
        random = mixed(mixed(index * 1_000_003 + i))
        if exponent == 0 or random % 61 == 0:
            values.append(mixed(~random & mask) >> (64 - width))
            continue
        bias = (1 << (exponent - 1)) - 1
        low = random >> 8 | 64
        below = min((low & -low).bit_length() - 1, bias - 3)
        magnitude = (bias - 3 - below) << (width - 1 - exponent)
        magnitude |= mixed(random) >> (65 - width + exponent)
        values.append(magnitude | (random >> 7 & 1) << (width - 1))
    return numpy.array(values, f"<u{width // 8}").tobytes()


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_golden_deltas_decode_by_the_documented_format(classes: int) -> None:
    data = (GOLDEN / f"classes-{classes}.bin").read_bytes()
    model = [("embedding", 40_000, 1), ("scale", 3000, 0), ("steps", 1, 9), ("norm", 700, 4)]
    model.append(("frozen", 20_000, 2))
    base = {name: golden_base(i, count, dtype) for i, (name, count, dtype) in enumerate(model)}
    result = decode(data, base)
    assert result["frozen"] == base["frozen"]
    assert result["embedding"] != base["embedding"]
    entries = delta.Delta(data).entries()
    assert [entry.name for entry in entries] == list(base)
    assert entries[0].shape == (200, 200)
    assert entries[0].classes == classes


@pytest.mark.parametrize("classes", ["auto", 1, 2, 4])
def test_apply_restores_every_bit(classes: Any) -> None:
    base, new = weights(), stepped(weights())
    made = delta.encode(base, new, classes, threads=2)
    delta.check(base, made)
    delta.check(base, made, trust_base=True)
    assert same(base, weights())
    assert decode(made.data, {name: value.tobytes() for name, value in base.items()}) == {
        name: value.tobytes() for name, value in new.items()
    }
    delta.apply(dict(reversed(base.items())), made, threads=2)
    assert same(base, new)


def test_numpy_bf16_and_float8_round_trip() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = getattr(ml_dtypes, name)
        size = numpy.dtype(dtype).itemsize
        base = {"a": numpy.arange(60_000).astype(f"<u{size}").view(dtype)}
        new = {"a": base["a"].copy()}
        new["a"].view(f"<u{size}")[::7] ^= 1
        made = delta.encode(base, new)
        delta.apply(base, made)
        assert same(base, new)


def test_torch_tensors_are_changed_in_place() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(300, 70).to(torch.bfloat16)
    base = {name: value.clone() for name, value in model.state_dict().items()}
    new = {name: value.clone() for name, value in base.items()}
    new["weight"].view(torch.int16)[::3] += 1
    new["weight"][0, 0] = float("nan")
    made = delta.encode(base, new)
    delta.apply(dict(model.named_parameters()), made)
    for name, value in model.state_dict().items():
        assert torch.equal(value.view(torch.int16), new[name].view(torch.int16))
    kept = {name: value.to(torch.float8_e4m3fn) for name, value in base.items()}
    delta.apply(kept, delta.encode(kept, {name: v.clone() for name, v in kept.items()}))


def test_base_mismatch_raises_and_changes_nothing() -> None:
    base, new = weights(), stepped(weights())
    made = delta.encode(base, new)
    with pytest.raises(delta.BaseMismatchError, match=r'tensor "layer.weight" is not the base'):
        delta.apply(new, made)
    assert same(new, stepped(weights()))
    base["steps"][3] += 1
    with pytest.raises(delta.BaseMismatchError, match='tensor "steps"'):
        delta.apply(base, made)
    assert isinstance(delta.BaseMismatchError("x"), tersor.Error)


def test_model_mismatch_raises() -> None:
    base = weights()
    made = delta.encode(base, stepped(base))
    for change, words in [
        (
            {"layer.bias": numpy.zeros(34, numpy.float32)},
            r'"layer.bias" is f32 \(33\) in the delta',
        ),
        ({"steps": numpy.zeros(10, numpy.int64)}, r"but i64 \(10\) in these weights"),
        ({"more": numpy.zeros(1, numpy.int8)}, 'the delta has no tensor "more"'),
    ]:
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            delta.check({**base, **change}, made)
    del base["scale"]
    with pytest.raises(tersor.InvalidArgumentError, match='these weights have no tensor "scale"'):
        delta.check(base, made)


def test_damaged_bytes_are_rejected() -> None:
    base = weights()
    data = delta.encode(base, stepped(base)).data
    for at in range(0, len(data), 5):
        bad = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        with pytest.raises(tersor.WireError):
            delta.apply(base, delta.Delta(bad))
    for length in (0, 63, 64, len(data) - 16):
        with pytest.raises(tersor.WireError):
            delta.Delta(data[:length]).entries()
    assert same(base, weights())


def test_invalid_arguments_raise() -> None:
    base, new = weights(), stepped(weights())
    made = delta.encode(base, new)
    with pytest.raises(tersor.InvalidArgumentError, match='1, 2, 4 or "auto"'):
        delta.encode(base, new, 3)
    with pytest.raises(tersor.InvalidArgumentError, match="complex64"):
        delta.encode({"a": numpy.zeros(1, numpy.complex64)}, {})
    with pytest.raises(tersor.InvalidArgumentError, match='"scale" is f64'):
        delta.encode(base, {**new, "scale": numpy.zeros(2)})
    with pytest.raises(tersor.InvalidArgumentError, match='no tensor "more"'):
        delta.encode(base, {**new, "more": numpy.zeros(2)})
    turned = {**base, "layer.weight": base["layer.weight"].T.copy().T}
    with pytest.raises(tersor.InvalidArgumentError, match="not contiguous"):
        delta.apply(turned, made)
    tied = {"a": base["layer.bias"], "b": base["layer.bias"]}
    with pytest.raises(tersor.InvalidArgumentError, match="shared weights once"):
        delta.apply(tied, delta.encode(tied, {"a": new["layer.bias"], "b": new["layer.bias"]}))
    base["layer.bias"].flags.writeable = False
    with pytest.raises(tersor.InvalidArgumentError):
        delta.apply(base, made)
    assert same(base, weights())


def test_delta_works_with_partially_imported_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    old = weights()
    delta.apply(old, delta.encode(old, stepped(old)))
    assert same(old, stepped(weights()))
