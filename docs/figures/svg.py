"""A small SVG writer for the figures: text as text, generic fonts, a light and a dark theme."""

import dataclasses
import html
import math
import typing

from palette import COLOURS

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
LETTER = 0.56  # estimated mean width of a letter, relative to the font size


def _style() -> str:
    def rules(theme: int) -> str:
        return " ".join(
            f".{name} {{ fill: {both[theme]} }} .{name}-line {{ stroke: {both[theme]} }}"
            for name, both in COLOURS.items()
        )

    return (
        f"<style>text {{ font-family: {FONT} }} {rules(0)}"
        f" @media (prefers-color-scheme: dark) {{ {rules(1)} }}</style>"
    )


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@dataclasses.dataclass
class Drawing:
    """Collects elements. `title` and `description` are for screen readers."""

    width: int
    height: int
    title: str
    description: str
    elements: list[str] = dataclasses.field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        colour: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        angle: float = 0,
    ) -> None:
        width = LETTER * size * len(words)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if not angle and (left < -2 or left + width > self.width + 2):
            raise ValueError(f"{self.title}: the text {words!r} is wider than the figure")
        weight = ' font-weight="600"' if bold else ""
        turn = f' transform="rotate({angle:.1f} {number(x)} {number(y)})"' if angle else ""
        self._add(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" class="{colour}"'
            f' text-anchor="{anchor}"{weight}{turn}>{html.escape(words)}</text>'
        )

    def heading(self, words: str, *notes: str, x: float = 20, size: int = 17) -> None:
        """Writes a heading, and lines below."""
        self.text(x, 26, words, size=size, bold=True)
        for row, note in enumerate(notes):
            self.text(x, 48 + 18 * row, note, size=13, colour="quiet")

    def line(
        self,
        points: typing.Sequence[tuple[float, float]],
        *,
        colour: str = "ink",
        width: float = 1.5,
        dashes: str = "",
        arrow: bool = False,
    ) -> None:
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._add(
            f'<polyline points="{path}" fill="none" class="{colour}-line"'
            f' stroke-width="{width:g}"{dash}/>'
        )
        if arrow:
            self._arrow_head(points[-2], points[-1], colour)

    def _arrow_head(
        self, start: tuple[float, float], end: tuple[float, float], colour: str
    ) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        corners = [end] + [
            (end[0] - 9 * math.cos(angle + turn), end[1] - 9 * math.sin(angle + turn))
            for turn in (0.45, -0.45)
        ]
        self.polygon(corners, colour)

    def polygon(self, points: typing.Sequence[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._add(f'<polygon points="{path}" class="{colour}"/>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        colour: str = "box",
        outline: str = "",
        opacity: float = 1.0,
        radius: int = 0,
        hover: str = "",
    ) -> None:
        edge = f" {outline}-line" if outline else ""
        faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._add(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}"'
            f' height="{number(height)}" rx="{radius}" class="{colour}{edge}"{faint}/>',
            hover,
        )

    def marker(
        self, x: float, y: float, shape: str, colour: str, size: float = 6, hover: str = ""
    ) -> None:
        """Draws a circle, square, diamond or triangle."""
        if shape == "circle":
            drawn = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(size)}"'
        else:
            corners = {
                "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
                "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
                "triangle": [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
            }[shape]
            path = " ".join(f"{number(x + a * size)},{number(y + b * size)}" for a, b in corners)
            drawn = f'<polygon points="{path}"'
        self._add(f'{drawn} class="{colour}"/>', hover)

    def _add(self, shape: str, hover: str = "") -> None:
        """Adds a shape. A browser shows the text ``hover`` under the pointer."""
        if hover:
            tag = shape[1:].partition(" ")[0]
            shape = f"{shape[:-2]}><title>{html.escape(hover)}</title></{tag}>"
        self.elements.append(shape)

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
            f' viewBox="0 0 {self.width} {self.height}" role="img">'
        )
        lines = [
            head,
            f"<title>{html.escape(self.title)}</title>",
            f"<desc>{html.escape(self.description)}</desc>",
            _style(),
            f'<rect {size} class="paper"/>',
            *self.elements,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to positions from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


Ticks = typing.Sequence[tuple[float, str]]


def axes(drawing: Drawing, x: Axis, y: Axis, x_ticks: Ticks, y_ticks: Ticks) -> None:
    """Draws the grid and the labels of the ticks."""
    for value, words in x_ticks:
        drawing.line([(x(value), y.start), (x(value), y.end)], colour="grid", width=1)
        drawing.text(x(value), y.start + 18, words, size=12, colour="quiet", anchor="middle")
    for value, words in y_ticks:
        drawing.line([(x.start, y(value)), (x.end, y(value))], colour="grid", width=1)
        drawing.text(x.start - 8, y(value) + 4, words, size=12, colour="quiet", anchor="end")
    drawing.line([(x.start, y.end), (x.start, y.start), (x.end, y.start)], colour="quiet", width=1)
