"""``average_gradients_in_host``: ranks of a host train like one rank with their mean gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_compressed_adamw import EXACT, Kind, flat, loss_of, make_model, own_moments, wrap
from test_compressed_muon import IN_FLOAT32

import ranks
from tersor import InvalidArgumentError, TransportError
from tersor.torch import CompressedAdamW, CompressedMuon
from tersor.torch.optim import OptimizerOptions

STEPS = 4
HOSTS = [0, 0, 0, 1]
BATCHES = {rank: [rank] for rank in range(4)}  # by rank
OF_A_HOST = {0: [0, 1, 2], 1: [3]}  # batches by host
both_kinds = pytest.mark.parametrize("kind", [CompressedAdamW, CompressedMuon])


def train(
    rank: int,
    count: int,
    kind: Kind,
    batches: dict[int, list[int]],
    samples: Sequence[float] | None,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights and the rank's own moments. ``samples``: the sizes of the batches."""
    model = make_model()
    optimizer = wrap(model, kind=kind, rules=EXACT, **options)
    sizes = [1.0 if samples is None else samples[batch] for batch in batches[rank]]
    for step in range(STEPS):
        for batch, size in zip(batches[rank], sizes, strict=True):
            share = size / sum(sizes) if sum(sizes) else 0.0
            (share * loss_of(model, batch, step)).backward()
        if samples is not None:
            optimizer.samples = sum(sizes)
        with IN_FLOAT32:
            optimizer.step()
        optimizer.zero_grad()
    return flat(model), own_moments(optimizer)


@both_kinds
@pytest.mark.parametrize("samples", [None, (1.0, 3.0, 2.0, 9.0), (0.0, 0.0, 0.0, 5.0)])
def test_a_host_trains_like_one_rank(kind: Kind, samples: Sequence[float] | None) -> None:
    advanced = OptimizerOptions(algorithm="hierarchical", hosts=HOSTS)
    options = {"average_gradients_in_host": True, "advanced": advanced}
    found = ranks.run(train, 4, kind, BATCHES, samples, options)
    # Without samples, the host with three ranks counts three times in the mean over ranks.
    wanted = ranks.run(train, 2, kind, OF_A_HOST, samples or (1.0,) * 4, {})
    for weights_of_model, _ in found:
        torch.testing.assert_close(weights_of_model, found[0][0], rtol=0, atol=0)
        torch.testing.assert_close(weights_of_model, wanted[0][0], rtol=1e-4, atol=2e-6)
    for rank, host in enumerate(HOSTS):
        torch.testing.assert_close(found[rank][1], wanted[host][1], rtol=1e-3, atol=1e-9)


@both_kinds
def test_single_rank_hosts_do_not_change_training(kind: Kind) -> None:
    advanced = OptimizerOptions(algorithm="hierarchical", hosts=[0, 1])
    runs = [
        ranks.run(train, 2, kind, BATCHES, None, {"advanced": advanced, **more})
        for more in ({}, {"average_gradients_in_host": True})
    ]
    for plain, averaged in zip(*runs, strict=True):
        assert torch.equal(plain[0], averaged[0])
        assert torch.equal(plain[1], averaged[1])


def gradients_after(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    model = make_model().to(dtype)
    optimizer = wrap(model, average_gradients_in_host=True)
    for one in model.parameters():
        one.grad = torch.full_like(one, 3e38 if dtype == torch.float32 else 60_000.0)
    model[0].weight.grad[rank] = -float(rank)
    optimizer.step()
    assert optimizer.skipped_steps == 0
    return torch.cat([model[0].weight.grad[:2].reshape(-1), flat(model)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_gradients_stay_finite(dtype: torch.dtype) -> None:
    found = ranks.run(gradients_after, 2, dtype)
    assert all(one.isfinite().all() for one in found)
    means = 1.5e38 if dtype == torch.float32 else None
    for rank, one in enumerate(found):
        own = one[rank * 90].item()
        assert own == pytest.approx(means - rank / 2 if means else -rank)  # 16 bits stay alone


@ranks.on(2)
def test_reset_reconnects_the_ranks_of_a_host(rank: int, count: int) -> None:
    model = make_model()
    advanced = OptimizerOptions(hosts=[0, 0])
    optimizer = wrap(model, average_gradients_in_host=True, timeout=3, advanced=advanced)
    loss_of(model, rank, 0).backward()
    if rank == 1:  # refused before the mean, so rank 0 waits until the timeout
        model[0].weight.grad = model[0].weight.grad.to_sparse()
    with pytest.raises(InvalidArgumentError if rank == 1 else TransportError):
        optimizer.step()
    dist.barrier()
    optimizer.reset()
    optimizer.zero_grad()
    before = flat(model)
    loss_of(model, rank, 1).backward()
    optimizer.step()
    assert not torch.equal(flat(model), before)


@ranks.on(2)
def test_elastic_ranks_are_rejected(rank: int, count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="elastic=True"):
        wrap(make_model(), average_gradients_in_host=True, elastic=True)
