"""Averaging among neighbours for arrays in host memory, for links with a high latency.

``docs/systems/gossip.md`` says when not to use gossip. ``tersor.torch.Gossip`` takes a model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from tersor import _core
from tersor._core import InvalidArgumentError, Transport
from tersor._options import expect, warn_of_lanes
from tersor._renamed import renamed_keywords

__all__ = ["Gossip"]
__dir__ = __all__.copy


class Gossip:
    """Parameters of each rank's own, which move towards the neighbours' in each step.

    A rank sends the encoded change of its parameters. The mean over ranks stays constant.
    Source: CHOCO-SGD (Koloskova, Stich and Jaggi 2019, arXiv:1902.00340, algorithm 2).

    Args:
        transport: Connects the ranks: in process or over TCP.
        topology: ``"ring"``, ``"torus"`` or ``"exponential"``. Or, for each rank, pairs of a
            neighbour and its mixing weight. Mixing weights are symmetric and above 0, with a sum
            of at most 1 per rank.
        codec: The spec of the changes, without ``+ef``.
        step_size: The share of the way to the neighbours per step; 0: chosen from the codec.
        timeout: Seconds after which a silent neighbour is lost. A neighbour that waits in ``mix``
            is not silent.
        on_split: The reaction if no path connects this rank to some ranks any more: ``"raise"``
            makes ``mix`` raise TransportError after its step, ``"warn"`` warns. Later calls mix
            with the connected ranks.

    Raises:
        InvalidArgumentError: The graph or an option is invalid.
        TransportError: In the first step, if the options of two ranks differ.

    Example:
        >>> gossip = tersor.Gossip(transport, "ring", codec="int8")
        >>> gossip.add("w", parameter)
        >>> gossip.mix()
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
        """A collective call. See the class."""
        if on_split not in ("raise", "warn"):
            raise InvalidArgumentError(f'on_split={on_split!r}: give "raise" or "warn"')
        expect(transport, Transport, "transport must be a tersor Transport")
        if isinstance(topology, str):
            graph = _core.Topology.named(topology, transport.ranks)
        else:
            graph = _core.Topology(topology)
        warn_of_lanes(codec)
        self._warns = on_split == "warn"
        self._core = _core.Gossip(transport, graph, codec, step_size, timeout, not self._warns)
        self._cut_off: set[int] = set()

    @renamed_keywords(weights="parameter")
    def add(self, name: str, parameter: Any) -> None:
        """Adds a parameter, before the first step and on all ranks.

        Args:
            name: The name of the parameter.
            parameter: A float32 array of any shape. ``mix`` changes the array in place.

        Raises:
            InvalidArgumentError: A step was made before, or the array is not a writable float32
                array in host memory.

        Example::

            gossip.add("weight", weight)
        """
        self._core.add(name, parameter)

    def begin(self) -> None:
        """Encodes and sends the change of the parameters.

        The parameters may change between ``begin`` and ``mix``.

        Raises:
            InvalidArgumentError: A value is not finite. Nothing was sent; repeat the call.

        Example::

            gossip.begin()
            compute(next_batch)
        """
        self._core.begin()

    def mix(self) -> None:
        """Waits for the neighbours, and moves the parameters towards the neighbours'.

        Raises:
            TransportError: No path connects this rank to some ranks, and ``on_split="raise"``.

        Example::

            gossip.begin()
            gossip.mix()
        """
        self._core.mix()
        cut_off = set(self._core.statistics().cut_off)
        if self._warns and cut_off - self._cut_off:
            ranks = ", ".join(map(str, sorted(cut_off)))
            warnings.warn(f"gossip: no path connects this rank to ranks {ranks}", stacklevel=2)
        self._cut_off = cut_off

    @property
    def step_size(self) -> float:
        """The share of the way to the neighbours per step."""
        return self._core.step_size

    def statistics(self) -> _core.GossipStatistics:
        """Returns the counts of this rank.

        Returns:
            ``steps``, ``sent_bytes``, ``lost`` (lost neighbours) and ``cut_off`` (ranks without a
            path to this rank).

        Example::

            print(gossip.statistics().sent_bytes)
        """
        return self._core.statistics()
