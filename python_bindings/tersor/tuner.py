"""``Tuner``: chooses codec and algorithm of each collective with codec ``"auto"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from tersor import _core
from tersor._core import Transport
from tersor._options import Unpack, expect, fill

__all__ = ["Tuner", "TunerOptions"]
__dir__ = __all__.copy


class TunerOptions(TypedDict, total=False):
    """Options of a ``Tuner``, equal on all ranks.

    Example:
        >>> options: tersor.TunerOptions = {"codecs": ["int8", "int4"], "timeout": 60.0}
        >>> tuner = tersor.Tuner(transport, **options)
    """

    codecs: Sequence[str]
    """Candidates in addition to ``none`` and ``bf16``. Default ``["int8"]``."""
    threads: int
    """Codec threads per rank. Default 1."""
    memory: Literal["host", "device"]
    """The memory of the gradients. Default ``"host"``."""
    error_growth: float
    """Limits the grids, as in :class:`tersor.CollectiveOptions`. Default 2."""
    timeout: float
    """Seconds until ``TransportError``. Default 300."""


class Tuner(_core.Tuner):
    """Chooses codec and algorithm of the collectives of one transport.

    The constructor is a collective call and measures the link and the codecs.

    Args:
        transport: The transport of the collectives.
        options: See :class:`TunerOptions`.

    Raises:
        InvalidArgumentError: An option is invalid.
        TransportError: A rank failed or is late.

    Example:
        >>> tuner = tersor.Tuner(transport, codecs=["int8", "int4"])
        >>> tersor.allreduce(transport, gradient, codec="auto", tuner=tuner)
    """

    def __init__(self, transport: Transport, **options: Unpack[TunerOptions]) -> None:
        expect(transport, Transport, "a Tuner takes a transport (tersor.local, tersor.mpi, …)")
        super().__init__(transport, fill(_core.AutoOptions(), options))
