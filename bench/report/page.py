"""The parts of a report and their two forms: a page with pictures, and text for a terminal."""

import html
import pathlib
import re
import string
import textwrap
import typing
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

import drawing
import units
from palette import Palette, css

TEXT_COLUMNS = 100


@dataclass(frozen=True)
class Table:
    """A table with names in the first column and numbers in the other columns."""

    heading: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


FORMATS = {
    "": str,
    "s": units.seconds,
    "B": units.byte_count,
    "b": units.short_bytes,
    "n": units.value_count,
    "x": units.ratio,
    "%": lambda share: f"{100 * share:.0f} %",
}


def table(
    heading: str,
    columns: str,
    items: typing.Iterable[typing.Any],
    note: str = "",
    **computed: typing.Callable[[typing.Any], typing.Any],
) -> Table:
    """A row per item. ``columns``: "head=field|format, …" with a format of FORMATS or of Python.

    A field is an attribute of the item, or the result of a function in ``computed``.
    """
    parts = [re.split("[=|]", f"{part}|")[:3] for part in columns.split(", ")]

    def cell(item: typing.Any, field: str, form: str) -> str:
        value = computed[field](item) if field in computed else getattr(item, field)
        if value is None:
            return units.ABSENT
        return FORMATS[form](value) if form in FORMATS else format(value, form)

    rows = [[cell(item, field, form) for _, field, form in parts] for item in items]
    return Table(heading, [head for head, *_ in parts], rows, note)


@dataclass(frozen=True)
class Picture:
    """`draw` makes the figure in a palette.

    Pictures are drawn late, because text needs no pictures.
    """

    name: str  # name of the SVG file
    heading: str
    caption: str
    draw: typing.Callable[[Palette], Figure]


Part = Table | Picture


@dataclass(frozen=True)
class Section:
    heading: str
    sentences: list[str]
    parts: list[Part]


def numbered(groups: list[list[Part]]) -> list[list[Part]]:
    """Appends a group's number to the names of pictures if there are several groups."""
    if len(groups) < 2:
        return groups
    return [
        [
            replace(part, name=f"{part.name}-{i}") if isinstance(part, Picture) else part
            for part in parts
        ]
        for i, parts in enumerate(groups, start=1)
    ]


def as_text(sections: list[Section]) -> str:
    """Formats sentences and tables for a terminal."""
    blocks = []
    for section in sections:
        blocks.append(f"{section.heading}\n{'=' * len(section.heading)}")
        blocks += [table_text(part) for part in section.parts if isinstance(part, Table)]
        if section.sentences:
            blocks.append(sentences([section]))
    return "\n\n".join(blocks)


def sentences(sections: list[Section]) -> str:
    """The sentences of all sections, without tables."""
    return "\n".join(_wrapped(line, "- ") for section in sections for line in section.sentences)


def table_text(table: Table) -> str:
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    lines.insert(1, ["-" * width for width in widths])
    body = ["  ".join(_padded(line, widths)).rstrip() for line in lines]
    return "\n".join([table.heading, *body] + ([_wrapped(table.note, "")] if table.note else []))


def _wrapped(text: str, lead: str) -> str:
    indent = " " * len(lead)
    return textwrap.fill(text, TEXT_COLUMNS, initial_indent=lead, subsequent_indent=indent)


def _padded(cells: list[str], widths: list[int]) -> list[str]:
    first, *others = zip(cells, widths)
    return [first[0].ljust(first[1])] + [cell.rjust(width) for cell, width in others]


def write(
    folder: pathlib.Path,
    sections: list[Section],
    palette: Palette,
    provenance: list[str],
) -> list[pathlib.Path]:
    """Writes the SVG files and index.html. Returns the paths, with the page first.

    Browsers with a dark theme show all in dark colours.
    """
    pictures = [part for s in sections for part in s.parts if isinstance(part, Picture)]
    images = {one.name: drawing.svg(one.draw(palette)) for one in pictures}
    body = "".join(_section_html(section, images) for section in sections)
    template = (pathlib.Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    index = folder / "index.html"
    facts = "".join(f"<p>{html.escape(line)}</p>" for line in provenance)
    page = string.Template(template).substitute(colours=css(), body=body, provenance=facts)
    index.write_text(page, encoding="utf-8")
    files = {folder / f"{name}.svg": image for name, image in images.items()}
    for path, image in files.items():
        styled = image.replace(">", f"><style>{css()}</style>", 1)
        path.write_text(styled, encoding="utf-8")
    return [index, *files]


def _section_html(section: Section, images: dict[str, str]) -> str:
    """Places the section's sentences below the first table."""
    first, *others = [
        _table_html(part) if isinstance(part, Table) else _picture_html(part, images[part.name])
        for part in section.parts
    ]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in section.sentences)
    says = f'<ul class="says">{items}</ul>' if items else ""
    heading = f"<h2>{html.escape(section.heading)}</h2>"
    return f"<section>{heading}{first}{says}{''.join(others)}</section>\n"


def _table_html(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{_row_html(row)}</tr>\n" for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
    heading = f"<h3>{html.escape(table.heading)}</h3>"
    return f'{heading}<div class="scroll"><table>{body}</table></div>{note}'


def _row_html(row: list[str]) -> str:
    name, *figures = map(html.escape, row)
    return f"<th><code>{name}</code></th>" + "".join(f"<td>{figure}</td>" for figure in figures)


def _picture_html(picture: Picture, image: str) -> str:
    heading = html.escape(picture.heading)
    image = image.replace("<svg", f'<svg role="img" aria-label="{heading}"', 1)
    return (
        f'<h3>{heading}</h3><figure><div class="scroll">{image}</div>'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>\n"
    )
