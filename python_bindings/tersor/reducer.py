"""``GradientReducer``, which reduces gradients in the background, and the options of reducers."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, cast

from tersor import _core
from tersor._core import Transport, Tuner
from tersor._options import Unpack, expect, fill
from tersor._renamed import deprecated, renamed_keywords
from tersor.collectives import Algorithm, GridOptions, Reduction

__all__ = [
    "AdvancedOptions", "Contribution", "ExchangeOptions", "GradientReducer", "OptimizerOptions",
    "Order", "ReducerOptions", "ResidualDtype", "Rules", "ShardedOptions",
]  # fmt: skip
__dir__ = __all__.copy

Contribution = Literal["gradient", "none", "gradient-unless-zero", "globally-unused"]
Order = Literal["learned", "ready_order"]
ResidualDtype = Literal["f32", "bf16"]
Rules = Iterable[tuple[str, str] | tuple[str, str, int]]
Options = TypeVar("Options")


def _documented(options: type[Options]) -> type[Options]:
    """Appends the attributes of base classes to the docstring, because ``help`` omits them."""
    texts = [inspect.cleandoc(one.__doc__ or "") for one in options.__mro__[:-1]]
    head, *listed = texts[0].partition("\nAttributes:\n")[::2]
    listed += [text.partition("\nAttributes:\n")[2] for text in texts[1:]]
    options.__doc__ = "\n".join([head.rstrip(), "", "Attributes:", *filter(None, listed)])
    return options


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """Options of every exchange of gradients. None selects the default.

    Example::

        advanced = tersor.AdvancedOptions(seed=1, threads=2)
        handle = tersor.torch.compress(model, "int8", advanced=advanced)

    Attributes:
        bucket_bytes: Bytes of gradient per message; small parameters share a message. Default:
            1 MiB. Under PyTorch's own process groups except NCCL's, the default is 1/8 of the
            model, at least 1 MiB and at most 4 bytes per value of ``chunk_count``. With FSDP2, the
            default is always 1 MiB.
        chunk_count: Maximum number of values per chunk; longer parameters are cut. Default: 1 Mi,
            over NCCL 8 Mi. Under PyTorch's own process groups of other backends, the default is
            512 Ki per rank, at least 1 Mi and at most 4 Mi. With FSDP2, the default is 1 Mi there.
        hosts: The host number of each rank, for ``algorithm="hierarchical"``. Default: the hosts
            that the transport reports.
        host_codec: The codec within a host, for ``algorithm="hierarchical"``.
        seed: Seed of stochastic rounding.
        checksum: True if frames have a checksum.
        threads: Threads of the codecs, in addition to the sending thread. Ranks may differ.
        measure_error: True if each step encodes once more to measure the relative error. This is
            slow and meant for studies.
        trace: A file for a trace of the newest events in Chrome's format; open the file at
            https://ui.perfetto.dev. The reducer inserts ``.rank<number>`` before the file name's
            extension and writes the file at the end, or in ``write_trace()``. On a device, the
            trace shows only the times at which gradients became ready, and the waits.
    """

    bucket_bytes: int | None = None
    chunk_count: int | None = None
    hosts: Sequence[int] | None = None
    host_codec: Literal["none", "bf16"] = "none"
    seed: int = 0
    checksum: bool = True
    threads: int = 1
    measure_error: bool = False
    trace: str | None = None


@dataclass(frozen=True, kw_only=True)
class _AutoOptions(ExchangeOptions):
    """Options of ``codec="auto"``.

    Attributes:
        auto_codecs: Codecs from which ``codec="auto"`` chooses, in addition to none and bf16.
            Default: int8.
        auto_learning: True if ``codec="auto"`` tries other codecs than the predicted codec during
            training. If False, a repeated run makes the same choices.
    """

    auto_codecs: Sequence[str] | None = None
    auto_learning: bool = True


@dataclass(frozen=True, kw_only=True)
class _GridOptions(ExchangeOptions):
    """Options of an all-reduce.

    Attributes:
        algorithm: The algorithm of the all-reduce.
        dims: The grid of the two-shot algorithm: the number of ranks in each of 1 to 3 dimensions.
            The product must be at least 90 % of the number of ranks. Default: as few dimensions
            as have at most 32 ranks each.
        error_growth: Limit for the growth of the squared error on a grid of d dimensions, which is
            (1 + d) / 2 times the error of one dimension. At least 1.
        stream: Device gradients: the stream on which the training queues its work (PyTorch, CuPy,
            or an integer). Default: in each call, the current stream of PyTorch or CuPy.
    """

    algorithm: Algorithm = "auto"
    dims: Sequence[int] | None = None
    error_growth: float = 2.0
    stream: Any = None


@_documented
@dataclass(frozen=True, kw_only=True)
class AdvancedOptions(_AutoOptions, _GridOptions):
    """Rarely needed options of all-reduced gradients. Ranks must pass equal options.

    For ``tersor.torch.compress`` of a DDP model, ``HookState``, ``DistributedOptimizer`` and
    ``DiLoCo``. None selects the default.

    Example::

        advanced = tersor.AdvancedOptions(bucket_bytes=4 << 20, threads=2)
        handle = tersor.torch.compress(model, "int8", advanced=advanced)

    Attributes:
        order: The order of sending. ``"learned"``: the order in which rank 0's gradients became
            ready in the first step. ``"ready_order"``: the order in which gradients become ready,
            which must be the same on all ranks. A parameter that is not ready then takes part on
            no rank.
        reduction: ``"mean"`` or ``"sum"`` over ranks.
        memory: The memory of the gradients, for ``codec="auto"``. Default: ``"device"`` if
            ``stream`` is set, otherwise ``"host"``.
        tuner: Replaces the reducer's own tuner for ``codec="auto"``.
    """

    order: Order = "learned"
    reduction: Reduction = "mean"
    memory: Literal["host", "device"] | None = None
    tuner: Tuner | None = None


@_documented
@dataclass(frozen=True, kw_only=True)
class OptimizerOptions(_GridOptions):
    """Rarely needed options of CompressedAdamW, CompressedMuon and CompressedSGD.

    Ranks must pass equal options. None selects the default. ``reduction``, ``order`` and the
    options of ``codec="auto"`` do not exist for these optimizers.

    Example::

        advanced = tersor.torch.optim.OptimizerOptions(threads=2)
        optimizer = CompressedAdamW(model.named_parameters(), advanced=advanced)
    """


@_documented
@dataclass(frozen=True, kw_only=True)
class ShardedOptions(_AutoOptions):
    """Rarely needed options of ``tersor.torch.fsdp.compress``. Ranks must pass equal options.

    None selects the default. ``hosts`` numbers the hosts of all ranks, and each host must have the
    same number of ranks. A message has gradients of one module.

    Example::

        advanced = tersor.torch.fsdp.ShardedOptions(algorithm="hierarchical")
        handle = tersor.torch.compress(model, "int8+ef", advanced=advanced)

    Attributes:
        algorithm: ``"hierarchical"``: Tersor adds gradients within each host uncompressed and uses
            the codec between hosts. With ``"+ef"``, a rank keeps a residual only of its part. A
            host receives weights once and distributes them uncompressed. If hosts have unequal
            numbers of ranks, ``"auto"`` is used. Not with ``codec="auto"``.
    """

    algorithm: Literal["auto", "hierarchical"] = "auto"


class ReducerOptions(GridOptions, total=False):
    """Keyword arguments of ``GradientReducer``. Ranks must pass equal options, except ``threads``.

    All fields of ``AdvancedOptions`` are options too, and have the same meaning.

    Example::

        options: tersor.ReducerOptions = {"codec": "int8+ef", "timeout": 60.0}
        reducer = tersor.GradientReducer(transport, **options)

    Attributes:
        codec: A spec, or ``"auto"``. Default: ``"bf16"``. Without ``rules``, a lossy codec is not
            used for 1-D parameters and parameters with fewer than 4,096 values: they use bf16.
        rules: Tuples ``(pattern, codec)`` with shell patterns of parameter names. The first
            matching rule applies; a parameter without a matching rule is an error. Tuples
            ``(pattern, codec, step)`` apply from that step on; several rules with one pattern form
            a schedule. If one rule of a schedule has ``"+ef"``, all use feedback.
        timeout: Seconds after which a missing rank raises TransportError. Default: 300.
        residual_dtype: Dtype of the residuals, ``"f32"`` (default) or ``"bf16"``.
        weighted: True if gradients are weighted by samples, see ``weigh``. Default: False.
        transactional: True if the reducer keeps the residuals from before the last step for
            ``discard_step``, which takes twice the memory. Default: False.
        elastic: True if the remaining ranks may continue after the loss of a rank:
            RanksLostError is raised, and ``resume()`` continues. Over TCP and in process only.
            Default: False.
        min_ranks: Elastic reducers: the minimum number of ranks to continue. Default: 0, which
            means more than half of the ranks, or exactly half with the lowest rank.
        progress: ``"thread"`` (default): a thread sends. ``"caller"``: the caller sends inside
            ``ready``, ``progress`` and ``wait``.
    """

    codec: str
    rules: Rules
    residual_dtype: ResidualDtype
    weighted: bool
    transactional: bool
    elastic: bool
    min_ranks: int
    progress: Literal["thread", "caller"]
    bucket_bytes: int
    chunk_count: int
    threads: int
    measure_error: bool
    trace: str
    auto_codecs: Sequence[str]
    auto_learning: bool
    memory: Literal["host", "device"]
    tuner: Tuner | None
    reduction: Reduction
    algorithm: Algorithm
    order: Order
    stream: Any


_ARGUMENTS = {*ReducerOptions.__annotations__, "on_loss"}  # on_loss: of an exchange of tensors


def merged_options(
    kind: type[ExchangeOptions], advanced: ExchangeOptions | None, **options: object
) -> ReducerOptions:
    """Returns the keyword arguments of ``GradientReducer``, without unset options: the arguments of
    an entry point that are options of reducers, and the fields of ``advanced`` (None: the defaults
    of ``kind``). Raises TypeError if ``advanced`` is not of ``kind``, or ``rules`` is no list."""
    if advanced is None:
        advanced = kind()
    expect(advanced, kind, f"advanced must be {kind.__name__}(...)")
    optional = {"rules", "timeout", *(one.name for one in fields(kind) if one.default is None)}
    own = {key: value for key, value in options.items() if key in _ARGUMENTS}
    every = {**vars(advanced), **own}
    given = {key: value for key, value in every.items() if value is not None or key not in optional}
    if "rules" in given:
        expect(given["rules"], Iterable, "rules must be a list of pairs, such as [('*', 'int8')]")
        given["rules"] = list(cast(Rules, given["rules"]))  # several reducers read the rules
    return cast(ReducerOptions, given)


_traced: weakref.WeakSet[GradientReducer] = weakref.WeakSet()


@atexit.register
def _write_traces() -> None:
    """Writes the traces of the reducers that Python does not destroy at exit."""
    for reducer in _traced:
        with contextlib.suppress(_core.Error):
            reducer.write_trace()


class GradientReducer(_core.GradientReducer):
    """Reduces the gradients of a model over the ranks of ``transport``, and keeps the residuals.

    Add each parameter once with ``add(name, like)``. In each step, ``ready(name, gradient)`` marks
    a gradient as complete. Tersor sends the gradient and overwrites the gradient with the result.
    ``wait()`` ends the step. A thread sends in between, without the GIL. After an error that ended
    an exchange, every later call raises the error.

    Args:
        transport: The ranks. Making a reducer is a collective call.
        **options: The keyword arguments that ``ReducerOptions`` and ``AdvancedOptions`` list.

    Raises:
        InvalidArgumentError: An option is unknown or invalid.
        TypeError: An argument has a wrong type.

    Example::

        reducer = tersor.GradientReducer(transport, codec="int8+ef")
        reducer.add("weight", gradient)
    """

    @renamed_keywords(least_ranks="min_ranks")
    def __init__(self, transport: Transport, **options: Unpack[ReducerOptions]) -> None:
        wanted = "transport must be a tersor Transport (tersor.local, tersor.mpi, …)"
        expect(transport, Transport, wanted)
        if cast(dict[str, Any], options).pop("missing", None) is not None:
            deprecated("GradientReducer(missing=)", "leave the option out")
        super().__init__(transport, fill(_core.ReducerOptions(), options))
        if options.get("trace"):
            _traced.add(self)
