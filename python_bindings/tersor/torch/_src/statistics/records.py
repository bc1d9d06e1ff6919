"""The counts of a handle: per parameter, in total, as a table and as scalars.

``sent_bytes`` are the bytes of this rank's transport. ``uncompressed_bytes`` are the bytes of the
same exchange without a codec. Per gradient byte, an all-reduce of n ranks sends 2 (n - 1) / n
bytes, and a reduce-scatter sends (n - 1) / n.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from tersor import _core, _text
from tersor._renamed import deprecated

SEVERAL = "several codecs"


@dataclasses.dataclass
class ParameterStatistics:
    """The counts of one parameter, or of all parameters if ``name`` is empty.

    Bytes and seconds are sums over ``steps`` steps of this rank. None means: not known, or not
    measured.

    Example::

        for counts in handle.statistics():
            print(counts.name, counts.codec, counts.ratio)
    """

    name: str
    codec: str
    reason: str  #: why the parameter has this codec
    steps: int
    gradient_bytes: float  #: of the gradients themselves
    uncompressed_bytes: float  #: of the same exchange without a codec
    #: Of a parameter: payloads and their headers. In total: all bytes of the transport.
    sent_bytes: float
    encode_seconds: float
    decode_seconds: float
    #: While a message was on its way. Parameters share the time in proportion to their bytes.
    wire_seconds: float
    hidden_seconds: float | None = None  #: part of ``wire_seconds`` behind computation
    exposed_seconds: float | None = None  #: part of ``wire_seconds`` during which training waited
    algorithm: str = ""
    #: ``|gradient - decoded| / |gradient|`` of the last step, with ``measure_error=True``
    relative_error: float | None = None
    residual_norm: float | None = None  #: Euclidean norm, with ``residual_norms=True``
    steps_discarded: int | None = None
    codec_changes: int | None = None  #: of codec ``"auto"``; in total only
    overflows: float | None = None  #: finite values outside the range of the type on the wire

    @property
    def ratio(self) -> float:
        """``uncompressed_bytes / sent_bytes``; NaN if nothing was sent."""
        return self.uncompressed_bytes / self.sent_bytes if self.sent_bytes else math.nan

    def per_step(self, field: str) -> float | None:
        """Returns the mean of a sum over steps, or None if the sum is not known.

        Args:
            field: The name of a field, such as ``"sent_bytes"``.

        Raises:
            AttributeError: There is no such field.

        Example:
            >>> handle.totals().per_step("sent_bytes")
        """
        value: float | None = getattr(self, field)
        return None if value is None or not self.steps else value / self.steps

    def __getitem__(self, field: str) -> Any:
        deprecated(f"statistics[{field!r}]", f"use .{field}")
        if field not in self:
            raise KeyError(field)
        return getattr(self, field)

    def __contains__(self, field: object) -> bool:  # of the dict in the last release
        known = self.keys()
        return field in known

    def keys(self) -> list[str]:
        """Deprecated: returns the names of the known fields."""
        values = dataclasses.asdict(self)
        return [k for k, one in values.items() if one is not None or k == "relative_error"]

    def get(self, field: str, default: Any = None) -> Any:
        """Deprecated: returns a field, or ``default`` if the field is not known.

        Args:
            field: The name of a field.
            default: The result for an unknown field.
        """
        known = self.keys()
        return self[field] if field in known else default


_BYTES = ("gradient_bytes", "uncompressed_bytes", "sent_bytes")
_SECONDS = ("encode_seconds", "wire_seconds", "decode_seconds", "hidden_seconds", "exposed_seconds")
_TOTALS = ("relative_error", "residual_norm", "overflows", "codec_changes", "steps_discarded")


def of_parameter(
    one: _core.ReducerStatistics, ranks: int, residual_norm: float | None = None
) -> ParameterStatistics:
    """The counts of an all-reduced parameter, or of all together with the transport's headers."""
    fields = {field.name: getattr(one, field.name, None) for field in _FIELDS}
    counts: Any = {
        **fields,
        "uncompressed_bytes": one.gradient_bytes * 2 * (ranks - 1) / ranks,
        "relative_error": one.relative_error or None,
        "residual_norm": residual_norm,
        "codec_changes": None if one.name else one.codec_changes,
    }
    return ParameterStatistics(**counts)


_FIELDS = dataclasses.fields(ParameterStatistics)


def add_up(parameters: Iterable[ParameterStatistics]) -> ParameterStatistics:
    """Adds bytes, seconds and overflows; takes the norm of all residuals and the largest error. A
    discarded step counts for all parameters."""
    entries = list(parameters)
    codecs = {one.codec for one in entries}
    added: Any = {"name": "", "codec": codecs.pop() if len(codecs) == 1 else SEVERAL, "reason": ""}
    for field, add in _ADDED.items():
        known = [value for one in entries if (value := getattr(one, field)) is not None]
        added[field] = add(known) if known or field in _ALWAYS_KNOWN else None
    return ParameterStatistics(**added)


_ALWAYS_KNOWN = ("steps", *_BYTES, *_SECONDS[:3])
_ADDED: dict[str, Callable[[list[Any]], Any]] = {
    "steps": lambda steps: max(steps, default=0),
    **dict.fromkeys((*_BYTES, *_SECONDS, "overflows", "codec_changes"), sum),
    "residual_norm": lambda norms: math.hypot(*norms),
    "steps_discarded": max,
    "relative_error": max,
}


def scalars(one: ParameterStatistics, skipped_steps: int) -> dict[str, float]:
    """The values for monitoring; see ``Reporting.scalars``. Empty before the first step."""
    if not one.steps:
        return {}
    values: dict[str, float | None] = {
        "steps": one.steps,
        **{field: one.per_step(field) for field in (*_BYTES, *_SECONDS)},
        "ratio": one.ratio if one.sent_bytes else None,
        **{field: getattr(one, field) for field in _TOTALS},
        "skipped_steps": skipped_steps,
    }
    return {f"tersor/{name}": float(value) for name, value in values.items() if value is not None}


def table(entries: Iterable[ParameterStatistics]) -> str:
    """One line per entry: bytes and seconds per step, ratio, error, residual, codec and reason."""
    names = [field.rpartition("_")[0] for field in (*_BYTES, *_SECONDS)]
    names[3:3] = ["ratio", "error", "residual"]
    return _text.table(["parameter", *names, "codec"], [_cells(one) for one in entries])


def _cells(one: ParameterStatistics) -> list[str]:
    return [
        one.name or "all",
        *(_text.byte_count(one.per_step(field)) for field in _BYTES),
        _text.ratio(one.ratio),
        _text.percent(one.relative_error),
        _text.magnitude(one.residual_norm or None),
        *(_text.seconds(one.per_step(field)) for field in _SECONDS),
        f"{one.codec} ({one.reason})" if one.reason else one.codec,
    ]
