"""Measures kernels: occupancy, instructions per value, and whether memory or issue slots limit the
speed on an H200."""

import dataclasses
import pathlib

import hot_path
import kernels
import machine_code
import tools

# One H200. Memory: the measured traffic of a device copy, reads plus writes. Issue: 132
# multiprocessors with 4 warps per cycle at the base clock.
MEMORY_BYTES_A_SECOND = 4.3e12
LANE_INSTRUCTIONS_A_SECOND = 132 * 4 * 32 * 1.755e9

REGISTERS = 65536
THREADS = 2048
BLOCK_THREADS = 256
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_90": 228 * 1024}
RESERVED_SHARED_BYTES = 1024  # per block


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    title: str  # "" unless a main kernel
    usage: tools.Usage
    resident_blocks: int  # blocks of 256 threads per multiprocessor
    instructions: float | None = None  # per value, including frames
    frame_instructions: float | None = None  # per value and frame
    frames: int = 0
    bytes_a_value: float | None = None

    @property
    def spills(self) -> bool:
        return self.usage.stack_bytes > 0 or self.usage.local_bytes > 0

    @property
    def issue_slots(self) -> float:
        """Issue slots per value at the full speed of memory."""
        return slots_for(self.bytes_a_value or 0)

    @property
    def share(self) -> float | None:
        return self.instructions / self.issue_slots if self.instructions else None

    @property
    def limit(self) -> str:
        if self.share is None:
            return ""
        return "issue" if self.share > 1 else "memory"


def slots_for(bytes_a_value: float) -> float:
    return LANE_INSTRUCTIONS_A_SECOND * bytes_a_value / MEMORY_BYTES_A_SECOND


def resident_blocks(usage: tools.Usage, architecture: str) -> int:
    """The GPU allocates 256 registers at a time per warp, and reserves shared memory per block."""
    warps = BLOCK_THREADS // 32
    warp_registers = -(-usage.registers * 32 // 256) * 256
    by_registers = REGISTERS // (max(warp_registers, 256) * warps)
    shared = SHARED_BYTES.get(architecture, SHARED_BYTES["sm_90"])
    by_shared = shared // (usage.shared_bytes + RESERVED_SHARED_BYTES)
    return min(by_registers, by_shared, THREADS // BLOCK_THREADS)


def measure_file(dump: tools.ObjectDump, file: pathlib.Path, with_code: bool) -> list[Kernel]:
    """Returns all kernels of a file. Without `with_code`, only the resource usage."""
    usages = dump.usages(file)
    names = dict(zip(usages, map(kernels.shorten, tools.demangle(list(usages))), strict=True))
    works = {function: kernels.work_of(name) for function, name in names.items()}
    main = [function for function, work in works.items() if work] if with_code else []
    code = machine_code.parse(dump.machine_code(file, main))
    return [
        _measure(names[function], usage, works[function], code.get(function), dump.architecture)
        for function, usage in usages.items()
    ]


def _measure(
    name: str,
    usage: tools.Usage,
    work: kernels.Work | None,
    code: list[machine_code.Instruction] | None,
    architecture: str,
) -> Kernel:
    blocks = resident_blocks(usage, architecture)
    loop = hot_path.main_loop(code) if code else None
    if work is None or loop is None:
        return Kernel(name, work.title if work else "", usage, blocks)
    values = work.values or max(1, round(loop.wide_load_bytes / work.input_bytes))
    a_frame = _frame_instructions(loop, work) / values
    return Kernel(
        name,
        work.title,
        usage,
        blocks,
        instructions=_turn_instructions(loop, work) / values + work.frames * a_frame,
        frame_instructions=a_frame if work.frames else None,
        frames=work.frames,
        bytes_a_value=work.bytes_a_value,
    )


def _turn_instructions(loop: hot_path.Loop, work: kernels.Work) -> float:
    """Includes the share of the instructions per unit of several iterations."""
    if not work.turns or not loop.inner:
        return loop.instructions
    turn = max(loop.inner, key=lambda inner: inner.load_bytes)
    return turn.instructions + loop.instructions / work.turns


def _frame_instructions(loop: hot_path.Loop, work: kernels.Work) -> float:
    """Counts the inner loop with the most frames per iteration. Other loops process the tail."""
    if not work.frames or not loop.inner:
        return 0
    most = max(loop.inner, key=lambda inner: inner.load_bytes)
    return most.instructions / max(1, round(most.load_bytes / work.frame_load_bytes))
