"""Weights that move towards the neighbours' instead of all ranks': CHOCO-SGD of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

import tersor
from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor.torch._src.parameters.selection import DTYPES, every_parameter, followed, store
from tersor.torch._src.process_group import connections


class Gossip(tersor.Gossip):
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
        the host. Raises InvalidArgumentError for a graph or codec that it cannot be, and for
        parameters of other dtypes or that are sharded.

        Parameters that the program replaces in the model later are mixed from then on. Ranks keep
        their own buffers and may start from different parameters; to start alike call
        ``tersor.torch.broadcast_parameters(model)``, which includes buffers."""
        expect(model, nn.Module, "model must be a torch.nn.Module")
        ranks = connections.transport(process_group)
        seconds = connections.seconds_of(process_group)
        super().__init__(
            ranks, topology, codec, step_size=step_size, timeout=seconds, on_split=on_split
        )
        self._model = model
        self._parameters = every_parameter(model)
        self._mixed = {name: _mixed(name, one.detach()) for name, one in self._parameters.items()}
        for name, one in self._mixed.items():
            self.add(name, one.numpy())

    def begin(self) -> None:
        """Sends what the weights have moved by; they may move on until ``mix``."""
        self._take()
        super().begin()

    def mix(self) -> None:
        """Waits for the neighbours', and moves the weights towards them."""
        elsewhere = self._take()
        super().mix()
        for own, mixed in elsewhere:
            store(own, mixed)

    def step(self) -> None:
        """Both. After the optimizer's step."""
        self.begin()
        self.mix()

    def _take(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies the parameters of other types, devices or memory than the mixed values. Returns
        each with the copy."""
        self._parameters = followed(self._model, self._parameters, "Gossip")
        pairs = [(one.detach(), self._mixed[name]) for name, one in self._parameters.items()]
        elsewhere = [(own, mixed) for own, mixed in pairs if own.data_ptr() != mixed.data_ptr()]
        for own, mixed in elsewhere:
            mixed.copy_(own)
        return elsewhere


def _mixed(name: str, own: torch.Tensor) -> torch.Tensor:
    """The memory to mix in: the parameter's own, or new float32 values on the host."""
    if isinstance(own, torch.distributed.tensor.DTensor) or own.dtype not in DTYPES:
        raise InvalidArgumentError(
            f"{name}: Gossip supports whole parameters of float32, bfloat16 and float16"
        )
    if own.device.type == "cpu" and own.dtype == torch.float32 and own.is_contiguous():
        return own
    return torch.empty(own.shape, dtype=torch.float32)
