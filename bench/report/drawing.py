"""matplotlib in the report's themes: figures, axes, legends. All other drawing uses this module."""

import contextlib
import math
import typing

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  after the backend's choice
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from palette import Palette, Theme

WIDTH = 10.0  # inches; width of a picture in the page
FEW_DECADES = 300  # high / low; below, powers of ten are too few ticks
DASHES = ("-", "--", ":", "-.")
FRONT = {"linewidth": 1.1, "linestyle": ":", "zorder": 2}  # the Pareto front


@contextlib.contextmanager
def _themed(theme: Theme) -> typing.Iterator[None]:
    colours = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"),
        theme.ink,
    )
    backgrounds = dict.fromkeys(
        ("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper
    )
    shape = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": theme.quiet,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "lines.linewidth": 2.0,
        "lines.markersize": 6.0,
        "hatch.linewidth": 0.8,
    }
    with plt.rc_context({**colours, **backgrounds, **shape}):
        yield


def figure(
    palette: Palette, size: tuple[float, float], paint: typing.Callable[[Figure], None]
) -> Figure:
    """Makes a figure of `size` inches and calls `paint` to draw.

    The figure belongs to no global list.
    """
    with _themed(palette.theme):
        made = Figure(figsize=size, constrained_layout=True)
        made.set_constrained_layout_pads(w_pad=0.08, h_pad=0.08)
        paint(made)
        made.canvas.draw()  # creates all ticks now, because new ticks read the theme
        return made


def legend_right(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.6, labelspacing=0.7)


def log_axis(axis: Axis, write: typing.Callable[[float], str], base: int) -> None:
    """Makes a logarithmic axis with few written-out ticks. Call after drawing."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log", base=base)
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if base == 10 and high / low < FEW_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(base=base, subs=steps, numticks=7))
    axis.set_major_formatter(lambda value, _: write(value))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """Formats a tick; small numbers become powers of ten."""
    return f"{value:g}" if value >= 1e-3 else f"$10^{{{math.log10(value):.0f}}}$"


def rows(axes: Axes, labels: list[str], above: float = 0.6, below: float = 0.6) -> None:
    """Bars have integer positions, the first bar on top, with some space around all bars."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 1 + below, -above)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def end_label(axes: Axes, x: float, y: float, text: str, **look: typing.Any) -> None:
    """Writes a label to the right of (x, y)."""
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", **look)


def point(axes: Axes, label: str, at: tuple, style: dict, deviation: float | None = None) -> None:
    """Draws a marker without a line, with an error bar of one deviation if known."""
    if deviation is not None:
        axes.errorbar(*at, deviation, capsize=4, elinewidth=1.5, color=style["color"])
    axes.plot(*([x] for x in at), label=label, zorder=3, **{**style, "linestyle": "none"})


def hollow(palette: Palette, codec: str, size: float) -> dict[str, typing.Any]:
    """A hollow marker that keeps lower markers visible."""
    return {**line_style(palette, codec, 0), "markersize": size, "markerfacecolor": "none"}


def line_style(palette: Palette, codec: str, variant: int) -> dict[str, typing.Any]:
    """Variant 0 is solid and filled.

    Other variants of the same colour and marker are dashed and hollow.
    """
    style = palette[codec]
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": DASHES[variant % len(DASHES)],
        "markerfacecolor": palette.theme.paper if variant else style.colour,
        "markeredgecolor": style.colour,
        "markeredgewidth": 1.6,
    }


def note(axes: Axes, text: str, theme: Theme) -> None:
    """Writes a small note in the lower right corner of the plot."""
    box = {"facecolor": theme.paper, "edgecolor": "none", "pad": 2, "alpha": 0.85}
    axes.text(
        0.995,
        0.015,
        text,
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
        color=theme.quiet,
        bbox=box,
    )
