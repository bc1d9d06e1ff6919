"""The plot of a handle's counts: bytes and residuals per parameter, and times.

All bars are means per step of this rank and begin at zero. Numbers beside bars are counted or
measured. The plot omits unknown numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tersor import _style, _text
from tersor.torch._src.statistics import records
from tersor.torch._src.statistics.records import ParameterStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 16
"""Maximum number of bars; the smallest parameters share the last bar."""
MAX_NAME_LENGTH = 38
MAX_TICKS = 6

WIDTH = 11.0  # inches
ROW_HEIGHT = 0.34
TIME_HEIGHT = 1.9
HEAD_HEIGHT = 1.6


def draw(
    parameters: Sequence[ParameterStatistics],
    totals: ParameterStatistics,
    path: str | os.PathLike[str],
) -> None:
    """Draws to a .png, .svg or .pdf file. Raises ImportError if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError("report() draws with matplotlib: pip install matplotlib") from missing
    with matplotlib.rc_context(_style.STYLE):
        figure(parameters, totals).savefig(os.fspath(path), dpi=160)


def figure(parameters: Sequence[ParameterStatistics], totals: ParameterStatistics) -> Figure:
    """The plot as a matplotlib figure outside of pyplot's global list."""
    from matplotlib.figure import Figure

    rows = _rows(parameters)
    bars_height = ROW_HEIGHT * len(rows) + 0.9
    height = bars_height + TIME_HEIGHT + HEAD_HEIGHT
    drawing = Figure(figsize=(WIDTH, height), constrained_layout=True)
    grid = drawing.add_gridspec(2, 2, height_ratios=[bars_height, TIME_HEIGHT], width_ratios=[3, 1])
    bytes_axes = drawing.add_subplot(grid[0, 0])
    _draw_bytes(bytes_axes, rows)
    _draw_residuals(drawing.add_subplot(grid[0, 1], sharey=bytes_axes), rows)
    _draw_time(drawing.add_subplot(grid[1, :]), totals)
    drawing.suptitle(_headline(totals), x=0.015, ha="left", fontsize=14, fontweight="bold")
    note = f"{totals.codec}, means over {totals.steps} steps of this rank"
    drawing.supxlabel(note, x=0.985, ha="right", fontsize=9.5, color=_style.MUTED)
    return drawing


def _rows(parameters: Sequence[ParameterStatistics]) -> list[ParameterStatistics]:
    """The largest parameters in descending order, and one entry for the rest."""
    largest = sorted(parameters, key=lambda one: -one.uncompressed_bytes)
    if len(largest) <= MAX_ROWS:
        return largest
    rest = records.add_up(largest[MAX_ROWS - 1 :])
    rest.name = f"{len(largest) - MAX_ROWS + 1} smaller ones"
    return [*largest[: MAX_ROWS - 1], rest]


def _headline(totals: ParameterStatistics) -> str:
    sent = _text.byte_count(totals.per_step("sent_bytes"))
    uncompressed = _text.byte_count(totals.per_step("uncompressed_bytes"))
    return f"{sent} sent a step instead of {uncompressed}: {_text.ratio(totals.ratio)} less"


def _draw_bytes(axes: Axes, rows: Sequence[ParameterStatistics]) -> None:
    from matplotlib.ticker import MultipleLocator

    places, every = range(len(rows)), [one.name for one in rows]
    whole = [one.per_step("uncompressed_bytes") or 0.0 for one in rows]
    sent = [one.per_step("sent_bytes") or 0.0 for one in rows]
    colours = [_colour(one) for one in rows]
    axes.barh(places, whole, height=0.72, color=[_style.tint(one) for one in colours])
    axes.barh(places, sent, height=0.72, color=colours)
    for place, one in zip(places, rows, strict=True):
        axes.text(max(whole[place], sent[place]), place, _label(one), va="center", fontsize=9.5)
    names = [n if len(n) <= MAX_NAME_LENGTH else "…" + n[1 - MAX_NAME_LENGTH :] for n in every]
    axes.set_yticks(places, names)
    axes.grid(axis="y", visible=False)
    right = 1.45 * max([*whole, *sent, 1.0])  # space for the numbers beside the bars
    axes.set(xlim=(0, right), ylim=(len(rows) - 0.4, -0.6), title="Sent bytes")
    axes.set_xlabel("bytes per step on the wire: dark sent, light uncompressed")
    axes.xaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(right / MAX_TICKS))))
    axes.xaxis.set_major_formatter(lambda value, _: _text.short(_text.byte_count(value)))


def _colour(one: ParameterStatistics) -> str:
    return _style.MUTED if one.codec == records.SEVERAL else _style.colour(one.codec)


def _label(one: ParameterStatistics) -> str:
    error = one.relative_error
    suffix = "" if error is None else f", error {_text.percent(error)}"
    return f" {one.codec}  {_text.ratio(one.ratio)}{suffix}"


def _draw_residuals(axes: Axes, rows: Sequence[ParameterStatistics]) -> None:
    places = range(len(rows))
    norms = [one.residual_norm or 0.0 for one in rows]
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.grid(axis="y", visible=False)
    axes.set(title="Residuals", xlabel="norm of the residual")
    if not any(norms):
        axes.set_xticks([])
        style: Any = {"transform": axes.transAxes, "ha": "center", "color": _style.MUTED}
        axes.text(0.5, 0.5, "no error feedback", **style)
        return
    axes.barh(places, norms, height=0.3, color=[_colour(one) for one in rows])
    for place, norm in zip(places, norms, strict=True):
        if norm:
            axes.text(norm, place, f" {_text.magnitude(norm)}", va="center", fontsize=9.5)
    axes.set_xlim(0, 1.45 * max(norms))


def _draw_time(axes: Axes, totals: ParameterStatistics) -> None:
    """Two bars: hidden and exposed time of the network, and time of the codec."""
    from matplotlib.ticker import MaxNLocator

    shade = _style.MUTED
    wire = [("hidden", "hidden_seconds", _style.tint(shade)), ("exposed", "exposed_seconds", shade)]
    if totals.hidden_seconds is None:
        wire = [("wire", "wire_seconds", shade)]
    hue = _colour(totals)
    codec = [("encode", "encode_seconds", hue), ("decode", "decode_seconds", _style.tint(hue))]
    for place, parts in enumerate((wire, codec)):
        known = [(name, totals.per_step(key) or 0.0, tint) for name, key, tint in parts]
        end = 0.0
        for _, seconds, tint in known:
            axes.barh(place, seconds, left=end, height=0.5, color=tint)
            end += seconds
        text = ", ".join(f"{name} {_text.seconds(seconds)}" for name, seconds, _ in known)
        axes.text(end, place, f" {text}", va="center", fontsize=9.5)
    axes.set_yticks([0, 1], ["communication", "codec"])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(lambda value, _: _text.short(_text.seconds(value)))
    right = 1.35 * axes.get_xlim()[1]
    axes.set(xlim=(0, right), ylim=(1.6, -0.6), title="Time per step", xlabel="seconds")
