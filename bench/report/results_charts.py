"""Charts of the results page: bars, and losses by bytes. Equal figures give equal text.

A browser shows the exact figure of a shape under the pointer.
"""

import math
import typing

from svg import Axis, Drawing, axes

TERSOR, MUON, PEER = "blue", "orange", "grey"
WIDTH = 760
LABELS_ABOVE, LABELS_BELOW = -11, 20


class Bar(typing.NamedTuple):
    label: str
    value: float
    text: str  # the value for readers
    is_peer: bool


class Point(typing.NamedTuple):
    label: str
    x: float
    y: float


class Series(typing.NamedTuple):
    """Points joined by a line. A series of a single peer has one point."""

    name: str
    colour: str
    points: list[Point]
    label_offset: int = LABELS_ABOVE


def bars(title: str, note: str, rows: list[Bar]) -> str:
    """Horizontal bars from the first row down. `note` names the unit and the better direction."""
    drawing = Drawing(WIDTH, 78 + 32 * len(rows), title, note)
    drawing.heading(title, note, size=15)
    left, longest = 265, max(row.value for row in rows)
    for number, row in enumerate(rows):
        top, length = 66 + 32 * number, 390 * row.value / longest
        drawing.text(left - 10, top + 15, row.label, size=13, anchor="end")
        hover = f"{row.label}: {row.text}"
        colour = PEER if row.is_peer else TERSOR
        drawing.box(left, top, length, 20, colour=colour, hover=hover)
        drawing.text(left + length + 8, top + 15, row.text, size=13)
    return drawing.svg()


def losses(title: str, note: str, series: list[Series], levels: list[tuple[str, float]]) -> str:
    """Losses by KiB per step, and dashed lines with labels. The loss axis does not start at 0."""
    drawing = Drawing(WIDTH, 460, title, note)
    drawing.heading(title, note, size=15)
    ys = [point.y for one in series for point in one.points] + [loss for _, loss in levels]
    low, high = math.floor(20 * min(ys)), math.ceil(20 * max(ys))
    x, y = Axis(16, 4096, 70, WIDTH - 30, True), Axis(low / 20, high / 20, 400, 70)
    sizes = [(kib, f"{kib} KiB") for kib in (16, 64, 256)] + [(1024, "1 MiB"), (4096, "4 MiB")]
    axes(drawing, x, y, sizes, [(tick / 20, f"{tick / 20:.2f}") for tick in range(low, high + 1)])
    words = "bytes that a rank sends per step (logarithmic)"
    drawing.text((x.start + x.end) / 2, 446, words, size=13, colour="quiet", anchor="middle")
    for label, loss in levels:
        drawing.line([(x.start, y(loss)), (x.end, y(loss))], colour="quiet", dashes="6 4")
        drawing.text(x.end, y(loss) + 16, label, size=13, colour="quiet", anchor="end")
    for one in series:
        _draw(drawing, one, [(x(point.x), y(point.y)) for point in one.points])
    return drawing.svg()


def _draw(drawing: Drawing, one: Series, places: list[tuple[float, float]]) -> None:
    if len(places) > 1:
        drawing.line(places, colour=one.colour, width=2)
    for point, (x, y) in zip(one.points, places):
        hover = f"{one.name}, {point.label}: loss {point.y:.3f}, {point.x:,.0f} KiB"
        drawing.marker(x, y, "circle", one.colour, 5, hover)
        look = {"size": 13, "colour": one.colour, "anchor": "middle"}
        drawing.text(x, y + one.label_offset, point.label, **look)
    if len(places) > 1:
        beyond = places[0][1] + one.label_offset + (36 if one.label_offset > 0 else -18)
        drawing.text(places[0][0] - 8, beyond, one.name, size=13, colour=one.colour, bold=True)
