"""The residuals of sharded gradients in checkpoints, in the form of ``checkpoint.residuals``.

*Exact*: each rank's own, side by side in DTensors; what is kept between replicas stands under names
of its own. *Portable*: the sum over ranks in the shape of the parameter, without padding, for any
number of ranks and any mesh: what is kept between replicas is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tersor import collectives
from tersor._core import InvalidArgumentError
from tersor.torch._src.checkpoint import residuals as checkpoint
from tersor.torch._src.checkpoint.residuals import Mode, own_row, stack_rows
from tersor.torch._src.fsdp.exchange import Sender
from tersor.torch._src.fsdp.layout import ResidualView, from_flat, to_flat
from tersor.torch._src.fsdp.reducer import Kind, ReplicaReducer
from tersor.torch._src.process_group.connections import hosts_of, transport

Views = Mapping[str, ResidualView]


def save_sharded(sender: Sender, group: dist.ProcessGroup, mode: Mode) -> dict[str, Any]:
    """Returns the residuals by name, between two steps. ``mode="portable"`` is a collective call.

    Args:
        sender: The reducers.
        group: All ranks that have residuals.
        mode: ``"exact"`` or ``"portable"``.

    Returns:
        A dict with tensors on the CPU.

    Raises:
        InvalidArgumentError: ``mode`` is unknown.
    """
    exact = checkpoint.check_mode(mode) == "exact"
    reducers = sender.every_reducer() if exact else sender.reducers.all()
    found = [reducer.read() for reducer in reducers]
    views = _with_units(sender, {name: one for _, own in found for name, one in own.items()})
    reduction = next((one.kind.reduction for one in reducers), "mean")
    description: dict[str, Any] = {
        "version": checkpoint.VERSION,
        "mode": mode,
        "reduction": reduction,
        "ranks": group.size(),
        "parameters": list(views),
        "codecs": [one.codec for one in views.values()],
        "steps": [one.step for one in views.values()],
        "step": max((own.step for own, _ in found), default=0),
    }
    if hosts := _hosts(sender, group):
        description["hosts"] = hosts
    if exact:
        description["shapes"] = [one.parameter.cut() for one in views.values()]
    else:
        description["units"] = [one.unit for one in views.values()]
    return {**description, **(_rows(views, group) if exact else _sums(sender, views, group))}


def load_sharded(sender: Sender, group: dist.ProcessGroup, state: Mapping[str, Any] | None) -> None:
    """Loads the result of :func:`save_sharded` of either mode.

    Args:
        sender: The reducers.
        group: All ranks that have residuals.
        state: The state. None or empty, as in a checkpoint without Tersor: residuals start at zero,
            with a warning.

    Raises:
        InvalidArgumentError: The state is damaged, of another model or codec, or an exact state of
            another rank or number of ranks. The message names the parameter. Nothing was changed.
    """
    state = checkpoint.as_mapping(state)
    portable = state.get("mode") == "portable"
    reducers = sender.reducers.all() if portable else sender.every_reducer()
    found = [(reducer, *reducer.read()) for reducer in reducers]
    views = _with_units(sender, {name: one for _, _, own in found for name, one in own.items()})
    if not state:
        names = {one.parameter.name for one in views.values()}
        return checkpoint.start_at_zero([one.core for one in reducers], len(names))
    with checkpoint.reject_damage():
        _check(views, state)
        _check_places(group, _hosts(sender, group), state)
        units = _saved_units(views, [one.kind for one in sender.every_reducer()], group, state)
        _copy_residuals(views, group, state, units)
    if portable:
        _move_to_replicas(sender.replicas.all(), views, state, units)
    for reducer, values, own in found:
        values.step = state.get("step", values.step)
        reducer.write(values, own)


def _with_units(sender: Sender, views: dict[str, ResidualView]) -> dict[str, ResidualView]:
    for name, units in sender.reducers.units().items():
        if name in views:
            views[name].unit, views[name].replica_unit = units
    return views


def _saved_units(
    views: Views, kinds: list[Kind], group: dist.ProcessGroup, state: Mapping[str, Any]
) -> dict[str, float]:
    """Returns the factor from each saved sum to the gradient.

    Raises:
        InvalidArgumentError: The state has no units, and sums need units for this group.
    """
    ranks = state["ranks"]
    if "units" in state:
        units = dict(zip(state["parameters"], state["units"], strict=True))
        if not all(isinstance(one, float) and 0 < one < math.inf for one in units.values()):
            raise InvalidArgumentError(f"the state's units are {state['units']}: expected factors")
        return units
    reductions = {state["reduction"], *(one.reduction for one in kinds)}
    if ranks != group.size() and "sum" in reductions and state["mode"] == "portable":
        raise InvalidArgumentError(
            f"the state of {ranks} ranks has no units, which FSDP's sums need on {group.size()} "
            f"ranks: load the state on {ranks} ranks, and save the state again"
        )
    return {name: one.unit * group.size() / ranks for name, one in views.items()}


def _copy_residuals(
    views: Views, group: dist.ProcessGroup, state: Mapping[str, Any], units: Mapping[str, float]
) -> None:
    """Copies a state to the views, before any reducer changes.

    Raises:
        InvalidArgumentError: A residual has another shape.
    """
    exact = state["mode"] == "exact"
    for name, step in zip(state["parameters"], state["steps"], strict=True):
        one, saved = views[name], state["residuals"][name]
        one.step = checkpoint.checked_int(step, f"step of {name}")
        saved = own_row(saved, group.rank()) if exact else saved
        found = checkpoint.checked_finite(saved, f"residual of {name}").shape
        wanted = torch.Size([one.longest]) if exact else one.parameter.shape
        if found != wanted:
            raise InvalidArgumentError(
                f"{name}: the state has residuals of shape {tuple(found)}, this model keeps "
                f"{tuple(wanted)}"
            )
        if exact:
            one.residual.copy_(saved[: len(one.residual)])
        else:  # the ranks' parts add the same to the gradient
            share = saved * (units[name] / one.unit / group.size())
            one.set_from(to_flat(share, one.parameter, one.ranks))


def _hosts(sender: Sender, group: dist.ProcessGroup) -> list[int] | None:
    """Returns the first rank of each rank's host, for a hierarchical reducer."""
    if sender.options.algorithm != "hierarchical":
        return None
    given = sender.options.hosts
    hosts = hosts_of(group, given) if given else transport(group).hosts()
    return [hosts.index(one) for one in hosts]


def _rows(views: Views, group: dist.ProcessGroup) -> dict[str, Any]:
    mesh = DeviceMesh.from_group(group, "cpu")
    places = stack_rows(torch.tensor([group.rank()], device="cpu"), mesh)
    rows = {name: stack_rows(one.residual, mesh, one.longest) for name, one in views.items()}
    return {"places": places, "residuals": rows}


def _sums(sender: Sender, views: Views, group: dist.ProcessGroup) -> dict[str, Any]:
    """The sums over ranks, with the residuals between replicas in the same unit."""
    totals = {name: one.padded() for name, one in views.items()}
    for reducer in sender.replicas.all():
        for name, shard in reducer.sums().items():
            if (one := views.get(name)) is not None:  # "auto" may have changed the codec
                share = one.replica_unit / one.unit / reducer.kind.group.size()
                own = totals[name].view(one.ranks, -1)[one.rank]
                own += shard * share  # all replicas have equal sums
    sums = {}
    for name, one in views.items():
        total = totals[name]
        ranks, seconds = transport(group, total.device), sender.seconds(group)
        collectives.allreduce(ranks, total, codec="none", timeout=seconds)
        sums[name] = from_flat(total, one.parameter, one.ranks)
    return {"residuals": sums}


def _move_to_replicas(
    reducers: Iterable[ReplicaReducer],
    views: Views,
    state: Mapping[str, Any],
    units: Mapping[str, float],
) -> None:
    """Moves all residuals to the replicas, because a mesh may have no reduce-scatter."""
    steps = dict(zip(state["parameters"], state["steps"], strict=True))
    shards = {}
    for name, one in views.items():
        flat = to_flat(state["residuals"][name], one.parameter, one.ranks)
        shards[name] = flat.view(one.ranks, -1)[one.rank] * (units[name] / one.replica_unit)
    for reducer in reducers:
        for name in reducer.load_sums(shards, steps, state.get("step", 0)):
            views[name].residual.zero_()


def _check(views: Views, state: Mapping[str, Any]) -> None:
    checkpoint.check_version(state)
    checkpoint.check_mode(state["mode"])
    checkpoint.checked_int(state["ranks"], "ranks", 1, 2**16)
    checkpoint.checked_int(state.get("step", 0), "step")
    if state["reduction"] not in ("sum", "mean"):
        raise InvalidArgumentError(f"the state's reduction is {state['reduction']!r}: sum or mean")
    saved = dict(zip(state["parameters"], state["codecs"], strict=True))
    for name in saved.keys() ^ views.keys():
        where = "the state" if name in saved else "this model"
        raise InvalidArgumentError(f"only {where} keeps residuals of {name}")
    for name, codec in saved.items():
        if codec != views[name].codec and not views[name].codec_may_change:
            raise InvalidArgumentError(
                f"{name}: the state is of {codec}, this is {views[name].codec}"
            )
    for name, cut in zip(saved, state.get("shapes", ()), strict=False):  # none in former states
        if cut != (wanted := views[name].parameter.cut()):
            raise InvalidArgumentError(f"{name} has the shape {wanted}, in the state {cut}")


def _check_places(group: dist.ProcessGroup, hosts: object, state: Mapping[str, Any]) -> None:
    if state["mode"] != "exact":
        return
    checkpoint.check_ranks(state["ranks"], group.size())
    rank = int(own_row(state["places"], group.rank())[0])
    if rank != group.rank():
        raise InvalidArgumentError(
            f"the state is of rank {rank} of {group.size()}, this is rank {group.rank()}: load on "
            "each rank the state that it saved"
        )
    if state.get("hosts") != hosts:
        raise InvalidArgumentError(
            "in the state's run ranks were grouped by host in another way: save it with "
            'mode="portable"'
        )
