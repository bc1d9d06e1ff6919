"""The methods that all handles share: counts, tables, pictures and traces."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch.distributed as dist

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor._renamed import renamed_keywords
from tersor.reducer import GradientReducer
from tersor.torch._src.checkpoint.residuals import Mode, check_mode
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.process_group.connections import as_group
from tersor.torch._src.statistics import records
from tersor.torch._src.statistics.picture import draw
from tersor.torch._src.statistics.records import ParameterStatistics

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_LOGGED_PER_PARAMETER = ("sent_bytes", "ratio", "residual_norm", "relative_error")


class Counts(Protocol):
    """The counts of a handle."""

    @abstractmethod
    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        """Returns the counts of each parameter that was sent, in the model's order.

        On a 2-D mesh, FSDP2 has another entry for a parameter's exchange between replicas, with
        ``" (replicas)"`` after the name.

        Args:
            residual_norms: True to read all residuals and measure their norms.

        Returns:
            One ``ParameterStatistics`` per parameter: sums over the steps of this rank.

        Raises:
            InvalidArgumentError: DDP had no backward pass yet.

        Example::

            largest = max(handle.statistics(), key=lambda counts: counts.sent_bytes)
            print(largest.name, largest.ratio)
        """

    def reducer_statistics(self) -> Sequence[_core.ReducerStatistics]:
        """Returns the counts of each reducer, including the transport's headers.

        DDP and the optimizers have one reducer. FSDP2 has a reducer per module. On a 2-D mesh,
        FSDP2 has a second reducer per module. The sequence is empty before the first step of DDP
        and FSDP2.

        Example::

            print(sum(one.sent_bytes for one in handle.reducer_statistics()))
        """

    def table(self) -> str:
        """Returns a text table with one line per parameter and one for all.

        Columns: bytes and seconds per step, ratio, error, norm of the residual, codec and reason.

        Raises:
            InvalidArgumentError: DDP had no backward pass yet.

        Example::

            print(handle.table())
        """

    def explain(self) -> str:
        """Returns one line per parameter: its codec and the reason.

        The text is empty before the first step of FSDP2.

        Raises:
            InvalidArgumentError: DDP had no backward pass yet.

        Example::

            print(handle.explain())
        """


@runtime_checkable
class Handle(Counts, Protocol):
    """The common interface of all handles. A handle compresses the gradients of a training.

    ``tersor.torch.compress`` returns a handle for DDP (``HookState``) and FSDP2
    (``ShardedHandle``). The optimizers ``DistributedOptimizer``, ``CompressedAdamW``,
    ``CompressedMuon`` and ``CompressedSGD`` are handles. ``isinstance(x, Handle)`` checks the names
    of all methods, without signatures.

    Example::

        def log(handle: tersor.torch.Handle) -> None:
            print(handle.table())
    """

    samples: float | None
    """The number of samples in this rank's next gradient, or None.

    Set ``samples`` before each step, on all ranks. The result is then the mean over the samples of
    all ranks. DDP, FSDP2 and ``DistributedOptimizer`` need ``weighted=True``."""

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """Returns the state for a checkpoint. Call ``state_dict`` between two steps.

        Args:
            mode: ``"exact"``: the residuals of this rank, from which a run with the same number of
                ranks continues bit for bit. ``"portable"``: the sum of the residuals over ranks,
                for any number of ranks; a collective call. FSDP2 has this sum for a model on one
                mesh without tensor parallelism. ``DistributedOptimizer`` saves residuals only if
                ``mode`` is passed.

        Returns:
            A dict for ``torch.save`` or ``torch.distributed.checkpoint``. With DDP and FSDP2, all
            tensors are on the CPU.

        Raises:
            InvalidArgumentError: ``mode`` is unknown, or DDP had no backward pass yet, or ``mode``
                is ``"portable"`` for several meshes or tensor parallelism.

        Example::

            torch.save(handle.state_dict("exact"), f"rank{dist.get_rank()}.pt")
        """

    def load_state_dict(self, state: Any, /) -> None:
        """Loads the result of ``state_dict`` of either mode.

        The next exchange raises TransportError if ranks loaded states of different saves. On a 2-D
        mesh of FSDP2, loading a portable state is a collective call.

        Args:
            state: The state. None or empty: residuals start at zero, with a warning.

        Raises:
            InvalidArgumentError: The state is damaged, or belongs to another model or codec; the
                message names the parameter. Nothing was changed.

        Example::

            handle.load_state_dict(torch.load(path, weights_only=True))
        """

    def discard_step(self) -> None:
        """Restores the residuals from before the last exchange, if no step used the result.

        With a scaler, DDP and FSDP2 restore the residuals from before all backward passes since
        the scaler's last ``update``. Call ``discard_step`` on all ranks. ``transactional=True`` is
        required.

        Raises:
            InvalidArgumentError: No exchange ended since the last step, or
                ``transactional=True`` was not passed.

        Example::

            if loss_is_too_high:
                handle.discard_step()
        """

    def reset(self) -> None:
        """Reconnects the ranks after an error that ended an exchange. Residuals become zero.

        Except in the compressed optimizers, schedules start again. A collective call: each rank
        must have received the error before. Reset all handles of the same process group.

        Raises:
            InvalidArgumentError: Ranks of an elastic optimizer were lost: call ``resume`` then.
            TransportError: A rank is late.

        Example::

            try:
                loss.backward()
            except tersor.TransportError:
                handle.reset()
        """

    def remove(self) -> None:
        """Sends gradients, and the weights of FSDP2, uncompressed from the next step on.

        Residuals are no longer used. Call ``remove`` on all ranks, between two steps.

        Raises:
            InvalidArgumentError: Ranks of an elastic optimizer were lost, so the process group
                cannot work.

        Example::

            handle.remove()
        """


class Reporting(Counts):
    """The counts of a handle, from the counts of parameters and reducers."""

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        """Returns the counts of all parameters together, including the transport's headers.

        Args:
            residual_norms: True to read all residuals and measure their norm.

        Raises:
            InvalidArgumentError: DDP had no backward pass yet.

        Example::

            totals = handle.totals()
            print(totals.sent_bytes / totals.steps)
        """
        return records.add_up(self.statistics(residual_norms=residual_norms))

    @renamed_keywords(residual_norm="residual_norms")
    def scalars(self, *, residual_norms: bool = False) -> dict[str, float]:
        """Returns values for monitoring, of all parameters together. Cheap enough for each step.

        Means per step of this rank: ``tersor/sent_bytes``, ``uncompressed_bytes``,
        ``gradient_bytes``, ``ratio``, ``encode_seconds``, ``decode_seconds``, ``wire_seconds`` and
        the parts ``hidden_seconds`` and ``exposed_seconds``. Counts: ``steps``, ``overflows``,
        ``skipped_steps``, ``steps_discarded`` and ``codec_changes`` (of ``"auto"``). With
        ``measure_error=True`` also ``relative_error``. ``reset_statistics()`` restarts all values.

        Any thread may call ``scalars``. The values are of the completed steps.

        Args:
            residual_norms: True to add ``residual_norm``: the call then waits for the step under
                way and reads all residuals.

        Returns:
            Each value under its name with ``tersor/`` in front; empty before the first step.

        Example::

            for name, value in handle.scalars().items():
                writer.add_scalar(name, value, step)
        """
        totals = self._totals_of_all(residual_norms)
        return {} if totals is None else records.scalars(totals, getattr(self, "skipped_steps", 0))

    def _totals_of_all(self, residual_norms: bool) -> ParameterStatistics | None:
        """As ``totals``; None if nothing was sent yet."""
        return self.totals(residual_norms=residual_norms)

    def reducer_statistics(self) -> list[_core.ReducerStatistics]:
        return [one.statistics() for one in self._cores()]

    def reset_statistics(self) -> None:
        """Restarts all counts at zero, between two steps.

        Example::

            handle.reset_statistics()
        """
        for one in self._cores():
            one.reset_statistics()

    @abstractmethod
    def _cores(self) -> Sequence[_core.GradientReducer]:
        """The reducers."""

    def write_trace(self) -> None:
        """Writes the file of ``trace=`` now. Otherwise the file is written at the end.

        Raises:
            InvalidArgumentError: ``trace=`` was not set.
            tersor.Error: The file cannot be written.

        Example::

            handle.write_trace()
        """
        for one in self._cores():
            one.write_trace()

    def settled(self) -> bool:
        """True if codec ``"auto"`` measures nothing at present. False before the first step.

        Example::

            while not handle.settled():
                train_one_step()
        """
        return bool(cores := self._cores()) and all(one.settled() for one in cores)

    def table(self) -> str:
        entries = self.statistics(residual_norms=True)
        return records.table([*entries, self.totals(residual_norms=True)])

    def report(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes, times and residuals.

        Args:
            path: File to write. The ending selects PNG, SVG or PDF.

        Raises:
            ImportError: matplotlib is missing.
            InvalidArgumentError: DDP had no backward pass yet.
            ValueError: matplotlib does not know the ending.

        Example::

            handle.report("tersor.png")
        """
        draw(self.statistics(residual_norms=True), self.totals(), path)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refuses copies, because a copy would need other connections."""
        raise InvalidArgumentError(
            f"a {type(self).__name__} can be neither copied nor saved: save the result of its "
            "state_dict() and make a new one"
        )


class ReducerReporting(Reporting):
    """The counts of a handle with one reducer."""

    _exchange: TensorExchange | None
    _group: dist.ProcessGroup | None

    @property
    def reducer(self) -> GradientReducer:
        """The ``GradientReducer``. Under DDP, the first backward pass makes the reducer.

        Raises:
            InvalidArgumentError: There is no reducer yet.
        """
        if self._exchange is None:
            raise InvalidArgumentError(
                "there is no reducer yet: call this after the first backward pass"
            )
        return self._exchange.reducer

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        every = self.reducer.parameter_statistics()
        norms = self.reducer.residual_norms() if residual_norms else [None] * len(every)
        ranks = self._ranks()
        pairs = zip(every, norms, strict=True)
        return [records.of_parameter(one, ranks, norm) for one, norm in pairs]

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        norm = math.hypot(*self.reducer.residual_norms()) if residual_norms else None
        return records.of_parameter(self.reducer.statistics(), self._ranks(), norm)

    def _totals_of_all(self, residual_norms: bool) -> ParameterStatistics | None:
        if (exchange := self._exchange) is None:
            return None
        if residual_norms:
            return self.totals(residual_norms=True)
        return records.of_parameter(exchange.reducer.statistics_so_far(), exchange.ranks)

    def explain(self) -> str:
        return self.reducer.explain()

    def _cores(self) -> Sequence[_core.GradientReducer]:
        return [] if self._exchange is None else [self._exchange.reducer]

    def _ranks(self) -> int:
        exchange = self._exchange
        return dist.get_world_size(self._group) if exchange is None else exchange.ranks

    def _process_group(self) -> dist.ProcessGroup:
        return as_group(self._group)


class ElasticReporting(ReducerReporting):
    """The methods of a handle that can lose ranks (``elastic=True``)."""

    _exchange: TensorExchange

    def resume(self) -> None:
        """Continues with the remaining ranks after ``RanksLostError``; all of them call ``resume``.

        The remaining ranks keep their residuals. Needs ``elastic=True``.

        Raises:
            InvalidArgumentError: Fewer ranks remain than ``min_ranks``, or no rank was lost.

        Example::

            try:
                optimizer.step()
            except tersor.RanksLostError:
                optimizer.resume()
        """
        self._exchange.resume()

    @property
    def members(self) -> list[int]:
        """The remaining ranks, by their number in the process group."""
        return list(self._exchange.members)

    def _check_exact(self, mode: Mode) -> Mode:
        """Refuses exact states after a loss: the files of all ranks would have a gap."""
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
    """Writes the ``scalars()`` of a handle to TensorBoard. Cheap enough for each step.

    Args:
        writer: A ``SummaryWriter``, or another object with ``add_scalar(name, value, step)``.
        handle: The result of ``compress``, an optimizer of ``tersor.torch``, or ``DiLoCo``.
        step: Number of the training step.
        residual_norms: True to read all residuals and write their norms.
        parameters_every: Steps that are multiples of this number also write values per parameter:
            sent bytes, ratio, and, if measured, error and norm of the residual. 0: never.

    Raises:
        TypeError: ``writer`` or ``handle`` is of another type.

    Example::

        tersor.torch.log_statistics(writer, handle, step)
    """
    if not hasattr(writer, "add_scalar"):
        raise TypeError(f"writer must be a SummaryWriter, not {described(writer)}")
    if not hasattr(handle, "scalars"):
        raise TypeError(f"handle must be the result of compress, not {described(handle)}")
    for name, value in handle.scalars(residual_norms=residual_norms).items():
        writer.add_scalar(name, value, step)
    if not parameters_every or step % parameters_every:
        return
    for one in handle.statistics(residual_norms=residual_norms):
        values = records.scalars(one, 0)
        for field in _LOGGED_PER_PARAMETER:
            if (found := values.get(f"tersor/{field}")) is not None:
                writer.add_scalar(f"tersor parameters/{one.name}/{field}", found, step)
