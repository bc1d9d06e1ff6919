"""The report as a table, as Markdown and as JSON."""

import json
import pathlib
import typing

import measure

HEADERS = (
    "kernel", "registers", "blocks", "bytes per value", "instructions per value", "per frame",
    "slots", "share", "limit",
)  # fmt: skip


def table(found: typing.Sequence[measure.Kernel]) -> str:
    rows = [HEADERS, *map(_cells, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(HEADERS) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(found: typing.Sequence[measure.Kernel]) -> str:
    rule = ["---", *["---:"] * (len(HEADERS) - 2), "---"]
    rows = [HEADERS, rule, *map(_cells, found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(kernel: measure.Kernel) -> tuple[str, ...]:
    spill = f" (stack {kernel.usage.stack_bytes})" if kernel.spills else ""
    counted = kernel.instructions is not None
    a_frame = kernel.frame_instructions
    return (
        kernel.title or kernel.name,
        f"{kernel.usage.registers}{spill}",
        str(kernel.resident_blocks),
        f"{kernel.bytes_a_value:.2f}" if counted else "",
        f"{kernel.instructions:.1f}" if counted else "",
        f"{kernel.frames} × {a_frame:.1f}" if a_frame is not None else "",
        f"{kernel.issue_slots:.0f}" if counted else "",
        f"{kernel.share:.0%}" if kernel.share is not None else "",
        kernel.limit,
    )


def write_json(
    path: pathlib.Path, architecture: str, found: typing.Sequence[measure.Kernel]
) -> None:
    record = {
        "benchmark": "kernels",
        "architecture": architecture,
        "memory_bytes_a_second": measure.MEMORY_BYTES_A_SECOND,
        "lane_instructions_a_second": measure.LANE_INSTRUCTIONS_A_SECOND,
        "kernels": [_record(kernel) for kernel in found],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _record(kernel: measure.Kernel) -> dict[str, typing.Any]:
    record: dict[str, typing.Any] = {
        "kernel": kernel.name,
        **kernel.usage._asdict(),
        "spills": kernel.spills,
        "resident_blocks": kernel.resident_blocks,
    }
    if kernel.instructions is not None and kernel.share is not None:
        record |= {
            "title": kernel.title,
            "bytes_a_value": round(kernel.bytes_a_value or 0, 4),
            "instructions_a_value": round(kernel.instructions, 2),
            "issue_slots_a_value": round(kernel.issue_slots, 2),
            "share_of_issue_slots": round(kernel.share, 3),
            "predicted_limit": kernel.limit,
        }
    if kernel.frame_instructions is not None:
        record |= {
            "frames": kernel.frames,
            "instructions_a_value_and_frame": round(kernel.frame_instructions, 2),
        }
    return record
