"""Charts of the results page as SVG: bars, and losses by bytes. Equal figures give equal text.

matplotlib's SVG differs from release to release, so these charts write their few shapes themselves.
A browser shows the exact figure of a shape under the pointer.
"""

import dataclasses
import html
import math

INK, QUIET, GRID, PAPER = "#1f2328", "#59636e", "#d9dee4", "#ffffff"
TERSOR, MUON, PEER = "#2f7fc1", "#d2540a", "#868686"
WIDTH = 760
CHARACTER = 7.4  # pixels; mean width of a character at 13 pixels

LABELS_ABOVE, LABELS_BELOW = -11, 20


@dataclasses.dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str  # the value for readers
    is_peer: bool


@dataclasses.dataclass(frozen=True)
class Point:
    label: str
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Series:
    """Points joined by a line. A series of a single peer has one point."""

    name: str
    colour: str
    points: list[Point]
    label_offset: int = LABELS_ABOVE


@dataclasses.dataclass(frozen=True)
class Level:
    """A dashed line at a height."""

    label: str
    y: float
    colour: str


def _text(x: float, y: float, text: str, anchor: str = "start", **look: str) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>'
        f"{html.escape(text, quote=False)}</text>"
    )


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, **look: str) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}"{extra}/>'
    )


def _document(title: str, height: float, shapes: list[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{html.escape(title)}" font-family="DejaVu Sans, Verdana, sans-serif" '
        f'font-size="13" fill="{INK}">'
    )
    paper = f'<rect width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>'
    heading = _text(16, 26, title, font_size="15", font_weight="bold")
    return "\n".join([opening, paper, heading, *shapes, "</svg>", ""])


def bars(title: str, note: str, rows: list[Bar]) -> str:
    """Horizontal bars from the first row down. `note` names the unit and the better direction."""
    left = 24 + CHARACTER * max(len(row.label) for row in rows)
    longest = max(row.value for row in rows)
    room = WIDTH - left - 24 - CHARACTER * max(len(row.text) for row in rows)
    shapes = [_text(16, 48, note, fill=QUIET)]
    for number, row in enumerate(rows):
        top, length = 66 + 32 * number, room * row.value / longest
        colour = PEER if row.is_peer else TERSOR
        shapes += [
            _text(left - 10, top + 15, row.label, "end"),
            f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="20" fill="{colour}">'
            f"<title>{html.escape(row.label)}: {html.escape(row.text)}</title></rect>",
            _text(left + length + 8, top + 15, row.text),
        ]
    return _document(title, 66 + 32 * len(rows) + 12, shapes)


@dataclasses.dataclass(frozen=True)
class _Plot:
    """Maps bytes (logarithmic) and losses to pixels."""

    low: tuple[float, float]
    high: tuple[float, float]
    left: float = 70
    right: float = WIDTH - 30
    top: float = 70
    bottom: float = 400

    def x(self, value: float) -> float:
        share = math.log(value / self.low[0]) / math.log(self.high[0] / self.low[0])
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.low[1]) / (self.high[1] - self.low[1])
        return self.bottom - share * (self.bottom - self.top)


def losses(title: str, note: str, series: list[Series], levels: list[Level]) -> str:
    """Losses by KiB per step. Both axes are written out; the loss axis does not start at zero."""
    ys = [point.y for one in series for point in one.points] + [level.y for level in levels]
    low, high = math.floor(20 * min(ys)) / 20, math.ceil(20 * max(ys)) / 20
    plot = _Plot((16, low), (4096, high))
    shapes = [_text(16, 48, note, fill=QUIET), *_axes(plot)]
    for level in levels:
        height = plot.y(level.y)
        shapes += [
            _line((plot.left, height), (plot.right, height), level.colour, stroke_dasharray="6 4"),
            _text(plot.right, height + 16, level.label, "end", fill=level.colour),
        ]
    return _document(title, 460, shapes + [shape for one in series for shape in _drawn(plot, one)])


def _axes(plot: _Plot) -> list[str]:
    shapes = []
    tick = plot.low[1]
    while tick <= plot.high[1] + 1e-9:
        height = plot.y(tick)
        shapes += [
            _line((plot.left, height), (plot.right, height), GRID),
            _text(plot.left - 8, height + 5, f"{tick:.2f}", "end", fill=QUIET),
        ]
        tick += 0.05
    for kib in (16, 64, 256, 1024, 4096):
        name = f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"
        shapes.append(_text(plot.x(kib), plot.bottom + 22, name, "middle", fill=QUIET))
    middle = (plot.left + plot.right) / 2
    axis = "bytes that a rank sends per step (logarithmic)"
    return [*shapes, _text(middle, plot.bottom + 46, axis, "middle", fill=QUIET)]


def _drawn(plot: _Plot, one: Series) -> list[str]:
    places = [(plot.x(point.x), plot.y(point.y)) for point in one.points]
    shapes = [_line(a, b, one.colour, stroke_width="2") for a, b in zip(places, places[1:])]
    for point, (x, y) in zip(one.points, places):
        shapes += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{one.colour}">'
            f"<title>{html.escape(one.name)}, {html.escape(point.label)}: loss {point.y:.3f}, "
            f"{point.x:,.0f} KiB</title></circle>",
            _text(x, y + one.label_offset, point.label, "middle", fill=one.colour),
        ]
    if len(places) > 1:
        x, y = places[0]
        beyond = y + one.label_offset + (36 if one.label_offset > 0 else -18)
        shapes.append(_text(x - 8, beyond, one.name, fill=one.colour, font_weight="bold"))
    return shapes
