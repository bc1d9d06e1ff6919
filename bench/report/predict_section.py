"""The predicted part of a report: time and speed-up by ranks or size, with measured points."""

import functools
import typing

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import drawing
import page
import records
import units
from page import Picture, Section, Table
from palette import LIGHT, Palette, in_order
from records import AllreduceRecord, PredictRecord, gradient_bytes

Either = PredictRecord | AllreduceRecord


class Setting(typing.NamedTuple):
    """The common fields of a picture. The remaining field is the horizontal axis."""

    link: str
    hosts: int  # 0: one host per rank
    dtype: str
    ranks: int  # 0: on the axis
    count: int  # 0: on the axis

    def __str__(self) -> str:
        where = f"link {self.link}, {self.dtype}"
        hosts = f"{self.hosts} hosts" if self.hosts else "a host each rank"
        if self.ranks:
            return f"Predicted allreduce: {self.ranks} ranks, {hosts}, {where}"
        size = units.short_bytes(self.count * (4 if self.dtype == "f32" else 2))
        return f"Predicted allreduce: {size} on more and more ranks, {hosts}, {where}"


class Group(typing.NamedTuple):
    setting: Setting
    predicted: list[PredictRecord]
    measured: list[AllreduceRecord]

    @property
    def codecs(self) -> list[str]:
        return in_order({record.codec for record in self.predicted})

    def place(self, record: Either) -> int:
        return gradient_bytes(record) if self.setting.ranks else record.ranks

    def curve(self, codec: str, found: typing.Sequence[Either]) -> list[Either]:
        return sorted((r for r in found if r.codec == codec), key=self.place)

    def speedup(self, record: Either, found: typing.Sequence[Either]) -> float | None:
        """The speed-up over `none`: predicted over predicted, or measured over measured."""
        return units.speedup(record.seconds, [r.seconds for r in self._same("none", record, found)])

    def measurement(self, record: PredictRecord) -> AllreduceRecord | None:
        same = self._same(record.codec, record, self.measured)
        return min(same, key=lambda r: r.seconds, default=None)

    def _same(self, codec: str, record: Either, found: typing.Sequence) -> list:
        place = self.place(record)
        return [r for r in found if r.codec == codec and self.place(r) == place]


def sections(found: list[records.Record]) -> list[Section]:
    """Draws by ranks if the ranks vary, otherwise by size."""
    predicted = records.select(found, PredictRecord)
    measured = [r for r in records.select(found, AllreduceRecord) if not r.parameters]
    vary = len({record.ranks for record in predicted}) > 1
    drawn = [record for record in predicted if record.seconds > 0]
    key = functools.partial(_setting, vary)
    return [
        _section(Group(setting, group, [r for r in measured if _fits(setting, r)]))
        for setting, group in records.grouped(sorted(drawn, key=key), key).items()
    ]


def _setting(vary: bool, record: PredictRecord) -> Setting:
    hosts = 0 if record.hosts == record.ranks else record.hosts
    ranks, count = (0, record.count) if vary else (record.ranks, 0)
    return Setting(record.link, hosts, record.dtype, ranks, count)


def _fits(setting: Setting, record: AllreduceRecord) -> bool:
    return (
        not setting.hosts
        and record.collective == "allreduce"
        and (record.link, record.dtype) == (setting.link, setting.dtype)
        and setting.ranks in (0, record.ranks)
        and setting.count in (0, record.count)
        and record.seconds > 0
    )


def _section(group: Group) -> Section:
    axis = "size" if group.setting.ranks else "ranks"
    heading = f"Predicted time and speed-up against {axis}"
    picture = Picture("predict", heading, _caption(group), functools.partial(_draw, group))
    return Section(str(group.setting), _sentences(group), [_table(group), picture])


def _sentences(group: Group) -> list[str]:
    """States the deviation of the model from measurements, if measurements exist."""
    pairs = [(r, group.measurement(r)) for r in group.predicted]
    ratios = [r.seconds / m.seconds for r, m in pairs if m is not None]
    if not ratios:
        return ["Nothing here was measured: all figures come from the cost model."]
    low, high = units.percent(min(ratios) - 1), units.percent(max(ratios) - 1)
    said = f"{len(ratios)} of the points were measured too"
    return [f"{said}; predicted / measured − 1: {low} to {high}."]


def _table(group: Group) -> Table:
    places = sorted({group.place(record) for record in group.predicted})
    shown = [record for record in group.predicted if group.place(record) in (places[0], places[-1])]
    shown.sort(key=lambda record: (group.place(record), group.codecs.index(record.codec)))

    def seconds(record: PredictRecord) -> float | None:
        measured = group.measurement(record)
        return measured and measured.seconds

    return page.table(
        "The first and the last " + ("size" if group.setting.ranks else "number of ranks"),
        "codec=codec, ranks=ranks, gradient=bytes|b, way=algorithm, predicted=seconds|s, "
        "vs none=speedup|x, bytes sent=wire_bytes|B, measured=measured|s",
        shown,
        "Predicted by the cost model from the link, and from codecs as quick as on the machine "
        "that predicted. vs none: of predicted times. Bytes sent: by one rank.",
        bytes=gradient_bytes,
        speedup=lambda record: group.speedup(record, group.predicted),
        measured=seconds,
    )


def _caption(group: Group) -> str:
    said = "Lines are predictions of the cost model, not measurements."
    if group.measured:
        said += " Large hollow markers were measured."
    return said + " All axes are logarithmic."


def _draw(group: Group, palette: Palette) -> Figure:
    figure = drawing.figure(4.6)
    time, speedup, legend = figure.subplots(1, 3, gridspec_kw={"width_ratios": (4, 4, 2)})
    _panel(time, group, palette, lambda record, _: record.seconds, units.seconds)
    drawing.log_axis(time.yaxis, units.short_seconds, 10)
    time.set_title("Predicted time (shorter is better)")
    speedup.axhline(1, color=LIGHT.quiet, linewidth=1.0, zorder=1)
    _panel(speedup, group, palette, group.speedup, units.ratio)
    drawing.log_axis(speedup.yaxis, lambda value: f"{value:g}×", 2)
    speedup.set_title("Predicted speed-up (higher is better)")
    legend.axis("off")
    legend.legend(handles=_legend(group, palette), loc="center left")
    return figure


def _legend(group: Group, palette: Palette) -> list[Line2D]:
    lines = [
        Line2D([], [], color=palette[codec].colour, label=f"{codec} (predicted)")
        for codec in group.codecs
    ]
    if group.measured:
        hollow = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
        lines.append(Line2D([], [], color=LIGHT.ink, label="measured", **hollow))
    return lines


def _panel(
    axes: Axes,
    group: Group,
    palette: Palette,
    field: typing.Callable[[Either, typing.Sequence[Either]], float | None],
    write_value: typing.Callable[[float], str],
) -> None:
    sized = bool(group.setting.ranks)
    write, unit = (units.short_bytes, "") if sized else ("{:g}".format, " ranks")
    for codec in group.codecs:
        marked = {**drawing.hollow(palette, codec, 9), "linestyle": "none", "zorder": 3}
        for kind, found, look in (
            ("predicted", group.predicted, {"color": palette[codec].colour}),
            ("measured", group.measured, marked),
        ):
            points = [(group.place(r), field(r, found)) for r in group.curve(codec, found)]
            drawn = [(place, value) for place, value in points if value is not None]
            texts = [f"{codec}, {write(x)}{unit}: {write_value(y)} ({kind})" for x, y in drawn]
            if drawn:
                drawing.curve(axes, drawn, texts, **look)
    axes.set_xlabel("bytes of the gradient" if sized else "ranks")
    drawing.log_axis(axes.xaxis, write, 2)
