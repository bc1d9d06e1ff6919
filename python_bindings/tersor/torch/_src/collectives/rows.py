"""Exchanges rows of tensors between ranks, with gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import collectives
from tersor._core import InvalidArgumentError
from tersor._options import Unpack, expect
from tersor.collectives import Keywords
from tersor.torch._src.collectives.old_calls import accept_without_output
from tersor.torch._src.process_group.connections import transport_of, with_timeout

_Options = dict[str, Any]  # of one direction of an all-to-all


class _AllToAll(torch.autograd.Function):
    """Autograd sees floating-point values only, and no payloads."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        input: Tensor,
        group: dist.ProcessGroup | None,
        forward: _Options,
        backward: _Options,
    ) -> Tensor:
        ctx.backward_arguments = input.shape, group, backward, forward
        ctx.mark_dirty(output)
        ranks, columns = transport_of(group, input), math.prod(input.shape[1:])
        collectives.all_to_all(ranks, input.detach().contiguous(), output, columns, **forward)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None, None]:
        shape, *arguments = ctx.backward_arguments
        back = _AllToAll.apply(gradients[0].new_empty(shape), gradients[0], *arguments)
        return None, back, None, None, None


@accept_without_output
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    *,
    backward_codec: str | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Unpack[Keywords],
) -> Tensor:
    """Sends each row of the first dimension to one rank, with gradients.

    Each row is encoded separately. Rows of whole codec blocks (``int8``: 256 values, ``int4``: 128)
    need no extra bytes. If a single row would not become shorter, all rows for one rank are encoded
    together. With a ``workspace``, calls with equal codec, dtype and row length share the prepared
    buffers, regardless of the splits.

    Args:
        output: Contiguous; receives the rows from rank 0, rank 1 and so on. The rows have the shape
            and dtype of the rows of ``input``.
        input: The rows for rank 0, then for rank 1 and so on; at least one dimension.
        output_split_sizes: Number of rows from each rank. Default: equal numbers.
        input_split_sizes: Number of rows for each rank. Default: equal numbers.
        backward_codec: Spec of the gradients' codec. Default: ``codec``.
        process_group: The participating ranks. Default: all ranks.
        options: As in :class:`tersor.collectives.Keywords`. The default codec is ``"int8"``, and
            ``+ef`` is refused.

    Returns:
        ``output``. Gradients of ``output`` reach ``input``. Either all ranks need gradients of
        ``input``, or no rank does.

    Raises:
        InvalidArgumentError: The splits or the output do not match the rows, or the codec has
            ``+ef``.
        WireError: The splits of two ranks differ. One of the ranks raises TransportError.

    Example:
        >>> output = torch.empty_like(tokens)
        >>> arrived = all_to_all_single(output, tokens, codec="int8")
    """
    expect(input, Tensor, "input must be a torch.Tensor")
    expect(output, Tensor, "output must be a torch.Tensor")
    if input.dim() == 0:
        raise InvalidArgumentError(
            "a scalar has no rows: pass a tensor with at least one dimension"
        )
    if output.shape[1:] != input.shape[1:] or output.dim() == 0:
        raise InvalidArgumentError(
            f"rows of the output have shape {tuple(output.shape[1:])}, rows of the input "
            f"{tuple(input.shape[1:])}: make the output with input.new_empty((rows, "
            "*input.shape[1:]))"
        )
    sent, received = list(input_split_sizes or ()), list(output_split_sizes or ())
    options.setdefault("codec", "int8")
    forward = dict(**with_timeout(options, process_group), sent=sent, received=received)
    codec = backward_codec or options["codec"]
    backward = {**forward, "sent": received, "received": sent, "codec": codec}
    result: Tensor = _AllToAll.apply(output, input, process_group, forward, backward)
    return result
