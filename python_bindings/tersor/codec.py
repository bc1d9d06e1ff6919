"""Codecs: arrays of gradients to payloads, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from tersor import _core
from tersor._options import expect, fill, warn_of_lanes
from tersor.arrays import Array, Stream, dtype_text, empty_bytes, empty_values, refuse_masked

__all__ = ["Codec", "CodecInfo", "CodecOption", "SentCodes", "codecs"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class CodecOption:
    """A key in the spec of a codec.

    Attributes:
        key: The key, such as ``"rounding"``.
        values: The accepted values, as text: ``"nearest|stochastic"``, ``"(0, 1]"``.
        default: The default value, as text.

    Example:
        >>> int8 = next(info for info in tersor.codecs() if info.name == "int8")
        >>> next(option.values for option in int8.options if option.key == "rounding")
        'nearest|stochastic'
    """

    key: str
    values: str
    default: str


@dataclass(frozen=True)
class CodecInfo:
    """The registry's entry of a codec.

    Attributes:
        name: The first word of a spec.
        id: The number of the codec in frame headers; never reused.
        summary: A description in one line.
        options: The keys of the spec.

    Example:
        >>> next(info.id for info in tersor.codecs() if info.name == "none")
        1
    """

    name: str
    id: int
    summary: str
    options: tuple[CodecOption, ...]


def codecs() -> list[CodecInfo]:
    """Returns all codecs of this build, in the registry's order.

    Example:
        >>> [info.name for info in tersor.codecs()][:3]
        ['none', 'bf16', 'f16']
    """
    return [
        CodecInfo(info.name, info.id, info.summary, tuple(map(_option, info.options)))
        for info in _core.codecs()
    ]


@dataclass(frozen=True)
class SentCodes:
    """The codes and scales of an array in a payload, as sent: views of the payload's bytes.

    All are uint8 arrays of the payload's library, in the order of the values, so in the
    unswizzled layout of torchao's ``MXTensor`` and ``NVFP4Tensor``. For ``torch._scaled_mm``, view
    the arrays as the dtypes below, and swizzle the scales, e.g. with torchao's ``to_blocked``. If
    the last axis of the array is not a multiple of the block, codes or scales are flat.

    Attributes:
        codes: ``mxfp8``: ``torch.float8_e4m3fn`` (``elements=e5m2``: ``torch.float8_e5m2``) in the
            shape of the array. ``nvfp4``: ``torch.float4_e2m1fn_x2``, two values per byte; the last
            axis is halved.
        scales: ``mxfp8``: ``torch.float8_e8m0fnu``; the last axis is divided by 32. ``nvfp4``:
            ``torch.float8_e4m3fn``; the last axis is divided by 16.
        largest: ``nvfp4``: the 4 bytes of an f32; torchao's per-tensor scale is ``largest`` / 2688.
            ``mxfp8``: None.

    Example:
        >>> codec = tersor.Codec("mxfp8")
        >>> sent = codec.sent_codes(codec.encode(gradient), gradient)[0]
        >>> sent.codes.shape == gradient.shape
        True
    """

    codes: Array
    scales: Array
    largest: Array | None = None


def text_hash(text: str) -> int:
    """Returns a 64-bit hash for a signature or a seed."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _option(option: _core.CodecOption) -> CodecOption:
    return CodecOption(option.key, option.values, option.default or "none")


class Codec:
    """Encodes gradients to payloads and decodes payloads.

    A codec has options and no state. Several threads can use one codec at once, and calls release
    the GIL. ``docs/reference/wire-format.md`` describes the bytes.

    Arrays come from any library with DLPack or the buffer protocol, on the host or on a CUDA
    device, without copies. All arrays of a call are on one device. Calls on a device are queued on
    ``stream`` (None: the current stream of the array's library) and return at once. Until the
    stream has passed a call, do not change the arguments, and use results on this stream only.

    Args:
        spec: ``name[:key=value[,key=value]…][+ef]``, such as ``"int8"`` or
            ``"topk:density=0.01+ef"``; :func:`codecs` lists names and keys.
        threads: Number of threads of a call on host memory, including the caller; 0: one per core.

    Raises:
        InvalidArgumentError: An unknown name, key or value. The message lists the known ones.

    Example:
        >>> codec = tersor.Codec("int8")
        >>> decoded = codec.decode(codec.encode(gradient))
    """

    def __init__(self, spec: str, *, threads: int = 1) -> None:
        expect(spec, str, 'spec must be a string, such as "int8"')
        warn_of_lanes(spec)
        self._core = _core.Codec(spec, threads)

    def __repr__(self) -> str:
        return f"tersor.Codec({self.spec!r})"

    @property
    def spec(self) -> str:
        """The spec with its options in canonical form. Equal specs are equal codecs."""
        return self._core.spec

    @property
    def has_feedback(self) -> bool:
        """True if the spec ends in "+ef". Every ``encode`` then takes a residual."""
        return self._core.has_feedback

    @property
    def lossless(self) -> bool:
        """True if ``decode`` returns the encoded values. The bits of a NaN may differ."""
        return self._core.lossless

    def require(self, use: Literal["payload", "native", "two-shot", "one-shot"]) -> None:
        """Checks that the codec supports a use with values that have no shape.

        Error feedback in the spec is ignored.

        Args:
            use: ``"payload"`` for ``encode`` and ``decode``, or an all-reduce algorithm.

        Raises:
            InvalidArgumentError: The codec does not support the use, with the reason.

        Example:
            >>> tersor.Codec("int8").require("two-shot")
        """
        value = numpy.zeros(1, numpy.float32)
        spec = self.spec.removesuffix("+ef")
        if use == "payload":
            Codec(spec).encode(value)
            return
        options = fill(_core.CallOptions(), {"codec": spec, "algorithm": use})
        _core.allreduce(_core.InProcessWorld(1).transport(0), value, options)

    def supports(self, use: Literal["payload", "native", "two-shot", "one-shot"]) -> bool:
        """Returns True if :meth:`require` accepts the use.

        Args:
            use: As in :meth:`require`.

        Example:
            >>> tersor.Codec("topk").supports("two-shot")
            False
        """
        try:
            self.require(use)
        except _core.InvalidArgumentError:
            return False
        return True

    def max_payload_bytes(
        self, gradient: int | tuple[int, ...] | Array | list[Array], dtype: Any = "float32"
    ) -> int:
        """Returns the maximum size of a gradient's payload, which may exceed the gradient's size.

        Args:
            gradient: Number of values, shape, or array; or a list of the arrays of one payload.
            dtype: Name or any library's dtype, for a number of values or a shape. Arrays have their
                own dtype.

        Returns:
            Bytes, including the header.

        Raises:
            InvalidArgumentError: The codec cannot encode such a gradient.

        Example:
            >>> tersor.Codec("int8").max_payload_bytes(1000)
            1088
        """
        if isinstance(gradient, int | numpy.integer):
            gradient = (int(gradient),)
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

        With "+ef", the payload contains ``factor * array + residual``, and ``residual`` becomes the
        encoding error (error feedback; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD").
        Keep the residual between steps. The first residual is zero.

        Args:
            array: Contiguous f32, bf16 or f16 values of any shape; or a list of arrays of one
                dtype.
            out: Receives the payload: flat uint8, at least ``max_payload_bytes(array)`` bytes,
                16-byte aligned. None: a new array of ``array``'s library (for JAX: NumPy's).
            residual: Updated in place: f32 or bf16, as many values as ``array``, one per array of a
                list. Required with "+ef", refused without.
            parameter: Index of the gradient's parameter (the first one of a list), for random
                numbers.
            first_index: Offset of the gradient in its parameter, in values; one per array of a
                list.
            seed: Seed of stochastic rounding.
            step: Training step, for random numbers.
            factor: Weight of the array, with "+ef" and on the host. Without "+ef", pass ``factor``
                to ``decode``.
            checksum: True to add a checksum.
            signature: A number below 2**64 that ``decode`` then requires.
            stream: See :class:`Codec`.

        Returns:
            The payload with its header: the first bytes of ``out``, on ``array``'s device. On a
            device, the result has the maximum size, because the call does not wait for the true
            size.

        Raises:
            InvalidArgumentError: An array, count or option is invalid. Nothing changed.
            CudaError: CUDA reported an error, or this build has no CUDA.

        Example:
            >>> payload = tersor.Codec("int8").encode(gradient)
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
        """Decodes a payload, or the sum of several payloads, times ``factor``.

        A sum is computed in f32 in the order of the payloads, and rounded once to ``out``'s dtype.
        Damaged payloads never cause writes outside of ``out``.

        Args:
            payload: The result of ``encode``, or its bytes; or a list of payloads.
            out: An array with the gradient's dtype and number of values; a list for a payload of
                several arrays. None: a new flat array of ``payload``'s library, on the host, for
                one gradient.
            add: True to add to ``out`` instead of overwriting.
            factor: Factor of all decoded values.
            parameter: As in ``encode``.
            first_index: As in ``encode``.
            checksum: As in ``encode``.
            signature: As in ``encode``.
            stream: See :class:`Codec`.

        Returns:
            ``out``.

        Raises:
            WireError: A payload is damaged, truncated, or does not match the call. With ``add``,
                ``out`` is unchanged. Without ``add``, ``out`` is unchanged or, after damaged bytes,
                NaN. A call without ``out`` checks header and checksum before the allocation. On a
                device, only the payload's length is checked at once; ``out`` becomes NaN for all
                other damage, also with ``add``.
            InvalidArgumentError: As in ``encode``.

        Example:
            >>> mean = codec.decode(payloads, factor=1 / len(payloads))
        """
        payloads = _as_list(payload)
        if not payloads:
            raise _core.InvalidArgumentError("payload is an empty list; pass at least one array")
        decoding = _core.DecodeOptions(add, factor)
        options = _options(first_index, parameter, checksum, signature)
        if out is not None:
            self._core.decode(payloads, _as_list(out), decoding, options, stream)
            return out
        out = self._new_output(payloads, add, options)
        try:
            self._core.decode(payloads, [out], decoding, options, stream)
        except _core.OutOfMemoryError as error:  # possible without a checksum
            raise _core.WireError(f"payload: cannot decode {len(out)} values: {error}") from error
        return out

    def sent_codes(
        self,
        payload: Array,
        gradient: tuple[int, ...] | Array | list[Array],
        dtype: Any = "float32",
        *,
        first_index: int | Sequence[int] = 0,
        checksum: bool = True,
        signature: int = 0,
    ) -> list[SentCodes]:
        """Returns the codes and scales of a payload, for programs that compute with codes.

        Only ``mxfp8`` and ``nvfp4`` have such codes. A payload in host memory is checked as in
        ``decode``. A payload on a device is not read, so only its length is checked.

        Args:
            payload: The result of ``encode``, or its bytes.
            gradient: The shape of the encoded array, the array, or the list of arrays.
            dtype: Dtype of the encoded values, for a shape. Arrays have their own dtype.
            first_index: As in ``encode``.
            checksum: As in ``encode``.
            signature: As in ``encode``.

        Returns:
            A :class:`SentCodes` per array. The arrays share the payload's memory.

        Raises:
            WireError: The payload is damaged, truncated, or does not match the call.
            InvalidArgumentError: The codec has no such codes.

        Example:
            >>> codec = tersor.Codec("mxfp8")
            >>> sent = codec.sent_codes(codec.encode(gradient), gradient)[0]
        """
        if isinstance(gradient, tuple):
            shapes = [gradient]
        else:
            arrays: list[Any] = _as_list(gradient)
            shapes = [tuple(array.shape) for array in arrays]
            dtype = arrays[0].dtype if arrays else dtype
        options = _options(first_index, 0, checksum, signature)
        lists = [list(shape) for shape in shapes]
        sections = self._core.code_sections(lists, dtype_text(dtype), payload, options)
        data: Any = payload
        if not hasattr(data, "reshape"):
            data = numpy.frombuffer(data, numpy.uint8)
        needed = max((first + size for _, _, first, size, _ in sections), default=0)
        if len(data) < needed:
            raise _core.WireError(f"payload: {len(data)} bytes; the codes end at byte {needed}")
        return [
            _codes_of(data, shape, section) for shape, section in zip(shapes, sections, strict=True)
        ]

    def _new_output(self, payloads: list[Array], add: bool, options: _core.FrameOptions) -> Array:
        if add:
            raise _core.InvalidArgumentError("add=True needs out=: pass the array to add to")
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


def _codes_of(data: Any, shape: tuple[int, ...], section: Sequence[int]) -> SentCodes:
    scale, scales, code, codes, largest = section
    block, values = (16, 2) if largest else (32, 1)  # per scale, per byte
    return SentCodes(
        _shaped(data[code : code + codes], shape, values),
        _shaped(data[scale : scale + scales], shape, block),
        data[largest : largest + 4] if largest else None,
    )


def _shaped(data: Any, shape: tuple[int, ...], values: int) -> Any:
    whole = bool(shape) and shape[-1] % values == 0
    return data.reshape((*shape[:-1], shape[-1] // values)) if whole else data


def _as_list(arrays: Array | list[Array]) -> list[Array]:
    listed = arrays if isinstance(arrays, list) else [arrays]
    refuse_masked(listed)
    return listed


def _options(
    first_index: int | Sequence[int],
    parameter: int,
    checksum: bool,
    signature: int,
    seed: int = 0,
    step: int = 0,
    factor: float = 1.0,
) -> _core.FrameOptions:
    indices = [first_index] if isinstance(first_index, int | numpy.integer) else list(first_index)
    numbers = [("parameter", parameter, 32), ("step", step, 32), ("seed", seed, 64)]
    numbers += [("signature", signature, 64), *(("first_index", one, 64) for one in indices)]
    for name, value, bits in numbers:
        if not 0 <= value < 1 << bits:
            raise _core.InvalidArgumentError(
                f"{name}={value}: give an integer from 0 to 2**{bits} - 1"
            )
    indices = [] if first_index == 0 else indices  # of all arrays
    return _core.FrameOptions(indices, parameter, checksum, signature, seed, step, factor)
