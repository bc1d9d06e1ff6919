"""Horovod's names in scripts, over gloo processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import ranks
import tersor
import tersor.torch.hvd as hvd

# What horovod.torch 0.28 has.
HOROVODS = """
    Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product
    Sum SyncBatchNorm add_process_set allgather allgather_async allgather_object allreduce
    allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_
    broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state
    broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built elastic
    global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async
    grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
    grouped_reducescatter grouped_reducescatter_async init is_initialized join local_rank
    local_size mpi_built mpi_enabled mpi_threads_supported nccl_built poll rank reducescatter
    reducescatter_async remove_process_set rocm_built shutdown size sparse_allreduce_async
    start_timeline stop_timeline synchronize
""".split()  # noqa: SIM905


@contextlib.contextmanager
def started() -> Iterator[None]:
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    )


def loader(rank: int, count: int) -> DataLoader[tuple[Tensor, ...]]:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(96, 1, 8, 8, generator=random)
    data = TensorDataset(images, images.flatten(1)[:, :10].argmax(1))
    sampler = DistributedSampler(data, num_replicas=count, rank=rank, shuffle=True)
    return DataLoader(data, batch_size=8, sampler=sampler)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> list[float]:
    losses = []
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def ported_script(compression: Any) -> list[float]:
    """Makes the calls of Horovod's MNIST example, in order."""
    batches = loader(hvd.rank(), hvd.size())
    model = network(seed=hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Average,
        gradient_predivide_factor=1.0,
    )
    losses = trained(model, optimizer, batches)
    mean = hvd.allreduce(torch.tensor(losses[-1]), name="avg_loss").item()
    assert mean == pytest.approx(sum(hvd.allgather(torch.tensor(losses[-1:])).tolist()) / 2)
    return losses


def plain_script(rank: int, count: int) -> list[float]:
    model = DistributedDataParallel(network(seed=rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * count, momentum=0.5)
    return trained(model, optimizer, loader(rank, count))


@ranks.on(2)
def test_ported_script_matches_ddp_losses(rank: int, count: int) -> None:
    wanted = plain_script(rank, count)
    with started():
        assert ported_script(hvd.Compression.none) == wanted  # bit for bit
        for compression, error in ((hvd.Compression.fp16, 1e-3), (hvd.Compression.int8, 0.02)):
            assert ported_script(compression) == pytest.approx(wanted, rel=error)
        assert ported_script(hvd.Compression.spec("int4+ef")) == pytest.approx(wanted, rel=0.2)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.exact = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.layer(inputs) * self.exact).sum()


@pytest.mark.filterwarnings("ignore:tersor sends these gradients")
@pytest.mark.parametrize(("op", "shares"), [("Sum", 1), ("Average", 2)])
@ranks.on(2)
def test_gradients_of_several_passes_are_summed_or_averaged(
    rank: int, count: int, op: str, shares: int
) -> None:
    """Also for gradients without a codec."""
    with started():
        model = Mixed()
        hvd.broadcast_parameters(model.state_dict())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            model.named_parameters(),
            backward_passes_per_step=2,
            op=getattr(hvd, op),
        )
        wanted = [torch.zeros_like(one) for one in model.parameters()]
        for part in range(2):
            for other in range(count):
                inputs = torch.full((3,), 1.0 + part + 10 * other)
                for total, one in zip(
                    wanted,
                    torch.autograd.grad(model(inputs), list(model.parameters())),
                    strict=True,
                ):
                    total += one / shares
            model(torch.full((3,), 1.0 + part + 10 * rank)).backward()
        optimizer.synchronize()
        for one, total in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(one.grad, total)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@ranks.on(3)
def test_sums_and_means(rank: int, count: int) -> None:
    with started():
        for dtype in (*FLOATS, *WHOLE):
            own = torch.tensor([[1, 2], [0, 5]]).t().mul(rank + 1).to(dtype)  # not contiguous
            before = own.clone()
            total = torch.tensor([[6, 0], [12, 30]], dtype=dtype)
            torch.testing.assert_close(hvd.allreduce(own, op=hvd.Sum), total)
            torch.testing.assert_close(hvd.allreduce(own, average=False), total)
            torch.testing.assert_close(hvd.allreduce(own, name="mean"), total // 3)
            assert torch.equal(own, before)
            assert hvd.allreduce_(own, op=hvd.Sum) is own
            torch.testing.assert_close(own, total)
        assert hvd.allreduce(torch.tensor(-rank)).item() == -1
        assert hvd.allreduce(torch.tensor([-1 if rank else 0])).item() == 0  # cut off, of -2/3
        first, second = hvd.grouped_allreduce([torch.ones(2), torch.arange(3)], op=hvd.Sum)
        assert (first.tolist(), second.tolist()) == ([3, 3], [0, 3, 6])
        assert hvd.allreduce(torch.ones(0)).shape == (0,)
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"too large for torch.uint8: use \.long"
        ):
            hvd.allreduce(torch.tensor([100], dtype=torch.uint8), op=hvd.Sum)
        own = torch.tensor([(2**62, 2**62, -1)[rank], (-(2**62), -(2**62), 0)[rank]])
        assert hvd.allreduce(own, op=hvd.Sum).tolist() == [2**63 - 1, -(2**63)]
        for value in (2**62, -(2**62), 2**63 - 1):
            for op in (hvd.Sum, hvd.Average):
                with pytest.raises(tersor.InvalidArgumentError, match=r"too large: use \.double"):
                    hvd.allreduce(torch.tensor([value, 1]), op=op)
        with pytest.raises(tersor.InvalidArgumentError, match=r"leave out \+ef, or use hvd"):
            hvd.allreduce(torch.ones(9), compression=hvd.Compression.spec("int8+ef"))
        values = torch.linspace(-1, 1, 1000) * (rank + 1)
        rounded = hvd.allreduce(values, compression=hvd.Compression.int8)
        assert 0 < (rounded - values / (rank + 1) * 2).abs().max() < 0.05


@ranks.on(3)
def test_allgather_alltoall_broadcast_and_reducescatter(rank: int, count: int) -> None:
    with started():
        for dtype in (*FLOATS, *WHOLE, torch.bool, torch.complex64):
            own = torch.full((rank, 2), rank).to(dtype)
            wanted = torch.tensor([[1, 1], [2, 2], [2, 2]]).to(dtype)
            assert torch.equal(hvd.allgather(own, name="rows"), wanted)
            rows = (torch.arange(4) + 10 * rank).to(dtype)
            arrived, splits = hvd.alltoall(rows, splits=torch.tensor([rank, 2 - rank, 2]))
            places = {0: [10, 20, 21], 1: [0, 1, 11], 2: [2, 3, 12, 13, 22, 23]}
            assert torch.equal(arrived, torch.tensor(places[rank]).to(dtype))
            assert splits.tolist() == [[0, 1, 2], [2, 1, 0], [2, 2, 2]][rank]
            assert splits.dtype == torch.int64
            assert torch.equal(hvd.broadcast(own[:1].sum(0), 2), torch.full((2,), 2).to(dtype))
        equal = hvd.alltoall(torch.arange(6) + 10 * rank)
        assert equal.tolist() == [2 * rank + ten + i for ten in (0, 10, 20) for i in (0, 1)]
        assert hvd.alltoall(torch.ones(3), splits=[1, 1, 1])[1].dtype == torch.int32
        shard = hvd.reducescatter(torch.arange(8.0).view(4, 2), op=hvd.Sum)
        assert shard.tolist() == [[[0, 3], [6, 9]], [[12, 15]], [[18, 21]]][rank]
        assert hvd.reducescatter(torch.ones(1)).shape == (int(rank == 0),)
        assert hvd.broadcast_object({"epoch": rank}, root_rank=1, name="resume") == {"epoch": 1}
        hvd.barrier()


@ranks.on(2)
def test_broadcast_equalizes_parameters_and_optimizer_states(rank: int, count: int) -> None:
    with started():
        model = network(seed=rank)
        model[1].num_batches_tracked += rank
        twice = [("weight", torch.tensor(rank)), ("weight", torch.tensor(rank))]
        named = list(model.named_parameters())
        for params in (model.state_dict(), named, model.parameters(), twice):
            hvd.broadcast_parameters(params, root_rank=1)
        assert [one.item() for _, one in twice] == [1, 1]
        for one, other in zip(model.parameters(), network(seed=1).parameters(), strict=True):
            assert torch.equal(one, other)
        assert model[1].num_batches_tracked == 1
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + rank)
        if rank == 1:
            model(torch.ones(2, 1, 8, 8)).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 1.1
        assert len(optimizer.state) == 6


@ranks.on(2)
def test_collectives_have_gradients(rank: int, count: int) -> None:
    """Horovod's gradients: for an allgather and a broadcast the mean over ranks."""
    with started():

        def gradient(call: Any, shape: tuple[int, ...]) -> Any:
            own = torch.ones(shape, requires_grad=True)
            (call(own) * (rank + 1)).sum().backward()
            assert own.grad is not None
            return own.grad.tolist()

        assert gradient(lambda one: hvd.allreduce(one, op=hvd.Sum), (2,)) == [3, 3]
        assert gradient(hvd.allreduce, ()) == 1.5
        assert gradient(hvd.allgather, (1 + rank,)) == [1.5] * (1 + rank)
        assert gradient(lambda one: hvd.broadcast(one, 1), (1,)) == [[0.0], [1.5]][rank]
        assert gradient(lambda one: hvd.alltoall(one, [1, 2])[0], (3,)) == [1, 2, 2]
        with pytest.raises(tersor.InvalidArgumentError, match=r"tensor\.detach"):
            gradient(hvd.reducescatter, (2,))


@ranks.on(2)
def test_call_mismatch_error_describes_both_calls(rank: int, count: int) -> None:
    one = torch.ones(3)
    calls: list[tuple[str, Any, Any]] = [
        (
            "name='loss'.*name='accuracy'",
            *(lambda n=n: hvd.allreduce(one, name=n) for n in ("loss", "accuracy")),
        ),
        (r"\[3\].*\[2\]", lambda: hvd.allreduce(one), lambda: hvd.allreduce(one[:2])),
        ("float32.*int64", lambda: hvd.allgather(one), lambda: hvd.allgather(one.long())),
        ("sum.*mean", lambda: hvd.allreduce(one, op=hvd.Sum), lambda: hvd.allreduce(one)),
        ("broadcast.*barrier", lambda: hvd.broadcast(one, 0), hvd.barrier),
        ("root_rank=0.*root_rank=1", *(lambda n=n: hvd.broadcast_object(1, n) for n in (0, 1))),
    ]
    with started():
        for words, *by_rank in calls:
            with pytest.raises(tersor.TransportError, match=f"rank 0 calls.*{words}.*same order"):
                by_rank[rank]()
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"rank 1 splits 3 rows into \[1, 1\]"
        ):
            hvd.alltoall(one, [1, 2 - rank])
        assert hvd.allreduce(one).tolist() == [1, 1, 1]  # nothing is lost


@ranks.on(1)
def test_invalid_calls_raise(rank: int, count: int) -> None:
    one = torch.ones(2)
    for call in (hvd.rank, hvd.local_size, hvd.barrier, lambda: hvd.allreduce(one)):
        with pytest.raises(tersor.InvalidArgumentError, match=r"call hvd\.init\(\) first"):
            call()
    with pytest.raises(tersor.InvalidArgumentError, match="new_group"):
        hvd.init([0, 1])  # type: ignore[arg-type]
    with started():
        hvd.init()
        for words, call in {
            "average='loss'": lambda: hvd.allreduce(one, "loss"),  # type: ignore[arg-type]
            "average=True": lambda: hvd.allreduce(one, True, op=hvd.Sum),
            "op='max'": lambda: hvd.allreduce(one, op="max"),  # type: ignore[arg-type]
            "no prescale_factor: use": lambda: hvd.allreduce(one, prescale_factor=0.0),
            "no process_set: use": lambda: hvd.allgather(one, process_set=1),
            "no argument 'foo'": lambda: hvd.broadcast(one, 0, foo=1),
            "bool": lambda: hvd.allreduce(one.bool()),
            "root_rank=1": lambda: hvd.broadcast_(one, 1),
            "cpu or cuda.*meta": lambda: hvd.allreduce(one.to("meta")),
            "sparse": lambda: hvd.allreduce(one.to_sparse()),
            "no rows": lambda: hvd.allgather(one.sum()),
            r"splits=\[1, 1\]": lambda: hvd.alltoall(one, [1, 1]),
            "no codec": lambda: hvd.allreduce(one, compression=hvd.Compression.spec("int7")),
            r"\+ef": lambda: hvd.allreduce(one, compression=hvd.Compression.spec("int8+ef")),
        }.items():
            with pytest.raises(tersor.InvalidArgumentError, match=words):
                call()
        shard = distribute_tensor(one, init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"hvd\.broadcast_parameters is a shard"
        ):
            hvd.broadcast_parameters({"weight": shard})
        for words, call in {
            "takes a tensor, not 1.0": lambda: hvd.allreduce(1.0),  # type: ignore[arg-type]
            "compression must be hvd.*'fp16'": lambda: hvd.allreduce(one, compression="fp16"),  # type: ignore[arg-type]
            "takes a tensor, not 'b'": lambda: hvd.broadcast_parameters({"a": "b"}),  # type: ignore[dict-item]
        }.items():
            with pytest.raises(TypeError, match=words):
                call()


@ranks.on(1)
def test_optimizer_arguments_are_accepted_or_rejected(rank: int, count: int) -> None:
    parameters = [torch.nn.Parameter(torch.ones(8192))]
    sgd = torch.optim.SGD(parameters)

    def wrapped(**options: Any) -> tersor.torch.DistributedOptimizer:
        return hvd.DistributedOptimizer(sgd, [("weight", parameters[0])], **options)

    with started():
        fp16 = {"compression": hvd.Compression.fp16}
        assert "f16" in wrapped(**fp16, sparse_as_dense=True, num_groups=0, groups=None).explain()
        assert "int4" in wrapped(**fp16, rules=[("weight", "int4")]).explain()
        for words, options in {
            "no gradient_predivide_factor: use": {"gradient_predivide_factor": 2.0},
            "no groups: use bucket_bytes": {"groups": [parameters]},
            r"no codec: use compression=hvd\.Compression": {"codec": "int8"},
            "no reduction: use op=": {"reduction": "sum"},
            "in advanced: use op=": {"advanced": tersor.AdvancedOptions(reduction="sum")},
            "no process_set: use.*group=": {"process_set": 1},
            "no option 'foo'": {"foo": 1},
            "op='adasum'": {"op": "adasum"},
            "backward_passes_per_step=0": {"backward_passes_per_step": 0},
        }.items():
            with pytest.raises(tersor.InvalidArgumentError, match=words):
                wrapped(**options)


@pytest.mark.parametrize("name", HOROVODS)
def test_horovod_names_exist_or_suggest_a_replacement(name: str) -> None:
    if name in vars(hvd):
        return
    with pytest.raises(tersor.InvalidArgumentError, match=rf"no hvd\.{name} here: use .{{4}}"):
        getattr(hvd, name)


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'alreduce'"):
        hvd.alreduce  # noqa: B018


def survive(rank: int, _: int, call: str) -> str:
    hvd.init()
    model = network(seed=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()))
    calls = {
        "step": optimizer.step,
        "allreduce": lambda: hvd.allreduce(torch.ones(1000)),
        "allgather": lambda: hvd.allgather(torch.arange(1000)),
    }
    for step in range(1000):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if call == "step":
            model(torch.ones(2, 1, 8, 8)).sum().backward()
        try:
            calls[call]()
        except tersor.TransportError as error:
            return str(error)
    raise AssertionError("rank 1 was not missed")


@pytest.mark.parametrize("call", ["step", "allreduce", "allgather"])
def test_killed_rank_fails_the_other_ranks(call: str) -> None:
    first, second = ranks.outcomes(survive, 2, call)
    assert second.exit_code == -signal.SIGKILL
    assert first.value, first.traceback
