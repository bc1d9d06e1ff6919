"""Exact zeros arrive as zeros by every codec except hadamard (docs/how-to/choose-a-codec.md)."""

from __future__ import annotations

import numpy as np
import pytest

import tersor
import tersor.local

SHAPE = (64, 96)  # rows that are no blocks of hadamard's


def sparse_gradient(rank: int) -> np.ndarray:
    gradient = np.random.default_rng(rank).standard_normal(SHAPE).astype(np.float32)
    gradient[[1, 3, 40]] = 0
    gradient[:, ::5] = 0
    return gradient


def spec_of(name: str) -> str:
    return {"lowrank": "lowrank:rank=2"}.get(name, name)


@pytest.mark.parametrize("name", [info.name for info in tersor.codecs()])
def test_zeros_stay_zeros_except_with_hadamard(name: str) -> None:
    def mean(transport: tersor.Transport) -> np.ndarray:
        gradient = sparse_gradient(transport.rank)
        reducer = tersor.GradientReducer(transport, rules=[("*", spec_of(name))])
        reducer.add("w", gradient)
        reducer.ready("w", gradient)
        reducer.wait()
        return gradient

    zeros = sparse_gradient(0) == 0
    for arrived in tersor.local.run(3, mean):
        assert np.any(arrived[zeros] != 0) == (name == "hadamard")
        assert np.any(arrived[~zeros] != 0)
