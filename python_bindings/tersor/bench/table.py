"""Tables and quantities as people read them."""

import math
from collections.abc import Sequence

ABSENT = "-"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns as wide as their widest cell; the first is aligned to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]), flush=True)


def seconds(value: float | None) -> str:
    """As in "3.21 ms"."""
    if value is None:
        return ABSENT
    return _scaled(value, [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")])


def byte_count(value: float | None) -> str:
    """As in "1.29 MiB"."""
    if value is None:
        return ABSENT
    return _scaled(value, [(2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")])


def ratio(value: float | None) -> str:
    """As in "3.94x"."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.2f}x"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Three figures that mean something, in the first unit that the value reaches."""
    scale, unit = next((pair for pair in units if abs(value) >= pair[0]), units[-1])
    scaled = value / scale
    decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{decimals}f} {unit}"
