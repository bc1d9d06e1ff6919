"""Short names of kernels. For main kernels also the operation, the bytes of memory traffic per
value, and the values of a loop iteration."""

import dataclasses
import functools
import re
import typing

UNIT_VALUES = 16  # per thread; a warp takes 512 (kUnitValues)
TILE_VALUES = 32  # per thread; a warp takes 1,024 (kTileValues)
FRAMES = ("EncodeFrame", "DecodeFrames", "ReduceFrames")
REDUCED_FRAMES = 8
FEW = "48"  # shortest list length (kShortListSegments, kShortListFrames), used by a large tensor

# Bytes of a value, or of a code with the code's share of the scale.
BYTES = {
    "float": 4.0, "F16": 2.0, "Bf16": 2.0, "NoResidual": 0.0,
    "Int8Format": 1 + 4 / 256, "Int4Format": 1 / 2 + 4 / 128, "Hadamard": 4 / 8 + 2 / 256,
}  # fmt: skip
# The launch chooses the bits of hadamard. The path of four bits has the widest accesses.
WORDS = {
    "float": "f32", "F16": "f16", "Bf16": "bf16", "NoResidual": "no residual",
    "Int8Format": "int8", "Int4Format": "int4", "Hadamard": "hadamard:bits=4",
}  # fmt: skip
HADAMARD_VALUES = 32  # per thread and iteration
HADAMARD_TURNS = 4  # iterations per unit
# Loaded per thread and frame: codes or values, and two scales.
FRAME_LOADS = {
    "float": 4 * UNIT_VALUES, "F16": 2 * UNIT_VALUES, "Bf16": 2 * UNIT_VALUES,
    "Int8Format": UNIT_VALUES + 8, "Int4Format": UNIT_VALUES / 2 + 8,
    "Hadamard": HADAMARD_VALUES / 2,
}  # fmt: skip
NOISES = {"0": "", "1": " stochastic", "2": " stochastic, any start"}
ADDS = {"0": "", "1": " add"}  # DecodeMode
DECODED_FRAMES = {"0": FEW, "1": "1000"}  # shortest list of frames per mode


@dataclasses.dataclass(frozen=True)
class Work:
    """The operation of a main kernel, and the cost of a value."""

    title: str
    bytes_a_value: float
    frames: int = 0  # frames of an inner loop
    frame_load_bytes: float = 0  # per thread and frame: codes or values, and scales
    values: int = UNIT_VALUES  # per thread and iteration; 0: the values of the wide loads
    turns: int = 0  # iterations of an inner loop per unit
    input_bytes: float = 4  # bytes per value in wide loads, if `values` is 0


def shorten(demangled: str) -> str:
    """Shortens a demangled name, e.g. to `QuantizeDecodeKernel<Int8Format, float, 0, 48, 48>`."""
    inner = re.search(r"run_kernel<(.*)>\s*(?:\(|$)", demangled)
    name = inner[1] if inner else demangled.split("(")[0]
    name = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", name)
    name = re.sub(r"\(\w+\)(\d+)", r"\1", name)  # values of enumerations
    return re.sub(r"\b(\d+)u\b", r"\1", name).replace(" >", ">").strip()


def work_of(short_name: str) -> Work | None:
    """Returns None if the kernel is not a main kernel."""
    kernel, arguments = _parts(short_name)
    if kernel in FRAMES:  # EncodeFrame<QuantizeCoder<...>, 48>
        kernel, inner = _parts(arguments[0])
        arguments = inner + arguments[1:]
    maker = MAKERS.get(kernel)
    try:
        return maker(*arguments) if maker else None
    except (KeyError, TypeError, ValueError):  # a struct of the same name with other arguments
        return None


def _parts(name: str) -> tuple[str, list[str]]:
    """The name of a template and its arguments, which may be templates."""
    kernel, _, rest = name.partition("<")
    arguments, depth = [""], 0
    for letter in rest.removesuffix(">"):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += letter
    return kernel, [argument.strip() for argument in arguments]


def _feedback(residual: str) -> str:
    return "" if residual == "NoResidual" else f" + feedback {WORDS[residual]}"


def _encode(
    codec: str, value: str, residual: str, noise: str, most: str, **loop: int
) -> Work | None:
    if most != FEW or noise == "2":
        return None
    title = f"{WORDS[codec]} encode {WORDS[value]}{NOISES[noise]}{_feedback(residual)}"
    return Work(title, BYTES[value] + BYTES[codec] + 2 * BYTES[residual], **loop)


def _decode(codec: str, value: str, mode: str, most: str, listed: str, **loop: int) -> Work | None:
    if (most, listed) != (FEW, DECODED_FRAMES[mode]):
        return None
    title = f"{WORDS[codec]} decode{ADDS[mode]} {WORDS[value]}"
    moved = BYTES[codec] + BYTES[value] * (1 + int(mode))
    return Work(title, moved, frame_load_bytes=FRAME_LOADS[codec], **loop)


def _reduce(
    codec: str, residual: str, noise: str, most: str, listed: str, **loop: int
) -> Work | None:
    if (most, listed) != (FEW, FEW) or noise == "2":
        return None
    return Work(
        f"{WORDS[codec]} reduce of {REDUCED_FRAMES}{NOISES[noise]}{_feedback(residual)}",
        (REDUCED_FRAMES + 1) * BYTES[codec] + 2 * BYTES[residual],
        frames=REDUCED_FRAMES,
        frame_load_bytes=FRAME_LOADS[codec],
        **loop,
    )


def _hadamard_encode(value: str, residual: str, most: str) -> Work | None:
    turns = {"values": HADAMARD_VALUES, "turns": HADAMARD_TURNS}
    return _encode("Hadamard", value, residual, "0", most, **turns)


def _hadamard_decode(value: str, most: str, listed: str) -> Work | None:
    """One kernel has both modes. Addition has the wider accesses."""
    of_add = DECODED_FRAMES["1"] if listed == FEW else ""
    return _decode("Hadamard", value, "1", most, of_add, frames=1, values=HADAMARD_VALUES)


def _hadamard_reduce(residual: str, most: str, listed: str) -> Work | None:
    return _reduce("Hadamard", residual, "0", most, listed, values=HADAMARD_VALUES)


def _copy(value: str, most: str) -> Work | None:
    value_bytes = {"unsigned int": 4, "unsigned short": 2}[value]
    title = f"copy, values of {value_bytes} bytes"
    return Work(title, 2 * value_bytes) if most == FEW else None


def _checksum(most: str) -> Work | None:
    """A thread has 128 words of a piece of 16 KiB: eight iterations of eight loads."""
    return Work("checksum, a word of 4 bytes", 4, values=16, turns=8) if most == FEW else None


def _topk_scan(value: str, residual: str) -> Work:
    read = BYTES[value] + BYTES[residual]
    title = f"topk scan {WORDS[value]}{_feedback(residual)}"
    return Work(title, read + BYTES[residual], values=0, input_bytes=read)


MAKERS: dict[str, typing.Callable[..., Work | None]] = {
    "QuantizeCoder": functools.partial(_encode, values=TILE_VALUES),
    "QuantizeReader": functools.partial(_decode, values=TILE_VALUES),
    "QuantizeSumCoder": _reduce,
    "CastCoder": _encode,
    "CastReader": functools.partial(_decode, frames=1),
    "CastSumCoder": _reduce,
    "HadamardEncodeKernel": _hadamard_encode,
    "HadamardDecodeKernel": _hadamard_decode,
    "HadamardReduceKernel": _hadamard_reduce,
    "CopyCoder": _copy,
    "ChecksumKernel": _checksum,
    "TopkScanKernel": _topk_scan,
}

# The kernels of the table without --all.
SHOWN = (
    "int8 encode f32", "int8 encode bf16", "int8 encode f32 stochastic",
    "int8 encode f32 + feedback f32", "int8 encode f32 stochastic + feedback f32",
    "int4 encode f32", "int4 encode bf16", "int4 encode bf16 stochastic",
    "int4 encode f32 + feedback f32", "int4 encode bf16 + feedback bf16",
    "int8 decode f32", "int8 decode add f32", "int4 decode f32", "int4 decode bf16",
    "int8 reduce of 8 + feedback f32", "int4 reduce of 8 + feedback f32",
    "bf16 encode f32", "bf16 encode f32 stochastic", "bf16 decode f32",
    "checksum, a word of 4 bytes",
    "topk scan f32 + feedback f32",
    "hadamard:bits=4 encode f32", "hadamard:bits=4 encode f32 + feedback f32",
    "hadamard:bits=4 decode add f32", "hadamard:bits=4 reduce of 8 + feedback f32",
)  # fmt: skip
