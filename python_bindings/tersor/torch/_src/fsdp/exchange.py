"""The collectives that FSDP2 calls instead of PyTorch's reduce-scatter and all-reduce.

PyTorch expects objects with ``allocate`` and ``__call__``. PyTorch's base classes are not public,
so these classes do not inherit from PyTorch. On a CPU, a result may arrive after the call, before
the end of the backward pass, if FSDP only makes views of the result. Otherwise the call waits. On a
device, the result is in the order of the current stream.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from tersor import _core
from tersor._core import InvalidArgumentError, Transport
from tersor._options import fill
from tersor.collectives import Reduction
from tersor.reducer import ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.fsdp.layout import ModuleLayout, ShardedParameter
from tersor.torch._src.fsdp.reducer import (
    Kind,
    Reducers,
    ReplicaReducer,
    Requester,
    ShardedReducer,
)
from tersor.torch._src.gradients.backward import Passes, after_pass
from tersor.torch._src.gradients.loss_scale import LossScale
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import Unsupported
from tersor.torch._src.process_group.connections import close, seconds_of, transport

# The name depends on PyTorch's version.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Sender:
    """The state that the exchanges of all modules share: reducers, and the current pass."""

    def __init__(self, options: ReducerOptions, unsupported: Unsupported = "warn") -> None:
        self.options = fill(_core.ReducerOptions(), options)
        self._timeout = options.get("timeout")
        self.unsupported = unsupported
        self.samples = Samples(options)
        self.loss_scale = LossScale(None, transactional=False)
        self.reducers = Reducers(options, functools.partial(ShardedReducer, samples=self.samples))
        self.replicas = Reducers(options, ReplicaReducer)
        self.groups: set[dist.ProcessGroup] = set()
        self._channels: dict[dist.ProcessGroup, Transport] = {}
        self._deferred: list[Tensor] = []
        self._last_reducers: list[ShardedReducer] = []
        self.error: Exception | None = None  #: the first error, which backward() will raise
        self._passes = Passes(self._end)
        self._observes = False

    def observe(self, module: FSDPModule) -> Callable[[], None] | None:
        """Observes FSDP's ends of passes. Returns the undo function, or None without support."""
        undo = _compat.observe_passes(module, self._passes.begin)
        self._observes |= undo is not None
        return undo

    def begin(self) -> bool:
        """Call for each gradient. Returns True in a backward pass, whose end waits for results."""
        return self._passes.active if self._observes else after_pass(self._end)

    def every_reducer(self) -> list[ShardedReducer]:
        """Returns the reducers of modules, then the reducers between replicas."""
        return [*self.reducers.all(), *self.replicas.all()]

    def prepare(self) -> None:
        """Makes the reducers of later steps, as far as FSDP's calls can be predicted."""
        self.reducers.prepare()
        self.replicas.prepare()

    def end_steps(self) -> None:
        """Waits for all reducers, also after an error. Then raises the first error."""
        active = [one for one in self.every_reducer() if one.in_step]
        self._last_reducers = active or self._last_reducers
        errors = []
        for reducer in active:
            try:
                reducer.finish()
            except Exception as error:  # of any library
                errors.append(error)
        if errors:
            raise errors[0]

    def defer(self, output: Tensor) -> None:
        """Adds a result that arrives before the end of the pass."""
        self._deferred.append(output)

    @contextlib.contextmanager
    def guard(self, output: Tensor, group: dist.ProcessGroup | None) -> Iterator[None]:
        """After an error, fills ``output`` with NaN. The end of the backward pass raises the error.

        Raising at once would leave FSDP in the middle of the pass, and the next pass without an
        exchange. The other ranks of ``group`` are notified, because these ranks would wait. A
        failed notification, e.g. without a connection, does not hide the error.
        """
        try:
            yield
        except Exception as error:  # of any library
            if group is not None:
                with contextlib.suppress(Exception):
                    transport(group, output.device).abort(str(error))
            output.fill_(math.nan)
            if not self.begin():
                raise
            self.error = self.error or error

    def trained(self) -> dict[str, Tensor]:
        """Returns the sharded parameters of all modules by name."""
        exchanges = self.reducers.exchanges
        return {name: one for exchange in exchanges for name, one in exchange.layout.trained()}

    def scale_residuals(self, factor: float) -> None:
        """Multiplies all residuals."""
        for reducer in self.every_reducer():
            reducer.core.scale_residuals(factor)

    def discard_step(self, names: Collection[str] | None = None) -> None:
        """Restores the residuals from before the last pass.

        With ``names``, restores residuals of these parameters, and of messages without known
        parameters, from before the passes since ``accept_steps``.
        """
        if names is None and not self._last_reducers:
            raise InvalidArgumentError("there is no step to discard: nothing was sent yet")
        if names is None:
            for reducer in self._last_reducers:
                reducer.core.discard_step()
            return
        unchanged = self.trained().keys() - set(names)
        for reducer in self.every_reducer():
            reducer.core.discard_step([one for one in reducer.parameters if one not in unchanged])

    def accept_steps(self, names: Collection[str] | None = None) -> None:
        """Accepts the passes until now as final, for these parameters or for all."""
        self.prepare()  # later passes include these reducers
        for reducer in self.every_reducer():
            found = None if names is None else [one for one in reducer.parameters if one in names]
            reducer.core.accept_steps(found)

    def seconds(self, group: dist.ProcessGroup) -> float:
        """Returns the timeout of an exchange of this group in seconds."""
        return seconds_of(group) if self._timeout is None else self._timeout

    def weight_channel(self, group: dist.ProcessGroup, device: torch.device) -> Transport:
        """Returns a transport whose messages are separate from gradients."""
        if group not in self._channels:
            self.groups.add(group)
            self._channels[group] = transport(group, device).channel()
        return self._channels[group]

    def reset(self) -> None:
        """Closes the transports. Later exchanges make new transports."""
        self.drop()
        self._deferred.clear()
        for group in self.groups:
            close(group)
        self.groups.clear()

    def drop(self) -> None:
        """Destroys all reducers, residuals and threads."""
        self.reducers.reset()
        self.replicas.reset()
        self._last_reducers = []
        self._channels.clear()

    def _end(self) -> None:
        self.samples.end()
        deferred, self._deferred = self._deferred, []
        try:
            self.end_steps()
        except Exception as found:  # of any library
            self.error = self.error or found
        error, self.error = self.error, None
        if error is not None:
            for output in deferred:
                output.fill_(math.nan)
            raise error


class Exchange:
    """The common part of the exchanges of gradients and weights."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.active = True
        self._undo = contextlib.ExitStack()  # uninstalls the exchange

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocates FSDP's buffers."""
        return torch.empty(*size, dtype=dtype, device=device)

    def remove(self) -> None:
        """Restores PyTorch's own collective."""
        self.active = False
        self._undo.close()

    def _handles(self, values: Tensor) -> bool:
        return self.active and selection.is_supported(values)


class ModuleExchange(Exchange, Requester):
    """The common part of the reduce-scatter and the all-reduce of one ``FSDPModule``."""

    def __init__(
        self,
        name: str,
        layout: ModuleLayout,
        sender: Sender,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(sender)
        self.name = name or "(root)"
        self.layout = layout
        self._replicas = replicas
        self._reducers: Reducers[Any] = sender.reducers if replicas is None else sender.replicas
        self._reducers.exchanges.append(self)

    def _exchange(self, rows: Tensor, output: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Reduces ``rows`` (ranks, shards) and writes this rank's shards to ``output``."""
        sender = self._sender
        sender.groups.add(group)
        if not any(one.in_step for one in sender.every_reducer()):
            sender.loss_scale.begin_step(sender, sender.trained)
        in_pass = sender.begin()
        reduction, factor = reduction_of(op)
        if sender.samples.weighted and reduction == "sum":
            raise InvalidArgumentError(
                "weighted=True needs FSDP to average, but it asks for a sum: reduce in float32 or "
                "bfloat16, and without set_gradient_divide_factor"
            )
        reducer, names = self._reducer(rows, Kind(group, rows.device, rows.dtype, reduction))
        is_last = self._replicas is not None or self.layout.replicas is None
        defers = in_pass and factor == 1.0 and not rows.is_cuda and is_last
        defers = defers and self.layout.makes_only_views(rows.dtype)  # before there is a gradient
        sent = reducer.send(names, rows, output)
        if defers:
            return sender.defer(output)
        reducer.wait(sent)
        if reduction == "sum":
            selection.restore_overflow(output)
        if not in_pass:
            sender.end_steps()
        if factor != 1.0:
            output.mul_(factor)

    def _reducer(self, rows: Tensor, kind: Kind) -> tuple[ShardedReducer, list[str]]:
        parameters = self.layout.parameters(rows.shape[1])
        if parameters is not None:
            return self._reducers.reducer_for(self, kind), [one.name for one in parameters]
        name, options = self.name, ReducerOptions()
        reason = "borders of parameters are not known: the module's gradients are one tensor"
        if self.layout.known:  # the rules of the parameters are unknown; a rule may be "none"
            name = f"{self.name}, {rows.shape[1]} values a rank"
            options["rules"] = [("*", "none")]
            reason = "PyTorch does not show which of the module's parameters had no gradient"
        whole = ShardedParameter(name, rows.shape, 0, rows.shape[1])
        return self._reducers.fallback(self, kind, whole, options, reason), [name]


class GradientExchange(ModuleExchange):
    """The reduce-scatter of one ``FSDPModule``."""

    def __init__(self, name: str, layout: ModuleLayout, sender: Sender) -> None:
        super().__init__(name, layout, sender)
        self.calls = 0
        self._reported = False

    def install(self, module: FSDPModule) -> None:
        """Replaces the module's reduce-scatter, and prefetches the module's weights."""
        module.set_custom_reduce_scatter(self)  # type: ignore[arg-type]
        if (undo := self._sender.observe(module)) is not None:
            self._undo.callback(undo)
        if self.layout.prefetch_weights(True):
            self._undo.callback(self.layout.prefetch_weights, False)

    def expected(self) -> list[tuple[ShardedParameter, _core.CodecChoice]]:
        """Returns each parameter's choice of codec for f32.

        Raises:
            InvalidArgumentError: No rule matches a parameter.
        """
        return [(one, one.choice(self._sender.options, "f32")) for one in self.layout.expected()]

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduces ``input_tensor`` by ``op``, and writes this rank's shard to ``output_tensor``.

        The end of the backward pass raises an error; the output is then NaN.
        """
        self.calls += 1
        handles = self._handles(input_tensor)
        with self._sender.guard(output_tensor, group if handles else None):
            if handles:
                self._exchange(input_tensor.view(group.size(), -1), output_tensor, group, op)
            else:
                self._report_once(input_tensor, group)
                _reduce_scatter(output_tensor, input_tensor, group=group, op=op)

    def _report_once(self, values: Tensor, group: dist.ProcessGroup) -> None:
        if self.active and self._sender.samples.weighted:
            raise InvalidArgumentError(
                f"weighted=True: the gradients of {self.name} are sent uncompressed, "
                f"{selection.reason_of(values)}"
            )
        if self.active and not self._reported:
            self._reported = True
            found = {self.name: selection.reason_of(values)}
            selection.report_unsupported(found, self._sender.unsupported, group)


class ReplicaExchange(ModuleExchange):
    """The all-reduce of one ``FSDPModule``'s shards between replicas, on a 2-D mesh.

    PyTorch has no hook for this all-reduce, so ``ReplicaGroup`` replaces the group of the replicas.
    """

    def __init__(self, gradients: GradientExchange, group: dist.ProcessGroup) -> None:
        super().__init__(gradients.name, gradients.layout, gradients._sender, group)
        self.layout.replace_replicas(ReplicaGroup(self))
        self._undo.callback(self.layout.replace_replicas, group)

    def __call__(self, shards: Tensor, op: Any) -> None:
        """Reduces this rank's shards in place, by ``op``.

        The end of the backward pass raises an error; the shards are then NaN.
        """
        if not self._handles(shards):  # the module's reduce-scatter has reported the shards
            dist.all_reduce(shards, op=op, group=self.group)
            return
        with self._sender.guard(shards, self.group):
            if self._sender.error is not None:  # notifies the replicas
                raise self._sender.error
            self._exchange(shards.view(1, -1), shards, self.group, op)


class ReplicaGroup(dist.ProcessGroup):
    """Replaces the process group of a module's replicas in FSDP."""

    def __init__(self, exchange: ReplicaExchange) -> None:
        super().__init__(exchange.group.rank(), exchange.group.size())
        self._exchange = exchange

    def allreduce(self, tensors: list[Tensor], opts: Any) -> None:  # type: ignore[override]
        """Implements ``torch.distributed.all_reduce``. Returns None: the result is complete."""
        for one in tensors:
            self._exchange(one, opts.reduceOp)


def reduction_of(op: Any) -> tuple[Reduction, float]:
    """Returns Tersor's reduction for PyTorch's ``op``, and the factor of the sum."""
    kind, factor = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else op.__getstate__()
    if kind in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
        return "mean" if kind == dist.ReduceOp.AVG else "sum", 1.0
    if str(kind).endswith("PREMUL_SUM") and isinstance(factor, float):
        return "sum", factor
    raise InvalidArgumentError(f"gradients are summed or averaged, but FSDP asks for {kind}")
