"""``Tuner``: chooses codec and algorithm of each collective with codec ``"auto"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from tersor import _core
from tersor._core import Transport
from tersor._options import expect, fill

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TunerOptions(TypedDict, total=False):
    """Options of a ``Tuner``; equal on all ranks."""

    codecs: Sequence[str]
    """Candidates beside ``none`` and ``bf16``. Default ``["int8"]``."""
    threads: int
    """Codec threads of each rank. Default 1."""
    memory: Literal["host", "device"]
    """The memory of the gradients. Default ``"host"``."""
    error_growth: float
    """Limits the grids, as the option of a collective does. Default 2."""
    timeout: float
    """Seconds until ``TransportError``. Default 300."""


class Tuner(_core.Tuner):
    """Chooses for the collectives of one transport: ``allreduce(…, codec="auto", tuner=tuner)``.

    A collective call, which measures the link and the codecs. Raises InvalidArgumentError for an
    invalid option.
    """

    def __init__(self, transport: Transport, **options: Unpack[TunerOptions]) -> None:
        expect(transport, Transport, "a Tuner takes a transport (tersor.local, tersor.mpi, …)")
        super().__init__(transport, fill(_core.AutoOptions(), options))
