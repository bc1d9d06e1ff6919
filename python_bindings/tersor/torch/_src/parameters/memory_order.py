"""The memory order of a tensor's values, which may differ from the order of indices.

Transposed tensors and ``torch.channels_last`` tensors have no gaps, but another order. DDP passes
gradients in the order of the parameter's memory, and checks that ranks agree. Elsewhere, ranks may
have different memory orders, so values are sent in the order of indices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError


def in_memory_order(tensor: Tensor) -> Tensor:
    """Returns a view with dimensions in memory order; with gaps, :func:`contiguous_like`."""
    if tensor.is_contiguous():
        return tensor
    view = tensor.permute(memory_order(tensor.shape, tensor.stride()))
    return view if view.is_contiguous() else contiguous_like(tensor)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Returns the dimensions by stride, largest first. Dimensions of size 1 come last."""
    steps = [stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)]
    return sorted(range(len(steps)), key=steps.__getitem__, reverse=True)


def layouts(parameters: Iterable[Tensor]) -> dict[str, list[list[int]]]:
    """Returns entries for a saved state, for :func:`check_layouts`."""
    every = list(parameters)
    return {
        "shapes": [list(one.shape) for one in every],
        "memory_orders": [memory_order(one.shape, one.stride()) for one in every],
    }


def check_layouts(saved: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raises InvalidArgumentError if a saved state has a parameter of another layout. A residual
    lies in the memory order of its parameter. Earlier versions saved no layouts."""
    names = saved.get("parameters", ())
    for i, (name, one) in enumerate((name, parameters.get(name)) for name in names):
        now = {} if one is None else layouts([one])
        for entry, [own] in now.items():
            if entry in saved and (found := list(saved[entry][i])) != own:
                raise InvalidArgumentError(
                    f"the state's {entry} has {found} for {name}, but the parameter has {own}"
                )


def contiguous_like(like: Tensor) -> Tensor:
    """Returns ``like``, or an uninitialized tensor of its shape in the order of indices."""
    if like.is_contiguous():
        return like
    return torch.empty_like(like, memory_format=torch.contiguous_format)


@contextlib.contextmanager
def as_contiguous(tensor: Tensor, stream: Any = None) -> Iterator[Tensor]:
    """Provides the values in the order of indices. Writes changes back at the end of the block.
    ``stream``: of a device tensor; default: the current stream. Raises InvalidArgumentError if
    values share memory."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        yield tensor
        return
    if any(tensor.stride(i) == 0 and tensor.size(i) > 1 for i in range(tensor.dim())):
        raise InvalidArgumentError(
            f"values of a tensor of shape {tuple(tensor.shape)} share memory, so they cannot be "
            "written: clone() it"
        )
    with on_stream(stream, tensor):
        values = tensor.contiguous()
    yield values
    with on_stream(stream, tensor):
        tensor.copy_(values)


def on_stream(stream: Any, tensor: Tensor | None) -> contextlib.AbstractContextManager[Any]:
    """Returns a context for work on a device tensor. None: the current stream."""
    if stream is None or tensor is None or not tensor.is_cuda:
        return contextlib.nullcontext()
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    external = torch.cuda.ExternalStream(int(handle), tensor.device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(external)
