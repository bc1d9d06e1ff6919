"""Loss by bytes for a single model. Each codec has its best learning rate, among other rates."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import loss_points
import summary
import units
from palette import LIGHT, Palette

WIDE = 12.0  # inches, because labels also name a rate
ROW_HEIGHT = 0.31  # inches per line of the legend
DENSE = ("none", "muon")  # codecs with all bytes also have a horizontal line
OF_BF16 = 0.5  # share of the bytes of `none`


def draw(trainings: list[summary.Training], palette: Palette) -> Figure:
    """Draws `trainings` with different learning rates and otherwise equal settings.

    All need losses.
    """
    tested = all(runs.ended("test_loss") for one in trainings for runs in one.codecs.values())
    found = loss_points.points(trainings, "test_loss" if tested else "loss")
    told = "test loss at the end" if tested else "training loss of the last epoch"
    figure, axes = drawing.plot(
        max(4.8, ROW_HEIGHT * len(found)),
        drawing.WIDTH if len(trainings) == 1 else WIDE,
        xlabel="bytes that a rank sends per step, logarithmic (fewer is better)",
        ylabel=f"{told} (lower is better)",
    )
    for point in found:
        _paint_point(axes, point, palette)
    _paint_bf16(axes, found)
    drawing.log_axis(axes.xaxis, units.short_bytes, 2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.06, y=0.08)
    small = "small: other rates; " if any(point.others for point in found) else ""
    drawing.note(axes, f"{small}loss axis does not start at zero")
    drawing.legend_right(axes)
    return figure


def _paint_point(axes: Axes, point: loss_points.Point, palette: Palette) -> None:
    style = drawing.line_style(palette, point.codec, 0)
    if point.codec in DENSE:
        axes.axhline(point.loss.mean, color=style["color"], linestyle="--", linewidth=1.2)
    small = {**style, "linestyle": "none", "markersize": 4, "alpha": 0.45}
    axes.plot([point.sent] * len(point.others), point.others, zorder=2, **small)
    at, style["markersize"] = (point.sent, point.loss.mean), 9
    text = f"loss {at[1]:.4f}, {units.byte_count(at[0])} per step"
    drawing.point(axes, point.label, at, style, text, point.loss.known_deviation)


def _paint_bf16(axes: Axes, points: list[loss_points.Point]) -> None:
    """Marks the bytes of mixed precision without a codec."""
    for sent in [OF_BF16 * point.sent for point in points if point.codec == "none"]:
        axes.axvline(sent, color=LIGHT.quiet, linestyle=":", linewidth=1.2)
        look = {"ha": "right", "va": "top", "color": LIGHT.quiet}
        axes.text(sent, 1.0, "bf16 ", transform=axes.get_xaxis_transform(), **look)
