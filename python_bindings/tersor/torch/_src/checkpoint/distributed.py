"""Finds a handle's state of either mode in a distributed checkpoint.

``torch.distributed.checkpoint.load({"tersor": handle})`` fills the state that the handle would save
now: the exact mode of the present number of ranks. ``load_checkpoint`` reads the saved state.
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
from tersor._renamed import renamed_keywords
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import check_ranks, refusing_damage, side_by_side


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
    with refusing_damage():
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
    empty = {
        name: _empty(saved[name], any(path[: len(above)] == above for above in rows), group)
        for name, path in paths.items()
    }
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
    return side_by_side(row, mesh)
