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
from palette import Palette, Theme

ACCURACY_WINDOW = 0.12  # shown range below the best accuracy in the time picture
LEGEND_HEIGHT = 0.5  # inches
STEP_PARTS = ("compute", "exposed communication", "rest")


def accuracy_bytes(training: summary.Training, palette: Palette) -> Figure:
    figure = drawing.figure(4.8)
    axes = figure.add_subplot()
    for codec, runs in training.codecs.items():
        style = drawing.line_style(palette, codec, _variant(codec, training))
        at, style["markersize"] = (runs.step_mean("wire_bytes"), runs.accuracy.mean), 10
        text = f"accuracy {units.percent(at[1])}, {units.byte_count(at[0])} per step"
        drawing.point(axes, codec, at, style, text, runs.accuracy.known_deviation)
    _front_line(axes, training, palette.theme)
    axes.set_xlabel("bytes sent per step and rank, logarithmic (fewer is better)")
    axes.set_ylabel("test accuracy, last epoch (higher is better)")
    drawing.log_axis(axes.xaxis, units.short_bytes, 2)
    _percent_axis(axes)
    axes.margins(x=0.08, y=0.14)
    drawing.note(axes, "accuracy axis does not start at zero", palette.theme)
    drawing.legend_right(axes)
    return figure


def _variant(codec: str, training: summary.Training) -> int:
    """A codec without feedback is dashed and hollow next to the same codec with feedback."""
    return int(codec + "+ef" in training.codecs)


def _front_line(axes: Axes, training: summary.Training, theme: Theme) -> None:
    best = [training.codecs[codec] for codec in training.pareto_front()]
    sent = [runs.step_mean("wire_bytes") for runs in best]
    accuracy = [runs.accuracy.mean for runs in best]
    look = {"where": "post", "color": theme.ink, "label": "Pareto front", **drawing.FRONT}
    axes.step(sent, accuracy, **look)
    axes.scatter(
        sent, accuracy, s=330, facecolors="none", edgecolors=theme.ink, linewidths=1.1, zorder=2
    )


def accuracy_time(training: summary.Training, palette: Palette) -> Figure:
    figure = drawing.figure(4.8)
    axes = figure.add_subplot()
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
            low = [spread.mean - spread.deviation for spread in spreads]
            high = [spread.mean + spread.deviation for spread in spreads]
            axes.fill_between(
                seconds, low, high, color=palette[codec].colour, alpha=0.18, linewidth=0
            )
    _accuracy_window(axes, training)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("wall-clock time of training in s (shorter is better)")
    axes.set_ylabel("test accuracy (higher is better)")
    if axes.get_ylim()[0] > 0:
        drawing.note(axes, "accuracy axis does not start at zero", palette.theme)


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
    bars_height = 0.8 + 0.72 * len(training.codecs)
    figure = drawing.figure(bars_height + LEGEND_HEIGHT)
    heights = {"height_ratios": [bars_height, LEGEND_HEIGHT]}
    bars, legend = figure.subplots(2, 1, gridspec_kw=heights)
    _step_bars(bars, training, palette)
    _part_legend(legend, palette.theme)
    return figure


def _shades(colour: str, theme: Theme) -> dict[str, dict]:
    """Fills of a step's parts, in the codec's own colour."""
    soft, middle = to_rgba(colour, 0.40), to_rgba(colour, 0.55)
    hatched = {"facecolor": "none", "edgecolor": middle, "linewidth": 1.0}
    return {
        "compute": {"facecolor": soft},
        "exposed communication": {"facecolor": colour},
        "rest": {"facecolor": theme.grid},
        "encode": {**hatched, "hatch": "////"},
        "wire": {**hatched, "hatch": "||||"},
        "decode": {**hatched, "hatch": "\\\\\\\\"},
    }


def _part_legend(axes: Axes, theme: Theme) -> None:
    """Parts of the upper bars, then of the lower bars, in two rows."""
    shades = _shades(theme.quiet, theme)
    names = [list(shades)[i] for i in (0, 3, 1, 4, 2, 5)]  # matplotlib fills columns first
    bars = {part: "step" if part in STEP_PARTS else "communication" for part in names}
    handles = [Patch(label=f"{bars[part]}: {part}", **shades[part]) for part in names]
    axes.axis("off")
    axes.legend(handles=handles, loc="center", ncol=3, fontsize=10, columnspacing=1.5)


def _step_bars(axes: Axes, training: summary.Training, palette: Palette) -> None:
    theme = palette.theme
    longest = max(_longest(runs) for runs in training.codecs.values())
    for row, (codec, runs) in enumerate(training.codecs.items()):
        shades = _shades(palette[codec].colour, theme)
        end = _stack(axes, codec, (row - 0.18, 0.42), _step_parts(runs), shades)
        step = units.seconds(runs.step_mean("step_seconds"))
        drawing.end_label(axes, end, row - 0.18, step, fontsize=9.5, color=theme.ink)
        end = _stack(axes, codec, (row + 0.22, 0.26), _communication_parts(runs), shades)
        hidden = _hidden_label(runs)
        drawing.end_label(axes, end, row + 0.22, hidden, fontsize=9.5, color=theme.quiet)
    drawing.rows(axes, list(training.codecs), above=0.55, below=0.5)
    axes.set_xlim(0, 1.2 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: units.short_seconds(value))
    axes.set_xlabel("time in a step, mean over steps and ranks (shorter is better)")


def _step_parts(runs: summary.CodecRuns) -> dict[str, float]:
    compute, exposed = runs.step_mean("compute_seconds"), runs.step_mean("exposed_seconds")
    rest = max(0.0, runs.step_mean("step_seconds") - compute - exposed)
    return dict(zip(STEP_PARTS, (compute, exposed, rest)))


def _communication_parts(runs: summary.CodecRuns) -> dict[str, float]:
    return {part: runs.step_mean(f"{part}_seconds") for part in ("encode", "wire", "decode")}


def _longest(runs: summary.CodecRuns) -> float:
    return max(sum(_step_parts(runs).values()), sum(_communication_parts(runs).values()))


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


def _hidden_label(runs: summary.CodecRuns) -> str:
    share = runs.hidden_share
    return "" if math.isnan(share) else f"{100 * share:.0f} % hidden"


def paired(training: summary.Training, palette: Palette) -> Figure:
    codecs = [
        codec for codec in training.codecs if codec != "none" and training.paired(codec, "none")
    ]
    figure = drawing.figure(1.3 + 0.5 * len(codecs))
    axes = figure.add_subplot()
    axes.axvline(0, color=palette.theme.ink, linewidth=1.2)
    for row, codec in enumerate(codecs):
        _paired_row(axes, row, training.paired(codec, "none"), codec, palette)
    axes.set_yticks(range(len(codecs)), codecs)
    axes.set_ylim(len(codecs) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        "percentage points of accuracy more than none with the same seed (right is better)"
    )
    return figure


def _paired_row(
    axes: Axes, row: int, differences: dict[int, float], codec: str, palette: Palette
) -> None:
    look = {"color": palette[codec].colour, "alpha": 0.55, "markersize": 7, "markeredgewidth": 0}
    for seed, one in differences.items():
        shown = drawing.hover(f"{codec}, seed {seed}: {units.points(one)} points")
        axes.plot([100 * one], [row], "o", **look, **shown)
    mean = 100 * sum(differences.values()) / len(differences)
    axes.plot([mean], [row], "|", color=palette.theme.ink, markersize=20, markeredgewidth=2.2)
