"""A reducer's residuals in checkpoints, as ``torch.save`` and distributed checkpoint take them.

*Exact*: what each rank keeps, side by side in DTensors of shape (ranks, values), each rank's row on
that rank. Distributed checkpoint would take plain tensors of one name for replicas and keep one
rank's for all. The same run goes on from it bit for bit; it takes ranks times the model.

*Portable*: the sum over ranks in plain tensors, once the model, for any number of ranks.

What a codec itself remembers (``lowrank``, which starts warm from it) is in both as ``memories``.

Both are dicts of tensors, lists, texts and numbers, which ``torch.load`` takes with
``weights_only=True``. What the values mean, and whether they fit, the library says.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from tersor import _core
from tersor._core import Error, InvalidArgumentError, ReducerState
from tersor._options import described

VERSION = 2  # 1 had residuals of owners in units of a sum where a mean was taken
Mode = Literal["exact", "portable"]


def save_reducer(
    reducer: _core.GradientReducer, group: dist.ProcessGroup, mode: Mode = "exact"
) -> dict[str, Any]:
    """The state of a reducer between two steps; nothing of it changes.

    ``mode="portable"`` is a collective call. All tensors lie on the host. ``group``: the ranks that
    the reducer works for. Raises InvalidArgumentError for another mode.
    """
    exact = check_mode(mode) == "exact"
    state = ReducerState.read(reducer.save_state() if exact else reducer.save_portable_state())
    return {
        "version": VERSION,
        "mode": state.form,
        "reduction": state.reduction,
        "ranks": state.ranks,
        "step": state.step,
        "order": list(state.order),
        "parameters": [one.name for one in state.parameters],
        "codecs": [one.codec for one in state.parameters],
        "counts": [one.count for one in state.parameters],
        **_tensors(state, group if exact else None),
    }


def load_reducer(
    reducer: _core.GradientReducer, group: dist.ProcessGroup, state: Mapping[str, Any] | None
) -> None:
    """Brings back what :func:`save_reducer` saved, in either mode.

    None or an empty dict, as of a checkpoint that was made without Tersor: residuals start at zero,
    with a warning where there are any. Raises InvalidArgumentError, which names the parameter,
    where the state is of another model or codec, and in the exact mode of another rank or number of
    ranks, and for a damaged state. Nothing was changed then.
    """
    if not (state := as_mapping(state)):
        now = ReducerState.read(reducer.save_state()).parameters
        return start_at_zero(
            [reducer], sum(bool(len(one.residual) + len(one.owner)) for one in now)
        )
    reducer.load_state(read_bytes(state, group))


@contextlib.contextmanager
def refusing_damage() -> Iterator[None]:
    """Every error from reading a state becomes an InvalidArgumentError. The body changes no
    handle."""
    try:
        yield
    except Error:
        raise
    except KeyError as missing:
        raise InvalidArgumentError(f"the state has no entry {missing}") from None
    except Exception as damage:
        raise InvalidArgumentError(f"the state is damaged: {damage}") from damage


def as_mapping(state: Any) -> Mapping[str, Any]:
    """A state as a handle takes it; empty for None. Raises InvalidArgumentError for other types,
    and for a loss scale that is none."""
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state must be a dict or None, not {described(state)}")
    scale = state.get("loss_scale")
    if scale is not None and not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise InvalidArgumentError(
            f"the state's loss_scale is {scale!r}: expected a finite number above 0"
        )
    number(state.get("skipped_steps", 0), "skipped_steps")
    return state


def number(value: Any, name: str, least: int = 0, most: int = 2**32 - 1) -> int:
    """An integer of a state. Raises InvalidArgumentError for other types, and outside the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(
            f"the state's {name} is {described(value)}: expected an integer from {least} to {most}"
        )
    return value


def like(found: Any, wanted: Tensor, name: str) -> Tensor:
    """Raises InvalidArgumentError if what is found is no tensor of the wanted shape."""
    if not isinstance(found, Tensor) or found.shape != wanted.shape or found.is_complex():
        shape = tuple(found.shape) if isinstance(found, Tensor) else described(found)
        raise InvalidArgumentError(f"the state's {name} is {shape}: expected {tuple(wanted.shape)}")
    return found


def finite(values: Tensor, name: str) -> Tensor:
    """Raises InvalidArgumentError, which names the values, if one of them is not finite."""
    if not values.isfinite().all():
        raise InvalidArgumentError(f"the state's {name} has values that are not finite")
    return values


def move_residuals(
    old: _core.GradientReducer, new: _core.GradientReducer, steps_back: int = 0
) -> None:
    """From a reducer to one of more parameters, before its first step; a collective call.

    By the sum over ranks: who owns which part of a parameter depends on its number. ``steps_back``:
    so many steps fewer are counted.
    """
    state = ReducerState.read(old.save_portable_state())
    known = {one.name: one for one in state.parameters}
    moved = ReducerState()
    moved.form, moved.reduction, moved.ranks = state.form, state.reduction, state.ranks
    moved.step = max(state.step - steps_back, 0)
    for own in ReducerState.read(new.save_state()).parameters:
        one = known.get(own.name, own)
        new_count = own.count if own.longest_residual else 0
        residual = one.residual if one is not own else zeros(new_count).numpy()
        moved.add(one.name, one.codec, one.count, 0, residual, zeros(0).numpy(), one.memory)
    new.load_state(moved.write())


def check_mode(mode: Mode) -> Mode:
    """Raises InvalidArgumentError for another one."""
    if mode not in get_args(Mode):
        raise InvalidArgumentError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
    return mode


def check_ranks(found: Any, ranks: int) -> None:
    """Raises InvalidArgumentError for an exact state of another number of ranks."""
    if found != ranks:
        raise InvalidArgumentError(
            f"this is the exact state of {found} ranks, but there are {ranks}: save it with "
            f'mode="portable" in a run of {found} ranks'
        )


def check_version(saved: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError where the state is of another one."""
    if saved["version"] != VERSION:
        raise InvalidArgumentError(
            f"the state is of version {saved['version']}; this build reads version {VERSION}"
        )


def start_at_zero(keepers: Iterable[_core.GradientReducer], parameters: int) -> None:
    """As after a checkpoint without residuals, of which so many parameters have some here."""
    if parameters == 0:
        return
    for keeper in keepers:
        keeper.scale_residuals(0.0)
    warnings.warn(
        f"the checkpoint holds no residuals: those of {parameters} parameters start at zero",
        stacklevel=4,
    )


def _tensors(state: ReducerState, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Of an exact state, which has a ``group``, each rank's own. ``places``: its number, and for
    each parameter where its residual begins, and how much of the rows of ``residuals`` and
    ``owners`` is its own (the rest is 0)."""
    mesh = None if group is None else DeviceMesh.from_group(group, "cpu")
    places = [state.rank]
    found: dict[str, Any] = {"residuals": {}, "owners": {}, "memories": {}}
    for one in state.parameters:
        places += [one.residual_first, len(one.residual), len(one.owner)]
        for entry, own, longest in (
            ("residuals", one.residual, one.longest_residual),
            ("owners", one.owner, one.longest_owner),
            ("memories", one.memory, len(one.memory)),  # as long on all ranks
        ):
            if longest if mesh else len(own):
                row = torch.from_numpy(own)
                found[entry][one.name] = side_by_side(row, mesh, longest) if mesh else row
    if mesh is None:
        del found["owners"]
        return found
    return {"places": side_by_side(torch.tensor(places, device="cpu"), mesh), **found}


def side_by_side(row: Tensor, mesh: DeviceMesh, longest: int | None = None) -> DTensor:
    """A DTensor (ranks, values) of all ranks' rows, of which this is one's.

    ``longest``: of the rows, to which the others are padded with zeros; default: all are.
    """
    row = functional.pad(row, (0, (longest or len(row)) - len(row)))
    return DTensor.from_local(
        row.unsqueeze(0),
        mesh,
        [Shard(0)],
        run_check=False,
        shape=torch.Size([mesh.size(), len(row)]),
        stride=(len(row), 1),
    )


@refusing_damage()
def read_bytes(saved: Mapping[str, Any], group: dist.ProcessGroup) -> bytes:
    """A state that is not empty, as a reducer loads it. Raises InvalidArgumentError if it is
    damaged."""
    check_version(saved)
    state = ReducerState()
    for field in ("reduction", "ranks", "step", "order"):
        setattr(state, field, saved[field])
    state.form = saved["mode"]
    columns = list(zip(saved["parameters"], saved["codecs"], saved["counts"], strict=True))
    rank: int | None = None
    places: list[Any] = [0, None, 0] * len(columns)
    if saved["mode"] == "exact":
        rank = dist.get_rank(group)
        state.rank, *places = own_row(saved["places"], rank).tolist()
    for i, (name, codec, count) in enumerate(columns):
        first, residual_count, owner_count = places[3 * i : 3 * i + 3]
        residual = _values(saved, "residuals", name, rank, residual_count)
        owner = _values(saved, "owners", name, rank, owner_count)
        memory = _values(saved, "memories", name, rank, None)
        state.add(name, codec, count, first, residual, owner, memory)
    return state.write()


def _values(
    saved: Mapping[str, Any], entry: str, name: str, rank: int | None, count: int | None
) -> Any:
    """A parameter's values (at most ``count``) as a NumPy array. ``rank``: whose row they are."""
    found = saved.get(entry, {})  # a sharded checkpoint does not keep an empty dict
    if count == 0 or (count is None and name not in found):
        return zeros(0).numpy()
    values = found[name] if rank is None else own_row(found[name], rank)
    return values[:count].cpu().numpy()


def own_row(rows: Tensor, rank: int) -> Tensor:
    """Of a DTensor; or of a whole tensor, which a sharded checkpoint may have been put into."""
    return rows.to_local()[0] if isinstance(rows, DTensor) else rows[rank]


def zeros(*shape: int) -> Tensor:
    """f32 on the host, whatever PyTorch's default device and dtype are."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")
