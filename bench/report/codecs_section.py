"""The codecs part of a report: speed relative to a plain copy, next to an aim of the record."""

import dataclasses
import functools
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import page
import records
import units
from page import Part, Picture, Section, numbered
from palette import LIGHT, Palette, in_order
from records import CodecRecord

COLUMNS = (
    "codec=codec, operation=operation, time=seconds|s, ratio=ratio|.2f, aim=aim|.2f, "
    "baseline=baseline, payload=payload_bytes|B, error=relative_error|.1e"
)


@dataclasses.dataclass(frozen=True)
class Panel:
    """The fields that must be equal for a comparison of ratios."""

    dtype: str
    count: int
    isa: str
    threads: int
    checksum: bool

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        checksum = ", checksum" if self.checksum else ""
        return f"{units.value_count(self.count)} {self.dtype}, {self.isa}, {threads}{checksum}"


def sections(found: list[records.Record]) -> list[Section]:
    panels = _panels(records.select(found, CodecRecord))
    parts = numbered([_parts(panel, group) for panel, group in panels.items()])
    said = [line for panel, group in panels.items() for line in _sentences(group, str(panel))]
    return [Section("Codecs", said, list(itertools.chain(*parts)))] if parts else []


def _panels(found: list[CodecRecord]) -> dict[Panel, list[CodecRecord]]:
    """Sorts panels by gradient size, largest first."""
    ordered = sorted(found, key=lambda r: (-r.count, -r.threads, r.isa, r.dtype, r.checksum))
    panels = records.grouped(
        ordered, lambda r: Panel(r.dtype, r.count, r.isa, r.threads, r.checksum)
    )
    return {panel: _medians(group) for panel, group in panels.items()}


def _medians(group: list[CodecRecord]) -> list[CodecRecord]:
    """Orders records by codec, then by operation as measured.

    Repeats keep the record of median time.
    """
    order = in_order({record.codec for record in group})
    ordered = sorted(group, key=lambda r: order.index(r.codec))
    repeats = records.grouped(ordered, lambda r: (r.codec, r.operation, r.baseline))
    return [records.median(same) for same in repeats.values()]


def _is_reference(record: CodecRecord) -> bool:
    """True for another program's operation with the same payload, timed for comparison."""
    return record.operation.startswith("reference")


def _falls_short(record: CodecRecord) -> bool:
    return record.aim is not None and record.ratio is not None and record.ratio < record.aim


def _sentences(group: list[CodecRecord], title: str) -> list[str]:
    """Lists the missed aims of a panel, and the other programs."""
    said = []
    if aimed := [record for record in group if record.aim is not None and record.ratio is not None]:
        missed = [
            f"{record.codec} {record.operation} {record.ratio:.2f}, aim {record.aim:.2f}"
            for record in aimed
            if _falls_short(record)
        ]
        listed = ": " + "; ".join(missed) if missed else ""
        said = [f"{len(missed)} of {len(aimed)} figures with an aim fall short{listed}."]
    for record in group:
        if _is_reference(record) and record.ratio:
            longer = f"takes {units.ratio(1.0 / record.ratio)} as long as {record.codec}"
            reference = record.operation.removeprefix("reference ")
            said.append(f"{reference} {longer} for the same payload.")
    return [f"{title}: {sentence}" for sentence in said]


def _parts(panel: Panel, group: list[CodecRecord]) -> list[Part]:
    table = page.table(str(panel), COLUMNS, group)
    timed = [r for r in group if r.ratio is not None and not _is_reference(r)]
    if not timed:
        return [table]
    picture = Picture(
        "codecs",
        f"Speed as a share of a plain copy's: {panel}",
        "Each bar is the speed of an operation by the bytes it must move, divided by that of the "
        "plain baseline named beside it, measured in the same process: 1 is as fast as memory "
        "allows. A black tick is the aim of a record.",
        functools.partial(_draw, timed),
    )
    return [table, picture]


def _draw(timed: list[CodecRecord], palette: Palette) -> Figure:
    figure, axes = drawing.plot(0.9 + 0.34 * len(timed))
    for row, record in enumerate(timed):
        _bar(axes, row, record, palette)
    axes.axvline(1, color=LIGHT.quiet, linewidth=1.0)
    drawing.rows(axes, [f"{r.codec}  {r.operation} / {r.baseline}" for r in timed])
    axes.set(xlim=(0, None), xlabel="speed, as a share of the baseline's (longer is better)")
    return figure


def _bar(axes: Axes, row: int, record: CodecRecord, palette: Palette) -> None:
    """Draws the value in a column right of the plot, away from bars and ticks."""
    text = f"{record.ratio:.2f}"
    shown = f"{record.codec} {record.operation}: {text} of {record.baseline}"
    colour = palette[record.codec].colour
    axes.barh(row, record.ratio or 0.0, 0.66, color=colour, **drawing.hover(shown))
    if record.aim is not None:
        axes.plot([record.aim], [row], "|", color=LIGHT.ink, markersize=17, markeredgewidth=2.4)
        text += f"  {'below' if _falls_short(record) else 'reaches'} {record.aim:.2f}"
    weight = "bold" if _falls_short(record) else "normal"
    where = axes.get_yaxis_transform()
    axes.text(1.015, row, text, transform=where, va="center", fontsize=10, weight=weight)
