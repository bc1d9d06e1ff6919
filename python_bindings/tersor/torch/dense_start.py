"""The reducers of an optimizer whose first steps go by another codec than the rest."""

from __future__ import annotations

from collections.abc import Callable

from tersor import Codec
from tersor._core import InvalidArgument
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch.statistics import ParameterStatistics, add_up, of_reducer, totals_of_reducer

MakeReducer = Callable[[ReducerOptions], GradientReducer]


class DenseStart:
    """A reducer for all steps but the first ``dense_steps``, and another one for these.

    The second has the same options, but ``dense_codec`` where the first has error feedback. It is
    there only while it is used.
    """

    def __init__(
        self, make: MakeReducer, options: ReducerOptions, dense_codec: str, dense_steps: int
    ) -> None:
        """Raises InvalidArgument for a codec with feedback, whose residuals would be lost."""
        if dense_steps < 0:
            raise InvalidArgument(f"dense_steps={dense_steps}: 0 or more")
        _refuse_feedback(dense_codec)
        self.main = make(options)
        self._make = make
        self._dense_options = _without_feedback(options, dense_codec)
        self._dense_steps = dense_steps
        self._dense: GradientReducer | None = None
        self._told: tuple[list[ParameterStatistics], ParameterStatistics] | None = None

    def of_step(self, step: int, ranks: int) -> GradientReducer:
        """What the ``step``-th, counted from 1, goes by; all ranks ask alike."""
        if step > self._dense_steps:
            self._told = self._counted(ranks)
            self._dense = None
            return self.main
        if self._dense is None:
            self._dense = self._make(self._dense_options)
        return self._dense

    def statistics(self, ranks: int) -> list[ParameterStatistics]:
        """Of each parameter, over all steps."""
        found = of_reducer(self.main, ranks)
        before = self._counted(ranks)
        if before is None or not found:  # a reducer knows nothing before its first step
            return found if before is None else before[0]
        return [_together(*both) for both in zip(before[0], found, strict=True)]

    def totals(self, ranks: int) -> ParameterStatistics:
        """Of all parameters, over all steps."""
        found = totals_of_reducer(self.main, ranks)
        before = self._counted(ranks)
        return found if before is None else _together(before[1], found)

    def _counted(self, ranks: int) -> tuple[list[ParameterStatistics], ParameterStatistics] | None:
        """What went by the dense start."""
        if self._dense is None:
            return self._told
        return of_reducer(self._dense, ranks), totals_of_reducer(self._dense, ranks)


def _refuse_feedback(dense_codec: str) -> None:
    if dense_codec == "auto" or Codec(dense_codec).has_feedback:
        raise InvalidArgument(
            f"dense_codec={dense_codec!r}: a codec without +ef, such as bf16 or none"
        )


def _without_feedback(options: ReducerOptions, dense_codec: str) -> ReducerOptions:
    rules = [
        (pattern, dense_codec if Codec(codec).has_feedback else codec)
        for pattern, codec in options.get("rules", ())
    ]
    return {**options, "codec": dense_codec, "rules": rules}


def _together(before: ParameterStatistics, now: ParameterStatistics) -> ParameterStatistics:
    """One after the other: sums, and what holds now."""
    added = add_up([before, now])
    added["steps"] = before["steps"] + now["steps"]
    for field in ("name", "codec", "reason", "algorithm", "relative_error", "residual_norm"):
        if field in now:
            added[field] = now[field]
    return added
