"""Tokens to the ranks of their experts and back, encoded, with gradients: mixtures of experts.

::

    arrived = tersor.torch.all_to_all_single(tokens, received, sent, codec="int8")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import collectives
from tersor._core import InvalidArgument
from tersor.torch.group import ranks_of, with_timeout

Way = dict[str, Any]  # how rows go: options of the collective


class _AllToAll(torch.autograd.Function):
    """What is encoded stays inside: autograd sees floating-point values alone."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, group: dist.ProcessGroup | None, way: Way, back: Way
    ) -> Tensor:
        """``back``: the way of gradients."""
        ctx.backward_arguments = group, back, way
        count = sum(way["received"]) if way["received"] else len(rows)
        output = rows.new_empty((count, *rows.shape[1:]))
        ranks, columns = ranks_of(group, rows), math.prod(rows.shape[1:])
        collectives.all_to_all(ranks, rows.detach().contiguous(), output, columns, **way)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(gradients[0], *ctx.backward_arguments), None, None, None


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
    Rows for one rank are encoded together if a row alone would not become shorter: values in one
    dimension, for example.
    ``options``: of :class:`tersor.collectives.CollectiveOptions`; with a ``workspace`` calls of one
    codec, dtype and row use what was prepared again, whatever the splits. All ranks need gradients
    of their inputs, or none. Raises InvalidArgument for splits that are not the rows, and for
    ``"+ef"``; ranks whose splits differ both get WireError or TransportError.
    """
    if input.dim() == 0:
        raise InvalidArgument("a number has no rows: give a tensor of one dimension at least")
    sent, received = list(input_splits or ()), list(output_splits or ())
    way = dict(**with_timeout(options, group), codec=codec, sent=sent, received=received)
    back = {**way, "sent": received, "received": sent}
    if backward_codec is not None:
        back["codec"] = backward_codec
    output: Tensor = _AllToAll.apply(input, group, way, back)
    return output
