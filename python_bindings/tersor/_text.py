"""Readable quantities and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

ABSENT = "—"
TIMES = "\N{MULTIPLICATION SIGN}"
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float | None) -> str:
    """As in "3.21 ms"."""
    return _scaled(value, _SECONDS)


def byte_count(value: float | None) -> str:
    """As in "1.29 MiB"."""
    return _scaled(value, _BYTES)


def ratio(value: float | None) -> str:
    """As in "3.94" and a multiplication sign."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.3g}{TIMES}"


def percent(fraction: float | None) -> str:
    """As in "1.29 %"."""
    return ABSENT if fraction is None else f"{100 * fraction:.3g} %"


def magnitude(value: float | None) -> str:
    """As in "0.00129", or "1,290"."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def short(quantity: str) -> str:
    """As in "8 ms" for "8.00 ms", if the number is round."""
    number, _, unit = quantity.partition(" ")
    return f"{float(number):g} {unit}" if float(number) else "0"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as the widest cell. The first and the last column are left-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *middle, last in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]))
    return "\n".join(lines)


def _scaled(value: float | None, units: Sequence[tuple[float, str]]) -> str:
    """Three significant figures, in the largest unit not above the value."""
    if value is None:
        return ABSENT
    scale, unit = next((pair for pair in units if abs(value) >= 0.9995 * pair[0]), units[-1])
    scaled = value / scale
    decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"0 {unit}" if value == 0 else f"{scaled:.{decimals}f} {unit}"
