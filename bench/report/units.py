"""Numbers for readers, in a single module, so tables, captions and axes agree."""

import math
import typing

ABSENT = "—"


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """Three significant digits, in the first unit reached by the value."""
    scale, unit = next(((s, u) for s, u in steps if abs(value) >= s * 0.9995), steps[-1])
    scaled = value / scale
    decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{decimals}f} {unit}"


def seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    return _scaled(value, [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])


def byte_count(value: float) -> str:
    return _scaled(value, [(2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")])


def _short(quantity: str) -> str:
    """A format for axes with round values: 64 MiB, not 64.0 MiB."""
    number, unit = quantity.split(" ")
    return f"{float(number):g} {unit}"


def short_bytes(value: float) -> str:
    return _short(byte_count(value))


def short_seconds(value: float) -> str:
    return _short(seconds(value)) if value else "0"


def value_count(value: int) -> str:
    for scale, unit in ((2**30, " Gi"), (2**20, " Mi"), (2**10, " Ki")):
        if value >= scale and value % scale == 0:
            return f"{value // scale}{unit}"
    return f"{value:,}"


def ratio(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ABSENT
    return (
        f"{value:.0f}×" if value >= 99.5 else f"{value:.1f}×" if value >= 9.95 else f"{value:.2f}×"
    )


def speedup(seconds: float, references: typing.Iterable[float]) -> float | None:
    """How many times longer the shortest of the references takes."""
    least = min(references, default=None)
    return None if least is None or seconds <= 0 else least / seconds


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def points(difference: float) -> str:
    """A difference of two accuracies in percentage points, always with a sign."""
    return f"{100 * difference:+.2f}".replace("-", "−")
