"""Files of weight deltas: manifests, frames and full copies. Every write is atomic."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import operator
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tersor import _core
from tersor._core import InvalidArgumentError, WireError
from tersor._options import needs
from tersor.delta import _memory
from tersor.delta._memory import Delta, Described, Weights
from tersor.delta._transaction import heads_of, refuse_overlaps

FORMAT = "tersor.delta"
FORMAT_VERSION = 1
#: The full shape of a tensor and the offset of a rank's part in each dimension.
Slices = Mapping[str, tuple[Sequence[int], Sequence[int]]]
Entry = dict[str, Any]
#: Members of an entry that are different in another model.
KEYS = ("name", "dtype", "type", "shape", "slice")
Manifest = dict[str, Any]

_NEEDED = "full copies need safetensors: pip install 'tersor[delta]'"


def path_of(folder: pathlib.Path, version: int, suffix: str) -> pathlib.Path:
    return folder / f"v{version:012}{suffix}"


def write_file(
    path: pathlib.Path, write: Callable[[pathlib.Path], object], *, is_new: bool = False
) -> None:
    """Writes a file beside ``path``, and renames the file when the disk has all bytes. An old
    file's permissions stay. Raises FileExistsError if ``is_new``, and the file exists."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            mode = os.fstat(file.fileno()).st_mode
            with contextlib.suppress(FileNotFoundError):
                mode = path.stat().st_mode
            os.fchmod(file.fileno(), mode & 0o777 | 0o600)  # nobody else may read meanwhile
        write(temporary)
        os.chmod(temporary, mode & 0o777)  # safetensors makes a file for its own user only
        _sync(temporary)
        if is_new:
            _link(temporary, path)
        else:
            os.replace(temporary, path)
        try:
            _sync(path.parent)
        except BaseException:
            if is_new:
                path.unlink()
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _link(temporary: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a file to a new name. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        claim = path.with_name(f".{path.name}.00000000.tmp")  # one process at a time has it
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
        try:
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.replace(temporary, path)
        finally:
            claim.unlink()


def _sync(path: pathlib.Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_frames(path: pathlib.Path, deltas: Iterable[Delta]) -> None:
    """Writes deltas to a file, one after the other."""

    def write(to: pathlib.Path) -> None:
        with open(to, "wb") as file:
            file.writelines(delta.data for delta in deltas)

    write_file(path, write)


def read_frames(path: pathlib.Path) -> Iterator[Delta]:
    """Reads the deltas of a file. Raises WireError if a delta is damaged."""
    with open(path, "rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            count = int.from_bytes(file.read(16)[8:], "little")
            delta = Delta(_read(file, path, at, max(count, 64)))
            delta.entries()
            yield delta
            at += count


def _read(file: BinaryIO, path: pathlib.Path, at: int, count: int) -> bytes:
    """Reads a part of a file. Allocates nothing if the file is shorter."""
    size = os.fstat(file.fileno()).st_size
    if at < 0 or count < 0 or at + count > size:
        raise WireError(f"{path}: a delta ends at byte {at + count}, but the file has {size} bytes")
    file.seek(at)
    return file.read(count)


def save_weights(
    path: pathlib.Path, weights: Weights, metadata: dict[str, str] | None = None
) -> None:
    """Writes a full copy. Raises InvalidArgumentError if a tensor has the name of safetensors'
    metadata."""
    if "__metadata__" in weights:
        raise InvalidArgumentError('safetensors has no tensors with the name "__metadata__"')
    with needs("safetensors", _NEEDED):
        if any(hasattr(one, "data_ptr") for one in weights.values()):
            import torch
            from safetensors.torch import save_file

            tensors = {name: torch.as_tensor(one) for name, one in weights.items()}
            write_file(path, lambda to: save_file(tensors, to, metadata or {"format": "pt"}))
        else:
            from safetensors import numpy

            arrays = dict(weights)
            write_file(path, lambda to: numpy.save_file(arrays, to, metadata))


@contextlib.contextmanager
def open_weights(path: pathlib.Path) -> Iterator[Any]:
    """Opens a full copy: an object with ``keys()`` and ``get_tensor(name)``. Raises WireError if
    the file is damaged."""
    with needs("safetensors", _NEEDED):
        from safetensors import SafetensorError, safe_open
    framework = "pt" if importlib.util.find_spec("torch") else "np"
    try:
        with safe_open(path, framework) as file:
            yield file
    except SafetensorError as error:
        raise WireError(f"{path}: {error}") from error


def separate(weights: Weights) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the tensors without aliases, and the first name of each alias."""
    names: dict[Any, str] = {}
    tensors, aliases = {}, {}
    for name, tensor in weights.items():
        _memory.device_bytes_of(name, tensor)  # raises if the tensor is not contiguous
        address, size = _memory.address_of(tensor)
        key = address, size, str(tensor.dtype), tuple(tensor.shape)
        first = names.setdefault(key, name) if size else name
        if first == name:
            tensors[name] = tensor
        else:
            aliases[name] = first
    refuse_overlaps(tensors)
    return tensors, aliases


def tensor_entries(tensors: Weights, slices: Slices) -> list[Entry]:
    """Returns the manifest's description of each tensor."""
    entries = []
    for (name, dtype, shape), tensor in zip(
        _memory.described(tensors), tensors.values(), strict=True
    ):
        part_of = slices.get(name, (shape, [0] * len(shape)))
        full, offsets = ([operator.index(one) for one in numbers] for numbers in part_of)
        if not len(full) == len(offsets) == len(shape) or any(
            offset < 0 or offset + length > limit
            for offset, length, limit in zip(offsets, shape, full, strict=True)
        ):
            raise InvalidArgumentError(
                f'slices["{name}"] is {(full, offsets)}: the tensor of shape {tuple(shape)} does '
                "not fit into the full shape"
            )
        part = [list(pair) for pair in zip(offsets, shape, strict=True)]
        entry = {"name": name, "dtype": dtype, "type": _memory.type_of(tensor)}
        entries.append({**entry, "shape": full, "slice": part})
    return entries


def model_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the hash of the names, dtypes, shapes and slices of a model."""
    return digest(sorted([[one[key] for key in KEYS] for one in entries]))


def digest(value: object) -> str:
    """Returns the SHA-256 hash of a value of JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: pathlib.Path, value: Mapping[str, Any], *, is_new: bool = False) -> None:
    """Writes a JSON file that contains its hash. Raises as ``write_file``."""
    text = json.dumps({**value, "sha256": digest(value)}, separators=(",", ":"))
    write_file(path, lambda to: to.write_text(text), is_new=is_new)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file of ``write_json``. Raises WireError for a damaged file, and InvalidArgumentError
    for another format."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        expected = value.pop("sha256")
        found = value["format"], value["format_version"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise WireError(f"{path}: this is not a manifest: {error}") from error
    if digest(value) != expected:
        raise WireError(f"{path}: the manifest is damaged: its hash differs")
    if found != (FORMAT, FORMAT_VERSION):
        raise InvalidArgumentError(
            f"{path}: format {found[0]} {found[1]}; this version of Tersor "
            f"reads {FORMAT} {FORMAT_VERSION}"
        )
    return value


def read_manifest(folder: pathlib.Path, version: int) -> Manifest:
    """Reads the manifest of a version. Raises as ``read_json``."""
    path = path_of(folder, version, ".json")
    manifest = read_json(path)
    try:
        number, base = manifest["version"], manifest["base_version"]
        is_valid = base is None or (type(base) is int and 0 <= base < number)
        is_valid = is_valid and isinstance(manifest["model"], str)
        is_valid = is_valid and all(map(_is_entry, manifest["tensors"]))
        is_valid = is_valid and all(
            isinstance(name, str) for pair in manifest["aliases"].items() for name in pair
        )
        if base is not None:
            is_valid = is_valid and all(map(_is_delta, manifest["tensors"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"{path}: this is not a manifest: {error!r}") from error
    if not is_valid:
        raise WireError(f"{path}: this is not a manifest")
    if number != version:
        raise WireError(f"{path}: this is the manifest of version {number}")
    for entry in manifest["tensors"]:
        for name in (entry.get("file", ""), entry["full"]):
            if "/" in name or "\0" in name:
                raise WireError(f'{path}: file "{name}" is not in the folder of the manifest')
    return manifest


def _is_entry(entry: Mapping[str, Any]) -> bool:
    numbers = [*entry["shape"], *(number for pair in entry["slice"] for number in pair)]
    int(entry["checksum"], 16)
    texts = [entry[key] for key in ("name", "dtype", "type", "full")]
    "".join([*texts, entry.get("file", "")]).encode()  # raises if one is no text of UTF-8
    numbers += [entry["bytes"], entry.get("changed", 0)]
    return all(type(one) is int and one >= 0 for one in numbers) and all(
        len(pair) == 2 for pair in entry["slice"]
    )


def _is_delta(entry: Mapping[str, Any]) -> bool:
    int(entry["base_checksum"], 16)
    return isinstance(entry["file"], str) and type(entry["offset"]) is int


def versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the complete versions in a folder, in ascending order."""
    found = [re.fullmatch(r"v(\d{12})\.json", path.name) for path in folder.glob("v*.json")]
    return sorted(int(match[1]) for match in found if match)


def read_delta(folder: pathlib.Path, manifest: Manifest, entry: Mapping[str, Any]) -> Delta:
    """Reads the delta of a tensor, and compares the delta with the manifest. Raises WireError if
    the delta is damaged, or belongs to another manifest."""
    path = folder / entry["file"]
    with open(path, "rb") as file:
        delta = Delta(_read(file, path, entry["offset"], entry["bytes"]))
    found = [(one.name, one.dtype, list(one.shape)) for one in delta.entries()]
    expected = (entry["name"], entry["dtype"], [length for _, length in entry["slice"]])
    checksums = tuple(int(entry[key], 16) for key in ("base_checksum", "checksum"))
    if found != [expected] or heads_of(delta.data) != [checksums]:
        raise WireError(
            f'{path}: the delta of tensor "{entry["name"]}" does not belong to version '
            f"{manifest['version']}"
        )
    return delta


class FullCopies(contextlib.ExitStack):
    """Reads tensors of full copies, and opens each file once."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self._folder, self._files = folder, dict[str, Any]()

    def read(self, entry: Entry, threads: int) -> list[Any]:
        """Returns the bytes of a tensor. Raises WireError if the file is damaged or belongs to
        another manifest, and InvalidArgumentError if the dtype needs PyTorch."""
        name, path = entry["name"], self._folder / entry["full"]
        if entry["full"] not in self._files:
            self._files[entry["full"]] = self.enter_context(open_weights(path))
        try:
            tensor = self._files[entry["full"]].get_tensor(name)
        except (AttributeError, TypeError) as error:  # NumPy lacks the dtype
            raise InvalidArgumentError(f'{path}: "{name}" needs PyTorch: {error}') from error
        described, values = _memory.tensors_of({name: tensor})
        expected = [(name, entry["dtype"], [length for _, length in entry["slice"]])]
        sums = [int(entry["checksum"], 16)]
        differs = described != expected or _memory.type_of(tensor) != entry["type"]
        if differs or checksums(described, values, threads) != sums:
            raise WireError(f'{path}: "{name}" does not have the checksum of the manifest')
        return values


def checksums(described: list[Described], values: list[Any], threads: int) -> list[int]:
    """Returns the checksum of each tensor."""
    return [now for _, now in heads_of(_core.delta_encode(described, values, values, 1, threads))]


def copies_of(tensors: Weights) -> dict[str, Any]:
    """Returns copies of tensors in host memory."""
    return {
        name: one.detach().to("cpu", copy=True) if hasattr(one, "detach") else one.copy()
        for name, one in tensors.items()
    }
