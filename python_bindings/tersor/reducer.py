"""``GradientReducer``: reduces a trainer's gradients in the background, residuals looked after."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tersor import _core
from tersor._core import Transport, Tuner
from tersor._options import expect, fill
from tersor.collectives import Algorithm, CommonOptions, GridOptions, Reduction

if TYPE_CHECKING:
    from typing_extensions import Unpack

Contribution = Literal["gradient", "none", "gradient-unless-zero", "nowhere"]


class GradientOptions(CommonOptions, total=False):
    """How gradients travel, whatever hands them over."""

    codec: str
    """A spec, or ``"auto"``. Default ``"bf16"``. 1-D parameters and those under 4,096 values
    travel as bf16 unless it loses nothing, or there are ``rules``."""
    rules: Iterable[tuple[str, str] | tuple[str, str, int]]
    """``(pattern, codec)``, shell style patterns of names; the first that matches counts, and one
    must. ``(pattern, codec, step)`` counts from that step on: several rules of one pattern are a
    schedule, all of it with feedback where one has ``+ef``. Default: ``codec`` for all."""
    auto_codecs: Sequence[str]
    """What ``"auto"`` chooses from, beside ``none`` and ``bf16``. Default ``["int8"]``."""
    auto_learning: bool
    """Whether ``"auto"`` tries other codecs than the predicted one while training goes on. Without,
    the same run goes the same way again. Default True."""
    bucket_bytes: int
    """Of gradient: small parameters share messages up to this. Default 1 MiB; under PyTorch's own
    process groups, but for NCCL's, an eighth of the model, from 1 MiB to 4 bytes for each of
    ``chunk_count``."""
    chunk_count: int
    """Values: longer parameters are cut. Default 1 Mi, over NCCL 8 Mi; under PyTorch's own process
    groups of other backends 512 Ki for each rank, from 1 Mi to 4 Mi."""
    residual_dtype: Literal["f32", "bf16"]
    """Default ``"f32"``."""
    elastic: bool
    """Whether the others go on when a rank dies (docs/how-to/lost-ranks.md): ``RanksLostError`` is
    raised then, and ``resume()`` goes on without it. In process and over TCP. Default False."""
    least_ranks: int
    """How many ranks may go on without the others. Default 0: more than half, or half with the
    lowest."""
    weighted: bool
    """Whether each step's gradients are means over as many samples as each rank tells, by
    ``weigh(samples)`` or a handle's ``samples``: what arrives is the mean over all samples. Default
    False: the mean over ranks."""
    transactional: bool
    """Whether the residuals from before the last step are kept, for ``discard_step``: twice the
    memory. Default False."""
    progress: Literal["thread", "caller"]
    """Who sends: a thread (default), or the caller inside ``ready``, ``progress`` and ``wait``."""
    measure_error: bool
    """Whether each step encodes once more to measure its error: slow. Default False."""
    threads: int
    """For codecs, beside the sending thread. Default 1."""
    trace: str
    """A file for the newest events in Chrome's format, which https://ui.perfetto.dev shows, with
    ``.rank<number>`` before what its name ends in: written at the end, or by ``write_trace()``.
    Of work on a device it has only when gradients were ready and who waited. Default none."""


class ReducerOptions(GradientOptions, GridOptions, total=False):
    """Options of a ``GradientReducer``; equal on all ranks, but for ``threads``."""

    memory: Literal["host", "device"]
    """Where the gradients lie, for ``"auto"``. Default ``"host"``; ``"device"`` where ``stream`` is
    given."""
    tuner: Tuner | None
    """Used for ``"auto"`` instead of one of the reducer's own; outlives the last ``add``."""
    reduction: Reduction
    """Default ``"mean"``."""
    algorithm: Algorithm
    """Default ``"auto"``."""
    order: Literal["learned", "of-ready"]
    """In which order gradients are sent: as rank 0's became ready in the first step (default); or
    ``"of-ready"``, as they become ready, which is the same order on all ranks. A parameter that is
    not ready then takes no part in the step, on any rank."""
    missing: Literal["error", "inactive"]
    """What a parameter means that is not ready at the end of a step. Default ``"error"``, and an
    error in both cases here, where each step gives its arrays anew: a parameter without a gradient
    is ready with ``contribution="none"``, and its array gets the result."""
    stream: Any
    """Of device gradients: where the trainer queues its work (PyTorch, CuPy, or an int)."""


def lasting(options: ReducerOptions) -> ReducerOptions:
    """The same, good for several reducers: rules may come from a generator."""
    return {**options, "rules": list(options["rules"])} if "rules" in options else options


_traced: weakref.WeakSet[GradientReducer] = weakref.WeakSet()


@atexit.register
def _write_traces() -> None:
    """What Python still holds when it ends is not taken down."""
    for reducer in _traced:
        with contextlib.suppress(_core.Error):
            reducer.write_trace()


class GradientReducer(_core.GradientReducer):
    """Reduces the gradients of a model over the ranks of ``transport``.

    Parameters are added once (``add(name, like)``). In each step ``ready(name, gradient)`` says
    that a gradient may be sent and overwritten with the result; ``wait()`` ends the step. In
    between a thread sends, without the GIL. ``tersor.InvalidArgumentError`` is the caller's
    mistake; whatever else ends an exchange is raised by the next call, and by all later ones.
    """

    def __init__(self, transport: Transport, **options: Unpack[ReducerOptions]) -> None:
        expect(
            transport,
            Transport,
            "transport must be a tersor Transport (tersor.local, tersor.mpi, …)",
        )
        super().__init__(transport, fill(_core.ReducerOptions(), options))
        if options.get("trace"):
            _traced.add(self)
