"""Small models for tests of weight deltas."""

from __future__ import annotations

import sys
from collections.abc import Callable
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


def interrupted(call: Callable[[], object], lines: int) -> bool:
    """Calls a function, with a KeyboardInterrupt before a line of tersor.delta.

    Returns False if the function ran fewer lines.
    """
    left = lines

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        if "/tersor/delta/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
