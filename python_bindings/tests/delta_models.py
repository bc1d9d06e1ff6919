"""Small models for tests of weight deltas."""

from __future__ import annotations

from typing import Any

import numpy


def weights(seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    return {
        "layer.weight": (0.02 * random.standard_normal((70, 300))).astype(numpy.float16),
        "layer.bias": random.standard_normal(33).astype(numpy.float32),
        "scale": numpy.float64([0.5]).reshape(()).copy(),
        "steps": numpy.arange(10, dtype=numpy.uint32),
        "empty": numpy.zeros((0, 4), numpy.int8),
    }


def stepped(base: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    new = {name: value.copy() for name, value in base.items()}
    bits = new["layer.weight"].view(numpy.uint16)
    bits += (random.random(bits.shape) < 0.04).astype(numpy.uint16)
    new["layer.weight"].view(numpy.uint16)[0, :3] = [0x7E01, 0x8000, 0xFC00]  # NaN, -0, -infinity
    new["layer.bias"] *= numpy.float32(1.001)
    new["scale"][()] = -0.0
    new["steps"] += 1
    return new


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(value.tobytes() == b[name].tobytes() for name, value in a.items())
