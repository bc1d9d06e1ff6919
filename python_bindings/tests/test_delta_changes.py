"""Changes of deltas as indices and values: every bit, and no write to the base."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy
import pytest
from delta_models import same, stepped, weights
from test_delta import GOLDEN, decode, golden_base

import tersor
from tersor import delta
from tersor.delta import _changes


def patched(base: dict[str, Any], changes: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The base with the changes, written by NumPy alone."""
    found = {name: value.copy() for name, value in base.items()}
    for name, (indices, values) in changes.items():
        assert indices.dtype == numpy.int32
        assert values.dtype == found[name].dtype
        assert indices.ndim == values.ndim == 1
        assert (numpy.diff(indices) > 0).all()
        found[name].reshape(-1)[indices] = values
    return found


@pytest.mark.parametrize("trust_base", [False, True])
def test_changes_reproduce_every_bit(trust_base: bool) -> None:
    base, new = weights(), stepped(weights())
    new["layer.bias"].view(numpy.uint32)[1] = 0x7FC01234  # a NaN with a payload
    made = delta.encode(base, new)
    found = delta.changes(base, made, trust_base=trust_base)
    assert same(base, weights())
    assert same(patched(base, found), new)
    changed = {entry.name: entry.changed for entry in made.entries() if entry.changed}
    assert {name: len(indices) for name, (indices, _) in found.items()} == changed
    assert "empty" not in found


def test_changes_of_a_chain_lead_to_the_last_version() -> None:
    base = weights()
    new, last = stepped(base), stepped(stepped(base), 2)
    last["steps"] = base["steps"].copy()  # changed and changed back
    links = [delta.encode(base, new), delta.encode(new, last)]
    for chain in (links, [one for link in links for one in _changes._split(link)]):
        found = delta.changes(base, chain, threads=2)
        assert same(patched(base, found), last)
        assert "steps" not in found
    with pytest.raises(delta.BaseMismatchError, match=r'tensor "layer.weight"'):
        delta.changes(base, [links[0], links[0]], trust_base=True)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_golden_delta_splits_into_one_delta_per_tensor(classes: int) -> None:
    data = (GOLDEN / f"classes-{classes}.bin").read_bytes()
    model = [("embedding", 40_000, 1), ("scale", 3000, 0), ("steps", 1, 9), ("norm", 700, 4)]
    model.append(("frozen", 20_000, 2))
    base = {name: golden_base(i, count, dtype) for i, (name, count, dtype) in enumerate(model)}
    found = [decode(one.data, base) for one in _changes._split(delta.Delta(data))]
    assert [list(one) for one in found] == [[name] for name in base]
    assert {name: one[name] for one in found for name in one} == decode(data, base)


def test_changes_of_torch_tensors_keep_the_dtype() -> None:
    torch = pytest.importorskip("torch")
    dtypes = [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.bool, torch.int32]
    base = {str(one): (torch.arange(600).reshape(20, 30) % 7).to(one) for one in dtypes}
    base["scalar"] = torch.tensor(1.0)

    def bits(tensor: Any) -> Any:
        copy = tensor.clone().reshape(-1).view(torch.uint8).numpy()
        return copy.view(f"u{tensor.itemsize}")

    new = {name: value.clone() for name, value in base.items()}
    for value in new.values():
        value.reshape(-1).view(torch.uint8)[::40] ^= 1
    new["torch.bfloat16"].view(torch.int16)[3, :2] = torch.tensor([0x7F81, -0x8000]).short()
    found = delta.changes(base, delta.encode(base, new))
    assert set(found) == set(base)
    for name, (indices, values) in found.items():
        assert (indices.dtype, values.dtype) == (torch.int32, base[name].dtype)
        assert (indices.device.type, indices.ndim, values.ndim) == ("cpu", 1, 1)
        old, now, changed = (bits(one) for one in (base[name], new[name], values))
        old[indices.numpy()] = changed
        assert (old == now).all()


def test_new_nan_values_are_rejected_on_request() -> None:
    base = weights()
    base["layer.bias"][4] = numpy.nan
    new = stepped(base)
    with pytest.raises(tersor.InvalidArgumentError, match=r'tensor "layer.weight" has a new value'):
        delta.changes(base, delta.encode(base, new), allow_nan=False)
    new["layer.weight"].view(numpy.uint16)[0, 0] = 0
    new["layer.bias"][4] = base["layer.bias"][4]  # the old NaN, which is no change
    found = delta.changes(base, delta.encode(base, new), allow_nan=False)
    assert same(patched(base, found), new)
    torch = pytest.importorskip("torch")
    olds, news = {"a": torch.zeros(3).to(torch.float8_e4m3fn)}, {"a": torch.zeros(3)}
    news["a"][1] = torch.nan
    made = delta.encode(olds, {"a": news["a"].to(torch.float8_e4m3fn)})
    with pytest.raises(tersor.InvalidArgumentError, match='tensor "a" has a new value'):
        delta.changes(olds, made, allow_nan=False)


def test_base_mismatch_model_mismatch_and_damage_raise() -> None:
    base, new = weights(), stepped(weights())
    made = delta.encode(base, new)
    with pytest.raises(delta.BaseMismatchError, match=r'tensor "layer.weight" is not the base'):
        delta.changes(new, made)
    with pytest.raises(tersor.InvalidArgumentError, match='the delta has no tensor "more"'):
        delta.changes({**base, "more": base["scale"].copy()}, made)
    with pytest.raises(tersor.InvalidArgumentError, match='"steps" is i32'):
        delta.changes({**base, "steps": numpy.zeros(10, numpy.int64)}, made)
    for at in range(0, len(made.data), 13):
        bad = made.data[:at] + bytes([made.data[at] ^ 4]) + made.data[at + 1 :]
        with pytest.raises(tersor.WireError):
            delta.changes(base, delta.Delta(bad))
    assert same(base, weights())


def test_changes_copy_one_tensor_at_a_time() -> None:
    base = {f"layer.{i}": numpy.zeros(1 << 18, numpy.float32) for i in range(16)}  # 1 MiB each
    new = {name: value.copy() for name, value in base.items()}
    for value in new.values():
        value[::1000] = 1
    made = delta.encode(base, new)
    tracemalloc.start()
    delta.changes(base, made)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1 << 20 < peak < 7 << 18  # a copy, a comparison and the delta
