"""Follows the versions in a folder."""

from __future__ import annotations

import functools
import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tersor._core import BaseMismatchError, InvalidArgumentError, Transport, WireError
from tersor.collectives import gather_texts
from tersor.delta import _files, _memory
from tersor.delta._files import Entry, Manifest, Slices, path_of, versions_in
from tersor.delta._memory import Weights
from tersor.delta._transaction import Part, write
from tersor.delta._vote import on_all_ranks


class Receiver:
    """Brings weights to a version in the folder of a :class:`Publisher`.

    Args:
        folder: The folder.
        version: The version of the weights, or None if unknown. A wrong number is an error of the
            first update, not a wrong result.
        slices: As in :class:`Publisher`. A tensor must have a slice of the publisher.
        threads: Number of threads; 0: one per core.
        transport: Ranks that change their weights together, each its own tensors.
        timeout: Seconds for each vote of the ranks.

    Attributes:
        version: The version of the weights, or None if unknown.

    Example:
        >>> tersor.delta.Receiver("versions", version=1).version
        1
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        version: int | None = None,
        slices: Slices | None = None,
        threads: int = 1,
        transport: Transport | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.version = version
        self._next: Manifest = {}  # the manifest of the running update
        self._last: Any = None  # the manifest, and the fingerprints of the weights
        self._folder, self._slices, self._threads = pathlib.Path(folder), slices, threads
        self._transport, self._timeout = transport, timeout

    def update(
        self,
        weights: Weights,
        version: int | None = None,
        *,
        progress: Callable[[list[Any]], Iterable[Any]] = iter,
    ) -> int:
        """Brings the weights to a version, in place, on all ranks or on no rank.

        Takes the deltas since the weights' version or a full copy, whichever has fewer bytes. Every
        byte is checked before anything is written. If the call fails, the weights have their old
        version.

        Weights that already have the version are read and checked, unless this receiver did so
        before. PyTorch counts changes of tensors, so changed tensors are read again. Changes of a
        NumPy array in place are not noticed, nor changes of a tensor through ``.data``, NumPy or
        other libraries. After such a change, call ``update`` of a new ``Receiver(folder,
        version=version)``.

        Args:
            weights: Names and tensors, as in :func:`apply`. Weights that are shared ("tied") in the
                folder must be shared here.
            version: The version. Default: the newest version that all ranks see.
            progress: Called with a list of the tensors' parts, returns an iterable of the parts;
                for example ``tqdm.tqdm``. Called once for the checks and once for the writes.

        Returns:
            The version of the weights.

        Raises:
            InvalidArgumentError: The version is missing, belongs to another model, or has neither a
                full copy nor deltas since the weights' version. The message names the tensor.
            BaseMismatchError: The weights do not have their version. The next update takes a full
                copy.
            WireError: A file is damaged.
            OSError: A file cannot be read.
            TransportError: A rank is late or lost.

        Example:
            >>> weights = {"bias": numpy.zeros(3, numpy.float32)}
            >>> publisher = tersor.delta.Publisher("versions", transport=transport)
            >>> manifest = publisher.publish(1, weights)
            >>> tersor.delta.Receiver("versions", transport=transport).update(weights)
            1
        """
        found = max(versions_in(self._folder), default=-1)
        texts = gather_texts(self._transport, str(found), self._timeout)
        target = min(map(int, texts)) if version is None else version
        label = f"version {target}"
        path, text = on_all_ranks(
            self._transport, lambda: (self._path(target), self._hash(target)), label, self._timeout
        )
        label += text
        last, self._last = self._last, None  # after an error, the next call reads the weights
        try:
            with _files.FullCopies(self._folder) as copies:
                write(
                    lambda: self._parts(weights, target, path, copies, last), False,
                    self._transport, self._timeout, label, progress,
                )  # fmt: skip
        except BaseMismatchError:
            self.version = None
            raise
        self.version, self._last = target, (self._next, _fingerprints(weights))
        return target

    def _hash(self, target: int) -> str:
        """Returns a text that is equal on ranks with equal manifests."""
        if self._transport is None:
            return ""
        manifest = _files.read_manifest(self._folder, target)
        return f" with hash {_files.digest(manifest)[:16]}"

    def _path(self, target: int) -> _Path:
        """Returns the versions to apply."""
        if target < 0:
            raise InvalidArgumentError(f"{self._folder}: there is no version yet")
        current, at = self.version, target
        links: list[Manifest] = []
        options: list[tuple[int, _Path]] = []
        while at != current:
            if not path_of(self._folder, at, ".json").exists():
                break
            links.insert(0, _files.read_manifest(self._folder, at))
            full = {self._folder / one["full"] for one in links[0]["tensors"] if one["full"]}
            if full:
                size = sum(one.stat().st_size for one in full) + _bytes_of(links[1:])
                options.append((size, (True, [*links])))
            base = links[0]["base_version"]
            if base is None or (full and (current is None or at < current)):
                break
            at = base
        if at == current and (links or path_of(self._folder, at, ".json").exists()):
            options.append((_bytes_of(links), (False, links)))
        if not options:
            raise InvalidArgumentError(
                f"{self._folder}: no path leads to version {target}: version {at} is missing, or "
                f"is neither a full copy nor a delta to the weights' version {current}"
            )
        return min(options, key=lambda option: option[0])[1]

    def _parts(
        self, weights: Weights, target: int, path: _Path, copies: _files.FullCopies, last: Any
    ) -> list[Part]:
        full, manifests = path
        tensors, aliases = _files.separate(weights)
        is_newest = not manifests
        if is_newest:
            manifests = [_files.read_manifest(self._folder, target)]
        self._next = manifests[-1]
        # This receiver wrote or checked these tensors.
        if is_newest and last and last[0] == self._next and _unchanged(weights, last[1]):
            return []
        if len({manifest["model"] for manifest in manifests}) != 1:
            raise WireError(f"{self._folder}: a delta is from another model than its base")
        stored = _stored_names(manifests[-1], weights, aliases)
        entries = _files.tensor_entries(
            {stored[name]: one for name, one in tensors.items()}, self._slices or {}
        )
        parts = [Part({stored[name]: one}, self._threads) for name, one in tensors.items()]
        for number, manifest in enumerate(manifests):
            known = {_key(one): one for one in manifest["tensors"]}
            for part, own in zip(parts, entries, strict=True):
                if _key(own) not in known:
                    raise InvalidArgumentError(_difference(manifest, own))
                entry = known.pop(_key(own))
                if is_newest:
                    self._check(part, entry)
                elif full and number == 0:
                    part.read = functools.partial(copies.read, entry, self._threads)
                else:
                    part.deltas.append(_files.read_delta(self._folder, manifest, entry))
            if known and self._slices is None and self._transport is None:
                raise InvalidArgumentError(
                    f'these weights have no tensor "{next(iter(known.values()))["name"]}" of '
                    f"version {manifest['version']}"
                )
        return [] if is_newest else parts

    def _check(self, part: Part, entry: Entry) -> None:
        """Raises BaseMismatchError if a tensor does not have the checksum of the manifest."""
        values = [_memory.bytes_of(name, one) for name, one in part.tensors.items()]
        if _files.checksums(part.described, values, self._threads) != [int(entry["checksum"], 16)]:
            raise BaseMismatchError(f'tensor "{entry["name"]}" is not of version {self.version}')


_Fingerprints = dict[str, tuple[list[Any], tuple[Any, ...]]]


def _fingerprint(tensor: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns objects and facts that stay the same until the tensor is replaced or changed."""
    facts = (*_memory.address_of(tensor), tensor.dtype, tuple(tensor.shape))
    if not hasattr(tensor, "data_ptr"):
        return [tensor], facts
    # Views share the storage and the storage's count of changes. Inference tensors have no count.
    # A tensor from .data has a separate count from 0 on, so a count of 0 requires the same tensor.
    changes = object() if tensor.is_inference() else tensor._version
    return [tensor.untyped_storage(), *([] if changes else [tensor])], (*facts, changes)


def _fingerprints(weights: Weights) -> _Fingerprints:
    """Returns the fingerprints. A fingerprint does not prolong the tensor's life."""
    found = {name: _fingerprint(one) for name, one in weights.items()}
    return {name: ([*map(weakref.ref, known)], facts) for name, (known, facts) in found.items()}


def _unchanged(weights: Weights, previous: _Fingerprints) -> bool:
    """True if no tensor was replaced or changed since ``_fingerprints``, as far as objects tell."""
    return weights.keys() == previous.keys() and all(
        facts == previous[name][1]
        and len(known) == len(previous[name][0])
        and all(ref() is one for ref, one in zip(previous[name][0], known, strict=True))
        for name, (known, facts) in ((name, _fingerprint(one)) for name, one in weights.items())
    )


_Path = tuple[bool, list[Manifest]]  # True if the first manifest's full copy is used


def _bytes_of(links: list[Manifest]) -> int:
    return sum(one["bytes"] for link in links for one in link["tensors"])


def _key(entry: Entry) -> str:
    return _files.digest([entry[key] for key in _files.KEYS])


def _difference(manifest: Manifest, own: Entry) -> str:
    texts = [
        f"{one['type']}, shape {one['shape']}, slice {one['slice']}"
        for one in [own, *manifest["tensors"]]
        if one["name"] == own["name"]
    ]
    published = " and ".join(texts[1:]) or "missing"
    return f'tensor "{own["name"]}" is {texts[0]}; in version {manifest["version"]}: {published}'


def _stored_names(
    manifest: Manifest, weights: Weights, aliases: Mapping[str, str]
) -> dict[str, str]:
    """Returns the manifest's name of each tensor. Tensors share memory here as in the manifest."""
    stored: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in weights:
        first, there = aliases.get(name, name), manifest["aliases"].get(name, name)
        if stored.setdefault(first, there) != there or owners.setdefault(there, first) != first:
            other = stored[first] if stored[first] != there else owners[there]
            raise InvalidArgumentError(
                f'tensors "{name}" and "{other}" share memory either only here or only in version '
                f"{manifest['version']}"
            )
    return stored
