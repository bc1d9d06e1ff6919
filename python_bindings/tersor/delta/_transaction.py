"""All or nothing: applies deltas to all tensors on all ranks, or restores the base."""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tersor import _core
from tersor._core import Error, InvalidArgumentError, Transport
from tersor.delta import _memory
from tersor.delta._memory import Delta, Described, Weights
from tersor.delta._vote import on_all_ranks


def apply(
    weights: Weights,
    delta: Delta | Sequence[Delta],
    *,
    trust_base: bool = False,
    threads: int = 1,
    transport: Transport | None = None,
    timeout: float = 300.0,
    version: object = None,
) -> None:
    """Turns the base into the new version, in place, on all ranks or on no rank.

    First performs :func:`check` for all tensors. If a check fails, nothing is written. An error or
    an interrupt during the writes restores the base. No other thread may use the weights during the
    call.

    With ``transport``, all ranks call ``apply``, each with its own tensors and deltas. Ranks vote
    before and after the writes. If a rank fails in a check, no rank writes. If a rank fails during
    the writes, all ranks restore the base. If a rank dies during the second vote, compare the
    versions of the other ranks before the next call.

    Args:
        weights: Names and tensors of the base: contiguous, writable and separate. Pass shared
            ("tied") weights once. A single delta changes tensors of one CUDA device there. Other
            tensors on devices are copied to the host and back.
        delta: The delta; or several deltas, each of other tensors or of the next version. The call
            keeps the changes: for bfloat16, 4 bytes per change, at most a copy of all tensors. If
            deltas follow one another, the check also makes a copy of one delta's tensors.
        trust_base: By default, a read of all values checks that the weights are the delta's base.
            True leaves out this read. Pass True if this process wrote the weights last.
        threads: Number of threads; 0: one per core.
        transport: The ranks. Default: this process alone.
        timeout: Seconds for each vote.
        version: With ``transport``: the version after the call. If ranks have different versions,
            all ranks raise InvalidArgumentError.

    Raises:
        WireError: As :func:`check`.
        InvalidArgumentError: As :func:`check`, or a tensor is not writable, not contiguous or
            overlaps another tensor.
        BaseMismatchError: As :func:`check`. With ``transport``, an error of one rank is raised on
            all ranks, and begins with the number of that rank.
        TransportError: A rank is late or lost. The base is restored.

    Example:
        >>> old = {"bias": numpy.zeros(3, numpy.float32)}
        >>> new = {"bias": numpy.float32([0, 1, 0])}
        >>> tersor.delta.apply(old, tersor.delta.encode(old, new))
        >>> old["bias"].tolist()
        [0.0, 1.0, 0.0]
    """
    on_host = all(map(_memory.is_on_host, weights.values()))
    if isinstance(delta, Delta) and transport is None and on_host:  # one call, which cannot fail
        tensors, values = _memory.tensors_of(weights)
        _core.delta_apply(tensors, values, delta.data, trust_base, threads)
        return
    deltas = [delta] if isinstance(delta, Delta) else delta
    label = "" if version is None else f"version {version}"
    write(lambda: parts_of(weights, deltas, threads), trust_base, transport, timeout, label)


def write(
    make: Callable[[], list[Part]],
    trust_base: bool,
    transport: Transport | None,
    timeout: float,
    label: str,
    progress: Callable[[list[Part]], Iterable[Part]] = iter,
) -> None:
    """Checks the parts, votes, writes the parts, and votes again. See :func:`apply`."""

    def checked() -> list[Part]:
        parts = make()
        for part in progress(parts):
            part.check(trust_base)
        return parts

    parts = on_all_ranks(transport, checked, label, timeout)
    undo: list[Callable[[], None]] = []

    def written() -> None:
        for part in progress(parts):
            part.write(undo)

    try:
        on_all_ranks(transport, written, label, timeout)
    except BaseException:
        _restore(undo)
        raise


def _restore(undo: list[Callable[[], None]]) -> None:
    error: BaseException | None = None
    for restore in reversed(undo):
        try:
            restore()
        except BaseException as raised:
            error = raised
    if error is not None:
        raise Error(f"delta: the base could not be restored, load a full copy: {error}") from error


@dataclass
class Part:
    """Tensors that change together: to the values of a full copy, then by a delta per version."""

    tensors: dict[str, Any]
    threads: int
    deltas: list[Delta] = field(default_factory=list)
    _prepared: list[Any] = field(default_factory=list)
    #: Returns the bytes of the full copy, after a check.
    read: Callable[[], list[Any]] | None = None

    @property
    def described(self) -> list[Described]:
        return _memory.described(self.tensors)

    def values(self) -> list[Any]:
        bytes_of = _memory.device_bytes_of if self._on_device else _memory.bytes_of
        return [bytes_of(name, tensor) for name, tensor in self.tensors.items()]

    @property
    def _on_device(self) -> bool:
        """True if the tensors change on their device. Otherwise the host has copies."""
        one_delta = len(self.deltas) == 1 and self.read is None
        return one_delta and _memory.are_on_cuda(self.tensors.values())

    def check(self, trust_base: bool) -> None:
        """Proves that ``write`` will succeed."""
        values = self.values()
        for name, one in zip(self.tensors, values, strict=True):
            if not self._on_device and not one.flags.writeable:
                raise InvalidArgumentError(f'tensor "{name}" is not writable')
        if len(self.deltas) == 1 and self.read is None:
            self._prepared.append(self._prepare(self.deltas[0], values, trust_base))
            return
        values = [one.copy() for one in values]
        trust = trust_base and self.read is None
        self._read_full(values)
        for delta in self.deltas:
            self._prepare(delta, values, trust).write(values, self.threads)
            trust = False

    def _prepare(self, delta: Delta, values: list[Any], trust: bool) -> Any:
        return _core.PreparedDelta(self.described, values, delta.data, trust, self.threads)

    def _read_full(self, values: list[Any]) -> None:
        if self.read is not None:
            for one, new in zip(values, self.read(), strict=True):
                one[:] = new

    def write(self, undo: list[Callable[[], None]]) -> None:
        """Writes the new values. Adds functions to ``undo`` that restore the old values."""
        values = self.values()
        size = sum(len(delta.data) for delta in self.deltas)
        # A prepared delta takes about four times as many bytes as the delta.
        keeps_copy = not self._prepared and (
            self.read is not None or 4 * size > sum(len(one) for one in values)
        )
        if keeps_copy:
            old = [one.copy() for one in values]
            undo.append(lambda: self._store(old))
            self._read_full(values)
        for index, delta in enumerate(self.deltas):
            # Deltas of several versions were prepared with copies of the values.
            known = self._prepared
            prepared = known[index] if known else self._prepare(delta, values, True)
            if not keeps_copy:
                undo.append(functools.partial(self._undo, prepared))
            prepared.write(values, self.threads)
        self._store(values)

    def _undo(self, prepared: Any) -> None:
        values = self.values()  # of a device: the old or the new version, or a mixture
        prepared.undo(values)
        self._store(values)

    def _store(self, values: list[Any]) -> None:
        """Copies bytes to the tensors, except to memory that has the bytes already."""
        if self._on_device:
            return
        for (name, tensor), one in zip(self.tensors.items(), values, strict=True):
            if _memory.is_on_host(tensor):
                own = _memory.bytes_of(name, tensor)
                if own.ctypes.data != one.ctypes.data:
                    own[:] = one
            else:
                flat = sys.modules["torch"].from_numpy(one).view(tensor.dtype)
                tensor.detach().copy_(flat.reshape(tensor.shape))


def parts_of(weights: Weights, deltas: Sequence[Delta], threads: int) -> list[Part]:
    """Returns a part for each group of tensors that a delta has."""
    for name, tensor in weights.items():
        _memory.device_bytes_of(name, tensor)  # raises if this is no tensor, or not contiguous
    parts: dict[tuple[str, ...], Part] = {}
    owners: dict[str, Part] = {}
    for delta in deltas:
        names = tuple(entry.name for entry in delta.entries())
        part = parts.get(names)
        for name in names:
            if name not in weights:
                raise InvalidArgumentError(f'delta: these weights have no tensor "{name}"')
            if owners.get(name) is not part:
                raise InvalidArgumentError(
                    f'delta: tensor "{name}" is in two deltas with different other tensors'
                )
        if part is None:
            part = parts[names] = Part({name: weights[name] for name in names}, threads)
            owners.update(dict.fromkeys(names, part))
        part.deltas.append(delta)
    for name in weights:
        if name not in owners:
            raise InvalidArgumentError(f'delta: the delta has no tensor "{name}"')
    refuse_overlaps(weights)
    return list(parts.values())


def refuse_overlaps(weights: Weights) -> None:
    """Raises InvalidArgumentError if two tensors share memory."""
    end, last = 0, ""
    for begin, size, name in sorted(
        (*_memory.address_of(tensor), name) for name, tensor in weights.items()
    ):
        if size and begin < end:
            raise InvalidArgumentError(
                f'delta: tensors "{last}" and "{name}" overlap: pass shared weights once'
            )
        end, last = max(end, begin + size), name


def heads_of(data: bytes) -> list[tuple[int, int]]:
    """Returns the checksums of each tensor in a delta: of the base and of the result."""
    at, heads = 64 + int(struct.unpack_from("<Q", data, 16)[0]), []
    for entry in _core.delta_entries(data):
        base, result = struct.unpack_from("<QQ", data, at + 16)
        heads.append((base, result))
        at += entry.bytes
    return heads
