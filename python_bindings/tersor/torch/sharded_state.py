"""The residuals of sharded gradients in checkpoints, in the form of ``tersor.torch.checkpoint``.

*Exact*: each rank's own, side by side in DTensors. *Portable*: the sum over ranks in the shape of
the parameter, without padding, for any number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tersor import collectives
from tersor._core import InvalidArgument
from tersor.torch.checkpoint import VERSION, Mode, own_row, side_by_side
from tersor.torch.group import transport
from tersor.torch.sharded_reducer import Kept, ShardedReducer
from tersor.torch.sharding import from_flat, to_flat


def save_sharded(
    reducers: Iterable[ShardedReducer], group: dist.ProcessGroup, mode: Mode
) -> dict[str, Any]:
    """What is kept, by name, between two steps. ``mode="portable"`` is a collective call.

    All tensors lie on the host. ``group``: all ranks that keep something. Raises InvalidArgument
    for another mode.
    """
    kept = {name: one for reducer in reducers for name, one in reducer.read()[1].items()}
    reduction = next((one.kind.reduction for one in reducers), "mean")
    if mode not in get_args(Mode):
        raise InvalidArgument(f"mode is one of {', '.join(get_args(Mode))}, not {mode!r}")
    description = {
        "version": VERSION,
        "mode": mode,
        "reduction": reduction,
        "ranks": group.size(),
        "parameters": list(kept),
        "codecs": [one.codec for one in kept.values()],
        "steps": [one.step for one in kept.values()],
    }
    return {**description, **(_rows(kept, group) if mode == "exact" else _sums(kept, group))}


def load_sharded(
    reducers: Iterable[ShardedReducer], group: dist.ProcessGroup, state: Mapping[str, Any] | None
) -> None:
    """Brings back what :func:`save_sharded` saved, in either mode.

    None or an empty dict, as of a checkpoint that was made without Tersor: residuals start at zero,
    with a warning where there are any. Raises InvalidArgument, which names the parameter, where the
    state is of another model or codec, or the exact one of another rank or number of ranks; nothing
    was changed then.
    """
    found = [(reducer, *reducer.read()) for reducer in reducers]
    kept = {name: one for _, _, views in found for name, one in views.items()}
    _fill(kept, group, state)
    for reducer, values, views in found:
        reducer.write(values, views)


def _fill(
    kept: Mapping[str, Kept], group: dist.ProcessGroup, state: Mapping[str, Any] | None
) -> None:
    """Writes the state to the views."""
    if not state:
        return _start_at_zero(kept)
    _check(kept, state)
    _check_ranks(group, state)
    _check_shapes(kept, group, state)
    for name, step in zip(state["parameters"], state["steps"], strict=True):
        kept[name].step = step
        saved = state["residuals"][name]
        if state["mode"] == "exact":
            kept[name].residual.copy_(own_row(saved, group.rank()))
        else:
            _load_sum(kept[name], saved, state, group)


def _rows(kept: Mapping[str, Kept], group: dist.ProcessGroup) -> dict[str, Any]:
    mesh = DeviceMesh.from_group(group, "cpu")
    places = side_by_side(torch.tensor([group.rank()]), mesh)
    rows = {name: side_by_side(one.residual, mesh) for name, one in kept.items()}
    return {"places": places, "residuals": rows}


def _sums(kept: Mapping[str, Kept], group: dist.ProcessGroup) -> dict[str, Any]:
    sums = {}
    for name, one in kept.items():
        total = one.residual.clone()
        collectives.allreduce(transport(group, total.device), total, codec="none")
        sums[name] = from_flat(total, one.parameter, one.ranks)
    return {"residuals": sums}


def _load_sum(
    kept: Kept, total: Tensor, state: Mapping[str, Any], group: dist.ProcessGroup
) -> None:
    """Each rank's part, so that together they add to the result what they would have added."""
    ranks = group.size() if state["reduction"] == "sum" else state["ranks"]
    flat = to_flat(total / ranks, kept.parameter, kept.ranks)
    kept.residual.copy_(flat)


def _check(kept: Mapping[str, Kept], state: Mapping[str, Any]) -> None:
    """Raises InvalidArgument where a state is not of this version, these parameters and codecs."""
    if state["version"] != VERSION:
        raise InvalidArgument(
            f"the state is of version {state['version']}; this build reads version {VERSION}"
        )
    saved = dict(zip(state["parameters"], state["codecs"], strict=True))
    for name in saved.keys() ^ kept.keys():
        where = "the state" if name in saved else "this model"
        raise InvalidArgument(f"only {where} keeps residuals of {name}")
    for name, codec in saved.items():
        if codec != kept[name].codec:
            raise InvalidArgument(f"{name}: the state is of {codec}, this is {kept[name].codec}")


def _check_ranks(group: dist.ProcessGroup, state: Mapping[str, Any]) -> None:
    """Raises InvalidArgument where an exact state is another rank's, or of another number."""
    if state["mode"] != "exact":
        return
    if state["ranks"] != group.size():
        raise InvalidArgument(
            f"this is the exact state of {state['ranks']} ranks, these are {group.size()}: save "
            'with mode="portable" to go on with another number'
        )
    rank = int(own_row(state["places"], group.rank())[0])
    if rank != group.rank():
        raise InvalidArgument(
            f"the state is rank {rank} of {group.size()}'s own, this is rank {group.rank()}: each "
            "rank loads what it saved"
        )


def _check_shapes(
    kept: Mapping[str, Kept], group: dist.ProcessGroup, state: Mapping[str, Any]
) -> None:
    """Raises InvalidArgument where residuals are of parameters of other shapes."""
    for name, one in kept.items():
        saved = state["residuals"][name]
        exact = state["mode"] == "exact"
        found = own_row(saved, group.rank()).shape if exact else saved.shape
        wanted = one.residual.shape if exact else one.parameter.shape
        if found != wanted:
            raise InvalidArgument(
                f"{name}: the state has residuals of shape {tuple(found)}, this model keeps "
                f"{tuple(wanted)}"
            )


def _start_at_zero(kept: Mapping[str, Kept]) -> None:
    if not kept:
        return
    for one in kept.values():
        one.residual.zero_()
    warnings.warn(
        f"the checkpoint holds no residuals: those of {len(kept)} parameters start at zero",
        stacklevel=5,
    )
