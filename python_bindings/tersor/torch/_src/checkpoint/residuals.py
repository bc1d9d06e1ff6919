"""A reducer's residuals as a dict, for ``torch.save`` and distributed checkpoints.

*Exact*: the residuals of each rank as a row of DTensors of shape (ranks, values). With plain
tensors, distributed checkpoints would keep one rank's values for all ranks. The same number of
ranks continues bit for bit. The size is ranks times the model.

*Portable*: the sum over ranks in plain tensors, for any number of ranks. The size is the model's.

Both modes have the memories of codecs (``lowrank``) under ``memories``. Both are dicts of tensors,
lists, strings and numbers, which ``torch.load`` accepts with ``weights_only=True``. The C++ library
interprets and checks the values.

``torch.distributed.checkpoint.load({"tersor": handle})`` fills the state that the handle would save
now: the exact mode of the present number of ranks. ``load_checkpoint`` reads the saved state.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from tersor._core import Error, GradientReducer, InvalidArgumentError, ReducerState
from tersor._options import described
from tersor._renamed import renamed_keywords
from tersor.torch import _compat

VERSION = 2  # 1 had residuals of owners in units of a sum where a mean was taken
Mode = Literal["exact", "portable"]
Saved = Mapping[str, Any]  # the state of a handle


def save_reducer(
    reducer: GradientReducer, group: dist.ProcessGroup, mode: Mode = "exact"
) -> dict[str, Any]:
    """The state of a reducer between two steps, in host memory. ``group``: the reducer's ranks.
    ``mode="portable"`` is a collective call. Raises InvalidArgumentError for an unknown mode."""
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
    reducer: GradientReducer,
    group: dist.ProcessGroup,
    state: Saved | None,
    common: Iterable[Tensor] = (),
) -> None:
    """Loads the result of :func:`save_reducer` of either mode.

    ``common``: tensors of the save that are equal on all ranks. The next step raises TransportError
    if ranks loaded others.

    None or an empty dict (a checkpoint without Tersor): residuals start at zero, with a warning if
    there are any. Raises InvalidArgumentError, which names the parameter, for a damaged state, and
    for one of another model, codec, or (if exact) rank or number of ranks; nothing was changed.
    """
    if not (state := as_mapping(state)):
        now = ReducerState.read(reducer.save_state()).parameters
        count = sum(bool(len(one.residual) + len(one.owner)) for one in now)
        return start_at_zero([reducer], count)
    reducer.load_state(state_bytes(_adapt_codecs(state, reducer), group), _hash_of(common))


def _hash_of(tensors: Iterable[Tensor]) -> int:
    """A hash of this rank's shards."""
    found = 0
    for one in tensors:
        own = one.to_local() if isinstance(one, DTensor) else one
        values = own.detach().contiguous().flatten().view(torch.uint8)
        found = zlib.crc32(values.cpu().numpy().data, found)
    return found


@contextlib.contextmanager
def reject_damage() -> Iterator[None]:
    """Turns every error from reading a state into an InvalidArgumentError. The body must not
    change a handle."""
    try:
        yield
    except Error:
        raise
    except KeyError as missing:
        raise InvalidArgumentError(f"the state has no entry {missing}") from None
    except Exception as damage:
        raise InvalidArgumentError(f"the state is damaged: {damage}") from damage


@reject_damage()
def _adapt_codecs(saved: Saved, reducer: GradientReducer) -> Saved:
    """The state with the reducer's codec where only ``result=`` differs: residuals are values.
    Raises InvalidArgumentError if the parameters of a state are in another order."""
    own = {one.name: one.codec for one in ReducerState.read(reducer.save_state()).parameters}
    names = list(saved["parameters"])
    if names != list(own) and sorted(names) == sorted(own):
        raise InvalidArgumentError(
            f"the state has the parameters in another order: {', '.join(names)}"
        )
    codecs = [
        own[name] if name in own and _sender_codec(own[name]) == _sender_codec(codec) else codec
        for name, codec in zip(names, saved["codecs"], strict=True)
    ]
    return {**saved, "codecs": codecs}


def _sender_codec(spec: str) -> str:
    """The codec without the codec of owners."""
    return re.sub(r"[:,]result=[^+]*", "", spec)


def as_mapping(state: Any) -> Saved:
    """The state as a mapping; empty for None. Raises InvalidArgumentError for other types, and for
    a loss scale out of range."""
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"state must be a dict or None, not {described(state)}")
    scale = state.get("loss_scale")
    if scale is not None and not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise InvalidArgumentError(
            f"the state's loss_scale is {scale!r}: expected a finite number above 0"
        )
    checked_int(state.get("skipped_steps", 0), "skipped_steps")
    return state


def checked_int(value: Any, name: str, least: int = 0, most: int = 2**32 - 1) -> int:
    """An integer of a state. Raises InvalidArgumentError for other types, and outside the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(
            f"the state's {name} is {described(value)}: expected an integer from {least} to {most}"
        )
    return value


def checked_like(found: Any, wanted: Tensor, name: str) -> Tensor:
    """Returns ``found``. Raises InvalidArgumentError unless it is a floating-point tensor of the
    wanted shape."""
    what = described(found)
    if isinstance(found, Tensor):
        if found.is_floating_point() and found.shape == wanted.shape:
            return found
        what = f"{tuple(found.shape)} of {found.dtype}"
    raise InvalidArgumentError(
        f"the state's {name} is {what}: expected {tuple(wanted.shape)} of floating point"
    )


def checked_finite(values: Tensor, name: str) -> Tensor:
    """Raises InvalidArgumentError, which names the values, if one of them is not finite."""
    if not values.isfinite().all():
        raise InvalidArgumentError(f"the state's {name} has values that are not finite")
    return values


def move_residuals(old: GradientReducer, new: GradientReducer, steps_back: int = 0) -> None:
    """Moves residuals to a reducer with more parameters, before its first step; collective.

    Ranks add up residuals, because the owner of a part depends on the number of parameters.
    ``steps_back``: subtracted from the number of steps.
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
    """Returns ``mode``. Raises InvalidArgumentError for an unknown mode."""
    if mode not in get_args(Mode):
        raise InvalidArgumentError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
    return mode


def check_ranks(found: Any, ranks: int) -> None:
    """Raises InvalidArgumentError if an exact state is of another number of ranks."""
    if found != ranks:
        raise InvalidArgumentError(
            f"this is the exact state of {found} ranks, but there are {ranks}: save it with "
            f'mode="portable" in a run of {found} ranks'
        )


def check_version(saved: Saved) -> None:
    """Raises InvalidArgumentError for a state of another version."""
    if saved["version"] != VERSION:
        raise InvalidArgumentError(
            f"the state is of version {saved['version']}; this build reads version {VERSION}"
        )


def start_at_zero(reducers: Iterable[GradientReducer], parameters: int) -> None:
    """Sets residuals to zero after a checkpoint without residuals; warns if parameters have any."""
    if parameters == 0:
        return
    for reducer in reducers:
        reducer.scale_residuals(0.0)
    text = f"the checkpoint holds no residuals: those of {parameters} parameters start at zero"
    warnings.warn(text, stacklevel=4)


def _tensors(state: ReducerState, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """The tensors of a state; of an exact one (with ``group``), the rows of all ranks.

    ``places``: the rank, and for each parameter the start of its residual and the lengths of its
    rows in ``residuals`` and ``owners``. Rows are padded with zeros.
    """
    mesh = None if group is None else DeviceMesh.from_group(group, "cpu")
    places = [state.rank]
    found: dict[str, Any] = {"residuals": {}, "owners": {}, "memories": {}}
    for one in state.parameters:
        places += [one.residual_first, len(one.residual), len(one.owner)]
        for entry, own, longest in (
            ("residuals", one.residual, one.longest_residual),
            ("owners", one.owner, one.longest_owner),
            ("memories", one.memory, len(one.memory)),  # equal lengths on all ranks
        ):
            if longest if mesh else len(own):
                row = torch.from_numpy(own)
                found[entry][one.name] = stack_rows(row, mesh, longest) if mesh else row
    if mesh is None:
        del found["owners"]
        return found
    return {"places": stack_rows(torch.tensor(places, device="cpu"), mesh), **found}


def stack_rows(row: Tensor, mesh: DeviceMesh, longest: int | None = None) -> DTensor:
    """A DTensor (ranks, values) with this rank's row. ``longest``: the length to which all ranks
    pad their rows with zeros; default: this length."""
    row = functional.pad(row, (0, (longest or len(row)) - len(row)))
    rows, shape, stride = row.unsqueeze(0), torch.Size([mesh.size(), len(row)]), (len(row), 1)
    return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


@reject_damage()
def state_bytes(saved: Saved, group: dist.ProcessGroup) -> bytes:
    """The bytes that a reducer loads. Raises InvalidArgumentError for a damaged state."""
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


def _values(saved: Saved, entry: str, name: str, rank: int | None, count: int | None) -> Any:
    """At most ``count`` values of a parameter, of the row of ``rank``, as a NumPy array."""
    found = saved.get(entry, {})  # distributed checkpoints omit an empty dict
    if count == 0 or (count is None and name not in found):
        return zeros(0).numpy()
    values = found[name] if rank is None else own_row(found[name], rank)
    return values[:count].cpu().numpy()


def own_row(rows: Tensor, rank: int) -> Tensor:
    """The row of a DTensor, or of a whole tensor from a distributed checkpoint."""
    return rows.to_local()[0] if isinstance(rows, DTensor) else rows[rank]


def zeros(*shape: int) -> Tensor:
    """f32 zeros in host memory, independent of PyTorch's default device and dtype."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


@renamed_keywords(group="process_group")
def load_checkpoint(
    handle: Stateful,
    checkpoint_id: str | os.PathLike[str] | None = None,
    *,
    key: str = "tersor",
    process_group: dist.ProcessGroup | None = None,
    storage_reader: StorageReader | None = None,
) -> None:
    """Loads a handle from a checkpoint of ``torch.distributed.checkpoint.save``.

    The checkpoint was saved with ``{key: handle}`` or ``{key: handle.state_dict(mode)}``. For a
    ``DistributedOptimizer``, only ``state_dict(mode)`` has residuals; without residuals in the
    checkpoint, its residuals stay as they are. A collective call between two steps. If the
    checkpoint has no ``key``, residuals start at zero with a warning.

    Args:
        handle: The handle of the training.
        checkpoint_id: Folder of the checkpoint.
        key: The key of the handle's state in the checkpoint.
        process_group: The ranks of the handle. Default: all.
        storage_reader: Reader of the checkpoint. Default: a ``FileSystemReader``.

    Raises:
        InvalidArgumentError: The state is damaged, or of another model, codec, or (if exact)
            number of ranks. The message names the parameter.

    Example::

        torch.distributed.checkpoint.save({"tersor": handle}, checkpoint_id=folder)
        tersor.torch.load_checkpoint(handle, folder)
    """
    reader = storage_reader or FileSystemReader(os.fspath(checkpoint_id or ""))
    group = process_group or dist.group.WORLD
    if group is None:
        raise InvalidArgumentError("call torch.distributed.init_process_group first")
    with reject_damage():
        state = _empty_state(reader, key, group)
    if state:
        load({key: state}, storage_reader=reader, process_group=group)
    handle.load_state_dict(state)


def _empty_state(reader: StorageReader, key: str, group: dist.ProcessGroup) -> dict[str, Any]:
    """The state in the checkpoint with empty tensors."""
    metadata = reader.read_metadata()
    saved, places = metadata.state_dict_metadata, metadata.planner_data
    paths = {name: path for name in saved if (path := _path_below(places[name], key))}
    rows = [path[:-1] for path in paths.values() if path[-1] == "places"]
    exact = {n: any(one[: len(row)] == row for row in rows) for n, one in paths.items()}
    empty = {name: _empty(saved[name], exact[name], group) for name in paths}
    return _compat.nested_state(empty, paths)


def _path_below(path: tuple[str | int, ...], key: str) -> tuple[str | int, ...]:
    """The path of an entry below ``key``; empty for entries elsewhere."""
    for length in range(1, len(path)):
        if ".".join(map(str, path[:length])) == key:
            return path[length:]
    return ()


def _empty(entry: object, exact: bool, group: dist.ProcessGroup) -> Any:
    if not isinstance(entry, TensorStorageMetadata):
        return None  # a string, a number or a list: read directly
    if not exact:
        return torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
    mesh = DeviceMesh.from_group(group, "cpu")
    check_ranks(entry.size[0], mesh.size())
    row = torch.empty(entry.size[1:], dtype=entry.properties.dtype, device="cpu")
    return stack_rows(row, mesh)
