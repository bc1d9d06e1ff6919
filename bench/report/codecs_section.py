"""The codecs part of a report: speed as a share of a plain copy's, beside the aim."""

import dataclasses
import functools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import aims
import drawing
import units
from page import Picture, Section, Table
from palette import Palette, Theme, in_order
from records import CodecRecord


@dataclasses.dataclass(frozen=True)
class Panel:
    """What must agree for two ratios to stand beside each other."""

    dtype: str
    count: int
    isa: str
    threads: int
    checksum: bool

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        checksum = ", checksum" if self.checksum else ""
        return f"{units.value_count(self.count)} {self.dtype}, {self.isa}, {threads}{checksum}"


def sections(found: list[CodecRecord], palette: Palette) -> list[Section]:
    if not found:
        return []
    panels = _panels(found)
    parts: list[Table | Picture] = []
    for i, (panel, group) in enumerate(panels.items(), start=1):
        parts += _parts(panel, group, palette, f"-{i}" if len(panels) > 1 else "")
    said = [line for panel, group in panels.items() for line in aims.sentences(group, str(panel))]
    return [Section("Codecs", said, parts)]


def _panels(found: list[CodecRecord]) -> dict[Panel, list[CodecRecord]]:
    """The largest gradients first."""
    panels: dict[Panel, list[CodecRecord]] = {}
    for r in sorted(found, key=lambda r: (-r.count, -r.threads, r.isa, r.dtype, r.checksum)):
        panels.setdefault(Panel(r.dtype, r.count, r.isa, r.threads, r.checksum), []).append(r)
    return {panel: _medians(group) for panel, group in panels.items()}


def _medians(group: list[CodecRecord]) -> list[CodecRecord]:
    """Codec by codec, operations as they were run; of repeats the one of median time."""
    order = in_order({record.codec for record in group})
    repeats: dict[tuple[str, str, str], list[CodecRecord]] = {}
    for record in sorted(group, key=lambda r: order.index(r.codec)):
        repeats.setdefault((record.codec, record.operation, record.baseline), []).append(record)
    by_time = [sorted(same, key=lambda r: r.seconds) for same in repeats.values()]
    return [same[(len(same) - 1) // 2] for same in by_time]


def _parts(
    panel: Panel, group: list[CodecRecord], palette: Palette, suffix: str
) -> list[Table | Picture]:
    columns = ["codec", "operation", "time", "ratio", "aim", "baseline", "payload", "error"]
    table = Table(str(panel), columns, [_row(record) for record in group])
    timed = [r for r in group if r.ratio is not None and not aims.is_reference(r)]
    if not timed:
        return [table]
    picture = Picture(
        "codecs" + suffix,
        f"Speed as a share of a plain copy's: {panel}",
        "Each bar is the speed of an operation by the bytes it must move, divided by that of the "
        "plain baseline named beside it, measured in the same process: 1 is as fast as memory "
        "allows. The black tick is the aim.",
        functools.partial(_draw, timed, palette),
    )
    return [table, picture]


def _row(record: CodecRecord) -> list[str]:
    return [
        record.codec,
        record.operation,
        units.seconds(record.seconds),
        _number(record.ratio, ".2f"),
        _number(aims.aim(record), ".2f"),
        record.baseline,
        units.byte_count(record.payload_bytes),
        _number(record.relative_error, ".1e"),
    ]


def _number(value: float | None, form: str) -> str:
    return units.ABSENT if value is None else format(value, form)


def _draw(timed: list[CodecRecord], palette: Palette, theme: Theme) -> Figure:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, record in enumerate(timed):
            _bar(axes, row, record, palette[record.codec].colour, theme)
        axes.axvline(1, color=theme.quiet, linewidth=1.0)
        labels = [f"{r.codec}  {r.operation} / {r.baseline}" for r in timed]
        axes.set_yticks(range(len(timed)), labels)
        axes.set_ylim(len(timed) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("speed, as a share of the baseline's")

    return drawing.figure(theme, (drawing.WIDTH, 0.9 + 0.34 * len(timed)), paint)


def _bar(axes: Axes, row: int, record: CodecRecord, colour: str, theme: Theme) -> None:
    """The figure stands in a column right of the plot, where no bar and no tick can cover it."""
    axes.barh(row, record.ratio or 0.0, 0.66, color=colour)
    goal = aims.aim(record)
    text = f"{record.ratio:.2f}"
    if goal is not None:
        axes.plot([goal], [row], "|", color=theme.ink, markersize=17, markeredgewidth=2.4)
        text += f"  {'below' if aims.falls_short(record) else 'reaches'} {goal:.2f}"
    weight = "bold" if aims.falls_short(record) else "normal"
    where = axes.get_yaxis_transform()
    axes.text(1.015, row, text, transform=where, va="center", fontsize=10, weight=weight)
