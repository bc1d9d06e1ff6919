"""The memory order of a tensor's values, which may differ from the order of indices.

Transposed tensors and ``torch.channels_last`` tensors have no gaps, but another order. DDP passes
gradients in the order of the parameter's memory, and checks that ranks agree. Elsewhere, ranks may
have different memory orders, so values are sent in the order of indices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError


def as_it_lies(tensor: Tensor) -> Tensor:
    """Returns a view with dimensions in memory order, or :func:`in_order` if there are gaps."""
    if tensor.is_contiguous():
        return tensor
    steps = [tensor.stride(i) if tensor.size(i) > 1 else 0 for i in range(tensor.dim())]
    order = sorted(range(tensor.dim()), key=steps.__getitem__, reverse=True)
    view = tensor.permute(order)
    return view if view.is_contiguous() else in_order(tensor)


def in_order(like: Tensor) -> Tensor:
    """Returns ``like``, or an uninitialized tensor of its shape in the order of indices."""
    if like.is_contiguous():
        return like
    return torch.empty_like(like, memory_format=torch.contiguous_format)


@contextlib.contextmanager
def straightened(tensor: Tensor, stream: Any = None) -> Iterator[Tensor]:
    """Provides the values in the order of indices. Writes changes back at the end of the block.

    Args:
        tensor: Any strided tensor.
        stream: The stream of a device tensor. Default: the current stream.

    Raises:
        InvalidArgumentError: Values share memory.
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
