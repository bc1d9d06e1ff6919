"""The chosen codec of each parameter, compared with a single codec for all parameters."""

import dataclasses
import functools
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawing
import page
import records
import summary
import units
from page import Part, Picture, Section, Table, numbered
from palette import LIGHT, Palette, in_order
from records import AllocateRecord

ALLOCATED = "allocated"


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The result of a run of `tersor-bench allocate` for the gradients of `data`."""

    data: str
    candidates: dict[str, list[AllocateRecord]]  # by parameter, only with a finite error
    chosen: list[AllocateRecord]  # one per parameter
    total: AllocateRecord
    uniform: list[AllocateRecord]  # a single codec for all, in the palette's order
    budgets: list[AllocateRecord]  # allocations of as many bytes

    def share(self, record: AllocateRecord) -> float:
        """The lost share of the energy of all parameters."""
        return record.energy_lost / self.total.energy if self.total.energy else 0.0

    def beside(self, uniform: AllocateRecord) -> AllocateRecord | None:
        """The largest allocation with at most as many bytes."""
        fitting = [one for one in self.budgets if one.payload_bytes <= uniform.payload_bytes]
        return max(fitting, key=lambda one: one.payload_bytes, default=None)


def allocations(found: list[records.Record]) -> list[Allocation]:
    """Returns one allocation per data set."""
    groups = records.grouped(records.select(found, AllocateRecord), lambda r: r.data)
    made = [_allocation(data, _once_each(group)) for data, group in groups.items()]
    return [one for one in made if one is not None]


def _once_each(group: list[AllocateRecord]) -> list[AllocateRecord]:
    """Keeps the last of repeated records."""

    def key(one: AllocateRecord) -> tuple[object, ...]:
        budget = (one.payload_bytes, one.chosen) if one.codec == ALLOCATED else ()
        return (one.parameter, one.codec, *budget)

    return list({key(one): one for one in group}.values())


def _allocation(data: str, found: list[AllocateRecord]) -> Allocation | None:
    """None if the run was interrupted before the totals."""
    finite = [one for one in found if one.parameter is not None and one.energy_lost is not None]
    candidates = records.grouped(finite, lambda r: r.parameter)
    totals = [one for one in found if one.parameter is None]
    budgets = [one for one in totals if one.codec == ALLOCATED]
    by_codec = {one.codec: one for one in totals if one.codec != ALLOCATED}
    if not budgets:
        return None
    return Allocation(
        data,
        candidates,
        [one for one in itertools.chain(*candidates.values()) if one.chosen],
        next((one for one in budgets if one.chosen), budgets[-1]),
        [by_codec[codec] for codec in in_order({*by_codec})],
        budgets,
    )


def sections(found: list[records.Record]) -> list[Section]:
    runs = allocations(found)
    parts = list(itertools.chain(*numbered([_parts(run) for run in runs])))
    return [Section("Allocation", [_says(run) for run in runs], parts)] if parts else []


def _says(run: Allocation) -> str:
    total = run.total
    fitting = [one for one in run.uniform if one.payload_bytes <= total.payload_bytes]
    says = f"{run.data}: {_bits(total):.3f} bits per value, relative squared error {run.share(total):.2e}"
    if not fitting:
        return f"{says}; no single codec has as few bits."
    best = min(fitting, key=run.share)
    return (
        f"{says}; the best single codec with at most as many bits is {best.codec}: "
        f"{run.share(best):.2e} with {_bits(best):.3f}."
    )


def _bits(one: AllocateRecord) -> float:
    return 8 * one.payload_bytes / one.count


def _parts(run: Allocation) -> list[Part]:
    rows = [*run.chosen, dataclasses.replace(run.total, parameter="all")]
    columns = "parameter=parameter, values=count|n, codec=codec, bits per value=bits|.3f"
    columns += ", relative squared error=share|.2e"
    heading = f"A codec for each parameter: {run.data}"
    chosen = page.table(heading, columns, rows, bits=_bits, share=run.share)
    caption = (
        "Left: the candidates of each parameter (lines join the Pareto front) and the chosen "
        "codecs. Right: a single codec for all parameters, as a reducer sends it, and allocations "
        "with as many bits. The error is |p − d|² after one encoding without feedback, divided by "
        "the squared norm of all parameters. Codecs without an error are not drawn."
    )
    heading = f"Squared error against bytes by parameter: {run.data}"
    picture = Picture("allocation", heading, caption, functools.partial(draw, run))
    return [_beside(run), chosen, picture]


def _beside(run: Allocation) -> Table:
    columns = ["one codec for all", "bits per value", "error", "allocated", "error"]
    rows = []
    for one in run.uniform:
        found = [f"{_bits(r):.3f} {run.share(r):.2e}".split() for r in (one, run.beside(one)) if r]
        rows.append([one.codec, *found[0], *(found[1] if found[1:] else [units.ABSENT] * 2)])
    return Table(f"One codec for all, and an allocation of as many bits: {run.data}", columns, rows)


def draw(run: Allocation, palette: Palette) -> Figure:
    figure = drawing.figure(5.2, 1.25 * drawing.WIDTH)
    left, right, legend = figure.subplots(1, 3, gridspec_kw={"width_ratios": [6, 6, 4]})
    _draw_parameters(left, run, palette)
    _draw_totals(right, run, palette)
    legend.axis("off")
    handles = {
        label: handle
        for axes in (left, right)
        for handle, label in zip(*axes.get_legend_handles_labels())
    }
    order = [*in_order({*handles} - {ALLOCATED}), ALLOCATED]
    legend.legend([handles[one] for one in order], order, loc="center left", fontsize=9)
    return figure


def _draw_parameters(axes: Axes, run: Allocation, palette: Palette) -> None:
    for candidates in run.candidates.values():
        lossy = {one.codec: one for one in candidates if one.energy_lost}
        costs = {codec: (one.payload_bytes, -run.share(one)) for codec, one in lossy.items()}
        front = [lossy[codec] for codec in summary.pareto_front(costs)]
        line = [(one.payload_bytes, run.share(one)) for one in front]
        axes.plot(*zip(*line), color=LIGHT.grid, linewidth=1.2, zorder=1)
    for one in run.chosen:
        if one.energy_lost:
            text = f"{one.parameter}, {units.byte_count(one.payload_bytes)}"
            _mark(axes, one.codec, (one.payload_bytes, run.share(one)), text, palette)
    axes.set(
        title="a codec for each parameter",
        xlabel="bytes of a payload, logarithmic (fewer is better)",
        ylabel="relative squared error, logarithmic (less is better)",
    )
    drawing.log_axis(axes.xaxis, units.short_bytes, 4)
    drawing.log_axis(axes.yaxis, drawing.power, 10)


def _draw_totals(axes: Axes, run: Allocation, palette: Palette) -> None:
    for one in run.uniform:
        if one.energy_lost:
            text = f"{_bits(one):.3f} bits per value"
            _mark(axes, one.codec, (_bits(one), run.share(one)), text, palette)
    line = sorted((_bits(one), run.share(one)) for one in run.budgets if one.energy_lost)
    texts = [f"{ALLOCATED}: {bits:.3f} bits per value, {_lost(share)}" for bits, share in line]
    drawing.curve(axes, line, texts, color=LIGHT.ink, linewidth=1.4, zorder=2, label=ALLOCATED)
    axes.plot([_bits(run.total)], [run.share(run.total)], "o", color=LIGHT.ink, markersize=9)
    axes.set(title="all parameters", xlabel="bits per value, logarithmic (fewer is better)")
    drawing.log_axis(axes.xaxis, lambda bits: f"{bits:g}", 2)
    drawing.log_axis(axes.yaxis, drawing.power, 10)


def _lost(share: float) -> str:
    return f"error {share:.2e}"


def _mark(axes: Axes, codec: str, at: tuple[float, float], text: str, palette: Palette) -> None:
    text = f"{text}, {_lost(at[1])}"
    drawing.point(axes, codec, at, drawing.hollow(palette, codec, 8), text)
