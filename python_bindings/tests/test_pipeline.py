"""Two stages of torch.distributed.pipelining that send each other encoded tensors, over gloo."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import ranks
import tersor
from tersor.torch import pipeline

WIDTH, BATCH, MICROBATCHES, STEPS = 96, 16, 4, 8
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


class Half(nn.Module):
    """The first stage hands on two tensors."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.rank = rank
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, first: Tensor, second: Tensor | None = None) -> Any:
        output = self.layers(first)
        if second is None:
            return output, output[:, ::2] + 1
        return output + torch.cat((second, second), 1)


def data(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step % 2)
    images = torch.randn(BATCH, WIDTH, generator=random)
    return images, images.roll(1, 1) * 0.5 + 40


class Run:
    """A training: its losses on the last rank, and the first step's gradients."""

    def __init__(self, rank: int, schedule: str, **codecs: Any) -> None:
        module = Half(rank)
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        self.handle = pipeline.compress(stage, **codecs) if codecs else None
        runner = SCHEDULES[schedule](stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.001)
        self.losses: list[float] = []
        self.gradients: list[Tensor] = []
        for step in range(STEPS):
            images, target = data(step)
            losses: list[Tensor] = []
            runner.step(images) if rank == 0 else runner.step(target=target, losses=losses)
            self.losses += [float(torch.stack(losses).mean())] if losses else []
            given = [p.grad for p in module.parameters() if p.grad is not None]
            self.gradients = self.gradients or [one.clone() for one in given]
            optimizer.step()
            optimizer.zero_grad()

    def error(self, other: Run) -> float:
        """The largest of a gradient's, relative."""
        pairs = zip(self.gradients, other.gradients, strict=True)
        return max(float((one - two).norm() / two.norm()) for one, two in pairs)


@pytest.mark.parametrize("schedule", SCHEDULES)
@ranks.on(2)
def test_compressed_stages_train_like_plain_stages(rank: int, count: int, schedule: str) -> None:
    plain = Run(rank, schedule)
    assert len(plain.gradients) == 4
    exact = Run(rank, schedule, codec="none")
    assert exact.losses == plain.losses
    assert exact.error(plain) == 0
    for codecs, error in (
        ({"codec": "int8"}, 0.03),
        ({"codec": "bf16", "backward_codec": "int8:rounding=stochastic"}, 0.06),
        ({"codec": "hadamard:bits=4", "backward_codec": "bf16"}, 0.5),
    ):
        lossy = Run(rank, schedule, **codecs)
        assert 0 < lossy.error(plain) < error
        for one, other in zip(lossy.losses, plain.losses, strict=True):
            assert one == pytest.approx(other, rel=error)
        assert len(lossy.losses) == (STEPS if rank == 1 else 0)


@ranks.on(2)
def test_byte_counts_match_the_payloads(rank: int, count: int) -> None:
    handle = Run(rank, "1F1B", codec="int8", backward_codec="bf16").handle
    assert handle is not None
    rows = BATCH // MICROBATCHES
    counts = (rows * WIDTH, rows * WIDTH // 2)
    messages = STEPS * MICROBATCHES
    assert handle.uncompressed_bytes == messages * 4 * sum(counts)
    codec = tersor.Codec(["int8", "bf16"][rank])
    assert handle.sent_bytes == messages * sum(map(codec.max_payload_bytes, counts))


@ranks.on(2)
def test_remove_restores_plain_tensors(rank: int, count: int) -> None:
    stage = PipelineStage(Half(rank), rank, 2, torch.device("cpu"))
    handle = pipeline.compress(stage, codec="int8")
    runner = ScheduleGPipe(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    images, target = data(0)
    runner.step(images) if rank == 0 else runner.step(target=target)
    before = handle.sent_bytes
    handle.remove()
    runner.step(images) if rank == 0 else runner.step(target=target)
    assert before > 0
    assert handle.sent_bytes == before


class Masked(nn.Module):
    """The first stage hands on a mask of -inf."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, first: Tensor, mask: Tensor | None = None) -> Any:
        output = self.layer(first)
        if mask is None:
            return output, (0 * output).index_fill(1, torch.arange(9), -math.inf)
        # PyTorch 2.11 requires a gradient for each value between stages.
        return output.masked_fill(mask < 0, 0.0) + 0 * mask.clamp(min=-1)


@pytest.mark.parametrize("codec", ["int8", "bf16"])
@ranks.on(2)
def test_nan_blocks_from_infinities_are_reported_once(rank: int, count: int, codec: str) -> None:
    stage = PipelineStage(Masked(rank), rank, 2, torch.device("cpu"))
    pipeline.compress(stage, codec=codec)
    runner = ScheduleGPipe(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    images, target = data(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            runner.step(images) if rank == 0 else runner.step(target=target)
    found = [one for one in told if "whole blocks of values by NaN" in str(one.message)]
    assert len(found) == ((rank, codec) == (0, "int8"))


@ranks.on(1)
def test_stage_cannot_be_compressed_twice(rank: int, count: int) -> None:
    stage = PipelineStage(Half(rank), 0, 2, torch.device("cpu"))
    handle = pipeline.compress(stage)
    with pytest.raises(tersor.InvalidArgumentError, match="compressed already"):
        pipeline.compress(stage)
    handle.remove()
    pipeline.compress(stage).remove()


@ranks.on(2)
def test_unsupported_codecs_are_rejected(rank: int, count: int) -> None:
    stage = PipelineStage(Half(rank), rank, 2, torch.device("cpu"))
    for codec, said in (
        ("int8+ef", "leave out"),
        ("intsum", "no payload of fixed length"),
        ("lowrank", "no payload of fixed length"),
        ("int9", "int9"),
    ):
        with pytest.raises(tersor.InvalidArgumentError, match=said):
            pipeline.compress(stage, codec=codec)
        with pytest.raises(tersor.InvalidArgumentError, match=said):
            pipeline.compress(stage, backward_codec=codec)
    assert "get_fwd_send_ops" not in vars(stage)
    dist.barrier()
