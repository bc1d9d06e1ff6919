"""``reset`` and ``remove`` of the optimizers over ranks."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError
from tersor.torch._src.gradients.exchange import ElasticOptions, Presence, TensorExchange
from tersor.torch._src.parameters.selection import OptimizedParameters
from tersor.torch._src.process_group import connections
from tersor.torch._src.statistics.handles import ElasticReporting, Handle


class OptimizerHandle(ElasticReporting, Handle):
    """A handle that is an optimizer."""

    _optimized: OptimizedParameters
    _presence: Presence
    _removed: bool

    @property
    def _parameters(self) -> dict[str, torch.Tensor]:
        return self._optimized.exchanged

    def reset(self) -> None:
        before = self._exchange
        _check_complete(before, "reset() needs all of them: call resume()")
        connections.close(self._group)
        options: ElasticOptions = {**before.options, "on_loss": before.on_loss}
        self._exchange = TensorExchange(self._group, before.device, options)
        self._presence = type(self._presence)(self._exchange)

    def remove(self) -> None:
        self._presence = _UncompressedPresence(self._exchange)
        self._removed = True


class _UncompressedPresence(Presence):
    """Counts over the process group."""

    def __init__(self, exchange: TensorExchange) -> None:
        _check_complete(exchange, "remove() needs all of them")
        self._exchange = exchange
        self._begin_comparison()

    def _sum_of(self, numbers: list[float]) -> list[float]:
        sums = torch.tensor(numbers, dtype=torch.float32, device=self._exchange.device)
        dist.all_reduce(sums, group=self._exchange.group)
        return cast(list[float], sums.tolist())


def _check_complete(exchange: TensorExchange, needs: str) -> None:
    if exchange.losses:
        raise InvalidArgumentError(f"ranks were lost, and {needs}")
