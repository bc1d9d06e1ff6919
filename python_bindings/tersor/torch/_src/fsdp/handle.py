"""The handle of a compressed FSDP2 model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.torch._src.checkpoint.residuals import Mode
from tersor.torch._src.fsdp.exchange import Exchange, GradientExchange, Sender
from tersor.torch._src.fsdp.layout import ResidualView
from tersor.torch._src.fsdp.reducer import ShardedReducer
from tersor.torch._src.fsdp.state import load_sharded, save_sharded
from tersor.torch._src.gradients.sample_weights import SampleWeighted
from tersor.torch._src.statistics.handles import Handle, Reporting
from tersor.torch._src.statistics.records import ParameterStatistics, add_up


class ShardedHandle(Reporting, SampleWeighted, Handle):
    """The handle of a model of ``fully_shard``. ``compress`` returns this handle.

    Example::

        handle = tersor.torch.compress(model, "int8+ef")
        print(handle.table())
    """

    def __init__(
        self,
        sender: Sender,
        exchanges: Sequence[Exchange],
        group: dist.ProcessGroup,
        notes: Sequence[str],
    ) -> None:
        self._sender, self._samples = sender, sender.samples
        self._exchanges = exchanges
        self._gradients = [one for one in exchanges if isinstance(one, GradientExchange)]
        self._group = group
        self._notes = notes

    @property
    def _reducers(self) -> list[ShardedReducer]:
        return self._sender.every_reducer()

    @property
    def feedback(self) -> dict[str, ResidualView]:
        """Copies of the residuals, by name of the parameter.

        On a 2-D mesh, the suffix ``" (replicas)"`` marks residuals of values sent to replicas, and
        ``" (replicas, sums)"`` marks residuals of forwarded sums.
        """
        return {name: view for one in self._reducers for name, view in one.read()[1].items()}

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        found = (one.statistics(residual_norms=residual_norms) for one in self._reducers)
        return list(itertools.chain.from_iterable(found))

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        found = super().totals(residual_norms=residual_norms)
        if every := [one.statistics() for one in self._cores()]:  # not known by parameter
            found.overflows = sum(one.overflows for one in every)
            found.codec_changes = sum(one.codec_changes for one in every)
        return found

    def _totals_of_all(self, residual_norms: bool) -> ParameterStatistics | None:
        if not (reducers := self._reducers):
            return None
        return add_up(one.totals(residual_norm=residual_norms) for one in reducers)

    def _cores(self) -> Sequence[_core.GradientReducer]:
        return [one.core for one in self._reducers]

    def explain(self) -> str:
        lines = [f"{one.name}: {one.codec} ({one.reason})" for one in self.statistics()]
        chosen = [one.explain_choice().strip() for one in self._cores()]
        return "\n".join([*lines, *self._notes, *filter(None, chosen)])

    def scale_residuals(self, factor: float) -> None:
        """Multiplies all residuals, if a loss scale changes. Residuals have the gradient's units.

        Args:
            factor: New loss scale divided by the old loss scale.

        Raises:
            InvalidArgumentError: The factor is not finite.

        Example::

            handle.scale_residuals(0.5)
        """
        self._sender.scale_residuals(factor)

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        meshes = meshes_of(self._gradients)
        if mode == "portable" and len(meshes) > 1:
            raise InvalidArgumentError(
                f"the model's modules are on {len(meshes)} meshes: residuals of experts cannot be "
                'summed over all ranks; save the state with mode="exact"'
            )
        if mode == "portable" and any(len(one) < self._group.size() for one in meshes):
            raise InvalidArgumentError(
                "tensor parallelism cuts the model's parameters further than FSDP: residuals of "
                'different cuts cannot be summed; save the state with mode="exact"'
            )
        self._sender.prepare()
        self._sender.loss_scale.discard_skipped(self._sender, self._sender.trained)
        state = save_sharded(self._sender, self._group, mode)
        return {**state, **self._sender.loss_scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        self._sender.prepare()
        load_sharded(self._sender, self._group, state)
        self._sender.loss_scale.load_state_dict(state or {}, self._sender)

    def remove(self) -> None:
        for exchange in self._exchanges:
            exchange.remove()
        self._sender.drop()
        self._samples.ended = "after remove(), FSDP2 gives all ranks equal weights: set no samples"

    def reset(self) -> None:
        self._sender.reset()

    @property
    def skipped_steps(self) -> int:
        """Number of steps that the scaler skipped because a gradient was not finite."""
        return self._sender.loss_scale.skipped_steps

    def discard_step(self) -> None:
        self._sender.discard_step()


def meshes_of(reduces: Iterable[GradientExchange]) -> set[frozenset[int]]:
    """Returns the ranks of each mesh. A module without own parameters is on no mesh."""
    return {ranks for one in reduces if (ranks := one.layout.mesh_ranks)}
