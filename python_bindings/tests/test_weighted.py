"""Ranks with batches of different sizes: ``weighted=True`` and ``samples`` of the handles."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from handles import EXACT, HANDLES, Training, batch, equal_on_ranks, make_model, whole
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.local
import tersor.torch

SIZES = [12, 12, 12, 4]
WEIGHED = ["DDP", "FSDP2", "DistributedOptimizer"]
FEW_BITS = [("*weight", "int8+ef"), ("*", "none")]

weighed_handle = pytest.mark.parametrize("name", WEIGHED)


def part(rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    inputs, targets = batch(rank, step)
    return inputs[:size], targets[:size]


def backward(training: Training, rank: int, step: int, size: int, scale: float = 1.0) -> None:
    """The mean over this rank's samples; NaN without samples."""
    inputs, targets = part(rank, step, size)
    (mse_loss(training.model(inputs), targets) * scale).backward()


def wanted(step: int, sizes: list[int]) -> dict[str, Tensor]:
    """The gradient of one process with all samples."""
    model = make_model()
    parts = [part(rank, step, size) for rank, size in enumerate(sizes)]
    inputs, targets = (torch.cat(one) for one in zip(*parts, strict=True))
    mse_loss(model(inputs), targets).backward()
    return {name: one.grad for name, one in model.named_parameters()}


def arrived(training: Training) -> dict[str, Tensor]:
    if isinstance(training.handle, tersor.torch.DistributedOptimizer):
        training.handle.synchronize()
    named = training.layers.named_parameters()
    return {name: whole(one.grad) for name, one in named}


def assert_close(found: dict[str, Tensor], exact: dict[str, Tensor], limit: float = 1e-5) -> None:
    for name, one in exact.items():
        assert (found[name] - one).norm() <= limit * one.norm(), name


@weighed_handle
@pytest.mark.parametrize("sizes", [SIZES, [16, 0, 7, 1]])
def test_gradients_match_one_process(name: str, sizes: list[int]) -> None:
    ranks.run(gives_the_mean, 4, name, sizes)


def gives_the_mean(rank: int, count: int, name: str, sizes: list[int]) -> None:
    for rules, limit in ((EXACT, 1e-5), (FEW_BITS, 0.05)):
        training = HANDLES[name](rules, weighted=True)
        for step in range(3):
            training.layers.zero_grad()
            training.handle.samples = sizes[rank]
            backward(training, rank, step, sizes[rank])
            assert training.handle.samples is None
            assert_close(arrived(training), wanted(step, sizes), limit)
            if name == "DistributedOptimizer":
                training.handle.zero_grad()


@weighed_handle
@ranks.on(2)
def test_missing_samples_raise_on_all_ranks(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](FEW_BITS, weighted=True)
    for step in range(2):
        training.handle.samples = 1
        training.step(rank, step)
    dist.barrier()  # what ends the next step ends this one too, where it is under way still
    training.handle.samples = None if rank else 8
    if name == "DistributedOptimizer" and rank == 1:
        with pytest.raises(tersor.InvalidArgumentError, match="set samples before"):
            training.step(rank, 2)
        return tersor.torch.close()
    says = "set samples before" if name != "DistributedOptimizer" else "rank 1"
    with pytest.raises(tersor.Error, match=says):
        training.step(rank, 2)


@weighed_handle
@ranks.on(2)
def test_samples_missing_on_all_ranks_raise_and_may_be_set_later(
    rank: int, count: int, name: str
) -> None:
    training = HANDLES[name](EXACT, weighted=True)
    with pytest.raises(tersor.InvalidArgumentError, match="set samples before"):
        backward(training, rank, 0, 16)
    if name != "DistributedOptimizer":
        training.handle.reset()
    training.layers.zero_grad()
    training.handle.samples = 5
    backward(training, rank, 0, 5)
    assert_close(arrived(training), wanted(0, [5, 5]))


@weighed_handle
@ranks.on(2)
def test_samples_require_the_weighted_option(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](EXACT)
    training.handle.samples = 8
    with pytest.raises(tersor.InvalidArgumentError, match="needs weighted=True"):
        backward(training, rank, 0, 16)


@weighed_handle
@pytest.mark.parametrize("samples", [-1, float("nan"), float("inf")])
def test_invalid_samples_are_rejected(name: str, samples: float) -> None:
    ranks.run(refuses, 2, name, samples)


def refuses(rank: int, count: int, name: str, samples: float) -> None:
    training = HANDLES[name](EXACT, weighted=True)
    training.handle.samples = samples
    with pytest.raises(tersor.InvalidArgumentError, match="0 or more"):
        backward(training, rank, 0, 16)


@weighed_handle
@ranks.on(2)
def test_zero_total_samples_raise_on_all_ranks(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](EXACT, weighted=True)
    training.handle.samples = 0
    with pytest.raises(tersor.Error, match="add up to 0"):  # or that another rank was told so
        backward(training, rank, 0, 16)


# Accumulated gradients are the mean over both batches of a rank: 2 · 3 + 2 · 1 samples.
@weighed_handle
@ranks.on(2)
def test_samples_of_the_sending_pass_cover_accumulated_gradients(
    rank: int, count: int, name: str
) -> None:
    options = {"backward_passes_per_step": 2} if name == "DistributedOptimizer" else {}
    training, size = HANDLES[name](EXACT, weighted=True, **options), 3 - 2 * rank
    quiet: Any = contextlib.nullcontext()
    if isinstance(training.model, DistributedDataParallel):
        quiet = training.model.no_sync()
    if name == "FSDP2":
        training.layers.set_requires_gradient_sync(False)
    with quiet:
        backward(training, rank, 0, size, 0.5)
    if name == "FSDP2":
        training.layers.set_requires_gradient_sync(True)
    training.handle.samples = 2 * size
    backward(training, rank, 1, size, 0.5)
    first, second = wanted(0, [3, 1]), wanted(1, [3, 1])
    assert_close(arrived(training), {key: (first[key] + second[key]) / 2 for key in first})


# A residual belongs to a rank, and the state needs no weights.
@weighed_handle
@ranks.on(2)
def test_rank_without_samples_keeps_equal_finite_weights(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](FEW_BITS, weighted=True)
    for step in range(4):
        training.handle.samples = 4 * rank
        training.step(rank, step)
        if step == 1:
            kept = training.state()
    training.load(kept)
    training.handle.samples = 4 * rank
    training.step(rank, 4)
    assert equal_on_ranks(training.weights())
    assert all(one.isfinite().all() for one in training.weights().values())


@weighed_handle
@ranks.on(2)
def test_scaler_and_samples_are_independent(rank: int, count: int, name: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    options = {} if name == "DistributedOptimizer" else {"scaler": scaler}
    training = HANDLES[name](EXACT, weighted=True, **options)
    for step in range(3):
        training.layers.zero_grad()
        training.handle.samples = 12 - 8 * rank
        scale = scaler.get_scale()
        backward(training, rank, step, 12 - 8 * rank, scale)
        found = {key: one / scale for key, one in arrived(training).items()}
        assert_close(found, wanted(step, [12, 4]))
        scaler.update(scale * 2)
        if name == "DistributedOptimizer":
            training.handle.zero_grad()


@ranks.on(2)
def test_copied_model_does_not_consume_samples(rank: int, count: int) -> None:
    training = HANDLES["DDP"](EXACT, weighted=True)
    again = copy.deepcopy(training.model)
    training.handle.samples = 4 + rank
    again(batch(rank, 0)[0]).square().mean().backward()
    assert training.handle.samples == 4 + rank
    backward(training, rank, 0, 4 + rank)
    assert_close(arrived(training), wanted(0, [4, 5]))


class Mixed(torch.nn.Module):
    """Parameters of two types; no codec supports the second type."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(90, 65), torch.nn.Linear(65, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(torch.tanh(self.first(inputs)).double())
        return outputs


@pytest.mark.filterwarnings("ignore:.*uncompressed")
@pytest.mark.parametrize("wrapped", ["DDP", "HookState", "DistributedOptimizer"])
def test_uncompressed_gradients_are_weighted_too(wrapped: str) -> None:
    ranks.run(weighs_all, 3, wrapped)


def weighs_all(rank: int, count: int, wrapped: str) -> None:
    model, sizes = Mixed(), [8, 0, 3]
    handle: Any
    if wrapped == "DistributedOptimizer":
        handle = tersor.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), codec="none", weighted=True
        )
        run: torch.nn.Module = model
    elif wrapped == "DDP":
        run = DistributedDataParallel(model)
        handle = tersor.torch.compress(run, codec="none", weighted=True)
    else:
        run, handle = (
            DistributedDataParallel(model),
            tersor.torch.HookState(codec="none", weighted=True),
        )
        run.register_comm_hook(handle, tersor.torch.hook)
    for step in range(3):
        model.zero_grad()
        handle.samples = sizes[rank]
        inputs, targets = part(rank, step, sizes[rank])
        mse_loss(run(inputs), targets.double()).backward()
        if wrapped == "DistributedOptimizer":
            handle.step()
        alone = Mixed()
        inputs, targets = (
            torch.cat(one)
            for one in zip(*(part(r, step, size) for r, size in enumerate(sizes)), strict=True)
        )
        mse_loss(alone(inputs), targets.double()).backward()
        for (name, found), one in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert torch.allclose(found.grad, one.grad, rtol=1e-5, atol=1e-7), (name, step)


@pytest.mark.filterwarnings("ignore:.*uncompressed")
@ranks.on(2)
def test_sum_reduction_includes_unsupported_gradients(rank: int, count: int) -> None:
    model = Mixed()
    run = DistributedDataParallel(model)
    tersor.torch.compress(run, "none", advanced=tersor.AdvancedOptions(reduction="sum"))
    wanted = [torch.zeros_like(one) for one in model.parameters()]
    for other in range(count):
        alone, (inputs, targets) = Mixed(), part(other, 0, 8)
        mse_loss(alone(inputs), targets.double()).backward()
        for total, one in zip(wanted, alone.parameters(), strict=True):
            total += one.grad
    inputs, targets = part(rank, 0, 8)
    mse_loss(run(inputs), targets.double()).backward()
    for (name, found), total in zip(model.named_parameters(), wanted, strict=True):
        assert torch.allclose(found.grad, total, rtol=1e-5, atol=1e-7), name


@ranks.on(4)
def test_two_dimensional_mesh_is_rejected(rank: int, count: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(make_model(), mesh=mesh)
    with pytest.raises(tersor.InvalidArgumentError, match="one mesh, of one dimension"):
        tersor.torch.compress(model, weighted=True)


@ranks.on(2)
def test_handles_without_the_weighted_option_reject_it(rank: int, count: int) -> None:
    model = make_model()
    with pytest.raises(tersor.InvalidArgumentError, match="no option 'weighted'"):
        tersor.torch.CompressedAdamW(model.named_parameters(), weighted=True)
    with pytest.raises(tersor.InvalidArgumentError, match="no option 'weighted'"):
        tersor.torch.DiLoCo(model, sync_every=2, weighted=True)


@ranks.on(2)
def test_sum_reduction_is_rejected(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="weighted needs a mean"):
        HANDLES["DistributedOptimizer"](EXACT, weighted=True, reduction="sum")


def test_with_numpy() -> None:
    def rank(transport: Any) -> float:
        reducer = tersor.GradientReducer(transport, codec="none", weighted=True)
        gradient = np.full(5000, transport.rank, np.float32)
        reducer.add("w", gradient)
        with pytest.raises(tersor.InvalidArgumentError, match="the option weighted"):
            reducer.ready("w", gradient)
        reducer.weigh(1 + 2 * transport.rank)
        reducer.ready("w", gradient)
        reducer.wait()
        return float(gradient[0])

    assert tersor.local.run(2, rank) == [0.75, 0.75]
