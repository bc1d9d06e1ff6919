"""Ways for activations, and their gradients back, to travel in models that are split over ranks.

``none`` are f32 values as PyTorch sends them, ``torch:bf16`` and ``torch:fp16`` values that are
cast before; any other word is a codec of ours, also ``tersor:none``, of which another may stand
for gradients behind a slash: ``int8/bf16``.
"""

import abc
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from tersor.bench.errors import BenchmarkError, stateless_codec
from tersor.bench.hooks import OURS, THEIRS, Hook
from tersor.bench.timing import Mark, MarkKind, Span

CASTS = {"none": torch.float32, THEIRS + "bf16": torch.bfloat16, THEIRS + "fp16": torch.float16}
DEFAULT = ["none", THEIRS + "bf16", "bf16", "int8"]
SUMMARY = (
    "none (f32 as PyTorch sends it), torch:bf16, torch:fp16 (cast before), or a codec of ours, "
    "without +ef; CODEC/CODEC: another for gradients"
)


def check(name: str) -> None:
    """Raises BenchmarkError where activations have no such way."""
    if name in CASTS:
        return
    if name.startswith(THEIRS):
        raise BenchmarkError(f'no "{name}" for activations; there are: {SUMMARY}')
    for codec in codecs_of(name):
        stateless_codec(codec)


def codecs_of(name: str) -> tuple[str, str]:
    """Of activations and of their gradients."""
    codec, _, backward = name.removeprefix(OURS).partition("/")
    return codec, backward or codec


class Waits:
    """When a rank waited for others."""

    def __init__(self, kind: MarkKind) -> None:
        self._kind = kind
        self._start = kind()
        self._spans: list[Span] = []

    def begin(self, *_: object) -> None:
        """As a hook of a tensor, too."""
        self._start = self._kind()

    def end(self, *_: object) -> None:
        """Of what began last."""
        self._spans.append((self._start, self._kind()))

    def take(self) -> list[Span]:
        """Since the last call."""
        spans, self._spans = self._spans, []
        return spans


class SplitHook(Hook):
    """A model of which each rank trains a part, and all know where the parts are."""

    def __init__(self, model: nn.Module, name: str, waits: Waits) -> None:
        super().__init__(model)
        self.bytes_are = "computed" if name in CASTS else "counted"
        self._waits = waits

    @abc.abstractmethod
    def owners(self) -> list[tuple[nn.Module, int]]:
        """Each part that not all ranks have trained, and which rank has."""

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        return self._waits.take()

    @torch.no_grad()
    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        for part, owner in self.owners():
            for parameter in part.parameters():
                if getattr(parameter, what) is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.broadcast(getattr(parameter, what), src=owner)
