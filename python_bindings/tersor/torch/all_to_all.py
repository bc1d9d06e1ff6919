"""Tokens to the ranks of their experts and back, encoded, with gradients: mixtures of experts.

::

    arrived = tersor.torch.all_to_all_single(tokens, received, sent, codec="int8")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import collectives
from tersor._core import InvalidArgument
from tersor.torch.group import ranks_of, with_timeout


class _Way(NamedTuple):
    """How rows go; gradients take the way back."""

    sent: Sequence[int]
    received: Sequence[int]
    codec: str
    codec_back: str
    group: dist.ProcessGroup | None
    options: dict[str, Any]

    def back(self) -> _Way:
        return _Way(self.received, self.sent, self.codec_back, self.codec, self.group, self.options)


class _AllToAll(torch.autograd.Function):
    """What is encoded stays inside: autograd sees floating-point values alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, way: _Way) -> Tensor:
        ctx.way = way
        count = sum(way.received) if way.received else len(rows)
        output = rows.new_empty((count, *rows.shape[1:]))
        collectives.all_to_all(
            ranks_of(way.group, rows),
            rows.detach().contiguous(),
            output,
            math.prod(rows.shape[1:]),
            sent=way.sent,
            received=way.received,
            **{**way.options, "codec": way.codec},
        )
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _AllToAll.apply(gradients[0], ctx.way.back()), None


def all_to_all_single(
    input: Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    codec: str = "int8",
    backward_codec: str | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Tensor:
    """Rows (of the first dimension) of ``input`` to the ranks of ``group`` that they are for.

    ``input_splits[r]`` rows go to rank r, in the order of ranks, and ``output_splits[r]`` come from
    there; None: equally many. Returns these, of ``input``'s dtype, on its device. Gradients go back
    the same way by ``backward_codec`` (None: ``codec``). A row is encoded by itself: rows that are
    whole blocks of the codec (``int8`` 256 values, ``int4`` 128) cost nothing for that.
    ``options``: of :class:`tersor.collectives.CollectiveOptions`; with a ``workspace`` calls of one
    codec, dtype and row use what was prepared again, whatever the splits. All ranks need gradients
    of their inputs, or none. Raises InvalidArgument for splits that are not the rows, and for
    ``"+ef"``; ranks whose splits differ both get WireError or TransportError.
    """
    if input.dim() == 0:
        raise InvalidArgument("a number has no rows: give a tensor of one dimension at least")
    way = _Way(
        list(input_splits or ()),
        list(output_splits or ()),
        codec,
        codec if backward_codec is None else backward_codec,
        group,
        with_timeout(options, group),
    )
    output: Tensor = _AllToAll.apply(input, way)
    return output
