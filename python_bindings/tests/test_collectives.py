"""Collectives on tensors, over the process group of gloo processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
from tersor.torch import transport
from tersor.torch._src.collectives.tensors import (
    FeedbackState,
    all_gather,
    allreduce,
    broadcast,
    broadcast_optimizer_state,
    broadcast_parameters,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def mean_of(count: int, values_count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([values(rank, values_count, dtype).float() for rank in range(count)]).mean(0)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_allreduce_leaves_the_mean_on_all_ranks(rank: int, count: int) -> None:
    for dtype in DTYPES:
        for codec, error in (("none", 0.005), ("int8", 0.02), ("topk:density=0.5", 0.5)):
            tensor = values(rank, 5005, dtype).view(5, 7, 143)
            call = allreduce(tensor, codec=codec, reduction="mean")
            assert relative(tensor.view(-1), mean_of(count, 5005, dtype)) < error
            assert call.gradient_bytes == 5005 * dtype.itemsize
            others = [torch.empty_like(tensor) for _ in range(count)]
            dist.all_gather(others, tensor)
            assert all(torch.equal(one, tensor) for one in others)


@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_shards_are_reduced_and_gathered(rank: int, count: int) -> None:
    for dtype in DTYPES:
        shard = torch.empty(1003, dtype=dtype)
        reduce_scatter(shard, values(rank, 1003 * count, dtype), codec="int8", reduction="mean")
        expected = mean_of(count, 1003 * count, dtype)
        assert relative(shard, expected[1003 * rank :][:1003]) < 0.02
        whole = torch.empty(1003 * count, dtype=dtype)
        all_gather(whole, shard, codec="none")
        assert relative(whole, expected) < 0.02
        assert torch.equal(whole[1003 * rank :][:1003], shard)


@ranks.on(4)
def test_shards_go_by_hosts(rank: int, count: int) -> None:
    hosts, codec = [0, 0, 1, 1], "int8+ef"
    values_of_all = values(rank, 4000 * count)
    shard, whole = torch.empty(4000), torch.empty(4000 * count)
    state = FeedbackState(
        values_of_all,
        codec=codec,
        algorithm="hierarchical",
        hosts=hosts,
        collective="reduce_scatter",
    )
    way = {"algorithm": "hierarchical", "hosts": hosts, "reduction": "mean"}
    call = reduce_scatter(shard, values_of_all, codec=codec, state=state, **way)
    assert call.algorithm == "hierarchical"
    assert all_gather(whole, shard, codec="int8", **way).algorithm == "hierarchical"
    assert relative(whole, mean_of(count, 4000 * count)) < 0.02


@ranks.on(4)
def test_a_group_is_a_part_of_the_world(rank: int, count: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tensor = torch.full((300,), float(rank))
    allreduce(tensor, codec="none", group=pairs[rank // 2])
    assert tensor.unique().tolist() == [1.0 if rank < 2 else 5.0]


@ranks.on(2)
def test_feedback_is_kept_between_calls(rank: int, count: int) -> None:
    state = FeedbackState(torch.empty(4000), codec="topk:density=0.1+ef")
    total = torch.zeros(4000)
    for _ in range(10):
        tensor = values(rank, 4000)
        allreduce(tensor, codec="topk:density=0.1+ef", reduction="mean", state=state)
        total += tensor
    assert 0 < relative(total / 10, mean_of(count, 4000)) < 0.4  # 0.75 without feedback
    assert state.bytes >= 4 * 4000


@ranks.on(1)
def test_mistakes_are_named(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        allreduce(torch.zeros(3), codec="int9")
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        allreduce(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(tersor.InvalidArgumentError, match="error feedback"):
        allreduce(torch.zeros(3), codec="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="has 3 values, but 1 shards of 2"):
        reduce_scatter(torch.zeros(2), torch.zeros(3))
    with pytest.raises(tersor.InvalidArgumentError, match="no option 'codecs'"):
        allreduce(torch.zeros(3), codecs="int8")  # type: ignore[call-arg]
    strided = torch.zeros(4, 4)[:, :2]
    with pytest.raises(tersor.InvalidArgumentError, match=r"contiguous|gaps"):
        reduce_scatter(strided, torch.zeros(8))
    with pytest.raises(tersor.InvalidArgumentError, match="share memory"):
        allreduce(torch.zeros(1).expand(4))
    with pytest.raises(tersor.InvalidArgumentError):
        allreduce(torch.zeros(4, 4).to_sparse())


@pytest.mark.parametrize("count", [1, 2, 3])
@ranks.on("count")
def test_one_rank_has_or_gets_what_all_get_or_have(rank: int, count: int) -> None:
    root = count - 1
    for dtype in DTYPES:
        tensor = values(rank, 1003, dtype)
        broadcast(tensor, root)
        assert torch.equal(tensor, values(root, 1003, dtype))
        parts = values(rank, 1003 * count, dtype) if rank == root else None
        part = torch.empty(1003, dtype=dtype)
        scatter(part, parts, root)
        assert torch.equal(part, values(root, 1003 * count, dtype)[1003 * rank :][:1003])
        whole = torch.empty(1003 * count, dtype=dtype) if rank == root else None
        gather(whole, part, root, codec="none")
        mean = torch.empty(1003, dtype=dtype) if rank == root else None
        reduce(values(rank, 1003, dtype), mean, root, codec="int8", reduction="mean")
        if whole is not None and parts is not None and mean is not None:
            assert torch.equal(whole, parts)
            assert relative(mean, mean_of(count, 1003, dtype)) < 0.02


@ranks.on(3)
def test_replicas_begin_alike(rank: int, count: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(6, 5)
    ).to(memory_format=torch.channels_last)
    model.register_buffer("short", torch.tensor(rank, dtype=torch.int16))  # gloo knows none
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 1:
        for _ in range(3):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            optimizer.step()
    broadcast_parameters(model, 1)
    broadcast_optimizer_state(optimizer, 1)
    held = [one.to(torch.float32) for one in model.state_dict().values()]
    held += [one for state in optimizer.state.values() for one in state.values()]
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert len(optimizer.state) == 6
    assert model[1].num_batches_tracked == 3
    assert model.short == 1
    for one in held:
        others = [torch.empty_like(one) for _ in range(count)]
        dist.all_gather(others, one)
        assert all(torch.equal(other, one) for other in others)


def test_a_root_that_is_no_rank_is_named() -> None:
    ranks.run(names_a_wrong_root, 2)


def names_a_wrong_root(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="root is 2: give a rank from 0 to 1"):
        broadcast(torch.zeros(5), 2)
    with pytest.raises(tersor.InvalidArgumentError, match="leave out \\+ef"):
        scatter(torch.zeros(5), torch.zeros(10), codec="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="the output has 0 values, but 2 shards"):
        gather(None, torch.zeros(5, dtype=torch.bfloat16), rank)
    with pytest.raises(TypeError):  # this is of all ranks
        tersor.gather(transport(None, torch.device("cpu")), None)


@ranks.on(2)
def test_shards_have_no_root(rank: int, count: int) -> None:
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    with pytest.raises(tersor.InvalidArgumentError, match="weight is a shard"):
        broadcast_parameters(model)
    with pytest.raises(tersor.InvalidArgumentError, match="parameter of the optimizer is a shard"):
        broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1))
