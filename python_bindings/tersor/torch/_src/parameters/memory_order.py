"""In which order a tensor's values lie in memory, which need not be that of its indices.

What is transposed, or of ``torch.channels_last``, fills its memory without gaps, in another order.
DDP hands gradients over in the order of the parameter's memory, which it checks among the ranks.
Elsewhere a gradient may lie otherwise than on other ranks, and values go in the order of indices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError


def as_it_lies(tensor: Tensor) -> Tensor:
    """Its dimensions in the order of memory: a view; where there are gaps, as :func:`in_order`."""
    if tensor.is_contiguous():
        return tensor
    steps = [tensor.stride(i) if tensor.size(i) > 1 else 0 for i in range(tensor.dim())]
    order = sorted(range(tensor.dim()), key=steps.__getitem__, reverse=True)
    view = tensor.permute(order)
    return view if view.is_contiguous() else in_order(tensor)


def in_order(like: Tensor) -> Tensor:
    """The tensor itself, or another of its shape, whose values lie in the order of indices.

    What values it has is not said.
    """
    if like.is_contiguous():
        return like
    return torch.empty_like(like, memory_format=torch.contiguous_format)


@contextlib.contextmanager
def straightened(tensor: Tensor, stream: Any = None) -> Iterator[Tensor]:
    """The values in the order of indices; what becomes of them is written back at the end.

    ``stream``: of a device, where this is queued; default the current one. Raises
    InvalidArgumentError where values share memory.
    """
    if tensor.layout != torch.strided or tensor.is_contiguous():
        yield tensor
        return
    if any(tensor.stride(i) == 0 and tensor.size(i) > 1 for i in range(tensor.dim())):
        raise InvalidArgumentError(
            f"values of a tensor of shape {tuple(tensor.shape)} share memory, so they cannot be "
            "written: clone() it"
        )
    with _on(stream, tensor):
        values = tensor.contiguous()
    yield values
    with _on(stream, tensor):
        tensor.copy_(values)


def _on(stream: Any, tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    if stream is None or not tensor.is_cuda:
        return contextlib.nullcontext()
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    external = torch.cuda.ExternalStream(int(handle), tensor.device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(external)
