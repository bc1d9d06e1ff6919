"""Publishes versions of a model's weights as files."""

from __future__ import annotations

import contextlib
import operator
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tersor._core import Error, InvalidArgumentError, Transport
from tersor.collectives import gather_texts
from tersor.delta import _files, _memory
from tersor.delta._files import Entry, Manifest, Slices, path_of, versions_in
from tersor.delta._memory import Delta, Weights, encode
from tersor.delta._transaction import heads_of
from tersor.delta._vote import Result, on_all_ranks

# A file of a version, a temporary file of such a file, or a temporary file of safetensors.
_OWN_FILE = re.compile(
    r"\.?v(\d{12})(?:\.[0-9a-f]{8}(?:\.r\d+)?)?\.(?:json|delta|safetensors|part)"
    r"(?:\.[0-9a-f]{8}\.tmp)?|\.tmp[0-9A-Za-z]{6}"
)
_HEADER = {"format": _files.FORMAT, "format_version": _files.FORMAT_VERSION}


class Publisher:
    """Writes each version of a model's weights to a folder: a delta, and sometimes a full copy.

    The first version is a full copy. Later versions are deltas. A version also has a full copy if
    the model changed, if the deltas since the last full copy have more bytes than a full copy, or
    after ``keep`` versions. After a version of another publisher, a version is only a full copy.
    Files appear by a rename, the manifest last, so a reader never sees a part of a version.

    The publisher keeps a copy of the weights in host memory, and a second copy during ``publish``.

    Args:
        folder: The folder of one model. None: only :func:`broadcast_delta` sends the versions.
        keep: Number of recent versions that a receiver may have. Older files are deleted, except
            the newest full copy and its later versions.
        classes: As in :func:`encode`.
        threads: Number of threads; 0: one per core.
        transport: Ranks that publish one model together, each its own tensors, to a shared folder.
        slices: For a tensor that is part of a larger tensor: the full shape, and the offset in each
            dimension.
        metadata: Texts for readers, for example the rounding that made the bf16 weights.
        timeout: Seconds for each vote of the ranks.

    Attributes:
        version: The last published version, or None.
        weights: The copy of that version.

    Raises:
        InvalidArgumentError: ``keep`` is below 1.

    Example:
        >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
        >>> publisher = tersor.delta.Publisher(None)
        >>> publisher.publish(1, weights)["version"]
        1
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        *,
        keep: int = 16,
        classes: Literal["auto"] | int = "auto",
        threads: int = 1,
        transport: Transport | None = None,
        slices: Slices | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> None:
        if keep < 1:
            raise InvalidArgumentError(f"keep is {keep}: give 1 or more")
        self.version: int | None = None
        self.weights: dict[str, Any] = {}
        self._links: dict[int, tuple[int, list[Delta]]] = {}
        self._checksums: dict[str, int] = {}  # of the weights
        self._folder = None if folder is None else pathlib.Path(folder)
        self._keep, self._classes, self._threads = keep, classes, threads
        self._transport, self._timeout = transport, timeout
        several = transport is not None and transport.ranks > 1
        self._rank = f".r{transport.rank}" if transport is not None and several else ""
        self._suffix = ""  # of this rank's files of a version; no other publisher has this suffix
        self._slices, self._metadata = slices or {}, dict(metadata or {})
        self._model, self._chain_bytes, self._since_full, self._full_version = "", 0, 0, -1

    def publish(self, version: int, weights: Weights) -> Manifest:
        """Writes a version, on all ranks of the publisher or on no rank.

        If the call fails, readers do not see the version, and the next version is a delta to the
        last version that succeeded. The files of the failed call are deleted.

        Args:
            version: A number above all versions in the folder.
            weights: Names and tensors, contiguous. Shared ("tied") weights are stored once.

        Returns:
            The manifest of ``docs/reference/delta-format.md``.

        Raises:
            InvalidArgumentError: The version is not new, a tensor has an unknown dtype or is not
                contiguous, there are no tensors, or ranks have different values of one tensor.
            FileExistsError: Another publisher wrote this version meanwhile.
            OSError: A file cannot be written.
            TransportError: A rank is late or lost.

        Example:
            >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
            >>> publisher = tersor.delta.Publisher(None)
            >>> publisher.publish(1, weights)["base_version"]
            >>> weights["bias"][1] = 1
            >>> publisher.publish(2, weights)["base_version"]
            1
        """
        label = f"version {version}"
        new = self._on_all_ranks(lambda: self._prepare(version, weights), label)
        version = new.number
        # After an interrupt of one rank, ranks may have different versions.
        last = str(self.version if new.linked else None)
        delta_bytes = sum(len(delta.data) for delta in new.deltas)
        full_bytes = sum(size for _, size in map(_memory.address_of, new.weights.values()))
        facts = f"{delta_bytes} {full_bytes} {last} {secrets.token_hex(4)}"
        rows = [text.split() for text in gather_texts(self._transport, facts, self._timeout)]
        chain = self._chain_bytes + sum(int(row[0]) for row in rows)
        linked = new.linked and all(row[2] == last for row in rows)
        self._suffix = f".{rows[0][3]}{self._rank}"
        full = not linked or chain > sum(int(row[1]) for row in rows)
        full = full or self._since_full + 1 >= self._keep
        base = self.version if linked else None
        try:
            entries = self._on_all_ranks(lambda: self._write(version, new, linked, full), label)
            manifest = self._on_all_ranks(lambda: self._combine(version, base, new, entries), label)
        except BaseException:
            self._delete_data(version, self._suffix)
            raise
        self._commit(version, manifest, label)
        self.version = None  # an interrupt here makes the next version a full copy
        self.weights, self._model = new.weights, new.model
        self._chain_bytes = 0 if full else chain
        self._since_full = 0 if full else self._since_full + 1
        self._full_version = version if full else self._full_version
        self._checksums = {one["name"]: int(one["checksum"], 16) for one in entries}
        if base is None:
            self._links.clear()
        elif self._folder is None:
            self._links[version] = base, new.deltas
            for old in sorted(self._links)[: -self._keep]:
                del self._links[old]
        self.version = version
        self._delete_old_versions()
        return manifest

    def _on_all_ranks(self, call: Callable[[], Result], label: str) -> Result:
        return on_all_ranks(self._transport, call, label, self._timeout)

    def _commit(self, version: int, manifest: Manifest, label: str) -> None:
        """Writes the manifest on rank 0. If a rank fails here, no reader sees the version."""
        path = path_of(self._folder or pathlib.Path(), version, ".json")
        writes = self._folder is not None and self._rank in ("", ".r0")
        try:
            self._on_all_ranks(
                lambda: _files.write_json(path, manifest, is_new=True) if writes else None, label
            )
        except BaseException:
            with contextlib.suppress(OSError, Error):
                # Not if another publisher wrote the manifest.
                is_written = writes and path.exists()
                if is_written and _files.digest(_files.read_json(path)) == _files.digest(manifest):
                    path.unlink()
                if writes:  # other ranks may not know whether rank 0 wrote the manifest
                    self._delete_data(version, self._suffix.removesuffix(self._rank))
            raise

    def _delete_data(self, version: int, suffix: str) -> None:
        """Deletes files of a version without a manifest."""
        if self._folder is not None:
            _delete(self._folder.glob(f"{path_of(pathlib.Path(), version, suffix)}.*"))

    def _prepare(self, version: int, weights: Weights) -> _Version:
        number = int(operator.index(version))
        own = -1 if self.version is None else self.version
        found = max(versions_in(self._folder), default=-1) if self._folder else own
        last = max(found, own)
        if isinstance(version, bool) or not last < number < 10**12:
            raise InvalidArgumentError(f"version is {version}: give a number above {last}")
        tensors, aliases = _files.separate(weights)
        entries = _files.tensor_entries(tensors, self._slices)
        _files.digest(self._metadata)  # raises if JSON has no such value
        new = _Version(
            number, _files.model_of(entries), entries, _files.copies_of(tensors), aliases, []
        )
        # The newest version must lead to a full copy of this publisher. Rank 0 decides for all.
        is_last = found == own or self._rank not in ("", ".r0")
        new.linked = self.version is not None and new.model == self._model and is_last
        if new.linked:
            for name, value in new.weights.items():
                base = {name: self.weights[name]}
                new.deltas.append(encode(base, {name: value}, self._classes, threads=self._threads))
        return new

    def _write(self, version: int, new: _Version, linked: bool, full: bool) -> list[Entry]:
        """Writes this rank's files, and returns the rank's entries of the manifest."""
        delta_path, full_path, part_path = (
            path_of(self._folder or pathlib.Path(), version, f"{self._suffix}.{suffix}")
            for suffix in ("delta", "safetensors", "part")
        )
        at, entries = 0, []
        for number, (name, value) in enumerate(new.weights.items()):
            entry = {**new.entries[number], "kind": "full", "bytes": 0}
            entry["full"] = full_path.name if full and self._folder else ""
            if linked:
                delta = new.deltas[number]
                [found], [(base, now)] = delta.entries(), heads_of(delta.data)
                entry |= {"kind": "delta" if found.changed else "none", "file": delta_path.name}
                entry |= {"offset": at, "bytes": len(delta.data), "classes": found.classes}
                entry |= {"changed": found.changed, "base_checksum": f"{base:016x}"}
                at += len(delta.data)
            else:
                [now] = _files.checksums(*_memory.tensors_of({name: value}), self._threads)
            entries.append({**entry, "checksum": f"{now:016x}"})
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            if linked:
                _files.write_frames(delta_path, new.deltas)
            if full:
                _files.save_weights(full_path, new.weights)
            if self._rank:
                part = {**_HEADER, "tensors": entries, "aliases": new.aliases}
                _files.write_json(part_path, part)
        return entries

    def _combine(
        self, version: int, base: int | None, new: _Version, entries: list[Entry]
    ) -> Manifest:
        """Returns the manifest of all ranks."""
        transport, folder, aliases = self._transport, self._folder, new.aliases
        if self._rank and transport is not None and folder is not None:
            suffix = self._suffix.removesuffix(self._rank)
            ranks = range(transport.ranks)
            paths = [path_of(folder, version, f"{suffix}.r{rank}.part") for rank in ranks]
            parts = [_files.read_json(path) for path in paths]
            aliases = _merged_aliases(parts)
            merged: dict[str, Entry] = {}
            for one in (one for part in parts for one in part["tensors"]):
                first = merged.setdefault(f"{one['name']} {one['slice']}", one)
                if first["checksum"] != one["checksum"]:
                    raise InvalidArgumentError(
                        f'tensor "{one["name"]}" has different values on two ranks'
                    )
            entries = list(merged.values())
        if not entries:
            raise InvalidArgumentError("publish: there are no tensors")
        return {
            **_HEADER, "model": _files.model_of(entries), "version": version, "base_version": base,
            "metadata": self._metadata, "aliases": aliases, "tensors": entries,
        }  # fmt: skip

    def _delete_old_versions(self) -> None:
        """Deletes versions before the last ``keep`` versions and before the last full copy."""
        folder = self._folder
        if folder is None or (self._transport is not None and self._transport.rank != 0):
            return
        versions = versions_in(folder)
        first = min([self._full_version, *versions[-self._keep :]])
        paths: list[pathlib.Path] = []
        with contextlib.suppress(OSError):
            # Manifests first, so receivers do not begin. Also files of killed publishers.
            paths = sorted(folder.iterdir(), key=lambda path: path.suffix != ".json")
        names = [(path, _OWN_FILE.fullmatch(path.name)) for path in paths]
        _delete(path for path, name in names if name and int(name[1] or -1) < first)


def _delete(paths: Iterable[pathlib.Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # the next version deletes the rest
            path.unlink()


def _merged_aliases(parts: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the aliases of all ranks. Tensors must share memory on all ranks that have them."""
    aliases: dict[str, str] = {}
    names = {one["name"] for part in parts for one in part["tensors"]}
    for name, first in ((name, one) for part in parts for name, one in part["aliases"].items()):
        if name in names or aliases.setdefault(name, first) != first:
            raise InvalidArgumentError(
                f'tensors "{name}" and "{first}" share memory on some ranks only'
            )
    return aliases


@dataclass
class _Version:
    """A rank's part of a version."""

    number: int
    model: str
    entries: list[Entry]
    weights: dict[str, Any]
    aliases: dict[str, str]
    deltas: list[Delta]
    linked: bool = False  # True if there are deltas to the last version
