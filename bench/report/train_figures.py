"""The pictures of a training: accuracy by bytes and time, parts of a step, paired seeds."""

import math

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

import drawing
import summary
import units
from palette import LIGHT, Palette

ACCURACY_WINDOW = 0.12  # shown range below the best accuracy in the time picture
LEGEND_HEIGHT = 0.5  # inches
STEP_PARTS = ("compute", "exposed communication", "rest")


def accuracy_bytes(training: summary.Training, palette: Palette) -> Figure:
    figure, axes = drawing.plot(
        4.8,
        xlabel="bytes sent per step and rank, logarithmic (fewer is better)",
        ylabel="test accuracy, last epoch (higher is better)",
    )
    at = {c: (r.step_mean("wire_bytes"), r.accuracy.mean) for c, r in training.codecs.items()}
    for codec, (sent, accuracy) in at.items():
        style = {**drawing.line_style(palette, codec, _variant(codec, training)), "markersize": 10}
        text = f"accuracy {units.percent(accuracy)}, {units.byte_count(sent)} per step"
        deviation = training.codecs[codec].accuracy.known_deviation
        drawing.point(axes, codec, at[codec], style, text, deviation)
    front = list(zip(*(at[codec] for codec in training.pareto_front())))
    axes.step(*front, where="post", color=LIGHT.ink, label="Pareto front", **drawing.FRONT)
    ring = {"facecolors": "none", "edgecolors": LIGHT.ink, "linewidths": 1.1, "zorder": 2}
    axes.scatter(*front, s=330, **ring)
    drawing.log_axis(axes.xaxis, units.short_bytes, 2)
    _percent_axis(axes)
    axes.margins(x=0.08, y=0.14)
    drawing.note(axes, "accuracy axis does not start at zero")
    drawing.legend_right(axes)
    return figure


def _variant(codec: str, training: summary.Training) -> int:
    """A codec without feedback is dashed and hollow next to the same codec with feedback."""
    return int(codec + "+ef" in training.codecs)


def accuracy_time(training: summary.Training, palette: Palette) -> Figure:
    figure, axes = drawing.plot(4.8)
    _curves(axes, training, palette)
    drawing.legend_right(axes)
    return figure


def _curves(axes: Axes, training: summary.Training, palette: Palette) -> None:
    for codec, runs in training.codecs.items():
        seconds, spreads = zip(*runs.curve())
        means = [spread.mean for spread in spreads]
        style = drawing.line_style(palette, codec, _variant(codec, training))
        texts = [
            f"{codec}, epoch {epoch}: accuracy {units.percent(mean)} after {units.seconds(at)}"
            for epoch, (at, mean) in enumerate(zip(seconds, means), start=1)
        ]
        drawing.curve(axes, list(zip(seconds, means)), texts, label=codec, **style)
        if len(runs.runs) > 1:
            ends = ([one.mean + sign * one.deviation for one in spreads] for sign in (-1, 1))
            look = {"color": palette[codec].colour, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(seconds, *ends, **look)
    _accuracy_window(axes, training)
    axes.xaxis.set_major_formatter("{x:g}")
    label = "wall-clock time of training in s (shorter is better)"
    axes.set(xlim=(0, None), xlabel=label, ylabel="test accuracy (higher is better)")
    if axes.get_ylim()[0] > 0:
        drawing.note(axes, "accuracy axis does not start at zero")


def _accuracy_window(axes: Axes, training: summary.Training) -> None:
    """Codecs differ in the last points of accuracy, so the first epochs may be cut off."""
    seen = [spread.mean for runs in training.codecs.values() for _, spread in runs.curve()]
    best = max(seen)
    low = max(min(seen), best - ACCURACY_WINDOW)
    room = 0.06 * (best - low) + 0.002
    axes.set_ylim(low - room, min(1.0, best + 2 * room))
    _percent_axis(axes)


def _percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def step_time(training: summary.Training, palette: Palette) -> Figure:
    height = 0.8 + 0.72 * len(training.codecs)
    figure = drawing.figure(height + LEGEND_HEIGHT)
    bars, legend = figure.subplots(2, 1, height_ratios=[height, LEGEND_HEIGHT])
    _step_bars(bars, training, palette)
    _part_legend(legend)
    return figure


def _shades(colour: str) -> dict[str, dict]:
    """Fills of a step's parts, in the codec's own colour."""
    soft, middle = to_rgba(colour, 0.40), to_rgba(colour, 0.55)
    hatched = {"facecolor": "none", "edgecolor": middle, "linewidth": 1.0}
    return {
        "compute": {"facecolor": soft},
        "exposed communication": {"facecolor": colour},
        "rest": {"facecolor": LIGHT.grid},
        "encode": {**hatched, "hatch": "////"},
        "wire": {**hatched, "hatch": "||||"},
        "decode": {**hatched, "hatch": "\\\\\\\\"},
    }


def _part_legend(axes: Axes) -> None:
    """Parts of the upper bars, then of the lower bars, in two rows."""
    shades = _shades(LIGHT.quiet)
    names = [list(shades)[i] for i in (0, 3, 1, 4, 2, 5)]  # matplotlib fills columns first
    bars = {part: "step" if part in STEP_PARTS else "communication" for part in names}
    handles = [Patch(label=f"{bars[part]}: {part}", **shades[part]) for part in names]
    axes.axis("off")
    axes.legend(handles=handles, loc="center", ncol=3, fontsize=10, columnspacing=1.5)


def _step_bars(axes: Axes, training: summary.Training, palette: Palette) -> None:
    longest = 0.0
    for row, (codec, runs) in enumerate(training.codecs.items()):
        shades = _shades(palette[codec].colour)
        step, share = units.seconds(runs.step_mean("step_seconds")), runs.hidden_share
        hidden = "" if math.isnan(share) else f"{100 * share:.0f} % hidden"
        work = {part: runs.step_mean(f"{part}_seconds") for part in ("encode", "wire", "decode")}
        for y, height, parts, text, colour in (
            (row - 0.18, 0.42, _step_parts(runs), step, LIGHT.ink),
            (row + 0.22, 0.26, work, hidden, LIGHT.quiet),
        ):
            end = _stack(axes, codec, (y, height), parts, shades)
            drawing.end_label(axes, end, y, text, fontsize=9.5, color=colour)
            longest = max(longest, end)
    drawing.rows(axes, list(training.codecs), above=0.55, below=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: units.short_seconds(value))
    label = "time in a step, mean over steps and ranks (shorter is better)"
    axes.set(xlim=(0, 1.2 * longest), xlabel=label)


def _step_parts(runs: summary.CodecRuns) -> dict[str, float]:
    compute, exposed = runs.step_mean("compute_seconds"), runs.step_mean("exposed_seconds")
    rest = max(0.0, runs.step_mean("step_seconds") - compute - exposed)
    return dict(zip(STEP_PARTS, (compute, exposed, rest)))


def _stack(
    axes: Axes, codec: str, place: tuple[float, float], parts: dict[str, float], shades: dict
) -> float:
    """Draws the parts one after the other at (y, height). Returns the end of the last part."""
    left = 0.0
    for part, seconds in parts.items():
        look = {**shades[part], **drawing.hover(f"{codec}: {part} {units.seconds(seconds)}")}
        axes.barh(place[0], seconds, place[1], left=left, **look)
        left += seconds
    return left


def paired(training: summary.Training, palette: Palette) -> Figure:
    pairs = {codec: training.paired(codec, "none") for codec in training.codecs if codec != "none"}
    pairs = {codec: differences for codec, differences in pairs.items() if differences}
    label = "percentage points of accuracy more than none with the same seed (right is better)"
    figure, axes = drawing.plot(1.3 + 0.5 * len(pairs), xlabel=label)
    axes.axvline(0, color=LIGHT.ink, linewidth=1.2)
    for row, (codec, differences) in enumerate(pairs.items()):
        look = {"color": palette[codec].colour, "alpha": 0.55, "markersize": 7}
        for seed, one in differences.items():
            shown = drawing.hover(f"{codec}, seed {seed}: {units.points(one)} points")
            axes.plot([100 * one], [row], "o", markeredgewidth=0, **look, **shown)
        mean = 100 * sum(differences.values()) / len(differences)
        axes.plot([mean], [row], "|", color=LIGHT.ink, markersize=20, markeredgewidth=2.2)
    axes.set_yticks(range(len(pairs)), pairs)
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    return figure
