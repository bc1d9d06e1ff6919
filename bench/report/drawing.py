"""matplotlib in our themes: figures, axes, legends. All other drawing stands on this."""

import contextlib
import math
import typing

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  the backend comes first
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

import palette

WIDTH = 10.0  # inches of a picture in the page
FEW_DECADES = 300  # high / low; below it, powers of ten alone are too few ticks
DASHES = ("-", "--", ":", "-.")


@contextlib.contextmanager
def _themed(theme: palette.Theme) -> typing.Iterator[None]:
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
    theme: palette.Theme,
    size: tuple[float, float],
    paint: typing.Callable[[Figure], None],
) -> Figure:
    """A figure of `size` inches on which `paint` has drawn; belongs to no global list."""
    with _themed(theme):
        made = Figure(figsize=size, constrained_layout=True)
        made.set_constrained_layout_pads(w_pad=0.08, h_pad=0.08)
        paint(made)
        made.canvas.draw()  # ticks read the theme when they are made, so make them all now
        return made


def legend_right(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.6, labelspacing=0.7)


def log_axis(axis: Axis, write: typing.Callable[[float], str], base: int) -> None:
    """A logarithmic axis with few, written-out ticks; call it when all is drawn."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log", base=base)
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if base == 10 and high / low < FEW_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(base=base, subs=steps, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """For ticks: small ones as powers of ten."""
    return f"{value:g}" if value >= 1e-3 else f"$10^{{{math.log10(value):.0f}}}$"


def line_style(style: palette.Style, theme: palette.Theme, variant: int) -> dict[str, typing.Any]:
    """Variant 0 is solid and filled; others of the same colour and marker are dashed and hollow."""
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": DASHES[variant % len(DASHES)],
        "markerfacecolor": theme.paper if variant else style.colour,
        "markeredgecolor": style.colour,
        "markeredgewidth": 1.6,
    }


def note(axes: Axes, text: str, theme: palette.Theme) -> None:
    """A remark in small type in the lower right corner of the plot."""
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
