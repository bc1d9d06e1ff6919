"""The backend of torch.distributed, over gloo: encoded calls and forwarded calls."""

from __future__ import annotations

import datetime
import os
import pathlib
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_groups import COUNT, losses, model, on, start, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor

if torch.__version__ < (2, 15):  # type: ignore[operator]
    pytest.skip("PyTorch finds back ends from 2.15 on", allow_module_level=True)


def encoded_calls() -> int:
    """Returns the number of encoded calls of the default group."""
    from tersor.torch.backend import TersorGroup

    made = dist.group.WORLD
    assert isinstance(made, TersorGroup)
    return made._executor.submitted


@on(3)
def test_sums_and_means_are_encoded(rank: int, count: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        wanted = sum(values(one, dtype=dtype).float() for one in range(count))
        for op, factor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, 1 / count)):
            found = values(rank, dtype=dtype)
            dist.all_reduce(found, op)
            torch.testing.assert_close(found, (wanted * factor).to(dtype))
    assert encoded_calls() == 6


@on(2, codec="int8")
def test_a_sum_of_f16_overflows_to_infinity(rank: int, count: int) -> None:
    large = torch.tensor([65504.0, -65504.0], dtype=torch.float16).repeat(COUNT)
    rows, total = torch.empty_like(large), large.clone()
    dist.all_to_all_single(rows, large)
    dist.all_reduce(total)
    assert torch.equal(rows, large)
    assert torch.equal(total, large * torch.inf)
    assert encoded_calls() == 2


@on(2)
def test_all_reduce_of_two_ranks_matches_gloo_bit_for_bit(rank: int, count: int) -> None:
    plain = dist.new_group(backend="gloo")
    for shape in ((COUNT,), (60, 50)):
        ours = values(rank).view(shape)
        ours = ours.t() if ours.dim() == 2 else ours  # with other strides
        theirs = ours.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=plain)
        assert torch.equal(ours, theirs)


@on(2)
def test_unencodable_all_reduces_are_forwarded(rank: int, count: int) -> None:
    biggest = torch.stack([values(one) for one in range(count)]).amax(0)
    found = values(rank)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    assert torch.equal(found, biggest)
    for dtype in (torch.int64, torch.float64):
        whole = torch.full((COUNT,), rank + 1, dtype=dtype)
        dist.all_reduce(whole)
        assert torch.equal(whole, torch.full((COUNT,), 3, dtype=dtype))
    short, none = torch.ones(3), torch.ones(0)
    dist.all_reduce(short)
    dist.all_reduce(none)
    assert short.tolist() == [2, 2, 2]
    sparse = torch.eye(COUNT).to_sparse()
    dist.all_reduce(sparse)
    assert sparse.to_dense()[0, 0] == 2
    assert encoded_calls() == 0


@on(2)
def test_other_collectives_are_forwarded(rank: int, count: int) -> None:
    mine, other = values(rank), values(1 - rank)
    both = [values(0), values(1)]
    found = mine.clone()
    dist.broadcast(found, 1)
    assert torch.equal(found, both[1])
    parts = [torch.empty(COUNT) for _ in range(count)]
    dist.all_gather(parts, mine)
    assert torch.equal(torch.stack(parts), torch.stack(both))
    whole = torch.empty(count * COUNT)
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.cat(both))
    dist.gather(mine, parts if rank == 1 else None, dst=1)
    dist.scatter(found, both if rank == 0 else None, src=0)
    assert torch.equal(found, mine)
    dist.reduce(found, 0)
    dist.all_to_all(parts, both)
    with dist._coalescing_manager():
        dist.all_reduce(mine)
        dist.all_reduce(other)
    torch.testing.assert_close(mine, both[0] + both[1])
    objects: list[Any] = [None] * count
    dist.all_gather_object(objects, {"rank": rank})
    assert [one["rank"] for one in objects] == [0, 1]
    told = ["of rank 0" if rank == 0 else None]
    dist.broadcast_object_list(told)
    assert told == ["of rank 0"]
    dist.barrier()
    assert encoded_calls() == 0


@on(2)
def test_point_to_point_messages(rank: int, count: int) -> None:
    found = torch.empty(COUNT)
    if rank == 0:
        dist.send(values(0), 1)
        work = dist.isend(values(0), 1)
    else:
        dist.recv(found, 0)
        work = dist.irecv(found)
    assert work is not None
    work.wait()
    if rank == 1:
        assert torch.equal(found, values(0))
    ops = [
        dist.P2POp(dist.isend, values(rank), 1 - rank),
        dist.P2POp(dist.irecv, found, 1 - rank),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert torch.equal(found, values(1 - rank))


@on(3)
def test_reduce_scatter(rank: int, count: int) -> None:
    wanted = sum(values(one, count * COUNT) for one in range(count))[rank * COUNT :][:COUNT]  # type: ignore[index]
    whole, found = values(rank, count * COUNT), torch.empty(COUNT)
    dist.reduce_scatter_tensor(found, whole)
    torch.testing.assert_close(found, wanted)
    dist.reduce_scatter(found, list(whole.chunk(count)), dist.ReduceOp.AVG)
    torch.testing.assert_close(found, wanted / count)
    apart = torch.empty(COUNT, 2)[:, 0]
    dist.reduce_scatter_tensor(apart, whole.view(count, COUNT).t().contiguous().t().reshape(-1))
    torch.testing.assert_close(apart, wanted)
    within = whole.view(count, COUNT)[rank]
    dist.reduce_scatter_tensor(within, whole)
    torch.testing.assert_close(within, wanted)
    whole = values(rank, count * COUNT)
    elsewhere = whole.view(count, COUNT)[rank - 1]
    dist.reduce_scatter_tensor(elsewhere, whole)
    torch.testing.assert_close(elsewhere, wanted)
    assert encoded_calls() == 5


def test_inputs_are_copied_if_the_output_overlaps() -> None:
    from tersor.torch._src.backend.calls import _unaliased

    input = values(0)
    for output, copied in ((input[:10], True), (values(1), False)):
        found = _unaliased([input], output)
        assert torch.equal(found, input)
        assert (found.data_ptr() != input.data_ptr()) == copied


@on(3)
def test_all_to_all_single(rank: int, count: int) -> None:
    columns = 256
    rows = torch.arange(count * 8.0).repeat_interleave(columns).view(-1, columns) + 100 * rank
    found = torch.empty_like(rows)
    dist.all_to_all_single(found, rows)
    wanted = [100 * one + 8 * rank + row for one in range(count) for row in range(8)]
    assert found[:, 0].tolist() == wanted
    sent, received = (
        [rank, 2, 1],
        [[0, 1, 2][one] if rank == 0 else 3 - rank for one in range(count)],
    )
    part = torch.empty(sum(received), columns)
    dist.all_to_all_single(part, rows[: sum(sent)].contiguous(), received, sent)
    skipped = [0, rank, rank + 2][rank]
    assert torch.equal(part[sum(received[:rank]) :][: sent[rank]], rows[skipped:][: sent[rank]])
    assert encoded_calls() == 2
    thin = torch.full((sum(sent), 3), float(rank))  # rows too short to be encoded with splits
    thin_found = torch.empty(sum(received), 3)
    dist.all_to_all_single(thin_found, thin, received, sent)
    assert thin_found[-1, 0] == 2 or received[2] == 0
    counts = torch.empty(count, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.tensor(sent))
    assert counts.tolist() == received
    assert encoded_calls() == 2


@on(2)
def test_rank_without_rows_may_send_an_empty_vector(rank: int, count: int) -> None:
    columns = 256
    rows = torch.arange(3.0).repeat_interleave(columns).view(3, columns)
    sent, received = ([2, 1], [2, 0]) if rank == 0 else ([0, 0], [1, 0])
    found = torch.empty(sum(received), columns)
    dist.all_to_all_single(found, rows if rank == 0 else torch.empty(0), received, sent)
    assert found[:, 0].tolist() == ([0, 1] if rank == 0 else [2])
    assert encoded_calls() == 1


@on(2, codec="int8")
def test_all_to_all_compresses_narrow_rows(rank: int, count: int) -> None:
    group: Any = dist.group.WORLD
    for shape in ((count * COUNT,), (count * COUNT // 3, 3), (count, COUNT)):
        rows = values(rank, count * COUNT).view(shape)
        found, exact = torch.empty_like(rows), torch.empty_like(rows)
        before = group._executor.sent_bytes
        dist.all_to_all_single(found, rows)
        assert group._executor.sent_bytes - before < 0.3 * rows.nbytes / count
        dist.all_to_all_single(exact.view(torch.int32), rows.view(torch.int32))  # handed on
        assert float((found - exact).norm() / exact.norm()) < 0.02
    assert encoded_calls() == 3


@on(2, codec="int8")
def test_varying_sizes_leak_no_threads_or_descriptors(rank: int, count: int) -> None:
    held = []
    for extra in range(60):
        dist.all_reduce(values(rank, COUNT + extra))
        rows = values(rank, count * (COUNT + extra)).view(count, -1)
        dist.reduce_scatter_tensor(torch.empty(COUNT + extra), rows.flatten())
        dist.all_to_all_single(torch.empty_like(rows), rows)
        if extra in (29, 59):
            held.append([len(os.listdir(f"/proc/self/{one}")) for one in ("task", "fd")])
    # A thread may begin late. A leak adds at least one for each of the last 30 sizes.
    assert all(after < before + 10 for before, after in zip(*held, strict=True)), held
    assert encoded_calls() == 180


@on(2)
def test_async_work_handles(rank: int, count: int) -> None:
    wanted = values(0) + values(1)
    found = [values(rank) for _ in range(4)]
    works = [dist.all_reduce(one, async_op=True) for one in found]
    seen: list[torch.Tensor] = []
    future = works[0].get_future().then(lambda one: seen.append(one.value()[0]))  # type: ignore[union-attr]
    for work in works:
        assert work is not None
        while not work.is_completed():
            time.sleep(0.001)
        assert work.wait()
        assert work.is_success()
    future.wait()
    assert seen[0] is found[0] or torch.equal(seen[0], wanted)
    assert all(torch.equal(one, wanted) for one in found)
    with torch.inference_mode():
        tensor = values(rank).view(60, 50).t()
        dist.all_reduce(tensor)
    assert torch.equal(tensor, wanted.view(60, 50).t())


@on(2)
def test_direct_process_group_calls(rank: int, count: int) -> None:
    group: Any = dist.group.WORLD
    found, whole = values(rank), torch.cat([values(0), values(1)])
    group.allreduce(found).wait()
    group.allreduce([found], dist.ReduceOp.AVG).wait()
    group.allreduce(found, op=dist.ReduceOp.MAX).wait()  # handed on
    assert torch.equal(found, values(0) + values(1))
    group.reduce_scatter(found, list(whole.chunk(count))).wait()
    assert torch.equal(found, 2 * values(rank))
    group.all_to_all_single(whole.clone(), whole, [], []).wait()
    group.broadcast(found, 0).wait()  # handed on
    assert encoded_calls() == 4


@on(2)
def test_coalesced_calls_are_forwarded(rank: int, count: int) -> None:
    found, parts = values(rank), [values(0), values(1)]
    with dist._coalescing_manager():
        dist.reduce_scatter(found, parts)
    assert torch.equal(found, 2 * values(rank))
    assert encoded_calls() == 0
    dist.reduce_scatter(found, parts)
    assert encoded_calls() == 1


@on(2)
def test_dependent_calls(rank: int, count: int) -> None:
    found = values(rank)
    for _ in range(3):
        dist.all_reduce(found)  # encoded
        dist.all_reduce(found, dist.ReduceOp.MAX)  # handed on
    torch.testing.assert_close(found, 4 * (values(0) + values(1)))


@on(4)
def test_subgroups(rank: int, count: int) -> None:
    pairs = [dist.new_group([0, 2], group_desc="even"), dist.new_group([1, 3])]
    plain = dist.new_group([0, 3], backend="gloo")
    ours = pairs[rank % 2]
    first, second = values(rank), values(rank)
    works = [
        dist.all_reduce(one, group=group, async_op=True)
        for one, group in ((first, ours), (second, None))
    ]
    for work in works:
        assert work is not None
        work.wait()
    other = (rank + 2) % 4
    assert torch.equal(first, values(rank) + values(other))
    torch.testing.assert_close(second, sum(values(one) for one in range(4)))
    if rank in (0, 3):
        dist.all_reduce(first, group=plain)
    dist.destroy_process_group(ours)
    found = values(rank)
    dist.all_reduce(found)
    torch.testing.assert_close(found, second)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    found = values(rank)
    dist.all_reduce(found, group=mesh.get_group("a"))
    assert torch.equal(found, values(rank % 2) + values(rank % 2 + 2))


@on(4)
def test_split_groups(rank: int, count: int) -> None:
    part = dist.split_group(None, [[0, 1], [2, 3]], timeout=datetime.timedelta(seconds=7))
    found = values(rank)
    dist.all_reduce(found, group=part)
    assert torch.equal(found, values(rank) + values(rank ^ 1))
    assert tersor.torch._src.process_group.connections.seconds_of(part) == 7
    assert dist.get_process_group_ranks(part) == [rank & 2, rank | 1]
    part = dist.split_group(None, [[1, 0]], group_desc="turned")
    if rank > 1:
        assert part == dist.GroupMember.NON_GROUP_MEMBER
        return
    assert (part.rank(), part.group_desc) == (1 - rank, "turned")
    dist.all_reduce(found, group=part)
    assert torch.equal(found, 2 * (values(0) + values(1)))


def ddp_beside_gloo(rank: int) -> tuple[list[float], list[float]]:
    plain = dist.new_group(backend="gloo")
    ours = losses(DistributedDataParallel(model()), rank)
    assert encoded_calls() > 0
    return ours, losses(DistributedDataParallel(model(), process_group=plain), rank)


@on(2)
def test_ddp_losses_equal_gloo(rank: int, count: int) -> None:
    ours, theirs = ddp_beside_gloo(rank)
    assert ours == theirs


@on(2, codec="int8")
def test_ddp_int8_losses_are_close_to_gloo(rank: int, count: int) -> None:
    ours, theirs = ddp_beside_gloo(rank)
    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=0.02)


def sharded(mesh: Any, experts: Any = None) -> nn.Module:
    made = model()
    if experts is not None:
        fully_shard(made[2], mesh=experts)
    fully_shard(made, mesh=mesh)
    return made


@on(2)
def test_fsdp2_losses_equal_gloo(rank: int, count: int) -> None:
    ours = losses(sharded(init_device_mesh("cpu", (count,))), rank)
    assert encoded_calls() == 5
    mesh = init_device_mesh("cpu", (count,), backend_override={0: "gloo"})
    theirs = losses(sharded(mesh), rank)
    assert encoded_calls() == 5
    assert ours == theirs


def with_experts(backend: Any, count: int) -> nn.Module:
    """Puts the second layer on two meshes, with half of the ranks each."""
    mesh = init_device_mesh("cpu", (count,), backend_override={0: backend})
    names = ("expert", "shard")
    halves = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=names, backend_override=dict.fromkeys(names, backend)
    )
    return sharded(mesh, halves["shard"])


@on(4)
def test_model_on_two_meshes(rank: int, count: int) -> None:
    ours = losses(with_experts("tersor", count), rank)
    theirs = losses(with_experts("gloo", count), rank)
    assert ours == pytest.approx(theirs, rel=1e-5)


@on(2, codec="int8")
def test_ddp_hook_bypasses_backend_encoding(rank: int, count: int) -> None:
    trained = DistributedDataParallel(model())
    handle = tersor.torch.compress(trained, codec="int4+ef")
    losses(trained, rank)
    assert encoded_calls() == 0
    assert handle.scalars()["tersor/sent_bytes"] > 0


# Rules and the configuration.


@on(2, codec="int8", rules=[("*/bf16/*", "pass"), ("reduce_scatter/*/default_pg", "none", 0)])
def test_rules(rank: int, count: int) -> None:
    dist.all_reduce(values(rank, dtype=torch.bfloat16))
    assert encoded_calls() == 0
    found = torch.empty(3)
    dist.reduce_scatter_tensor(found, torch.ones(6) / 3)
    assert encoded_calls() == 1
    assert torch.equal(found, torch.ones(3) / 3 * 2)
    dist.all_reduce(torch.ones(COUNT))
    assert encoded_calls() == 2


def test_old_collective_name_in_a_rule_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tersor.torch import backend
    from tersor.torch._src.backend import configuration

    monkeypatch.setattr(configuration, "_configured", None)
    with pytest.warns(DeprecationWarning, match='"allreduce" of a rule .* use "all_reduce"'):
        old = backend.configure(rules=[("allreduce/f32/*", "bf16", 1), ("*/f32/a", "none", 2)])
    new = backend.configure(rules=[("all_reduce/f32/*", "bf16", 1), ("all?educe/f16/*", "none")])
    for found in (old, new):
        assert found.choice("all_reduce/f32/a") == ("bf16", 1)
        assert found.choice("all_to_all/f32/b") == ("int8", 1 << 20)
    assert old.choice("reduce_scatter/f32/a") == ("none", 2)
    assert new.choice("all_reduce/f16/a") == ("none", 1 << 20)


def configured_from(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    from tersor.torch._src.backend import configuration as backend_configuration

    monkeypatch.setattr(backend_configuration, "_configured", None)
    monkeypatch.setenv("TERSOR_BACKEND", text)
    return backend_configuration.current_configuration()


def test_configuration_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured_from("codec=int8,min_bytes=4096", monkeypatch)
    assert found.rules == (("*", "int8", 4096),)
    text = "rules=*/bf16/* topk:density=0.1,values=bf16 7; a/*/b pass,codec=bf16"
    assert configured_from("", monkeypatch).rules == (("*", "int8", 1 << 20),)
    with pytest.raises(tersor.InvalidArgumentError, match="topk"):
        configured_from(text, monkeypatch)
    found = configured_from(text.replace("topk:density=0.1,values=bf16", "int4"), monkeypatch)
    assert found.rules == (
        ("*/bf16/*", "int4", 7),
        ("a/*/b", "pass", 1 << 20),
        ("*", "bf16", 1 << 20),
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("codecs=int8", "the keys are: codec, min_bytes, rules"),
        ("min_bytes=1e6", "'1e6' is not a number of bytes"),
        ("rules=int8", "a pattern and a codec"),
        ("codec=int9", "int9"),
        ("codec=int8+ef", "use 'int8', or tersor.torch.compress"),
        ("codec=auto", "auto"),
    ],
)
def test_invalid_environment_configuration_raises(
    text: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=match):
        configured_from(text, monkeypatch)


def test_wrong_arguments() -> None:
    from tersor.torch import backend

    with pytest.raises(TypeError, match="codec"):
        backend.configure(8)  # type: ignore[arg-type]
    with pytest.raises(tersor.InvalidArgumentError, match="min_bytes is -1"):
        backend.configure(min_bytes=-1)


def differs(rank: int, count: int, meeting: str) -> str:
    with pytest.raises(tersor.Error) as caught:
        start(rank, count, meeting, codec="int8" if rank == 1 else "int4")
    return str(caught.value)


def test_configuration_mismatch_raises_on_all_ranks(tmp_path: pathlib.Path) -> None:
    store = str(tmp_path / "store")
    for outcome in ranks.outcomes(differs, 3, store, group=False, fresh=True, finalize=False):
        assert outcome.error is None, outcome.traceback
        assert '"* int4' in outcome.value
        assert 'as "* int8' in outcome.value
        assert "rank 1" in outcome.value
