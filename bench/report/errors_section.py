"""The loss of codecs on tensors by bits per value: a table and a picture."""

import functools
import itertools
import math

from matplotlib.figure import Figure

import drawing
import page
import records
import summary
import units
from error_totals import Data, Loss, losses
from page import Part, Picture, Section, numbered
from palette import LIGHT, Palette


def sections(found: list[records.Record]) -> list[Section]:
    groups = losses(found)
    parts = list(itertools.chain(*numbered([_parts(*group) for group in groups.items()])))
    sharing = {loss.ranks: loss for group in groups.values() for loss in group if loss.ranks > 1}
    says = [
        f"{loss.codec.split(':')[0]} sends integers that are added: {ranks} ranks share its levels."
        for ranks, loss in sharing.items()
    ]
    return [Section("Errors", says, parts)] if parts else []


def _parts(data: Data, group: list[Loss]) -> list[Part]:
    heading = f"Squared error against bits: {_subject(data, group)}"
    columns = "codec=codec, bits per value=bits|.3f, squared error=energy|.2e"
    columns += ", relative error=error|.2e"
    table = page.table(heading, columns, group, error=lambda loss: math.sqrt(loss.energy))
    caption = (
        "Each point is a codec without feedback on all tensors. The squared error is |p − d|² / |p|² "
        "of the sent values p and the decoded values d; bits are payload bits. The dotted line is the "
        "Pareto front. Codecs without error are not drawn."
    )
    return [table, Picture("errors", heading, caption, functools.partial(draw, data, group))]


def _subject(data: Data, group: list[Loss]) -> str:
    tensors = max(loss.tensors for loss in group)
    count = units.value_count(max(loss.count for loss in group))
    return f"{data.name}, {tensors} tensor{'' if tensors == 1 else 's'}, {count} {data.dtype}"


def draw(data: Data, group: list[Loss], palette: Palette) -> Figure:
    lossy = [loss for loss in group if loss.energy > 0]
    figure, axes = drawing.plot(
        max(4.8, 0.6 + 0.27 * (len(lossy) + 1)),
        title=_subject(data, group),
        xlabel="bits per value, logarithmic (fewer is better)",
        ylabel="relative squared error, logarithmic (lower is better)",
    )
    for loss in lossy:
        style = drawing.hollow(palette, loss.codec, 9)  # some markers coincide
        text = f"squared error {loss.energy:.2e}, {loss.bits:.3f} bits per value"
        drawing.point(axes, loss.codec, (loss.bits, loss.energy), style, text)
    front = summary.pareto_front({loss.codec: (loss.bits, -loss.energy) for loss in group})
    best = [loss for codec in front for loss in lossy if loss.codec == codec]
    line = [loss.bits for loss in best], [loss.energy for loss in best]
    axes.plot(*line, color=LIGHT.ink, label="Pareto front", **drawing.FRONT)
    drawing.log_axis(axes.xaxis, lambda bits: f"{bits:g}", 2)
    drawing.log_axis(axes.yaxis, drawing.power, 10)
    axes.margins(x=0.06, y=0.06)
    drawing.legend_right(axes)
    return figure
