"""What handles tell of what they sent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist

from tersor._core import InvalidArgument
from tersor.reducer import GradientReducer
from tersor.torch.exchange import TensorExchange
from tersor.torch.group import checked
from tersor.torch.report import draw
from tersor.torch.statistics import ParameterStatistics, add_up, of_parameter, table


class Reporting(ABC):
    """What all handles can tell."""

    @abstractmethod
    def statistics(self) -> list[ParameterStatistics]:
        """What was sent, a dict for each parameter."""

    def totals(self) -> ParameterStatistics:
        """The same of all parameters together."""
        return add_up(self.statistics())

    def table(self) -> str:
        """A line for each parameter, and one for all; bytes and times of a step."""
        return table([*self.statistics(), self.totals()])

    def report(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes, times and residuals to a PNG, SVG or PDF file; needs matplotlib.

        Raises ImportError, which says what to install, where there is none.
        """
        draw(self.statistics(), self.totals(), path)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refused: a copy would need connections to other ranks of its own, and a file has none."""
        kept = [name for name in ("state_dict", "residual_state_dict") if hasattr(self, name)]
        raise InvalidArgument(
            f"a {type(self).__name__} can be neither copied nor saved: save what comes from its "
            f"{'() and '.join(kept)}(), and make a new one"
        )


class ReducerReporting(Reporting):
    """What handles can tell that have a reducer."""

    _exchange: TensorExchange | None
    _group: dist.ProcessGroup | None

    @property
    def reducer(self) -> GradientReducer:
        """What reduces; under DDP it is there after the first backward pass at the latest."""
        if self._exchange is None:
            raise InvalidArgument("the reducer is made in the first backward pass")
        return self._exchange.reducer

    def statistics(self) -> list[ParameterStatistics]:
        """What was sent, a dict for each parameter that is compressed, in the model's order."""
        return [of_parameter(one, self._ranks()) for one in self.reducer.parameter_statistics()]

    def totals(self) -> ParameterStatistics:
        """The same of all parameters together, headers of the transport included."""
        return of_parameter(self.reducer.statistics(), self._ranks())

    def explain(self) -> str:
        """Which codec each parameter travels by, and why."""
        return self.reducer.explain()

    def settled(self) -> bool:
        """Whether ``"auto"`` tries nothing, for now."""
        return self.reducer.settled()

    def _ranks(self) -> int:
        made = self._exchange
        return dist.get_world_size(self._group) if made is None else made.transport.ranks

    def _process_group(self) -> dist.ProcessGroup:
        return checked(self._group)
