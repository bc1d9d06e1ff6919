"""Codecs: arrays of gradients to payloads, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tersor import _core
from tersor._options import expect
from tersor.arrays import Array, Stream, dtype_text, empty_bytes, empty_values


@dataclass(frozen=True)
class CodecOption:
    """A key that a codec's spec may have."""

    key: str
    values: str  #: what may stand behind it: "nearest|stochastic", "(0, 1]"
    default: str


@dataclass(frozen=True)
class CodecInfo:
    """What the registry knows of a codec."""

    name: str  #: as a spec begins
    id: int  #: on the wire, never reused
    summary: str  #: one line
    options: tuple[CodecOption, ...]


def codecs() -> list[CodecInfo]:
    """All codecs of this build, in the registry's order."""
    return [
        CodecInfo(info.name, info.id, info.summary, tuple(map(_option, info.options)))
        for info in _core.codecs()
    ]


def text_hash(text: str) -> int:
    """64 bits for a signature, or for a seed."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _option(option: _core.CodecOption) -> CodecOption:
    return CodecOption(option.key, option.values, option.default or "none")


class Codec:
    """Turns gradients into payloads and back; see ``docs/reference/wire-format.md`` for the bytes.

    A codec has options and no state; several threads may use it at once. Calls release the GIL.
    Arrays are of any library with DLPack or the buffer protocol, and worked on where they lie, on
    the host or on a CUDA device; those of one call lie together. Calls on a device are queued on
    ``stream`` (None: the current stream of the array's library) and return at once; arrays stay as
    they are, and results are used on that stream or behind it, until it has come past them.

    Args:
        spec: ``name[:key=value[,key=value]…][+ef]``, as in ``"int8"`` or
            ``"topk:density=0.01+ef"``; :func:`codecs` lists names and keys.
        threads: that a call on host memory uses, the calling one included; 0: all cores.

    Raises:
        InvalidArgumentError: for an unknown name, key or value; lists the right ones.
    """

    def __init__(self, spec: str, *, threads: int = 1) -> None:
        expect(spec, str, 'spec must be a string, such as "int8"')
        self._core = _core.Codec(spec, threads)

    def __repr__(self) -> str:
        return f"tersor.Codec({self.spec!r})"

    @property
    def spec(self) -> str:
        """The spec with its options in canonical form: equal specs are equal codecs."""
        return self._core.spec

    @property
    def has_feedback(self) -> bool:
        """Whether the spec ends in "+ef", so that every ``encode`` takes a residual."""
        return self._core.has_feedback

    @property
    def lossless(self) -> bool:
        """Whether ``decode`` gives back what was encoded, but for the bits of a NaN."""
        return self._core.lossless

    def max_payload_bytes(
        self, gradient: int | tuple[int, ...] | Array | list[Array], dtype: Any = "float32"
    ) -> int:
        """The bytes that the payload of such a gradient takes; may exceed the gradient's own.

        Args:
            gradient: its number of values, its shape, or the array itself; or a list of the arrays
                that ``encode`` will put into one payload.
            dtype: of a number of values or a shape, as a name or as any library's dtype. Arrays
                bring their own.
        """
        if isinstance(gradient, int):
            gradient = (gradient,)
        if isinstance(gradient, tuple):
            return self._core.capacity_of_shapes([list(gradient)], dtype_text(dtype))
        return self._core.capacity_of_arrays(_as_list(gradient))

    def encode(
        self,
        array: Array | list[Array],
        out: Array | None = None,
        *,
        residual: Array | list[Array] | None = None,
        parameter: int = 0,
        first_index: int | Sequence[int] = 0,
        seed: int = 0,
        step: int = 0,
        factor: float = 1.0,
        checksum: bool = True,
        signature: int = 0,
        stream: Stream = None,
    ) -> Array:
        """Encodes a gradient, or a list of gradients into one payload.

        With "+ef" what is encoded is ``factor * array + residual``, and ``residual`` becomes what
        the payload leaves out (error feedback; Karimireddy et al. 2019): keep it, zeros at first,
        from step to step.

        Args:
            array: f32, bf16 or f16, contiguous, of any shape; or a list of such of one dtype.
            out: where to write: uint8, flat, at least ``max_payload_bytes(array)`` long and 16-byte
                aligned. None: a new array of ``array``'s library (NumPy's for JAX).
            residual: updated in place; f32 or bf16, as many values as ``array``; one for each
                array of a list. Needed with "+ef", refused without.
            parameter, seed, step: what random numbers depend on: the index of the gradient's
                parameter (of the first one of a list), of stochastic rounding, of training.
            first_index: where the gradient begins in its parameter, in values; one for each array
                of a list.
            factor: a weight of the array, with "+ef", on the host; without, ``decode`` has one.
            checksum: whether the payload carries one.
            signature: a number below 2**64 that ``decode`` then demands.

        Returns:
            The payload (header included) as a flat uint8 array on ``array``'s device: ``out``'s
            beginning. On a device nobody waits for the true length, and the array is as long as the
            payload may be.

        Raises:
            InvalidArgumentError: for arrays, counts or options that do not do; nothing was changed.
            CudaError: from CUDA, or for device memory in a build without CUDA.
        """
        arrays = _as_list(array)
        if out is None:
            out = empty_bytes(self._core.capacity_of_arrays(arrays), arrays[0] if arrays else None)
        options = _options(first_index, parameter, checksum, signature, seed, step, factor)
        residuals = [] if residual is None else _as_list(residual)
        written = self._core.encode(arrays, out, residuals, options, stream)
        return out[:written]

    def decode(
        self,
        payload: Array | list[Array],
        out: Array | list[Array] | None = None,
        *,
        add: bool = False,
        factor: float = 1.0,
        parameter: int = 0,
        first_index: int | Sequence[int] = 0,
        checksum: bool = True,
        signature: int = 0,
        stream: Stream = None,
    ) -> Array | list[Array]:
        """Decodes a payload, or the sum of several, times ``factor``.

        Sums are taken in f32 in the payloads' order and rounded once to ``out``'s dtype, so that a
        mean over ranks costs no extra pass. Whatever the bytes are, nothing outside ``out`` is
        written.

        Args:
            payload: as ``encode`` returned it, or its bytes; or a list of such.
            out: of the gradient's dtype and number of values; a list where a list was encoded.
                None: a new flat array of ``payload``'s library (on the host, for one gradient).
            add: add to what ``out`` holds instead of overwriting it.
            factor: on all decoded values.
            parameter, first_index, checksum, signature: as in ``encode``.

        Returns:
            ``out``.

        Raises:
            WireError: for a payload that is damaged, truncated, or not what the call says. With
                ``add`` nothing was written then. Without, it was not either where another plan's
                payload or a part of one is given; where bytes are damaged ``out`` is as it was, or
                NaN. Without ``out``, header and checksum are checked before anything is allocated.
                On a device only a payload's length is known at once; for all else nobody
                waits, and ``out`` is NaN, with ``add`` too.
            InvalidArgumentError: as in ``encode``.
        """
        payloads = _as_list(payload)
        decoding = _core.DecodeOptions(add, factor)
        options = _options(first_index, parameter, checksum, signature)
        if out is None:
            out = self._new_output(payloads, add, options)
        self._core.decode(payloads, _as_list(out), decoding, options, stream)
        return out

    def _new_output(self, payloads: list[Array], add: bool, options: _core.FrameOptions) -> Array:
        if add:
            raise _core.InvalidArgumentError("add=True needs out=: pass the array to add to")
        if not payloads:
            raise _core.InvalidArgumentError("payload is an empty list; pass at least one array")
        header = self._core.header(payloads[0], options)
        if header.segments != 1:
            raise _core.InvalidArgumentError(
                f"out: the payload has {header.segments} gradients; pass a list of as many arrays"
            )
        try:
            return empty_values(header.count, header.dtype, payloads[0])
        except (MemoryError, ValueError) as error:  # possible without a checksum
            raise _core.WireError(
                f"payload: cannot allocate memory for {header.count} values"
            ) from error


def _as_list(arrays: Array | list[Array]) -> list[Array]:
    return arrays if isinstance(arrays, list) else [arrays]


def _options(
    first_index: int | Sequence[int],
    parameter: int,
    checksum: bool,
    signature: int,
    seed: int = 0,
    step: int = 0,
    factor: float = 1.0,
) -> _core.FrameOptions:
    indices = [first_index] if isinstance(first_index, int) else list(first_index)
    numbers = [("parameter", parameter, 32), ("step", step, 32), ("seed", seed, 64)]
    numbers += [("signature", signature, 64), *(("first_index", one, 64) for one in indices)]
    for name, value, bits in numbers:
        if not 0 <= value < 1 << bits:
            raise _core.InvalidArgumentError(
                f"{name}={value}: give an integer from 0 to 2**{bits} - 1"
            )
    indices = [] if first_index == 0 else indices  # of all arrays
    return _core.FrameOptions(indices, parameter, checksum, signature, seed, step, factor)
