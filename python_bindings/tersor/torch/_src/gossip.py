"""Parameters of a model that move towards the neighbours' instead of all ranks': CHOCO-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

import tersor
from tersor._core import InvalidArgumentError
from tersor._options import expect
from tersor.torch._src.parameters.selection import DTYPES, every_parameter, refreshed, store
from tersor.torch._src.process_group import connections


class Gossip(tersor.Gossip):
    """Mixes a model's parameters with the neighbours', after each step of the rank's own optimizer.

    Parameters of bfloat16, of float16 and on devices are mixed in float32 on the host. Replaced
    parameters (``load_state_dict(assign=True)``) are mixed from the next step on. Added parameters
    need a new object. Ranks keep their own buffers, and may start from different parameters.
    ``tersor.torch.broadcast_parameters(model)`` makes parameters and buffers equal. Source:
    Koloskova, Stich and Jaggi 2019, arXiv:1902.00340, algorithm 2.

    Args:
        model: The model, with whole parameters of float32, bfloat16 or float16.
        topology: As for ``tersor.Gossip``.
        codec: The spec of the changes, without ``+ef``.
        step_size: The share of the way to the neighbours per step; 0: chosen from the codec.
        on_split: ``"raise"`` or ``"warn"``, as for ``tersor.Gossip``.
        process_group: The ranks; None: the default group. The group's timeout is the time after
            which a silent neighbour is lost.

    Raises:
        InvalidArgumentError: The graph, the codec or a parameter is not supported.

    Example:
        >>> gossip = tersor.torch.Gossip(model, "ring", codec="int8")
        >>> optimizer.step()
        >>> gossip.step()
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
        """A collective call. See the class."""
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
        """Encodes and sends the change of the parameters, which may change until ``mix``.

        Raises:
            InvalidArgumentError: A value is not finite, or the model lost or got a parameter.
                Nothing was sent.

        Example::

            loss.backward()
            gossip.begin()
        """
        self._copy_in()
        super().begin()

    def mix(self) -> None:
        """Waits for the neighbours, and moves the parameters towards the neighbours'.

        Raises:
            InvalidArgumentError: The model lost or got a parameter.
            TransportError: No path connects this rank to some ranks, and ``on_split="raise"``.

        Example::

            gossip.begin()
            gossip.mix()
        """
        copies = self._copy_in()
        try:
            super().mix()
        finally:  # a split raises after the step
            for own, mixed in copies:
                store(own, mixed)

    def step(self) -> None:
        """Calls ``begin`` and ``mix``. Call ``step`` after the optimizer's step.

        Raises:
            tersor.Error: As :meth:`begin` and :meth:`mix`.

        Example::

            optimizer.step()
            gossip.step()
        """
        self.begin()
        self.mix()

    def _copy_in(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies the parameters that have memory of their own, and returns each with its copy."""
        self._parameters = refreshed(self._model, self._parameters, "Gossip")
        for name in every_parameter(self._model):
            if name not in self._parameters:
                raise InvalidArgumentError(f"{name} is new and not mixed: make a new Gossip")
        pairs = [(one.detach(), self._mixed[name]) for name, one in self._parameters.items()]
        copies = [(own, mixed) for own, mixed in pairs if own.data_ptr() != mixed.data_ptr()]
        for own, mixed in copies:
            mixed.copy_(own)
        return copies


def _mixed(name: str, own: torch.Tensor) -> torch.Tensor:
    """The memory to mix in: the parameter's own, or new float32 values on the host."""
    if isinstance(own, torch.distributed.tensor.DTensor) or own.dtype not in DTYPES:
        raise InvalidArgumentError(
            f"{name}: Gossip supports whole parameters of float32, bfloat16 and float16"
        )
    if own.device.type == "cpu" and own.dtype == torch.float32 and own.is_contiguous():
        return own
    return torch.empty(own.shape, dtype=torch.float32, device="cpu")
