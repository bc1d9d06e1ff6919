"""Collectives on tensors, over the process group of gloo processes."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
from tersor.torch import (
    CompressedAdamW,
    FeedbackState,
    all_gather,
    all_reduce,
    broadcast,
    broadcast_optimizer_state,
    broadcast_parameters,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    transport,
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
def test_all_reduce_leaves_the_mean_on_all_ranks(rank: int, count: int) -> None:
    for dtype in DTYPES:
        for codec, error in (("none", 0.005), ("int8", 0.02), ("topk:density=0.5", 0.5)):
            tensor = values(rank, 5005, dtype).view(5, 7, 143)
            call = all_reduce(tensor, codec=codec, reduction="mean")
            assert relative(tensor.view(-1), mean_of(count, 5005, dtype)) < error
            assert call.gradient_bytes == 5005 * dtype.itemsize
            others = [torch.empty_like(tensor) for _ in range(count)]
            dist.all_gather(others, tensor)
            assert all(torch.equal(one, tensor) for one in others)


@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_reduce_scatter_and_all_gather(rank: int, count: int) -> None:
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
def test_hierarchical_reduce_scatter_and_all_gather(rank: int, count: int) -> None:
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
def test_all_reduce_in_subgroups(rank: int, count: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tensor = torch.full((300,), float(rank))
    all_reduce(tensor, codec="none", process_group=pairs[rank // 2])
    assert tensor.unique().tolist() == [1.0 if rank < 2 else 5.0]


@ranks.on(2)
def test_feedback_is_kept_between_calls(rank: int, count: int) -> None:
    state = FeedbackState(torch.empty(4000), codec="topk:density=0.1+ef")
    total = torch.zeros(4000)
    for _ in range(10):
        tensor = values(rank, 4000)
        all_reduce(tensor, codec="topk:density=0.1+ef", reduction="mean", state=state)
        total += tensor
    assert 0 < relative(total / 10, mean_of(count, 4000)) < 0.4  # 0.75 without feedback
    assert state.bytes >= 4 * 4000


@ranks.on(1)
def test_invalid_arguments_raise(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        all_reduce(torch.zeros(3), codec="int9")
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        all_reduce(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(tersor.InvalidArgumentError, match="error feedback"):
        all_reduce(torch.zeros(3), codec="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="has 3 values, but 1 shards of 2"):
        reduce_scatter(torch.zeros(2), torch.zeros(3))
    with pytest.raises(tersor.InvalidArgumentError, match="no option 'codecs'"):
        all_reduce(torch.zeros(3), codecs="int8")  # type: ignore[call-arg]
    strided = torch.zeros(4, 4)[:, :2]
    with pytest.raises(tersor.InvalidArgumentError, match=r"contiguous|gaps"):
        reduce_scatter(strided, torch.zeros(8))
    with pytest.raises(tersor.InvalidArgumentError, match="share memory"):
        all_reduce(torch.zeros(1).expand(4))
    with pytest.raises(tersor.InvalidArgumentError):
        all_reduce(torch.zeros(4, 4).to_sparse())


@pytest.mark.parametrize("count", [1, 2, 3])
@ranks.on("count")
def test_rooted_collectives(rank: int, count: int) -> None:
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
        gather(part, output=whole, dst=root, codec="none")
        mean = torch.empty(1003, dtype=dtype) if rank == root else None
        own = values(rank, 1003, dtype)
        reduce(own, root, output=mean, codec="int8", reduction="mean")
        assert torch.equal(own, values(rank, 1003, dtype))
        reduce(own, root, codec="int8", reduction="mean")
        assert torch.equal(own, values(rank, 1003, dtype) if mean is None else mean)
        if whole is not None and parts is not None and mean is not None:
            assert torch.equal(whole, parts)
            assert relative(mean, mean_of(count, 1003, dtype)) < 0.02


@ranks.on(2)
def test_a_sum_of_f16_overflows_to_infinity(rank: int, count: int) -> None:
    large = torch.tensor([65504.0, -65504.0], dtype=torch.float16).repeat(2000)
    for codec in ("none", "bf16", "int8"):
        total, shard, reduced = large.clone(), large[:2000].clone(), large.clone()
        all_reduce(total, codec=codec)
        reduce_scatter(shard, large.clone(), codec=codec)
        reduce(reduced, 0, codec=codec)
        for found in (total, shard, *([reduced] if rank == 0 else [])):
            assert torch.equal(found, large[: len(found)] * torch.inf)
        mean = large.clone()
        all_reduce(mean, codec=codec, reduction="mean")
        assert torch.equal(mean, large)


@ranks.on(3)
def test_broadcast_of_model_and_optimizer_state(rank: int, count: int) -> None:
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


@ranks.on(2)
def test_optimizer_state_of_bf16_parameters_keeps_dtypes(rank: int, count: int) -> None:
    weight = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = torch.optim.NAdam([weight])
    if rank == 0:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.state[weight]["nested"] = [torch.tensor(1 / 3)]
    broadcast_optimizer_state(optimizer)
    held = [optimizer.state[weight]["mu_product"], *optimizer.state[weight]["nested"]]
    others: list[Any] = [None] * count
    dist.all_gather_object(others, held)
    assert [one.dtype for one in held] == [torch.float32] * 2
    assert others[0] == others[1] == held


def test_invalid_arguments_of_rooted_collectives_raise() -> None:
    ranks.run(names_a_wrong_root, 2)


def names_a_wrong_root(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"src=2: the process group has ranks"):
        broadcast(torch.zeros(5), 2)
    with pytest.raises(tersor.InvalidArgumentError, match="root is 2: give a rank from 0 to 1"):
        broadcast(torch.zeros(5), group_src=2)
    with pytest.raises(tersor.InvalidArgumentError, match="dst= or group_dst=, not both"):
        reduce(torch.zeros(5), 0, group_dst=0)
    with pytest.raises(TypeError, match="src must be a rank, not Tensor"):
        broadcast(torch.zeros(5), torch.zeros(5))  # type: ignore[arg-type]
    with pytest.raises(tersor.InvalidArgumentError, match="leave out \\+ef"):
        scatter(torch.zeros(5), torch.zeros(10), codec="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="the output has 0 values, but 2 shards"):
        gather(torch.zeros(5, dtype=torch.bfloat16), dst=rank)
    with pytest.raises(TypeError):  # this is of all ranks
        tersor.gather(transport(None, torch.device("cpu")), None)


@ranks.on(4)
def test_source_is_a_global_or_group_rank(rank: int, count: int) -> None:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    pair, first = pairs[rank % 2], rank % 2
    for options, source in (
        ({"src": first + 2}, first + 2),
        ({"group_src": 1}, first + 2),
        ({}, first),
    ):
        tensor = torch.full((5,), float(rank))
        broadcast(tensor, process_group=pair, **options)
        assert tensor.unique().tolist() == [source], options
    tensor = torch.full((5,), float(rank))
    reduce(tensor, dst=first + 2, codec="none", process_group=pair)
    assert tensor.unique().tolist() == [rank if rank == first else 2 * first + 2]
    with pytest.raises(tersor.InvalidArgumentError, match=r"src=.*: the process group has ranks"):
        broadcast(tensor, 1 - first, process_group=pair)


@ranks.on(4)
def test_deprecated_signatures_still_work(rank: int, count: int) -> None:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    pair, first, second = pairs[rank % 2], rank % 2, rank // 2 == 1
    old: Any = tersor.torch  # whose signatures are the new ones

    def told(what: str) -> Any:
        return pytest.warns(DeprecationWarning, match=f"^{re.escape(what)}.* is deprecated")

    for how in ({"root": 1, "group": pair}, {"group": pair}):
        tensor = torch.full((5,), float(rank))
        with told("broadcast(") if "root" in how else contextlib.nullcontext():
            old.broadcast(tensor, **how)
        assert tensor.unique().tolist() == [first + 2 if "root" in how else first]
    tensor = torch.full((5,), float(rank))
    old.broadcast(tensor, 1, group=pair)  # of the group, as root= was
    assert tensor.unique().tolist() == [first + 2]

    own, result = torch.full((5,), float(rank)), torch.zeros(5) if second else None
    with told("reduce(") as warned:
        old.reduce(own, result, 1, codec="none", group=pair)
    assert [one.filename for one in warned] == [__file__]
    assert own.unique().tolist() == [rank]
    assert result is None or result.unique().tolist() == [2 * first + 2]
    result = torch.zeros(10) if second else None
    with told("gather(output, input, root)") as warned:
        old.gather(result, own, 1, codec="none", group=pair)
    assert [one.filename for one in warned] == [__file__]
    assert result is None or result.tolist() == [first] * 5 + [first + 2] * 5
    with pytest.raises(TypeError, match="takes one tensor"):
        old.gather(result, own, 1, pair)
    result = torch.zeros(10) if second else None
    with told("gather(input=)"):
        old.gather(output=result, input=own, root=1, codec="none", group=pair)
    assert result is None or result.tolist() == [first] * 5 + [first + 2] * 5
    parts = torch.arange(10.0) + rank if second else None
    old.scatter(own, parts, 1, group=pair)
    assert torch.equal(own, torch.arange(5.0) + first + 2 + (5 if second else 0))
    with told("tersor.torch.allreduce"):
        allreduce = old.allreduce
    assert allreduce is tersor.torch.all_reduce
    with told('FeedbackState(collective="allgather")'):
        old.FeedbackState(own, codec="int8+ef", collective="allgather")


@ranks.on(2)
def test_broadcast_rejects_shards_and_compressed_optimizers(rank: int, count: int) -> None:
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    with pytest.raises(tersor.InvalidArgumentError, match="weight is a shard"):
        broadcast_parameters(model)
    with pytest.raises(tersor.InvalidArgumentError, match="parameter of the optimizer is a shard"):
        broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1))
    model, own = torch.nn.Linear(64, 64), "CompressedAdamW has values of each rank"
    with pytest.raises(tersor.InvalidArgumentError, match=own):
        broadcast_optimizer_state(CompressedAdamW(model.named_parameters(), lr=0.1))
