"""Equal models and optimizers on all ranks before training starts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tersor._core import InvalidArgumentError
from tersor._options import Unpack, expect
from tersor.collectives import CollectiveOptions
from tersor.torch import _compat
from tersor.torch._src.collectives.old_calls import accept_group_ranks
from tersor.torch._src.collectives.tensors import broadcast, group_rank
from tersor.torch._src.parameters.memory_order import as_contiguous
from tersor.torch._src.parameters.selection import DTYPES, is_sharded_over, local_shard
from tersor.torch._src.process_group.connections import as_group


@accept_group_ranks("src")
def broadcast_parameters(
    model: nn.Module,
    src: int | None = None,
    *,
    group_src: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    codec: str = "none",
) -> None:
    """Copies the parameters and buffers of one rank's model to all ranks.

    Args:
        model: A model with the same names, shapes and dtypes on all ranks.
        src: The source, as a rank of all ranks. Default: the first rank of the process group.
        group_src: The source, as a rank of the process group; pass ``src`` or ``group_src``.
        process_group: The ranks that take part. Default: all ranks.
        codec: Spec for float32, bfloat16 and float16 values. torch.distributed sends other dtypes.

    Raises:
        InvalidArgumentError: A parameter is a shard (``fully_shard``), which differs on each rank,
            or ``src`` is not a rank of the process group.
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> broadcast_parameters(model, src=0)
    """
    expect(model, nn.Module, "model must be a torch.nn.Module")
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in named.items():
        refuse_shard(name, tensor)
    root = group_rank(src, group_src, process_group, "src")
    broadcast_all(list(named.values()), root, process_group, codec=codec)


def broadcast_model(model: nn.Module, group: dist.ProcessGroup | None, timeout: float) -> None:
    """Copies rank 0's parameters and buffers to all ranks of the group. A shard is copied to the
    ranks that hold the same shard."""
    own = set(dist.get_process_group_ranks(as_group(group))) - {dist.get_rank()}
    every = (*model.parameters(), *model.buffers())
    tensors = [local_shard(one.detach()) for one in every if not is_sharded_over(own, one)]
    broadcast_all(tensors, 0, group, timeout=timeout)


@accept_group_ranks("src")
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    src: int | None = None,
    *,
    group_src: int | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Copies the state and the settings of one rank's optimizer to all ranks, exactly.

    The other ranks may have no state yet. The copy replaces any state that they have.

    Args:
        optimizer: An optimizer of equally many parameters on all ranks, with the same shapes in the
            same order.
        src: The source, as a rank of all ranks. Default: the first rank of the process group.
        group_src: The source, as a rank of the process group; pass ``src`` or ``group_src``.
        process_group: The ranks that take part. Default: all ranks.

    Raises:
        InvalidArgumentError: A parameter is a shard (``fully_shard``), which differs on each rank,
            the state has values of each rank (``CompressedAdamW``), or ``src`` is not a rank of the
            process group.
        tersor.Error: As :func:`all_reduce`.

    Example:
        >>> broadcast_optimizer_state(optimizer, src=0)
    """
    expect(optimizer, torch.optim.Optimizer, "optimizer must be a torch.optim.Optimizer")
    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            refuse_shard("a parameter of the optimizer", parameter)
    root = group_rank(src, group_src, process_group, "src")
    state = optimizer.state_dict()
    sharded = any(isinstance(one, DTensor) for one in _compat.tree_leaves(state))
    sent = [None if sharded else _compat.tree_map_only(Tensor, _Shape, state)]
    dist.broadcast_object_list(sent, group=process_group, group_src=root)
    if sent[0] is None:  # raised on all ranks
        raise InvalidArgumentError(
            f"the state of {type(optimizer).__name__} has values of each rank: "
            "load the result of its state_dict on every rank"
        )
    if dist.get_rank(process_group) != root:
        state = _compat.tree_map_only(_Shape, _Shape.empty, sent[0])
    tensors = [one for one in _compat.tree_leaves(state) if isinstance(one, Tensor)]
    broadcast_all(tensors, root, process_group)
    if dist.get_rank(process_group) != root:
        optimizer.load_state_dict(state)
        _restore_dtypes(optimizer, state["state"])


def _restore_dtypes(optimizer: torch.optim.Optimizer, state: dict[Any, dict[str, Any]]) -> None:
    """Replaces loaded values, which ``load_state_dict`` casts to the dtype of their parameter."""
    parameters = (one for settings in optimizer.param_groups for one in settings["params"])
    for number, parameter in enumerate(parameters):
        for key, sent in state.get(number, {}).items():
            own = _compat.tree_leaves(optimizer.state[parameter][key])
            for value, received in zip(own, _compat.tree_leaves(sent), strict=True):
                if isinstance(value, Tensor):
                    value.data = received.to(value.device)


class _Shape:
    """A tensor without the values."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._dtype, self._device = tensor.shape, tensor.dtype, tensor.device.type

    def empty(self) -> Tensor:
        return torch.empty(self._shape, dtype=self._dtype, device=self._device)


def refuse_shard(name: str, tensor: Tensor) -> None:
    """Raises InvalidArgumentError if no rank has the whole tensor."""
    if isinstance(tensor, DTensor):
        raise InvalidArgumentError(f"{name} is a shard: it is different on each rank")


def broadcast_all(
    tensors: list[Tensor],
    root: int,
    group: dist.ProcessGroup | None,
    **options: Unpack[CollectiveOptions],
) -> None:
    """Copies the tensors of the group's rank ``root`` to all ranks of the group, in place."""
    for tensor in tensors:
        if tensor.dtype in DTYPES:
            broadcast(tensor.detach(), group_src=root, process_group=group, **options)
        else:
            with as_contiguous(tensor.detach()) as values:
                # As bytes, because gloo does not support all dtypes.
                dist.broadcast(values.view(-1).view(torch.uint8), group=group, group_src=root)
