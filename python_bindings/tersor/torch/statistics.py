"""What a handle of ``tersor.torch`` counted: by parameter, in all, as a table, to TensorBoard.

Bytes are what this rank's transport really sent. ``uncompressed_bytes`` is what the same exchange
sends without a codec, which is more than the gradient among more than two ranks: an all-reduce of n
ranks sends 2 (n - 1) / n of it, a reduce-scatter (n - 1) / n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, cast

from tersor import _core, _text
from tersor._options import described

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from typing_extensions import Required

    from tersor.torch.reporting import Reporting

SEVERAL = "several codecs"


class ParameterStatistics(TypedDict, total=False):
    """Of one parameter, or of all (``name`` is empty); sums over ``steps`` steps of this rank.

    What an exchange does not know of itself is not there.
    """

    name: Required[str]
    codec: Required[str]
    reason: Required[str]  #: why this codec
    algorithm: str
    steps: Required[int]
    gradient_bytes: Required[float]  #: of the gradients themselves
    uncompressed_bytes: Required[float]  #: what would have been sent without a codec
    #: of a parameter its payloads with their headers, of all whatever the transport sent
    sent_bytes: Required[float]
    encode_seconds: Required[float]
    decode_seconds: Required[float]
    #: while something was on its way; shared out among parameters by bytes
    wire_seconds: Required[float]
    hidden_seconds: float  #: of these, while the trainer computed
    exposed_seconds: float  #: while the trainer waited
    #: |gradient - decoded| / |gradient| of the last step; None: not measured
    relative_error: float | None
    #: Euclidean; of what error feedback keeps for later, where it was asked for
    residual_norm: float
    steps_discarded: int
    codec_changes: int  #: times that ``"auto"`` went another way; of all together only
    overflows: float  #: values that were finite and left the range of the wire's type


_BYTES = ("gradient_bytes", "uncompressed_bytes", "sent_bytes")
_SECONDS = ("encode_seconds", "wire_seconds", "decode_seconds", "hidden_seconds", "exposed_seconds")
_KNOWN_OF_ALL = ("relative_error", "residual_norm", "overflows", "codec_changes", "steps_discarded")
_LOGGED_OF_EACH = ("sent_bytes", "ratio", "residual_norm", "relative_error")


def of_parameter(
    one: _core.ReducerStatistics, ranks: int, residual_norm: float | None = None
) -> ParameterStatistics:
    """Of one that is all-reduced, or of all together, headers of the transport included."""
    fields = [field for field in ParameterStatistics.__annotations__ if field != "residual_norm"]
    told: Any = {field: getattr(one, field, None) for field in fields}
    if residual_norm is not None:
        told["residual_norm"] = residual_norm
    if one.name:
        del told["codec_changes"]
    told["uncompressed_bytes"] = one.gradient_bytes * 2 * (ranks - 1) / ranks
    told["relative_error"] = one.relative_error or None
    return cast(ParameterStatistics, told)


def add_up(parameters: Iterable[ParameterStatistics]) -> ParameterStatistics:
    """Sums of bytes, seconds and overflows; the norm of all residuals together; the largest error.

    What no entry knows is not there. A step that was discarded was one of all of them.
    """
    entries: list[Any] = list(parameters)
    codecs = {one["codec"] for one in entries}
    added: Any = {"name": "", "codec": codecs.pop() if len(codecs) == 1 else SEVERAL, "reason": ""}
    for field, add in _ADDED.items():
        known = [one[field] for one in entries if field in one]
        if known or field in _ALWAYS_KNOWN:
            added[field] = add(known)
    return cast(ParameterStatistics, added)


_ALWAYS_KNOWN = ("steps", *_BYTES, *_SECONDS[:3])
_ADDED: dict[str, Callable[[list[Any]], Any]] = {
    "steps": lambda steps: max(steps, default=0),
    **dict.fromkeys((*_BYTES, *_SECONDS, "overflows", "codec_changes"), sum),
    "residual_norm": lambda norms: math.hypot(*norms),
    "steps_discarded": max,
    "relative_error": lambda errors: max(filter(None, errors), default=None),
}


def ratio(one: ParameterStatistics) -> float:
    """How many times fewer bytes were sent than without a codec; NaN where nothing was sent."""
    return one["uncompressed_bytes"] / one["sent_bytes"] if one["sent_bytes"] else float("nan")


def per_step(one: ParameterStatistics, field: str) -> float | None:
    """The mean over steps of a sum; None where it is not known."""
    value: Any = one.get(field)
    return None if value is None or not one["steps"] else value / one["steps"]


def scalars(totals: ParameterStatistics, skipped_steps: int) -> dict[str, float]:
    """What monitoring takes of all parameters together; see ``Reporting.scalars``."""
    if not totals["steps"]:
        return {}
    told: dict[str, float | None] = {
        "steps": totals["steps"],
        **{field: per_step(totals, field) for field in (*_BYTES, *_SECONDS)},
        "ratio": ratio(totals) if totals["sent_bytes"] else None,
        **{field: totals.get(field) for field in _KNOWN_OF_ALL},  # type: ignore[misc]
        "skipped_steps": skipped_steps,
    }
    return {f"tersor/{name}": float(value) for name, value in told.items() if value is not None}


def table(entries: Iterable[ParameterStatistics]) -> str:
    """A line for each entry: bytes and seconds of a step, ratio, error, residual, codec and why."""
    names = [field.rpartition("_")[0] for field in (*_BYTES, *_SECONDS)]
    names[3:3] = ["ratio", "error", "residual"]
    return _text.table(["parameter", *names, "codec"], [_cells(one) for one in entries])


def _cells(one: ParameterStatistics) -> list[str]:
    codec = f"{one['codec']} ({one['reason']})" if one["reason"] else one["codec"]
    return [
        one["name"] or "all",
        *(_text.byte_count(per_step(one, field)) for field in _BYTES),
        _text.ratio(ratio(one)),
        _text.percent(one.get("relative_error")),
        _text.magnitude(one.get("residual_norm") or None),
        *(_text.seconds(per_step(one, field)) for field in _SECONDS),
        codec,
    ]


def log_statistics(
    writer: SummaryWriter,
    handle: Reporting,
    step: int,
    *,
    residual_norms: bool = False,
    parameters_every: int = 100,
) -> None:
    """Writes what ``handle`` counted to TensorBoard: its ``scalars()``, cheap enough for each step.

    In steps that are multiples of ``parameters_every`` (0: none), of each parameter, too, which
    takes longer: bytes sent, ratio, the error where it is measured, and with ``residual_norms`` the
    residual's norm, for which all residuals are read.
    """
    if not hasattr(writer, "add_scalar"):
        raise TypeError(f"writer must be a SummaryWriter, not {described(writer)}")
    if not hasattr(handle, "scalars"):
        raise TypeError(f"handle must be the result of compress, not {described(handle)}")
    for name, value in handle.scalars(residual_norm=residual_norms).items():
        writer.add_scalar(name, value, step)
    if not parameters_every or step % parameters_every:
        return
    for one in handle.statistics(residual_norms=residual_norms):
        told = scalars(one, 0)
        for field in _LOGGED_OF_EACH:
            if (found := told.get(f"tersor/{field}")) is not None:
                writer.add_scalar(f"tersor parameters/{one['name']}/{field}", found, step)
