"""What handles tell of what they sent."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.reducer import GradientReducer
from tersor.torch._src.checkpoint.residuals import Mode, check_mode
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.process_group.connections import checked
from tersor.torch._src.statistics.picture import draw
from tersor.torch._src.statistics.records import (
    ParameterStatistics,
    add_up,
    of_parameter,
    scalars,
    table,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_LOGGED_OF_EACH = ("sent_bytes", "ratio", "residual_norm", "relative_error")


class Reporting(ABC):
    """What all handles can tell."""

    @abstractmethod
    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        """What was sent, a dict for each parameter that was, in the model's order.

        With ``residual_norms`` that of each residual, too, for which all are read. Of a model of
        ``fully_shard`` on a 2-D mesh another, with ``" (replicas)"`` behind the name, for the shard
        between replicas.
        """

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        """The same of all parameters together, headers of the transport included."""
        return add_up(self.statistics(residual_norms=residual_norms))

    def scalars(self, *, residual_norm: bool = False) -> dict[str, float]:
        """What monitoring takes, of all parameters together: cheap enough for each step.

        ``tersor/sent_bytes``, ``uncompressed_bytes`` (what would be sent without a codec),
        ``gradient_bytes``, ``ratio``, ``encode_seconds``, ``wire_seconds`` and of these
        ``hidden_seconds`` and ``exposed_seconds``, ``decode_seconds``: means over ``steps`` steps
        of this rank, which ``reducer.reset_statistics()`` begins anew. Counted: ``overflows``,
        ``skipped_steps``, ``steps_discarded``, ``codec_changes`` of ``"auto"``. With
        ``measure_error`` ``relative_error``, with ``residual_norm`` that of all residuals, for
        which they are read. Before the first step nothing. Without ``residual_norm`` it
        waits for no step, and any thread may ask: it tells of the steps that are complete.
        """
        totals = self._totals_of_all(residual_norm)
        return {} if totals is None else scalars(totals, getattr(self, "skipped_steps", 0))

    def _totals_of_all(self, residual_norm: bool) -> ParameterStatistics | None:
        """As ``totals``; None where nothing was sent yet."""
        return self.totals(residual_norms=residual_norm)

    @abstractmethod
    def _cores(self) -> Sequence[_core.GradientReducer]:
        """What reduces."""

    def write_trace(self) -> None:
        """Writes the file of ``trace=`` now, of each reducer one; without, it is written at the
        end."""
        for one in self._cores():
            one.write_trace()

    def settled(self) -> bool:
        """Whether ``"auto"`` tries nothing, for now."""
        return all(one.settled() for one in self._cores())

    def table(self) -> str:
        """A line for each parameter, and one for all; bytes and times of a step."""
        return table([*self.statistics(residual_norms=True), self.totals(residual_norms=True)])

    def report(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes, times and residuals to a PNG, SVG or PDF file; needs matplotlib.

        Raises ImportError, which says what to install, where there is none.
        """
        draw(self.statistics(residual_norms=True), self.totals(), path)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refused: a copy would need connections to other ranks of its own, and a file has none."""
        kept = [name for name in ("state_dict", "residual_state_dict") if hasattr(self, name)]
        raise InvalidArgumentError(
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
            raise InvalidArgumentError(
                "there is no reducer yet: call this after the first backward pass"
            )
        return self._exchange.reducer

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        every = self.reducer.parameter_statistics()
        norms = self.reducer.residual_norms() if residual_norms else [None] * len(every)
        ranks = self._ranks()
        return [of_parameter(one, ranks, norm) for one, norm in zip(every, norms, strict=True)]

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        norm = math.hypot(*self.reducer.residual_norms()) if residual_norms else None
        return of_parameter(self.reducer.statistics(), self._ranks(), norm)

    def _totals_of_all(self, residual_norm: bool) -> ParameterStatistics | None:
        if (made := self._exchange) is None:
            return None
        if residual_norm:
            return self.totals(residual_norms=True)
        return of_parameter(made.reducer.statistics_so_far(), made.ranks)

    def explain(self) -> str:
        """Which codec each parameter travels by, and why."""
        return self.reducer.explain()

    def _cores(self) -> Sequence[_core.GradientReducer]:
        return [self.reducer]

    def _ranks(self) -> int:
        made = self._exchange
        return dist.get_world_size(self._group) if made is None else made.ranks

    def _process_group(self) -> dist.ProcessGroup:
        return checked(self._group)


class ElasticReporting(ReducerReporting):
    """What handles can tell and do whose ranks may be lost (``elastic=True``)."""

    _exchange: TensorExchange

    def resume(self) -> None:
        """After ``RanksLostError`` (``elastic=True``): goes on with those who are left, who all
        call it.

        What ranks owe by error feedback goes on, too. Raises InvalidArgumentError where too few are
        left, or none was lost.
        """
        self._exchange.resume()

    @property
    def members(self) -> list[int]:
        """Who is left, as the group numbers them."""
        return list(self._exchange.members)

    def _check_exact(self, mode: Mode) -> Mode:
        """Raises InvalidArgumentError where ranks were lost: files of all ranks would have a
        gap."""
        if self._exchange.losses and check_mode(mode) == "exact":
            raise InvalidArgumentError(
                'ranks were lost: save with mode="portable", which fits any number of ranks'
            )
        return mode


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
