"""Training loss against bytes, of one model at one learning rate or at several."""

import dataclasses

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import summary
import units
from palette import Palette

WIDE = 12.0  # inches: labels name a rate, too
ROW_HEIGHT = 0.31  # inches of a line in the legend


@dataclasses.dataclass(frozen=True)
class Point:
    """A codec at a learning rate."""

    runs: summary.CodecRuns
    sent: float  # bytes
    loss: summary.Spread
    label: str
    variant: int  # of the codec's style: which of its learning rates


def draw(trainings: list[summary.Training], palette: Palette) -> Figure:
    """`trainings` differ in their learning rate alone, and all tell their losses."""
    points = _points(trainings)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for point in points:
            _paint_point(axes, point, palette)
        axes.set_xlabel("bytes that a rank sends in a step, mean of all steps (logarithmic)")
        axes.set_ylabel("training loss, mean of the last epoch")
        drawing.log_axis(axes.xaxis, units.short_bytes, 2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.06, y=0.08)
        drawing.note(axes, "loss axis does not start at zero", palette.theme)
        drawing.legend_right(axes)

    width = drawing.WIDTH if len(trainings) == 1 else WIDE
    return drawing.figure(palette, (width, max(4.8, ROW_HEIGHT * len(points))), paint)


def _points(trainings: list[summary.Training]) -> list[Point]:
    """By rising bytes."""
    every = [(runs, one) for one in trainings for runs in one.codecs.values()]
    seeds = max(len(runs.runs) for runs, _ in every)
    points = []
    for runs, training in every:
        rates = [one.learning_rate for one in trainings if runs.codec in one.codecs]
        label = (
            f"{runs.codec}, rate {training.learning_rate:g}" if len(trainings) > 1 else runs.codec
        )
        if len(runs.runs) < seeds:
            label += f" ({len(runs.runs)} of {seeds} seeds)"
        variant = rates.index(training.learning_rate)
        points.append(Point(runs, runs.step_mean("wire_bytes"), runs.loss, label, variant))
    return sorted(points, key=lambda point: point.sent)


def _paint_point(axes: Axes, point: Point, palette: Palette) -> None:
    """What DDP itself learns is a line across, too."""
    style = drawing.line_style(palette, point.runs.codec, point.variant)
    if point.runs.codec == "none":
        dashes = drawing.DASHES[1 + point.variant]
        axes.axhline(point.loss.mean, color=style["color"], linestyle=dashes, linewidth=1.2)
    at, style["markersize"] = (point.sent, point.loss.mean), 9
    drawing.point(axes, point.label, at, style, point.loss.known_deviation)
