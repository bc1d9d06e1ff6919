"""The allreduce part of a report: time, speed-up over `none` and bus bandwidth by size."""

import dataclasses
import functools
import itertools
import math
import typing

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import page
import records
import units
from page import Part, Picture, Section, Table
from palette import LIGHT, Palette, in_order
from records import AllreduceRecord, gradient_bytes

Field = typing.Callable[[AllreduceRecord], float]
Write = typing.Callable[[float], str]


class Setting(typing.NamedTuple):
    """The fields that must be equal for a comparison of times."""

    collective: str
    transport: str
    link: str
    ranks: int
    dtype: str
    parameters: int  # 0: a direct call, not through the reducer
    backward_seconds: float

    @property
    def unit(self) -> str:
        return "step" if self.parameters else "call"

    def __str__(self) -> str:
        where = f"{self.ranks} ranks, {self.transport}, link {self.link}, {self.dtype}"
        if not self.parameters:
            return f"{self.collective.capitalize().replace('_', '-')}: {where}"
        backward = units.seconds(self.backward_seconds)
        return f"Reducer: {self.parameters} parameters, backward pass of {backward}; {where}"


def _setting(r: AllreduceRecord) -> Setting:
    through_reducer = (r.parameters or 0, r.backward_seconds or 0.0)
    return Setting(r.collective, r.transport, r.link, r.ranks, r.dtype, *through_reducer)


@dataclasses.dataclass(frozen=True)
class Curves:
    """One setting, with the records of each codec and algorithm by increasing count."""

    setting: Setting
    curves: dict[tuple[str, str], list[AllreduceRecord]]

    def label(self, key: tuple[str, str]) -> str:
        """Names the algorithm only if the codec was run with several algorithms."""
        codec, algorithm = key
        several = sum(other == codec for other, _ in self.curves) > 1
        return f"{codec} ({algorithm})" if several else codec

    def variant(self, key: tuple[str, str]) -> int:
        """Numbers the algorithms of a codec, because all of them share the codec's colour."""
        return [other for other in self.curves if other[0] == key[0]].index(key)

    def speedup(self, record: AllreduceRecord) -> float | None:
        """The speed-up over the fastest `none` with the same count."""
        curves = (curve for (codec, _), curve in self.curves.items() if codec == "none")
        same = [r.seconds for r in itertools.chain(*curves) if r.count == record.count]
        return units.speedup(record.seconds, same)


def sections(found: list[records.Record]) -> list[Section]:
    ordered = sorted(records.select(found, AllreduceRecord), key=_setting)
    groups = records.grouped(ordered, _setting).items()
    return [_section(Curves(setting, _curves(group))) for setting, group in groups]


def _curves(group: list[AllreduceRecord]) -> dict[tuple[str, str], list[AllreduceRecord]]:
    """Keeps the record of median time for each count."""
    order = in_order({record.codec for record in group})
    ordered = sorted(group, key=lambda r: (order.index(r.codec), r.algorithm, r.count))
    return {
        key: [records.median(same) for same in records.grouped(curve, lambda r: r.count).values()]
        for key, curve in records.grouped(ordered, lambda r: (r.codec, r.algorithm)).items()
    }


def _section(group: Curves) -> Section:
    parts: list[Part] = [_table(group)]
    if any(_can_draw(record) for curve in group.curves.values() for record in curve):
        heading = "Time, speed-up and bus bandwidth against size"
        draw = functools.partial(_draw, group)
        parts.append(Picture("allreduce", heading, _caption(group), draw))
    return Section(str(group.setting), _sentences(group), parts)


def _can_draw(record: AllreduceRecord) -> bool:
    """All axes are logarithmic, and a single rank has no bus bandwidth."""
    return record.count > 0 and record.seconds > 0 and record.busbw > 0


def _table(group: Curves) -> Table:
    largest = max(record.count for curve in group.curves.values() for record in curve)
    twice = "2" if group.setting.collective == "allreduce" else ""
    note = (
        f"Time of one {group.setting.unit}. busbw: bytes of the gradient / time · {twice}(ranks − 1)"
        "/ranks, so it exceeds the link where bytes are saved. Bytes sent: by one rank. Error: "
        "relative L2. Same bits: on all ranks."
    )
    if group.setting.parameters:
        note += " Hidden: the share of the wire time without waiting."
    heading = f"The largest gradient of each codec (up to {units.value_count(largest)} values)"
    columns = "codec=label, gradient=bytes|b, time=seconds|s, vs none=speedup|x, "
    columns += "busbw (GB/s)=busbw|.3g, bytes sent=wire_bytes|B, error=relative_error|.1e, "
    columns += "same bits=same" + (", hidden=hidden|%" if group.setting.parameters else "")
    return page.table(
        heading,
        columns,
        [curve[-1] for curve in group.curves.values()],
        note,
        label=lambda r: group.label((r.codec, r.algorithm)),
        bytes=gradient_bytes,
        speedup=group.speedup,
        same=lambda r: "yes" if r.identical else "NO",
    )


def _sentences(group: Curves) -> list[str]:
    """Names the codecs slower than `none`, and all sums that differ between ranks."""
    sentences = []
    for key, curve in group.curves.items():
        slower = [r for r in curve if key[0] != "none" and (group.speedup(r) or 1.0) < 1.0]
        if slower:
            sizes = ", ".join(units.short_bytes(gradient_bytes(r)) for r in slower)
            sentences.append(f"{group.label(key)} does not pay at {sizes}: none is faster.")
        if not all(record.identical for record in curve):
            sentences.append(f"Wrong: ranks ended with different bits with {group.label(key)}.")
    return sentences


def _caption(group: Curves) -> str:
    said = f"Time of a {group.setting.unit}, and how many times shorter it is than with none."
    best = [(group.speedup(curve[-1]) or 0.0, key) for key, curve in group.curves.items()]
    speedup, key = max(best, key=lambda pair: pair[0])
    if speedup > 1.0:
        largest = units.short_bytes(gradient_bytes(group.curves[key][-1]))
        said += f" At {largest} {group.label(key)} gains most: {units.ratio(speedup)}."
    return said + " All axes are logarithmic."


def _draw(group: Curves, palette: Palette) -> Figure:
    figure = drawing.figure(7.0)
    time, speedup, bandwidth, legend = figure.subplots(2, 2).flat
    _panel(time, group, palette, lambda r: r.seconds, units.seconds)
    drawing.log_axis(time.yaxis, units.short_seconds, 10)
    time.set_title(f"Time of a {group.setting.unit} (shorter is better)")
    if any(codec == "none" for codec, _ in group.curves):
        speedup.axhline(1, color=LIGHT.quiet, linewidth=1.0, zorder=1)
        _panel(speedup, group, palette, lambda r: group.speedup(r) or math.nan, units.ratio)
        drawing.log_axis(speedup.yaxis, lambda value: f"{value:g}×", 2)
        speedup.set_title("Speed-up over none (higher is better)")
    else:
        speedup.axis("off")
    _panel(bandwidth, group, palette, lambda r: r.busbw, lambda value: f"{value:.3g} GB/s")
    drawing.log_axis(bandwidth.yaxis, lambda value: f"{value:g}", 10)
    bandwidth.set_title("Bus bandwidth in GB/s (higher is better)")
    legend.axis("off")
    legend.legend(*time.get_legend_handles_labels(), loc="center left", handlelength=3)
    return figure


def _panel(axes: Axes, group: Curves, palette: Palette, field: Field, write: Write) -> None:
    for key, curve in group.curves.items():
        points = [(gradient_bytes(r), field(r)) for r in curve if _can_draw(r)]
        label, style = group.label(key), drawing.line_style(palette, key[0], group.variant(key))
        texts = [f"{label}, {units.short_bytes(size)}: {write(value)}" for size, value in points]
        drawing.curve(axes, points, texts, label=label, **style)
    axes.set_xlabel("bytes of the gradient")
    drawing.log_axis(axes.xaxis, units.short_bytes, 2)
