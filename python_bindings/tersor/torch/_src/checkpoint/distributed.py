"""Finding a handle's state in a distributed checkpoint, whatever mode it was saved in, or none.

``torch.distributed.checkpoint.load({"tersor": handle})`` fills what the handle would save now: the
exact mode of as many ranks. Here what is read is decided by what the checkpoint holds.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.device_mesh import DeviceMesh

from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import check_ranks, refusing_damage, side_by_side


def load_checkpoint(
    handle: Stateful,
    checkpoint_id: str | os.PathLike[str] | None = None,
    *,
    key: str = "tersor",
    group: dist.ProcessGroup | None = None,
    storage_reader: StorageReader | None = None,
) -> None:
    """Brings back what ``torch.distributed.checkpoint.save`` saved of ``{key: handle}``, or of
    ``{key: handle.state_dict(mode)}``.

    A collective call of ``group``, the ranks that the handle works for (default all), between two
    steps. A checkpoint without ``key`` starts residuals at zero, with a warning. Raises
    InvalidArgumentError, which names the parameter, where the state is of another model or codec,
    and where it is the exact one of another number of ranks.
    """
    reader = storage_reader or FileSystemReader(os.fspath(checkpoint_id or ""))
    group = group or dist.group.WORLD
    if group is None:
        raise InvalidArgumentError("call torch.distributed.init_process_group first")
    with refusing_damage():
        state = _empty_state(reader, key, group)
    if state:
        load({key: state}, storage_reader=reader, process_group=group)
    handle.load_state_dict(state)


def _empty_state(reader: StorageReader, key: str, group: dist.ProcessGroup) -> dict[str, Any]:
    """The state of the checkpoint with its tensors not yet filled in."""
    metadata = reader.read_metadata()
    saved, places = metadata.state_dict_metadata, metadata.planner_data
    paths = {name: path for name in saved if (path := _path_below(places[name], key))}
    rows = [path[:-1] for path in paths.values() if path[-1] == "places"]
    empty = {
        name: _empty(saved[name], any(path[: len(above)] == above for above in rows), group)
        for name, path in paths.items()
    }
    return _compat.nested_state(empty, paths)


def _path_below(path: tuple[str | int, ...], key: str) -> tuple[str | int, ...]:
    """Of an entry, from ``key`` on; empty where it does not lie there."""
    for length in range(1, len(path)):
        if ".".join(map(str, path[:length])) == key:
            return path[length:]
    return ()


def _empty(entry: object, exact: bool, group: dist.ProcessGroup) -> Any:
    if not isinstance(entry, TensorStorageMetadata):
        return None  # a text, a number or a list: read as it is
    if not exact:
        return torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
    mesh = DeviceMesh.from_group(group, "cpu")
    check_ranks(entry.size[0], mesh.size())
    row = torch.empty(entry.size[1:], dtype=entry.properties.dtype, device="cpu")
    return side_by_side(row, mesh)
