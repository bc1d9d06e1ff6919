"""All kinds of exchanges once on each kind of memory and network.

On a GPU over NCCL, and through the host over gloo. Without a GPU, both are skipped. If there are
too few GPUs, ranks share a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ddp_models
import pytest
import torch
import torch.distributed as dist
from ddp_models import WIDTH, gradients, mlp, relative_error
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch
from tersor.torch.diloco import averaging

RANKS = 2
NCCL, GLOO = "GPU over NCCL", "GPU over gloo"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
everywhere = pytest.mark.parametrize(
    "place",
    ["host", pytest.param(NCCL, marks=[GPU, pytest.mark.gpu]),
     pytest.param(GLOO, marks=[GPU, pytest.mark.gpu])],
)  # fmt: skip


@dataclass
class Here:
    """This rank's device and process group."""

    rank: int
    device: torch.device
    group: dist.ProcessGroup | None = None

    @staticmethod
    def at(place: str, rank: int) -> Here:
        if place == "host":
            return Here(rank, torch.device("cpu"))
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return Here(rank, device, _nccl_group() if place == NCCL else None)

    def ddp(self, **options: Any) -> tuple[DistributedDataParallel, tersor.torch.HookState]:
        """Returns a model on the device in DDP with several buckets, and the handle."""
        model = DistributedDataParallel(
            mlp().to(self.device), bucket_cap_mb=0.04, process_group=self.group
        )
        return model, tersor.torch.compress(model, **options)

    def loss(self, model: torch.nn.Module, step: int) -> Tensor:
        values: Tensor = model(ddp_models.inputs(self.rank, step).to(self.device))
        return values.square().mean()


def _nccl_group() -> dist.ProcessGroup:
    """NCCL accepts two ranks on one GPU if the ranks claim two hosts."""
    if torch.cuda.device_count() < RANKS:
        os.environ.setdefault("NCCL_HOSTID", f"rank-{os.getpid()}")
        os.environ.update(NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo", NCCL_MNNVL_ENABLE="0",
                          NCCL_NVLS_ENABLE="0", NCCL_MAX_CTAS="2")  # fmt: skip
    group = dist.new_group(backend="nccl")
    assert isinstance(group, dist.ProcessGroup)
    return group


def on_ranks(body: Callable[[Here], Any], place: str) -> list[Any]:
    """Returns the results of ``body`` on all ranks.

    PyTorch reuses a mesh for equal meshes, with the group of the first mesh. Ranks with a separate
    group therefore run in new processes.
    """
    return ranks.run(_run_at, RANKS, body, place, fresh=place == NCCL)


def _run_at(rank: int, _: int, body: Callable[[Here], Any], place: str) -> Any:
    return body(Here.at(place, rank))


def first_step(here: Here) -> tuple[Tensor, float]:
    model, handle = here.ddp(codec="int8", rules=[("*", "int8")])
    here.loss(model, 0).backward()
    totals = handle.totals()
    return gradients(model).cpu(), totals.sent_bytes / totals.uncompressed_bytes


@everywhere
def test_ddp_sends_the_mean_in_fewer_bytes(place: str) -> None:
    results = on_ranks(first_step, place)
    exact = ddp_models.mean_gradients(RANKS, 0)
    for found, share in results:
        assert torch.equal(found, results[0][0])
        assert relative_error(found, exact) < 0.02
        assert share < 0.3


def both_ways(here: Here) -> tuple[Tensor, Tensor]:
    plain = DistributedDataParallel(mlp().to(here.device), process_group=here.group)
    here.loss(plain, 0).backward()
    model, _ = here.ddp(rules=[("*", "none")])
    here.loss(model, 0).backward()
    return gradients(plain).cpu(), gradients(model).cpu()


@everywhere
def test_ddp_with_codec_none_matches_plain_ddp_bit_for_bit(place: str) -> None:
    for plain, ours in on_ranks(both_ways, place):
        assert torch.equal(plain, ours)


def resumed(here: Here) -> tuple[Tensor, Tensor]:
    """Gradients of the step after a checkpoint: going on, and in a new model."""
    model, handle = here.ddp(codec="topk:density=0.05+ef")
    for step in range(3):
        model.zero_grad()
        here.loss(model, step).backward()
    state = handle.state_dict()
    other, other_handle = here.ddp(codec="topk:density=0.05+ef")
    other_handle.load_state_dict(state)
    for each in (model, other):
        each.zero_grad()
        here.loss(each, 3).backward()
    return gradients(model).cpu(), gradients(other).cpu()


@everywhere
def test_ddp_resumes_bit_for_bit(place: str) -> None:
    for went_on, came_back in on_ranks(resumed, place):
        assert torch.equal(went_on, came_back)


@contextlib.contextmanager
def without_synchronisation(device: torch.device) -> Iterator[None]:
    """PyTorch raises in the block if the host would wait for the queued work of a GPU."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def scaled(here: Here, growth: bool) -> Tensor:
    """Rank 1 is late in the second round. With ``mode``, a new DiLoCo continues from the state
    after this round."""
    scaler = torch.amp.GradScaler(
        here.device.type, init_scale=1.0, growth_interval=1, enabled=growth
    )
    model, _ = here.ddp(codec="int4+ef", scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    total = torch.zeros((), device=here.device)
    for step in range(4):
        optimizer.zero_grad()
        loss = scaler.scale(here.loss(model, step))
        with without_synchronisation(here.device) if step > 1 else contextlib.nullcontext():
            loss.backward()
        scaler.unscale_(optimizer)
        total = total + gradients(model)
        scaler.step(optimizer)
        scaler.update()
    return total.cpu()


def growing(here: Here) -> Tensor:
    return scaled(here, True)


def constant(here: Here) -> Tensor:
    return scaled(here, False)


@everywhere
def test_residuals_follow_the_loss_scale(place: str) -> None:
    for one, other in zip(on_ranks(growing, place), on_ranks(constant, place), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@contextlib.contextmanager
def other_stream(device: torch.device) -> Iterator[None]:
    """Queues the trainer's work on a separate stream, on devices with streams."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def optimized(here: Here) -> Tensor:
    model = mlp().to(here.device)
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        group=here.group,
        codec="int8",
    )
    with other_stream(here.device):
        for step in range(3):
            optimizer.zero_grad()
            here.loss(model, step).backward()
            optimizer.step()
        return gradients(model).cpu()


@everywhere
def test_optimizer_steps_on_the_current_stream(place: str) -> None:
    on_host = on_ranks(optimized, "host")
    for found in on_ranks(optimized, place):
        assert relative_error(found, on_host[0]) < 0.05  # another device sums in another order


def averaged(here: Here) -> tuple[Tensor, Tensor]:
    """Returns the parameters after an exchange, and the expected parameters."""
    model = mlp().to(here.device)
    outer = tersor.torch.DiLoCo(
        model, sync_every=1, outer_optimizer=averaging, process_group=here.group, codec="none"
    )
    with torch.no_grad(), other_stream(here.device):
        for parameter in model.parameters():
            parameter += 1 + 2 * here.rank
        outer.step()
    weights = [torch.cat([one.detach().flatten() for one in each.parameters()]).cpu()
               for each in (model, mlp())]  # fmt: skip
    return weights[0], weights[1] + 2


@everywhere
def test_diloco_averages_models(place: str) -> None:
    for found, wanted in on_ranks(averaged, place):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def whole(gradient: Tensor) -> Tensor:
    """All of a sharded gradient, by way of the host: PyTorch's own ``full_tensor`` ends in signal
    11 where CUDA tensors go over gloo."""
    assert isinstance(gradient, DTensor)
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    here = gradient.to_local().cpu()
    shape, stride = gradient.shape, gradient.stride()
    return DTensor.from_local(
        here, mesh, gradient.placements, shape=shape, stride=stride
    ).full_tensor()


def sharded(here: Here) -> tuple[Tensor, float]:
    model = mlp(2).to(here.device)
    group = dist.group.WORLD if here.group is None else here.group
    mesh = DeviceMesh.from_group(group, here.device.type)
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    handle = tersor.torch.compress(model, codec="int8", rules=[("*", "int8")])
    here.loss(model, 0).backward()
    found = torch.cat([whole(one.grad).flatten() for one in model.parameters()])
    totals = handle.totals()
    return found, totals.sent_bytes / totals.uncompressed_bytes


@everywhere
def test_fsdp_sends_the_mean_in_fewer_bytes(place: str) -> None:
    exact = torch.zeros(())
    for rank in range(RANKS):
        module = mlp(2)
        module(ddp_models.inputs(rank, 0)).square().mean().backward()
        exact = exact + gradients(module) / RANKS
    for found, share in on_ranks(sharded, place):
        assert relative_error(found, exact) < 0.02
        assert share < 0.5


def collected(here: Here) -> list[Tensor]:
    """Returns the results of three collectives with odd counts."""
    draw = torch.Generator().manual_seed(here.rank)
    values = torch.randn(RANKS * 10_007, generator=draw).to(here.device)
    summed, part, all_parts = values.clone(), values[:10_007].clone(), torch.empty_like(values)
    options: Any = {"process_group": here.group, "codec": "int8", "algorithm": "two-shot"}
    tersor.torch.all_reduce(summed, **options)
    tersor.torch.reduce_scatter(part, values, **options)
    tersor.torch.all_gather(all_parts, part, process_group=here.group, codec="int8")
    return [each.cpu() for each in (summed, part, all_parts)]


@everywhere
def test_collectives_match_host_bits(place: str) -> None:
    for found, wanted in zip(on_ranks(collected, place), on_ranks(collected, "host"), strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


def layouts(here: Here) -> list[str]:
    """Sends gradients in memory order: channels last, bf16."""
    model = torch.nn.Conv2d(WIDTH, WIDTH, 3).to(here.device, torch.bfloat16)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ddp = DistributedDataParallel(model, process_group=here.group)
    handle = tersor.torch.compress(ddp, codec="int8+ef")
    for _ in range(2):
        ddp.zero_grad()
        images = torch.ones(2, WIDTH, 8, 8, device=here.device, dtype=torch.bfloat16)
        ddp(images).square().mean().backward()
    assert all(one.grad.isfinite().all() for one in ddp.parameters())
    return [str(one.codec) for one in handle.statistics()]


@everywhere
def test_bf16_and_channels_last(place: str) -> None:
    assert on_ranks(layouts, place) == [["int8+ef", "none"]] * RANKS  # the bias travels as it is


def weighed(here: Here) -> Tensor:
    """The mean over samples: 8 on the first rank, 24 on the second."""
    model, handle = here.ddp(codec="int8", weighted=True)
    handle.samples = rows = 8 + 16 * here.rank
    model(ddp_models.inputs(here.rank, 0, rows).to(here.device)).square().mean().backward()
    return gradients(model).cpu()


@everywhere
def test_ddp_weights_batches_of_unequal_size(place: str) -> None:
    model = mlp()
    batches = torch.cat([ddp_models.inputs(rank, 0, 8 + 16 * rank) for rank in range(RANKS)])
    model(batches).square().mean().backward()
    for found in on_ranks(weighed, place):
        assert relative_error(found, gradients(model)) < 0.03


def compressed(here: Here, kind: str) -> tuple[Tensor, list[float]]:
    """Weights after steps of a compressed optimizer, and each step's loss."""
    model, losses = mlp(2).to(here.device), []
    matrices = [(name, one) for name, one in model.named_parameters() if one.dim() == 2]
    named = matrices if kind == "CompressedMuon" else list(model.named_parameters())
    optimizer = getattr(tersor.torch, kind)(named, lr=1e-3, process_group=here.group)
    with other_stream(here.device):
        for _ in range(12):
            optimizer.zero_grad()
            loss = here.loss(model, 0)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return torch.cat([one.detach().flatten() for one in model.parameters()]).cpu(), losses


@everywhere
@pytest.mark.parametrize("kind", ["CompressedAdamW", "CompressedSGD", "CompressedMuon"])
def test_compressed_optimizers_keep_ranks_equal(place: str, kind: str) -> None:
    results = on_ranks(functools.partial(compressed, kind=kind), place)
    for found, losses in results:
        assert torch.equal(found, results[0][0])
        assert losses[-1] < losses[0]


def mixed(here: Here) -> tuple[Tensor, float]:
    """Returns the weights after mixing, and the distance from the mean of the initial weights."""
    model = mlp(2).to(here.device)
    wanted = torch.cat([one.detach().flatten() for one in model.parameters()]).cpu() + 0.5
    gossip = tersor.torch.Gossip(model, "ring", "int8", process_group=here.group)
    with torch.no_grad(), other_stream(here.device):
        for one in model.parameters():
            one += here.rank
        for _ in range(30):
            gossip.step()
    found = torch.cat([one.detach().flatten() for one in model.parameters()]).cpu()
    return found, relative_error(found, wanted)


@everywhere
def test_gossip_converges_to_the_mean(place: str) -> None:
    for _, error in on_ranks(mixed, place):
        assert error < 0.01


def served(here: Here) -> tuple[Tensor, list[float]]:
    """Returns the last pulled weights and the losses of a worker. Rank 0 serves and works."""
    model, losses = mlp(2).to(here.device), []
    told: Any = {"workers": range(RANKS), "process_group": here.group, "pull": "none"}
    server = None
    if here.rank == 0:
        server = tersor.torch.ParameterServer(
            model, lambda parts: torch.optim.SGD(parts, lr=0.1), **told
        )
    with tersor.torch.ParameterClient(model, server=server, **told) as client:
        with other_stream(here.device):
            for _ in range(8):
                client.pull()
                model.zero_grad()
                loss = here.loss(model, 0)
                loss.backward()
                client.push()
                losses.append(loss.item())
            client.pull()
        found = torch.cat([one.detach().flatten() for one in model.parameters()]).cpu()
    if server is not None:
        server.wait()
    return found, losses


@everywhere
def test_a_parameter_server_trains(place: str) -> None:
    results = on_ranks(served, place)
    for found, losses in results:
        assert torch.equal(found, results[0][0])
        assert losses[-1] < losses[0]
