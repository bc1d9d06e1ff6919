"""A reducer's state by parameter, for checkpoints."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tersor
import tersor.local
from tersor._core import ReducerState
from tersor.reducer import GradientReducer


def trained(transport: tersor.Transport, codec: str = "int8+ef") -> GradientReducer:
    reducer = GradientReducer(transport, rules=[("*.bias", "bf16"), ("*", codec)])
    generator = np.random.default_rng(transport.rank)
    shapes = {"weight": (60, 100), "head.bias": (60,)}
    for name, shape in shapes.items():
        reducer.add(name, np.zeros(shape, np.float32))
    for name, shape in shapes.items():
        reducer.ready(name, generator.standard_normal(shape).astype(np.float32))
    reducer.wait()
    return reducer


def test_state_contains_residuals_and_owned_values_per_rank() -> None:
    def look(transport: tersor.Transport) -> tuple[int, int, int]:
        reducer = trained(transport)
        state = ReducerState.read(reducer.save_state())
        assert (state.form, state.reduction, state.step) == ("exact", "mean", 1)
        assert (state.rank, state.ranks) == (transport.rank, 3)
        weight, bias = state.parameters
        assert (weight.name, weight.codec, weight.count) == ("weight", "int8+ef", 6000)
        assert (bias.codec, len(bias.residual), len(bias.owner)) == ("bf16", 0, 0)
        assert weight.residual.dtype == np.float32
        norm = reducer.residual_norms()[0]
        assert np.linalg.norm(weight.residual) == pytest.approx(norm, rel=1e-5)
        assert len(weight.residual) == weight.longest_residual
        return len(weight.owner), weight.longest_owner, int(np.count_nonzero(weight.owner) > 0)

    owned, longest, nonzero = zip(*tersor.local.run(3, look), strict=True)
    assert sum(owned) == 6000  # every value has one owner
    assert set(longest) == {max(owned)}
    assert all(nonzero)


@pytest.mark.parametrize("codec", ["int8+ef", "lowrank+ef"])
def test_state_rebuilt_from_its_parts_is_identical(codec: str) -> None:
    def rebuild(transport: tersor.Transport) -> None:
        reducer = trained(transport, codec)
        saved = reducer.save_state()
        state, copy = ReducerState.read(saved), ReducerState()
        assert state.write() == saved
        for field in ("form", "reduction", "rank", "ranks", "step", "order"):
            setattr(copy, field, getattr(state, field))
        for one in state.parameters:
            places = (one.name, one.codec, one.count, one.residual_first)
            copy.add(*places, one.residual, one.owner, one.memory)
        other = trained(transport, codec)
        other.load_state(copy.write())
        assert other.save_state() == saved

    tersor.local.run(2, rebuild)


def test_views_outlive_their_state() -> None:
    def look(transport: tersor.Transport) -> tuple[float, float]:
        state = ReducerState.read(trained(transport).save_state())
        residual = state.parameters[0].residual
        wanted = float(np.abs(residual).sum())
        del state
        gc.collect()
        return float(np.abs(residual).sum()), wanted

    for found, wanted in tersor.local.run(2, look):
        assert found == wanted > 0


@pytest.mark.parametrize("damage", [b"", b"abc", b"\0" * 100])
def test_invalid_state_bytes_are_rejected(damage: bytes) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="not a reducer's state"):
        ReducerState.read(damage)


def test_state_form_accepts_only_known_strings() -> None:
    state = ReducerState()
    state.form = "portable"
    assert state.form == "portable"
    with pytest.raises(tersor.InvalidArgumentError, match='"exact", "portable"'):
        state.form = "whole"
