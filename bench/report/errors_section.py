"""What codecs lose of given tensors, at how many bits a value: a table and a picture."""

import dataclasses
import functools
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import summary
import units
from page import Picture, Section, Table
from palette import Palette, Theme, in_order
from records import ErrorRecord


@dataclasses.dataclass(frozen=True)
class Data:
    """What was encoded."""

    name: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Loss:
    """A codec on all tensors together."""

    codec: str
    bits: float  # a value
    energy: float  # lost, of 1
    count: int
    tensors: int
    ranks: int


def losses(found: list[ErrorRecord]) -> dict[Data, list[Loss]]:
    """For each data the codecs in the palette's order."""
    groups: dict[Data, dict[str, dict[str, ErrorRecord]]] = {}
    for record in found:
        group = groups.setdefault(Data(record.data, record.dtype), {})
        group.setdefault(record.codec, {})[record.tensor] = record  # of repeats the last
    return {
        data: [_together(codec, list(by_codec[codec].values())) for codec in in_order({*by_codec})]
        for data, by_codec in groups.items()
    }


def _together(codec: str, of_tensors: list[ErrorRecord]) -> Loss:
    count = sum(record.count for record in of_tensors)
    bits = sum(record.bits * record.count for record in of_tensors)
    energy = sum(record.norm**2 for record in of_tensors)
    lost = sum(record.energy_lost * record.norm**2 for record in of_tensors)
    ranks = max(record.ranks for record in of_tensors)
    return Loss(
        codec, bits / count, lost / energy if energy else 0.0, count, len(of_tensors), ranks
    )


def sections(found: list[ErrorRecord], palette: Palette) -> list[Section]:
    if not found:
        return []
    groups = losses(found)
    parts: list[Table | Picture] = []
    for i, (data, group) in enumerate(groups.items(), start=1):
        parts += _parts(data, group, palette, f"-{i}" if len(groups) > 1 else "")
    return [Section("Errors", [_shared(loss) for loss in _sharing(groups)], parts)]


def _sharing(groups: dict[Data, list[Loss]]) -> list[Loss]:
    """One of each number of ranks."""
    return list(
        {loss.ranks: loss for g in groups.values() for loss in g if loss.ranks > 1}.values()
    )


def _shared(loss: Loss) -> str:
    return (
        f"{loss.codec.split(':')[0]} sends bare values that are added: "
        f"{loss.ranks} ranks share its levels."
    )


def _parts(data: Data, group: list[Loss], palette: Palette, suffix: str) -> list[Table | Picture]:
    heading = f"Energy lost against bits: {_subject(data, group)}"
    columns = ["codec", "bits a value", "energy lost", "relative error"]
    table = Table(heading, columns, [_row(loss) for loss in group])
    caption = (
        "Each point is a codec without feedback on all tensors. Energy lost is |p − d|² / |p|² of "
        "what was sent and what was decoded; bits are the payload's. The dotted line joins codecs "
        "that no other beats in both. What loses nothing is not drawn."
    )
    draw_group = functools.partial(draw, data, group, palette)
    return [table, Picture("errors" + suffix, heading, caption, draw_group)]


def _subject(data: Data, group: list[Loss]) -> str:
    tensors = max(loss.tensors for loss in group)
    count = units.value_count(max(loss.count for loss in group))
    return f"{data.name}, {tensors} tensor{'' if tensors == 1 else 's'}, {count} {data.dtype}"


def _row(loss: Loss) -> list[str]:
    return [
        loss.codec,
        f"{loss.bits:.3f}",
        f"{loss.energy:.2e}",
        f"{math.sqrt(loss.energy):.2e}",
    ]


def draw(data: Data, group: list[Loss], palette: Palette, theme: Theme) -> Figure:
    lossy = [loss for loss in group if loss.energy > 0]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for loss in lossy:
            style = drawing.line_style(palette[loss.codec], theme, 0)
            style.update(linestyle="none", markersize=9, markerfacecolor="none")  # some coincide
            axes.plot([loss.bits], [loss.energy], label=loss.codec, zorder=3, **style)
        _front_line(axes, group, theme)
        axes.set_title(_subject(data, group))
        axes.set_xlabel("bits a value (logarithmic)")
        axes.set_ylabel("energy lost (logarithmic)")
        drawing.log_axis(axes.xaxis, lambda bits: f"{bits:g}", 2)
        drawing.log_axis(axes.yaxis, drawing.power, 10)
        axes.margins(x=0.06, y=0.06)
        drawing.legend_right(axes)

    height = max(4.8, 0.6 + 0.27 * (len(lossy) + 1))
    return drawing.figure(theme, (drawing.WIDTH, height), paint)


def _front_line(axes: Axes, group: list[Loss], theme: Theme) -> None:
    front = summary.pareto_front({loss.codec: (loss.bits, -loss.energy) for loss in group})
    best = [loss for codec in front for loss in group if loss.codec == codec and loss.energy > 0]
    axes.plot(
        [loss.bits for loss in best],
        [loss.energy for loss in best],
        color=theme.ink,
        linewidth=1.1,
        linestyle=":",
        zorder=2,
        label="nobody better",
    )
