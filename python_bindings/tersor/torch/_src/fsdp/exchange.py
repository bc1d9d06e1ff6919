"""What FSDP2 calls instead of its own reduce-scatter.

PyTorch asks for objects with ``allocate`` and ``__call__``; their base classes are not public, so
these are none of theirs. On a host a result may come after the call, until the backward pass is
over, where FSDP only makes views of it; else the call waits for it. On a device it is in order on
the current stream.
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
from tersor.torch._src.fsdp.reducer import Kind, Reducers, ReplicaReducer, ShardedReducer
from tersor.torch._src.gradients.backward import Passes, after_pass
from tersor.torch._src.gradients.loss_scale import LossScale
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.parameters.selection import (
    Unsupported,
    is_supported,
    reason_of,
    report_unsupported,
)
from tersor.torch._src.process_group.connections import close, seconds_of, transport

# PyTorch's own, by the name that this version has for it.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Sender:
    """What the exchanges of all modules of a model share: reducers, and the pass under way."""

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
        self._late: list[Tensor] = []
        self._last: list[ShardedReducer] = []
        self.error: Exception | None = None  #: what backward() will raise, as far as is known
        self._passes = Passes(self._end)
        self._follows = False

    def follow(self, module: FSDPModule) -> Callable[[], None] | None:
        """Learns from a module where FSDP ends passes; what undoes it, where PyTorch shows it."""
        undo = _compat.follow_passes(module, self._passes.begin)
        self._follows |= undo is not None
        return undo

    def begin(self) -> bool:
        """A gradient came. True within a backward pass: what comes late is there at its end."""
        return self._passes.under_way if self._follows else after_pass(self._end)

    def every_reducer(self) -> list[ShardedReducer]:
        """Of modules, then between replicas."""
        return [*self.reducers.all(), *self.replicas.all()]

    def prepare(self) -> None:
        """Makes the reducers that steps to come will need, as far as that can be told."""
        self.reducers.prepare()
        self.replicas.prepare()

    def end_steps(self) -> None:
        """Waits for all that was sent, also where some of it fails; raises the first error then."""
        under_way = [one for one in self.every_reducer() if one.under_way]
        self._last = under_way or self._last
        errors = []
        for reducer in under_way:
            try:
                reducer.finish()
            except Exception as error:  # also what is not ours
                errors.append(error)
        if errors:
            raise errors[0]

    def leave(self, output: Tensor) -> None:
        """The result will be there when the pass is over."""
        self._late.append(output)

    @contextlib.contextmanager
    def guard(self, output: Tensor, group: dist.ProcessGroup | None) -> Iterator[None]:
        """Leaves NaN behind an error, which is raised as soon as the backward pass is over.

        To raise at once would leave FSDP in the middle of its pass, and the next one without
        exchange. The other ranks of ``group`` hear of it: they would wait for this one. What cannot
        be told, as of a connection that was not made, must not hide the error.
        """
        try:
            yield
        except Exception as error:  # also what is not ours
            if group is not None:
                with contextlib.suppress(Exception):
                    transport(group, output.device).poison(str(error))
            output.fill_(math.nan)
            if not self.begin():
                raise
            self.error = self.error or error

    def trained(self) -> dict[str, Tensor]:
        """The sharded parameters of all modules, as optimizers have them."""
        exchanges = self.reducers.exchanges
        return {name: one for exchange in exchanges for name, one in exchange.layout.trained()}

    def scale_residuals(self, factor: float) -> None:
        """Multiplies all residuals."""
        for reducer in self.every_reducer():
            reducer.core.scale_residuals(factor)

    def discard_step(self, names: Collection[str] | None = None) -> None:
        """Brings back the residuals from before the last pass, or of these parameters from before
        the passes since ``accept_steps``. Messages without known parameters are among them."""
        if names is None and not self._last:
            raise InvalidArgumentError("there is no step to discard: nothing was sent yet")
        if names is None:
            for reducer in self._last:
                reducer.core.discard_step()
            return
        stand = self.trained().keys() - set(names)
        for reducer in self.every_reducer():
            reducer.core.discard_step([one for one in reducer.parameters if one not in stand])

    def accept_steps(self, names: Collection[str] | None = None) -> None:
        """The passes until now are final, for these parameters or for all."""
        self.prepare()  # later passes join, of these reducers too
        for reducer in self.every_reducer():
            found = None if names is None else [one for one in reducer.parameters if one in names]
            reducer.core.accept_steps(found)

    def seconds(self, group: dist.ProcessGroup) -> float:
        """How long an exchange among these ranks may take."""
        return seconds_of(group) if self._timeout is None else self._timeout

    def weight_channel(self, group: dist.ProcessGroup, device: torch.device) -> Transport:
        """For what gradients never meet."""
        if group not in self._channels:
            self.groups.add(group)
            self._channels[group] = transport(group, device).channel()
        return self._channels[group]

    def reset(self) -> None:
        """Gives the transports back; new ones are made when they are needed."""
        self.drop()
        self._late.clear()
        for group in self.groups:
            close(group)
        self.groups.clear()

    def drop(self) -> None:
        """Ends all reducers, with their residuals and threads."""
        self.reducers.reset()
        self.replicas.reset()
        self._last = []
        self._channels.clear()

    def _end(self) -> None:
        self.samples.end()
        late, self._late = self._late, []
        try:
            self.end_steps()
        except Exception as found:  # also what is not ours
            self.error = self.error or found
        error, self.error = self.error, None
        if error is not None:
            for output in late:
                output.fill_(math.nan)
            raise error


class Exchange:
    """What both exchanges have in common."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.active = True
        self._undo = contextlib.ExitStack()  # of what was put in PyTorch's places

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what FSDP hands over or gets back."""
        return torch.empty(*size, dtype=dtype, device=device)

    def remove(self) -> None:
        """From now on all is PyTorch's own."""
        self.active = False
        self._undo.close()

    def _takes(self, values: Tensor) -> bool:
        return self.active and is_supported(values)


class ModuleExchange(Exchange):
    """What the reduce-scatter and the all-reduce of one ``FSDPModule`` have in common."""

    def __init__(
        self,
        name: str,
        layout: ModuleLayout,
        sender: Sender,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        """``replicas``: who all-reduces; None: it is the reduce-scatter."""
        super().__init__(sender)
        self.name = name or "(root)"
        self.layout = layout
        self._replicas = replicas
        self._reducers: Reducers[Any] = sender.reducers if replicas is None else sender.replicas
        self._reducers.exchanges.append(self)

    @property
    def group(self) -> dist.ProcessGroup:
        """Whose ranks exchange, as far as can be told before they do."""
        return self._replicas or self.layout.scatter_group

    def expected_kind(self) -> Kind:
        """What FSDP will ask for, as far as can be told before it does."""
        averages = self.layout.averages(replicas=self._replicas is not None)
        reduction: Reduction = "mean" if averages else "sum"
        return Kind(self.group, self.layout.device, self.layout.dtype, reduction)

    @property
    def is_expected(self) -> bool:
        """Whether it can be told what will be asked for."""
        return self.active and self.layout.known

    def _exchange(self, rows: Tensor, output: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Reduces ``rows`` (ranks, shards), of which this rank's go to ``output``."""
        sender = self._sender
        sender.groups.add(group)
        if not any(one.under_way for one in sender.every_reducer()):
            sender.loss_scale.follow(sender, sender.trained)
        in_pass = sender.begin()
        reduction, factor = reduction_of(op)
        if sender.samples.weighted and reduction == "sum":
            raise InvalidArgumentError(
                "weighted=True needs FSDP to average, but it asks for a sum: reduce in float32 or "
                "bfloat16, and without set_gradient_divide_factor"
            )
        reducer, names = self._reducer(rows, Kind(group, rows.device, rows.dtype, reduction))
        is_last = self._replicas is not None or self.layout.replicas is None
        late = in_pass and factor == 1.0 and not rows.is_cuda and is_last
        late = late and self.layout.leaves_views(rows.dtype)  # before there is a gradient
        sent = reducer.send(names, rows, output)
        if late:
            return sender.leave(output)
        reducer.wait(sent)
        if reduction == "sum" and output.dtype == torch.float16:
            # A saturated sum: loss scalers look for infinities.
            output.masked_fill_(output.abs() >= torch.finfo(torch.float16).max, math.inf)
        if not in_pass:
            sender.end_steps()
        if factor != 1.0:
            output.mul_(factor)

    def _reducer(self, rows: Tensor, kind: Kind) -> tuple[ShardedReducer, list[str]]:
        parameters = self.layout.parameters(rows.shape[1])
        if parameters is not None:
            return self._reducers.of(self, kind), [one.name for one in parameters]
        name, options = self.name, ReducerOptions()
        reason = "borders of parameters are not known: the module's gradients are one tensor"
        if self.layout.known:  # the rules of the parameters are not known, "none" may be one
            name = f"{self.name}, {rows.shape[1]} values a rank"
            options["rules"] = [("*", "none")]
            reason = "PyTorch does not show which of the module's parameters had no gradient"
        whole = ShardedParameter(name, rows.shape, 0, rows.shape[1])
        return self._reducers.odd(self, kind, whole, options, reason), [name]


class GradientExchange(ModuleExchange):
    """The reduce-scatter of one ``FSDPModule``."""

    def __init__(self, name: str, layout: ModuleLayout, sender: Sender) -> None:
        super().__init__(name, layout, sender)
        self.calls = 0
        self._reported = False

    def install(self, module: FSDPModule) -> None:
        """Takes the place of the module's reduce-scatter, and lets its weights come ahead."""
        module.set_custom_reduce_scatter(self)  # type: ignore[arg-type]
        if (unfollow := self._sender.follow(module)) is not None:
            self._undo.callback(unfollow)
        if self.layout.gather_ahead(True):
            self._undo.callback(self.layout.gather_ahead, False)

    def expected(self) -> list[tuple[ShardedParameter, _core.CodecChoice]]:
        """How each parameter will travel as f32. Raises InvalidArgumentError where no rule
        matches."""
        return [
            (one, _core.choose_codec(self._sender.options, one.name, list(one.shape), "f32"))
            for one in self.layout.expected()
        ]

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduces ``input_tensor`` by ``op``, of which this rank's shard goes to ``output_tensor``.

        An error is raised when the backward pass is over; the output is NaN then.
        """
        self.calls += 1
        takes = self._takes(input_tensor)
        with self._sender.guard(output_tensor, group if takes else None):
            if takes:
                self._exchange(input_tensor.view(group.size(), -1), output_tensor, group, op)
            else:
                self._report_once(input_tensor, group)
                _reduce_scatter(output_tensor, input_tensor, group=group, op=op)

    def _report_once(self, values: Tensor, group: dist.ProcessGroup) -> None:
        if self.active and self._sender.samples.weighted:
            raise InvalidArgumentError(
                f"weighted=True: the gradients of {self.name} are sent uncompressed, "
                f"{reason_of(values)}"
            )
        if self.active and not self._reported:
            self._reported = True
            found = {self.name: reason_of(values)}
            report_unsupported(found, self._sender.unsupported, group)


class ReplicaExchange(ModuleExchange):
    """The all-reduce of one ``FSDPModule``'s shards between replicas, on a mesh of two dimensions.

    PyTorch asks nobody else for it, but calls the group of the replicas: that is replaced.
    """

    def __init__(self, gradients: GradientExchange, group: dist.ProcessGroup) -> None:
        super().__init__(gradients.name, gradients.layout, gradients._sender, group)
        self.layout.replace_replicas(ReplicaGroup(self))
        self._undo.callback(self.layout.replace_replicas, group)

    def __call__(self, shards: Tensor, op: Any) -> None:
        """Reduces this rank's shards in place, by ``op``.

        An error is raised when the backward pass is over; the shards are NaN then.
        """
        if not self._takes(shards):  # as the module's reduce-scatter has said
            dist.all_reduce(shards, op=op, group=self.group)
            return
        with self._sender.guard(shards, self.group):
            if self._sender.error is not None:  # the replicas must hear of it
                raise self._sender.error
            self._exchange(shards.view(1, -1), shards, self.group, op)


class ReplicaGroup(dist.ProcessGroup):
    """What FSDP takes for the process group of a module's replicas."""

    def __init__(self, exchange: ReplicaExchange) -> None:
        super().__init__(exchange.group.rank(), exchange.group.size())
        self._exchange = exchange

    def allreduce(self, tensors: list[Tensor], opts: Any) -> None:  # type: ignore[override]
        """What ``torch.distributed.all_reduce`` calls; there is nothing left to wait for."""
        for one in tensors:
            self._exchange(one, opts.reduceOp)


def reduction_of(op: Any) -> tuple[Reduction, float]:
    """How a reduction of PyTorch's is asked for, and the factor that the sum is multiplied by."""
    kind, factor = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else op.__getstate__()
    if kind in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
        return "mean" if kind == dist.ReduceOp.AVG else "sum", 1.0
    if str(kind).endswith("PREMUL_SUM") and isinstance(factor, float):
        return "sum", factor
    raise InvalidArgumentError(f"gradients are summed or averaged, but FSDP asks for {kind}")
