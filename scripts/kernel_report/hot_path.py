"""Counts the instructions of an iteration of a kernel's main loop, along the most common path.

A loop is a strongly connected component of the flow graph. A path of the loop begins at the entry
and ends at an edge back to the entry. The hot path is the path that, in this order,
  1. has no call, no atomic addition, no store of padding, no end of a checksum (a store of 64 bits
     to shared memory), and no inner loop without global memory (the search for a segment in a list
     of segments);
  2. has the widest accesses to global memory, by the sum of the squares of the bytes. Whole aligned
     rows win over single values, and stores win over skipped stores. A load counts if the kernels
     load whole rows with the instruction: at least 8 bytes without a predicate (the tail of a
     checksum's piece has a predicate), or an input (CONSTANT). A store counts if the store has at
     least 8 bytes, or no predicate (stores of single values have predicates);
  3. has the most work of every block (reciprocals, maxima and shuffles of a warp);
  4. is shortest.
The main loop is the outermost loop whose path stores to global memory and has the widest accesses.
Loops that check headers only load. If a loop only contains another loop, the inner loop counts.
Each instruction on the path counts once per warp, also with a predicate, because the instruction
takes an issue slot. Inner loops (the frames of a decode or reduce) are measured separately.
"""

import dataclasses
import typing

from machine_code import FlowGraph, Instruction

Weight = tuple[int, int, int, int]
WORK = {"MUFU", "REDUX", "SHFL"}


@dataclasses.dataclass(frozen=True)
class Loop:
    """An iteration along the hot path."""

    instructions: int  # without inner loops
    load_bytes: int  # of one thread, by loads of 4 bytes and more
    wide_load_bytes: int  # by loads of 8 bytes and more
    stores: int  # number, including inner loops
    reaches_memory: bool
    weight: Weight
    path: tuple[int, ...]  # indices of the loop's own instructions
    inner: tuple["Loop", ...]


def main_loop(code: typing.Sequence[Instruction]) -> Loop | None:
    """Returns None if no loop reaches global memory."""
    graph = FlowGraph(code)
    parts = [p for p in _components(range(len(code)), graph.successors) if len(p) > 1]
    loops = [_measure(part, graph) for part in parts]
    loop = max(loops, key=_importance, default=None)
    if loop is None or not loop.reaches_memory:
        return None
    while loop.inner and not any(code[i].global_bytes for i in loop.path):
        loop = max(loop.inner, key=_importance)
    return loop


def _importance(loop: Loop) -> tuple[bool, int]:
    return loop.stores > 0, loop.weight[1]


def _weigh(instruction: Instruction) -> Weight:
    ends_sum = instruction.name == "STS" and "64" in instruction.opcode.split(".")
    rare = instruction.name in ("CALL", "ATOM", "ATOMG") or instruction.pads or ends_sum
    return (-int(rare), _width(instruction) ** 2, int(instruction.name in WORK), -1)


def _width(instruction: Instruction) -> int:
    width = instruction.global_bytes
    if instruction.loads:
        whole = "CONSTANT" in instruction.opcode or (width >= 8 and not instruction.predicate)
    else:
        whole = width >= 8 or not instruction.predicate
    return width if whole else 0


def _add(a: Weight, b: Weight) -> Weight:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def _measure(part: list[int], graph: FlowGraph) -> Loop:
    """Returns the hot path of a loop. Inner loops count as single steps."""
    inside = set(part)
    header = _entry(part, graph)
    edges = [
        [j for j in graph.successors[i] if j in inside and j != header]
        for i in range(len(graph.code))
    ]
    steps = _components(part, edges)  # successors come first
    step_of = {i: number for number, step in enumerate(steps) for i in step}
    inner = {
        number: _measure(step, graph)
        for number, step in enumerate(steps)
        if len(step) > 1 or step[0] in edges[step[0]]
    }
    best: dict[int, tuple[Weight, int, list[int]]] = {}  # of the path from a step, with its number
    for number, step in enumerate(steps):
        weight = _weigh_loop(inner[number]) if number in inner else _weigh(graph.code[step[0]])
        following = {step_of[j] for i in step for j in edges[i]} - {number}
        options = [best[j] for j in following if j in best]
        if any(header in graph.successors[i] for i in step):
            options.append(((0, 0, 0, 0), -1, []))
        if options:
            most, _, rest = max(options)
            best[number] = (_add(weight, most), number, [number, *rest])
    weight, _, hot = best[step_of[header]]
    path = [steps[number][0] for number in hot if number not in inner]
    loops = [inner[number] for number in hot if number in inner]
    loads = [graph.code[i].global_bytes for i in path if graph.code[i].loads]
    return Loop(
        instructions=len(path),
        load_bytes=sum(width for width in loads if width >= 4),
        wide_load_bytes=sum(width for width in loads if width >= 8),
        stores=sum(graph.code[i].stores for i in path) + sum(loop.stores for loop in loops),
        weight=weight,
        path=tuple(path),
        reaches_memory=any(graph.code[i].global_bytes for i in path)
        or any(loop.reaches_memory for loop in loops),
        inner=tuple(loop for loop in loops if loop.reaches_memory),
    )


def _weigh_loop(loop: Loop) -> Weight:
    return (-int(not loop.reaches_memory) + loop.weight[0], *loop.weight[1:3], 0)


def _entry(part: list[int], graph: FlowGraph) -> int:
    """Returns the first entry of a loop from outside."""
    inside = set(part)
    entered = {
        j
        for i, following in enumerate(graph.successors)
        if i not in inside
        for j in following
        if j in inside
    }
    return min(entered or inside)


def _components(nodes: typing.Iterable[int], edges: list[list[int]]) -> list[list[int]]:
    """Returns strongly connected components, successors before predecessors (Tarjan 1972)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []

    def enter(node: int) -> tuple[int, typing.Iterator[int]]:
        order[node] = low[node] = len(order)
        waiting.append(node)
        on_stack.add(node)
        return node, iter(edges[node])

    def leave(node: int) -> None:
        if low[node] != order[node]:
            return
        first = waiting.index(node)
        found.append(sorted(waiting[first:]))
        on_stack.difference_update(waiting[first:])
        del waiting[first:]

    for root in nodes:
        work = [] if root in order else [enter(root)]
        while work:
            node, following = work[-1]
            for other in following:
                if other not in order:
                    work.append(enter(other))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                leave(node)
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
    return found
