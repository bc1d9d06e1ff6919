"""The backward part of a report: time of a backward pass by hook, or of a step with experts."""

import functools
import typing

from matplotlib.figure import Figure

import drawing
import page
import records
import units
from page import Picture, Section
from palette import LIGHT, Palette, in_order
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
    compute = min(record.compute_seconds for record in group.values())
    speeds = {name: functools.partial(_speedup, group, name) for name in REFERENCES}
    columns = ["hook=codec", "backward=seconds|s", *(f"speed vs {one}={one}|x" for one in speeds)]
    columns += ["bytes sent=wire_bytes|B", "known by=wire_bytes_are"]
    columns += ["on the interface=interface_bytes|B", "error=relative_error|.1e"]
    note = (
        f"Time: median of the slowest rank. Without communication {units.seconds(compute)}. Bytes: "
        "sent by one rank; on the interface: counted by the kernel, headers included."
    )
    table = page.table("Time and bytes", ", ".join(columns), group.values(), note, **speeds)
    picture = Picture(
        "backward",
        "Time of a backward pass",
        "Each bar is the median of the slowest rank; the line is the pass without communication.",
        functools.partial(_draw, group, compute),
    )
    return Section(f"Backward pass: {setting}", _sentences(group), [table, picture])


def _speedup(group: Group, reference: str, record: BackwardRecord) -> float | None:
    return units.speedup(
        record.seconds, [r.seconds for r in group.values() if r.codec == reference]
    )


def _sentences(group: Group) -> list[str]:
    speeds = {hook: _speedup(group, "none", one) for hook, one in group.items() if hook != "none"}
    known = {hook: speed for hook, speed in speeds.items() if speed is not None}
    if not known:
        return []
    best = max(known, key=lambda hook: known[hook])
    if known[best] < CLEAR_SPEEDUP:
        return ["No hook is clearly faster than none here."]
    return [f"{best} is the fastest: {units.ratio(known[best])} the speed of none."]


def _draw(group: Group, compute: float, palette: Palette) -> Figure:
    figure, axes = drawing.plot(1.1 + 0.4 * len(group))
    for row, (hook, record) in enumerate(group.items()):
        text, colour = units.seconds(record.seconds), palette[hook].colour
        axes.barh(row, record.seconds, 0.62, color=colour, **drawing.hover(f"{hook}: {text}"))
        drawing.end_label(axes, record.seconds, row, text, fontsize=10)
    axes.axvline(compute, color=LIGHT.quiet, linewidth=1.2)
    drawing.rows(axes, list(group))
    longest = max(record.seconds for record in group.values())
    label = "seconds of a backward pass (shorter is better)"
    axes.set(xlim=(0, 1.15 * longest), xlabel=label)
    return figure
