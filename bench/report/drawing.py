"""matplotlib as SVG in two themes: figures, axes, legends. All other drawing uses this module."""

import html
import io
import math
import re
import typing

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes  # noqa: E402  after the backend's choice
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from palette import LIGHT, Palette

WIDTH = 10.0  # inches; width of a picture in the page
FEW_DECADES = 300  # high / low; below, powers of ten are too few ticks
DASHES = ("-", "--", ":", "-.")
FRONT = {"linewidth": 1.1, "linestyle": ":", "zorder": 2}  # the Pareto front


INK = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
PAPER = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
matplotlib.rcParams.update(
    {
        **dict.fromkeys(INK, LIGHT.ink),
        **dict.fromkeys(PAPER, LIGHT.paper),
        "svg.fonttype": "none",
        "svg.hashsalt": "tersor",
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": LIGHT.quiet,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": LIGHT.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "lines.linewidth": 2.0,
        "lines.markersize": 6.0,
        "hatch.linewidth": 0.8,
        "text.parse_math": False,  # records may contain dollar signs
    }
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HOVER = "hover-"  # begins the id of a shape; the text in hexadecimal follows


def figure(height: float, width: float = WIDTH) -> Figure:
    """Makes an empty figure; the size is in inches."""
    made = Figure(figsize=(width, height), constrained_layout=True)
    made.set_constrained_layout_pads(w_pad=0.08, h_pad=0.08)
    return made


def plot(height: float, width: float = WIDTH, **labels: typing.Any) -> tuple[Figure, Axes]:
    """Makes a figure with one plot. ``labels``: for ``Axes.set``."""
    made = figure(height, width)
    axes = made.add_subplot()
    axes.set(**labels)
    return made, axes


def svg(made: Figure) -> str:
    """An element for a page whose CSS has the variables of the theme; see palette.css.

    A browser shows the value of a shape under the pointer.
    """
    stream = io.StringIO()
    made.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(r" <metadata>.*?</metadata>\n", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(f'<g id="{HOVER}([0-9a-f]*)">', _titled, text)
    text = re.sub(r'<g id="[^"]*"(/?)>', r"<g\1>", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub("'?DejaVu Sans'?", "'DejaVu Sans', Verdana", text)
    for name, colour in vars(LIGHT).items():
        text = text.replace(colour, f"var(--{name})")
    return text


def _titled(group: re.Match[str]) -> str:
    text = bytes.fromhex(group[1]).decode()
    return f"<g><title>{html.escape(text)}</title>"


def hover(text: str) -> dict[str, str]:
    """The option of a shape that shows `text` under the pointer."""
    return {"gid": HOVER + text.encode().hex()}


def curve(axes: Axes, points: list[tuple[float, float]], texts: list[str], **look: object) -> None:
    """Draws a line. Each point shows its text under the pointer, also next to the marker."""
    axes.plot(*zip(*points), **look)
    for (x, y), text in zip(points, texts):
        axes.plot([x], [y], "o", markersize=14, alpha=0, zorder=9, **hover(text))


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
    exponent = f"{math.log10(value):.0f}".translate(SUPERSCRIPTS)
    return f"{value:g}" if value >= 1e-3 else f"10{exponent}"


def rows(axes: Axes, labels: list[str], above: float = 0.6, below: float = 0.6) -> None:
    """Bars have integer positions, the first bar on top, with some space around all bars."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 1 + below, -above)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def end_label(axes: Axes, x: float, y: float, text: str, **look: typing.Any) -> None:
    """Writes a label to the right of (x, y)."""
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", **look)


def point(
    axes: Axes, label: str, at: tuple, style: dict, text: str, deviation: float | None = None
) -> None:
    """Draws a marker without a line, with an error bar of one deviation if known.

    The label and `text` are shown under the pointer.
    """
    if deviation is not None:
        axes.errorbar(*at, deviation, capsize=4, elinewidth=1.5, color=style["color"])
    style = {**style, "linestyle": "none", **hover(f"{label}: {text}")}
    axes.plot(*([x] for x in at), label=label, zorder=3, **style)


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
        "markerfacecolor": LIGHT.paper if variant else style.colour,
        "markeredgecolor": style.colour,
        "markeredgewidth": 1.6,
    }


def note(axes: Axes, text: str) -> None:
    """Writes a small note in the lower right corner of the plot."""
    box = {"facecolor": LIGHT.paper, "edgecolor": "none", "pad": 2, "alpha": 0.85}
    look = {"ha": "right", "va": "bottom", "fontsize": 9, "color": LIGHT.quiet, "bbox": box}
    axes.text(0.995, 0.015, text, transform=axes.transAxes, **look)
