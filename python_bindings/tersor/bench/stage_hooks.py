"""Ways for activations and their gradients to go between the stages of a pipeline, one a rank.

Stages and their schedule are those of `torch.distributed.pipelining`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import tersor.torch
from tersor.bench import split_hooks
from tersor.bench.models import Batch, Gpt, GptStage
from tersor.bench.split_hooks import CASTS, SplitHook, Waits
from tersor.bench.timing import mark_of
from tersor.bench.traffic import Traffic

MICROBATCHES = 4  # of a step


class StageHook(SplitHook):
    """A GPT whose parts, one on each rank, hand on what they computed in one of the ways."""

    def __init__(self, gpt: Gpt, name: str) -> None:
        split_hooks.check(name)
        device = next(gpt.parameters()).device
        super().__init__(gpt, name, Waits(mark_of(device)))
        self._rank, ranks = dist.get_rank(), dist.get_world_size()
        self._dtype = CASTS.get(name, torch.float32)
        self._parts = [GptStage(gpt, index, ranks, self._dtype) for index in range(ranks)]
        self._stage = PipelineStage(self._parts[self._rank], self._rank, ranks, device)
        for method in ("forward_one_chunk", "backward_one_chunk"):
            setattr(self._stage, method, self._working(getattr(self._stage, method)))
        self._handle = (
            None
            if name in CASTS
            else tersor.torch.pipeline.compress(self._stage, *split_hooks.codecs_of(name))
        )
        loss = self._working(_loss)
        self._schedule = Schedule1F1B(self._stage, MICROBATCHES, loss_fn=loss)
        self._width = gpt.shape.width
        self._handed_count = 0

    def _working(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """All else of a step is waiting."""

        def computed(*arguments: Any, **keywords: Any) -> Any:
            self._waits.end()
            result = compute(*arguments, **keywords)
            self._waits.begin()
            return result

        return computed

    def learn(self, batch: Batch) -> Tensor:
        """The loss, times the ranks, on the last one, elsewhere 0: their mean is the loss."""
        inputs, classes = batch
        losses: list[Tensor] = []
        given = (inputs,) if self._stage.is_first else ()
        wanted: dict[str, Any] = {}
        if self._stage.is_last:
            wanted = {"target": classes, "losses": losses}
        self._waits.begin()
        self._schedule.step(*given, **wanted)
        self._waits.end()
        neighbours = (not self._stage.is_first) + (not self._stage.is_last)
        self._handed_count += neighbours * inputs.numel() * self._width
        share = len(self._parts) / MICROBATCHES
        return share * sum((loss.detach() for loss in losses), inputs.new_zeros(()))

    def owners(self) -> list[tuple[nn.Module, int]]:
        return [(part, rank) for rank, part in enumerate(self._parts)]

    def total(self, steps: int) -> Traffic:
        if self._handle is not None:
            return Traffic(self._handle.sent_bytes)
        return Traffic(self._handed_count * self._dtype.itemsize)


def _loss(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(end_dim=-2), classes.flatten())
