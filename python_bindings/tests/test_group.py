"""Ranks over a process group of PyTorch, each a process of its own."""

from __future__ import annotations

import numpy as np
import pytest

import ranks
import tersor
import tersor.local

COUNTS = (0, 1, 255, 256, 257, 100_003, 1_000_001)
CODECS = ("none", "bf16", "int8", "topk:density=0.01")


def gradient_of(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(1000 * count + rank).standard_normal(count, dtype=np.float32)


def reduced(transport: tersor.Transport, codec: str, count: int) -> bytes:
    gradient = gradient_of(transport.rank, count)
    tersor.allreduce(transport, gradient, codec=codec, reduction="mean")
    return gradient.tobytes()


def all_reduced(rank: int, count: int) -> dict[tuple[str, int], bytes]:
    import tersor.torch.group as group

    transport = group.transport()
    assert (transport.rank, transport.ranks) == (rank, count)
    assert transport.hosts() == [0] * count
    found = {(codec, many): reduced(transport, codec, many) for codec in CODECS for many in COUNTS}
    group.close()
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_results_have_the_bits_of_ranks_in_one_process(count: int) -> None:
    found = ranks.run(all_reduced, count)
    for codec in CODECS:
        for many in COUNTS:
            expected = tersor.local.run(count, lambda one: reduced(one, codec, many))
            assert [one[codec, many] for one in found] == expected, (codec, many)
