"""The backward part of a report: time of a backward pass by hook, or of a step with experts."""

import functools
import typing

from matplotlib.figure import Figure

import drawing
import records
import units
from page import Picture, Section, Table
from palette import Palette, in_order
from records import BackwardRecord

PARALLEL = {"ddp": "DDP", "fsdp": "FSDP2", "experts": "whole steps of experts"}
REFERENCES = ("none", "torch:fp16", "torch:bf16")
CLEAR_SPEEDUP = 1.05  # smaller speed-ups are within the drift of a shared machine


class Setting(typing.NamedTuple):
    """The fields that must be equal for a comparison of times."""

    parallel: str
    weights: str
    transport: str
    link: str
    ranks: int
    gradient_bytes: int
    rows: int

    def __str__(self) -> str:
        size = units.short_bytes(self.gradient_bytes)
        rows = f"{self.rows} row{'' if self.rows == 1 else 's'} of input"
        ranks = f"{self.ranks} ranks, {self.transport}, {self.link}"
        parallel = PARALLEL.get(self.parallel, self.parallel)
        weights = f", weights by {self.weights}" if self.weights else ""
        return f"{parallel}{weights}, {size} of gradients, {rows}, {ranks}"


Group = dict[str, BackwardRecord]  # by hook, in the palette's order


def sections(found: list[records.Record]) -> list[Section]:
    backward = records.select(found, BackwardRecord)
    order = in_order({record.codec for record in backward})
    ordered = sorted(backward, key=lambda r: (_setting(r), order.index(r.codec)))
    return [
        _section(setting, {record.codec: record for record in group})
        for setting, group in records.grouped(ordered, _setting).items()
    ]


def _setting(r: BackwardRecord) -> Setting:
    wrapped = (r.parallel, r.weights or "")
    return Setting(*wrapped, r.transport, r.link, r.ranks, records.gradient_bytes(r), r.rows)


def _section(setting: Setting, group: Group) -> Section:
    speeds = [f"speed vs {reference}" for reference in REFERENCES]
    compute = min(record.compute_seconds for record in group.values())
    table = Table(
        "Time and bytes",
        ["hook", "backward", *speeds, "bytes sent", "known by", "on the interface", "error"],
        [_row(record, group) for record in group.values()],
        f"Time: median of the slowest rank. Without communication {units.seconds(compute)}. Bytes: "
        "sent by one rank; on the interface: counted by the kernel, headers included.",
    )
    picture = Picture(
        "backward",
        "Time of a backward pass",
        "Each bar is the median of the slowest rank; the line is the pass without communication.",
        functools.partial(_draw, group, compute),
    )
    return Section(f"Backward pass: {setting}", _sentences(group), [table, picture])


def _row(record: BackwardRecord, group: Group) -> list[str]:
    interface = record.interface_bytes
    return [
        record.codec,
        units.seconds(record.seconds),
        *(units.ratio(_speedup(record, group.get(reference))) for reference in REFERENCES),
        units.byte_count(record.wire_bytes),
        record.wire_bytes_are,
        units.ABSENT if interface is None else units.byte_count(interface),
        units.error(record.relative_error),
    ]


def _speedup(record: BackwardRecord, reference: BackwardRecord | None) -> float | None:
    known = reference is not None and record.seconds > 0
    return reference.seconds / record.seconds if known else None


def _sentences(group: Group) -> list[str]:
    speeds = {hook: _speedup(record, group.get("none")) for hook, record in group.items()}
    known = {hook: speed for hook, speed in speeds.items() if speed is not None and hook != "none"}
    if not known:
        return []
    best = max(known, key=lambda hook: known[hook])
    if known[best] < CLEAR_SPEEDUP:
        return ["No hook is clearly faster than none here."]
    return [f"{best} is the fastest: {units.ratio(known[best])} the speed of none."]


def _draw(group: Group, compute: float, palette: Palette) -> Figure:
    figure = drawing.figure(1.1 + 0.4 * len(group))
    axes = figure.add_subplot()
    for row, (hook, record) in enumerate(group.items()):
        text, colour = units.seconds(record.seconds), palette[hook].colour
        axes.barh(row, record.seconds, 0.62, color=colour, **drawing.hover(f"{hook}: {text}"))
        drawing.end_label(axes, record.seconds, row, text, fontsize=10)
    axes.axvline(compute, color=palette.theme.quiet, linewidth=1.2)
    drawing.rows(axes, list(group))
    axes.set_xlim(0, 1.15 * max(record.seconds for record in group.values()))
    axes.set_xlabel("seconds of a backward pass (shorter is better)")
    return figure
