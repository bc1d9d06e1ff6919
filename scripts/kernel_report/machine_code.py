"""Parses instructions printed by cuobjdump -sass, and finds the successors of each instruction."""

import dataclasses
import re
import typing

LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
ADDRESS = re.compile(r"\b0x([0-9a-f]+)\b")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


@dataclasses.dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # "" if always executed
    opcode: str  # with its suffixes
    operands: str

    @property
    def name(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def target(self) -> int | None:
        found = ADDRESS.findall(self.operands)
        return int(found[-1], 16) if found else None

    @property
    def global_bytes(self) -> int:
        """Bytes that a thread moves to or from global memory; 0 for other instructions."""
        if not (self.loads or self.stores):
            return 0
        return next((WIDTHS[part] for part in self.opcode.split(".") if part in WIDTHS), 4)

    @property
    def loads(self) -> bool:
        return self.name in ("LDG", "LD", "LDGSTS")  # LDGSTS: cp.async, to shared memory

    @property
    def stores(self) -> bool:
        return self.name in ("STG", "ST")

    @property
    def pads(self) -> bool:
        """True if the instruction stores a constant zero: padding after the last value."""
        return self.stores and self.operands.endswith(", RZ")


def parse(text: str) -> dict[str, list[Instruction]]:
    """Returns the instructions of each function, by address."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            current = functions.setdefault(found[1], [])
        elif found := LINE.match(line):
            current.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4]))
    return functions


class FlowGraph:
    """The successors of each instruction, by index.

    A BSYNC continues at the target of the last preceding BSSY with the same barrier. The graph has
    no paths of diverged warps (BRA.DIV), because the kernels keep warps together. The graph has no
    called functions, because a CALL handles rare cases of a reciprocal.
    """

    def __init__(self, code: typing.Sequence[Instruction]) -> None:
        self.code = code
        self.index = {instruction.address: i for i, instruction in enumerate(code)}
        self.successors = [list(self._successors(i)) for i in range(len(code))]

    def _successors(self, i: int) -> typing.Iterator[int]:
        instruction = self.code[i]
        if instruction.name == "BSYNC":
            yield self._end_of_barrier(i)
            return
        jumps = instruction.name in ("BRA", "JMP") and ".DIV" not in instruction.opcode
        leaves = instruction.name in ("EXIT", "RET", "KILL")
        if jumps and instruction.target in self.index:
            yield self.index[instruction.target]
        if i + 1 < len(self.code) and not ((jumps or leaves) and _is_always_taken(instruction)):
            yield i + 1

    def _end_of_barrier(self, i: int) -> int:
        barrier = self.code[i].operands.split(",")[0]
        following = i + 1
        for j in range(i - 1, -1, -1):
            begin = self.code[j]
            if begin.name == "BSSY" and begin.operands.split(",")[0] == barrier:
                return self.index.get(begin.target or 0, following)
        return following


def _is_always_taken(branch: Instruction) -> bool:
    """Returns False for `@P0 BRA 0x..` and `BRA P0, 0x..`."""
    return not branch.predicate and not re.search(r"\bU?P\d", branch.operands)
