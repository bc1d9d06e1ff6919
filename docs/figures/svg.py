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


def path(points: typing.Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def _title(words: str) -> str:
    """A browser shows the title of a shape under the pointer."""
    return f"<title>{html.escape(words)}</title>"


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
        turn = f"rotate({angle:.1f} {number(x)} {number(y)})" if angle else ""
        weight = "600" if bold else ""
        look = {"font-size": size, "class": colour, "text-anchor": anchor, "font-weight": weight}
        self._add("text", {"x": x, "y": y, **look, "transform": turn}, html.escape(words))

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
        look = {"fill": "none", "class": f"{colour}-line", "stroke-width": f"{width:g}"}
        self._add("polyline", {"points": path(points), **look, "stroke-dasharray": dashes})
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
        self._add("polygon", {"points": path(corners), "class": colour})

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
        place = {"x": x, "y": y, "width": width, "height": height, "rx": radius}
        look = {"class": f"{colour} {outline}-line" if outline else colour}
        look |= {"fill-opacity": f"{opacity:g}"} if opacity < 1 else {}
        self._add("rect", place | look, _title(hover) if hover else None)

    def marker(self, x: float, y: float, shape: str, colour: str, size: float = 6) -> None:
        """Draws a circle, square, diamond or triangle."""
        if shape == "circle":
            self._add("circle", {"cx": x, "cy": y, "r": size, "class": colour})
            return
        corners = {
            "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
            "triangle": [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        }[shape]
        points = path([(x + a * size, y + b * size) for a, b in corners])
        self._add("polygon", {"points": points, "class": colour})

    def _add(self, tag: str, attributes: dict[str, str | float], inside: str | None = None) -> None:
        """Adds an element without its empty attributes."""
        words = [tag] + [
            f'{name}="{value if isinstance(value, str) else number(value)}"'
            for name, value in attributes.items()
            if value != ""
        ]
        end = "/>" if inside is None else f">{inside}</{tag}>"
        self.elements.append(f"<{' '.join(words)}{end}")

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
            f' viewBox="0 0 {self.width} {self.height}" role="img">',
            _title(self.title),
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
