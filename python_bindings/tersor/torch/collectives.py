"""Compressed collectives on tensors, over the process group that the trainer already has.

::

    tersor.torch.allreduce(gradient, codec="int8", reduction="mean")

Tensors are dense, of float32, bfloat16 or float16, on the host or on a CUDA device. All ranks of
the group make the same calls with equal options, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from torch import Tensor

from tersor import collectives
from tersor._core import CollectiveStatistics
from tersor.collectives import CollectiveOptions
from tersor.torch.group import transport

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FeedbackState(collectives.FeedbackState):
    """What error feedback (a codec with ``+ef``) keeps between the calls of one collective.

    ``like``: the collective's first tensor; ``options``: the other arguments of its calls. Zero at
    first; the memory lies where ``like`` lies, of f32 or bf16 (``dtype``) as many values.
    """

    def __init__(
        self,
        like: Tensor,
        *,
        group: dist.ProcessGroup | None = None,
        dtype: Literal["f32", "bf16"] = "f32",
        **options: Unpack[CollectiveOptions],
    ) -> None:
        super().__init__(transport(group, like.device), like, dtype=dtype, **options)


def allreduce(
    tensor: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    stream: Any = None,
    **options: Unpack[CollectiveOptions],
) -> CollectiveStatistics:
    """Sum (or mean) over ranks, in place; every rank ends with the same bits.

    ``tensor``: any shape, without gaps in memory. On the host the call waits; on a device it is
    queued on ``stream`` (default: the current one). Returns what was sent and how.
    Raises InvalidArgument (nothing changed), TransportError, WireError or CudaError (values
    undefined; the transport is poisoned).
    """
    return collectives.allreduce(transport(group, tensor.device), tensor, stream=stream, **options)


def reduce_scatter(
    output: Tensor,
    input: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    stream: Any = None,
    **options: Unpack[CollectiveOptions],
) -> CollectiveStatistics:
    """Sum (or mean) over ranks of ``input``, of which ``output`` gets this rank's part.

    ``input``: contiguous, ranks times as many values as ``output``, rank r's in place r. Else as
    :func:`allreduce`.
    """
    ranks = transport(group, input.device)
    return collectives.reduce_scatter(ranks, input, output, stream=stream, **options)


def all_gather(
    output: Tensor,
    input: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    stream: Any = None,
    **options: Unpack[CollectiveOptions],
) -> CollectiveStatistics:
    """Every rank's ``input``, decoded alike on all ranks, in the order of ranks in ``output``.

    ``output``: contiguous, ranks times as many values as ``input``. Else as :func:`allreduce`.
    """
    ranks = transport(group, input.device)
    return collectives.allgather(ranks, input, output, stream=stream, **options)
