"""Ranks over a process group of PyTorch, each in a separate process."""

from __future__ import annotations

import functools
import itertools
import pathlib

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
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    assert (transport.rank, transport.ranks) == (rank, count)
    assert transport.hosts() == [0] * count
    found = {(codec, many): reduced(transport, codec, many) for codec in CODECS for many in COUNTS}
    group.close()
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_results_match_ranks_in_one_process_bit_for_bit(count: int) -> None:
    found = ranks.run(all_reduced, count)
    for codec, many in itertools.product(CODECS, COUNTS):
        alone = functools.partial(reduced, codec=codec, count=many)
        assert [one[codec, many] for one in found] == tersor.local.run(count, alone), (codec, many)


def among_the_trainers_own(rank: int, count: int) -> list[bytes]:
    import torch
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    transport, found = group.transport(), []
    for step in range(20):
        theirs = torch.full((1000,), float(rank + step))
        work = dist.all_reduce(theirs, async_op=True)
        found.append(reduced(transport, "int8", 4000 + step))
        work.wait()
        assert theirs[0] == sum(range(count)) + count * step
        dist.barrier()
    return found


def test_application_collectives_may_interleave() -> None:
    found = ranks.run(among_the_trainers_own, 3)
    assert found[0] == found[1] == found[2]


def on_channels_and_splits(rank: int, count: int) -> float:
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    channel, pair = transport.channel(), transport.split([rank // 2 * 2, rank // 2 * 2 + 1])
    values = np.full(70_000, rank, dtype=np.float32)
    tersor.allreduce(pair, values, codec="none")
    tersor.allreduce(channel, values, codec="none")
    assert pair.counters().sent_bytes > 70_000 * 4
    channel.barrier()
    return float(values[-1])


def test_channels_and_splits_keep_messages_separate() -> None:
    assert ranks.run(on_channels_and_splits, 4) == [12.0] * 4


def on_a_part_of_the_world(rank: int, count: int) -> float | None:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    part = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(tersor.InvalidArgumentError, match="not a member"):
            group.transport(part)
        return None
    transport = group.transport(part)
    assert transport is group.transport(part)
    assert (transport.rank, transport.ranks) == (rank // 2, 2)
    values = np.full(10, rank, dtype=np.float32)
    tersor.allreduce(transport, values, codec="none")
    return float(values[0])


def test_subgroup_has_a_separate_transport() -> None:
    assert ranks.run(on_a_part_of_the_world, 3) == [2.0, None, 2.0]


def connects_in_the_second_attempt(rank: int, count: int, folder: str) -> int:
    tried = pathlib.Path(folder) / "tried"
    if rank == 1 and not tried.exists():
        tried.touch()
        raise RuntimeError(ranks.UNCONNECTED)
    return rank


def test_unconnected_gloo_ranks_retry(tmp_path: pathlib.Path) -> None:
    assert ranks.run(connects_in_the_second_attempt, 2, str(tmp_path)) == [0, 1]


@ranks.on(2)
def test_closed_transport_raises_and_can_be_recreated(rank: int, count: int) -> None:
    import tersor.torch._src.process_group.connections as group

    for _ in range(3):
        transport = group.transport()
        reduced(transport, "int8", 1000)
        group.close()
        with pytest.raises(tersor.TransportError, match="closed the transport"):
            reduced(transport, "int8", 1000)


def outlives_a_group(rank: int, count: int, meeting: str) -> None:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    first = group.transport()
    reduced(first, "int8", 1000)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    second = group.transport()
    with pytest.raises(tersor.TransportError, match="closed the transport"):
        reduced(first, "int8", 1000)
    reduced(second, "int8", 1000)


def test_transport_of_a_destroyed_group_is_closed(tmp_path: pathlib.Path) -> None:
    ranks.run(outlives_a_group, 2, f"file://{tmp_path}/store")


def without_a_group(rank: int, count: int) -> None:
    import tersor.torch._src.process_group.connections as group

    with pytest.raises(tersor.InvalidArgumentError, match="init_process_group"):
        group.transport()


def test_missing_process_group_raises() -> None:
    for outcome in ranks.outcomes(without_a_group, 1, group=False):
        assert outcome.error is None, outcome.traceback


def message_sizes(rank: int, count: int) -> list[dict[str, object]]:
    import torch

    from tersor.torch._src.process_group import connections as group

    here = group.transport()
    small, large, huge = (torch.empty(values) for values in (1 << 20, 1 << 22, 1 << 25))
    return [
        {**group.with_message_sizes({}, here, [small])},
        {**group.with_message_sizes({}, here, [large, large])},
        {**group.with_message_sizes({"chunk_count": 512, "codec": "int8"}, here, [huge])},
    ]


@pytest.mark.parametrize(("count", "values"), [(2, 1 << 20), (3, 3 << 19)])
def test_default_message_sizes_grow_with_ranks_and_model(count: int, values: int) -> None:
    for small, large, chosen in ranks.run(message_sizes, count):
        assert small == {"chunk_count": values, "bucket_bytes": 1 << 20}
        assert large == {"chunk_count": values, "bucket_bytes": 1 << 22}
        assert chosen == {"chunk_count": 512, "bucket_bytes": 4 * values, "codec": "int8"}


def test_other_transports_keep_their_message_sizes() -> None:
    from tersor.torch._src.process_group import connections as group

    assert tersor.local.run(2, lambda local: group.with_message_sizes({}, local, [])) == [{}, {}]
