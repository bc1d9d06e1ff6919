"""The mean of gradients over the ranks of a machine, before an optimizer normalises them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor._core import InvalidArgumentError, TransportError
from tersor.torch import _compat
from tersor.torch._src.gradients.exchange import TensorExchange

_BATCH_VALUES = 1 << 24  # values in one all-reduce


class HostMean:
    """Averages gradients over the ranks with this rank's host number, by PyTorch's all-reduce."""

    def __init__(self, exchange: TensorExchange) -> None:
        """Makes a process group per host. A collective call of the ranks of ``exchange``."""
        if exchange.elastic:
            raise InvalidArgumentError(
                "average_gradients_in_host=True cannot be combined with elastic=True: the process "
                "group of a host would wait for a lost rank"
            )
        hosts = list(exchange.options.get("hosts") or exchange.transport.hosts())
        own = hosts[exchange.transport.rank]
        members = [rank for rank, host in enumerate(hosts) if host == own]
        self._ranks = len(members)
        self._group: Any = None
        if self._ranks > 1:
            with _as_transport_error():
                self._group = dist.new_group(
                    [dist.get_global_rank(exchange.group, rank) for rank in members],
                    timeout=datetime.timedelta(seconds=exchange.options["timeout"]),
                    use_local_synchronization=True,
                )

    def average(self, gradients: Sequence[Tensor], weight: float | None) -> float:
        """Replaces f32 gradients by their mean over the host, on all ranks of the host.

        Args:
            gradients: Tensors with equal shapes on the ranks of the host.
            weight: This rank's weight in the mean. None: all ranks have equal weights.

        Returns:
            The mean of the weights. If all weights of the host are 0, the gradients become zeros.
        """
        if self._group is None:
            return 1.0 if weight is None else weight
        mean_weight = 1.0
        for some in _batches(gradients):
            flat = torch.cat([*(one.reshape(-1) for one in some), some[0].new_ones(1)])
            flat.mul_((1.0 if weight is None else weight) / self._ranks)  # the sum stays finite
            with _as_transport_error():
                dist.all_reduce(flat, group=self._group)
            *means, total = torch.split(flat, [*(one.numel() for one in some), 1])
            if weight is not None:
                mean_weight = float(total)
                flat.mul_(1 / mean_weight if mean_weight else 0.0)
            shaped = [mean.view_as(one) for mean, one in zip(means, some, strict=True)]
            _compat.foreach_copy_(some, shaped)
        return mean_weight


@contextlib.contextmanager
def _as_transport_error() -> Iterator[None]:
    """Turns errors of PyTorch's collectives into TransportError."""
    try:
        yield
    except RuntimeError as error:
        raise TransportError(f"the mean over the ranks of a host failed: {error}") from error


def _batches(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Batches of whole gradients, equal on all ranks of the host."""
    batch: list[Tensor] = []
    values = 0
    for one in gradients:
        if batch and values + one.numel() > _BATCH_VALUES:
            yield batch
            batch, values = [], 0
        batch.append(one)
        values += one.numel()
    if batch:
        yield batch
