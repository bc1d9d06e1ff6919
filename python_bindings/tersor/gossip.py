"""Averaging among neighbours for arrays in host memory, for links with a high latency.

``docs/systems/gossip.md`` says when not to use it. ``tersor.torch.Gossip`` takes a model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from tersor import _core
from tersor._core import InvalidArgumentError, Transport
from tersor._options import expect

__all__ = ["Gossip"]


class Gossip:
    """Weights of each rank's own, which move towards those of the neighbours in each step.

    CHOCO-SGD (Koloskova et al. 2019): what travels is what the weights have moved by, encoded.
    """

    def __init__(
        self,
        transport: Transport,
        topology: str | Sequence[Sequence[tuple[int, float]]] = "ring",
        codec: str = "int8",
        *,
        step_size: float = 0.0,
        timeout: float = 300.0,
        on_split: Literal["raise", "warn"] = "raise",
    ) -> None:
        """A collective call. ``topology``: "ring", "torus", "exponential", or for each rank its
        neighbours and their weights, symmetric. ``step_size``: 0: chosen from the codec.
        ``timeout``: seconds after which a silent neighbour is lost; a neighbour that waits in
        ``mix`` is not silent. ``on_split``: if no path joins this rank to others any more, ``mix``
        raises TransportError after its step, or warns. Further calls mix with the ranks that are
        left. Raises InvalidArgumentError for an invalid graph; the message names the fault. The
        first step raises TransportError if the options of two ranks differ."""
        if on_split not in ("raise", "warn"):
            raise InvalidArgumentError(f'on_split={on_split!r}: give "raise" or "warn"')
        expect(transport, Transport, "transport must be a tersor Transport")
        if isinstance(topology, str):
            graph = _core.Topology.named(topology, transport.ranks)
        else:
            graph = _core.Topology(topology)
        self._warns = on_split == "warn"
        self._core = _core.Gossip(transport, graph, codec, step_size, timeout, not self._warns)
        self._cut_off: set[int] = set()

    def add(self, name: str, weights: Any) -> None:
        """A float32 array that is mixed in place, until this ends; before the first step."""
        self._core.add(name, weights)

    def begin(self) -> None:
        """Encodes and sends what the weights have moved by. They may move on meanwhile."""
        self._core.begin()

    def mix(self) -> None:
        """Waits for the neighbours', and moves the weights towards them."""
        self._core.mix()
        cut_off = set(self._core.statistics().cut_off)
        if self._warns and cut_off - self._cut_off:
            ranks = ", ".join(map(str, sorted(cut_off)))
            warnings.warn(f"gossip: no path connects this rank to ranks {ranks}", stacklevel=2)
        self._cut_off = cut_off

    @property
    def step_size(self) -> float:
        """How far a step goes towards the neighbours."""
        return self._core.step_size

    def statistics(self) -> _core.GossipStatistics:
        """Steps, bytes sent, neighbours that are lost, and the ranks that no path leads to."""
        return self._core.statistics()
