"""Weights that move towards the neighbours' instead of all ranks': CHOCO-SGD of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

import tersor
from tersor import _core
from tersor._core import InvalidArgument
from tersor._options import expect
from tersor.torch import group as groups
from tersor.torch.parameters import DTYPES, store


class Gossip:
    """After each step of its own optimizer a rank mixes its weights with its neighbours'.

    ::

        gossip = tersor.torch.Gossip(model, "ring", codec="int8")
        ...
        optimizer.step()
        gossip.step()
    """

    def __init__(
        self,
        model: nn.Module,
        topology: str | Sequence[Sequence[tuple[int, float]]] = "ring",
        codec: str = "int8",
        *,
        step_size: float = 0.0,
        on_split: Literal["raise", "warn"] = "raise",
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """A collective call; the group's time limit is after which a neighbour is lost. Options as
        those of ``tersor.Gossip``. Parameters of bfloat16, float16 and on devices go by float32 on
        the host. Raises InvalidArgument for a graph or codec that it cannot be, and for parameters
        of other dtypes or that are sharded."""
        expect(model, nn.Module, "Gossip takes a model")
        ranks = groups.transport(process_group)
        self._core = tersor.Gossip(
            ranks,
            topology,
            codec,
            step_size=step_size,
            timeout=groups.seconds_of(process_group),
            on_split=on_split,
        )
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, one in model.named_parameters():
            self._core.add(name, self._mixed(name, one.detach()).numpy())

    def begin(self) -> None:
        """Sends what the weights have moved by; they may move on until ``mix``."""
        for own, mixed in self._pairs:
            mixed.copy_(own)
        self._core.begin()

    def mix(self) -> None:
        """Waits for the neighbours', and moves the weights towards them."""
        for own, mixed in self._pairs:
            mixed.copy_(own)
        self._core.mix()
        for own, mixed in self._pairs:
            store(own, mixed)

    def step(self) -> None:
        """Both. After the optimizer's step."""
        self.begin()
        self.mix()

    @property
    def step_size(self) -> float:
        """How far a step goes towards the neighbours."""
        return self._core.step_size

    def statistics(self) -> _core.GossipStatistics:
        """Steps, bytes sent, and neighbours that are lost."""
        return self._core.statistics()

    def _mixed(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """What is mixed in its place: its own memory where that will do."""
        if isinstance(own, torch.distributed.tensor.DTensor) or own.dtype not in DTYPES:
            raise InvalidArgument(
                f"{name}: Gossip takes whole parameters of float32, bfloat16 and float16"
            )
        if own.device.type == "cpu" and own.dtype == torch.float32 and own.is_contiguous():
            return own
        mixed = torch.empty(own.shape, dtype=torch.float32)
        self._pairs.append((own, mixed))
        return mixed
