"""What FSDP2 calls instead of its own reduce-scatter.

PyTorch asks for objects with ``allocate`` and ``__call__``; their base classes are not public, so
these are none of theirs. On a host a result may come after the call, until the backward pass is
over, where FSDP only makes views of it; else the call waits for it. On a device it is in order on
the current stream.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import InvalidArgument, Transport
from tersor._options import fill
from tersor.collectives import Reduction
from tersor.reducer import ReducerOptions
from tersor.torch.backward import after_pass
from tersor.torch.group import close, transport
from tersor.torch.parameters import Unsupported, reason_of, report_unsupported
from tersor.torch.sharded_reducer import DTYPE_NAMES, Kind, OddMessage, Reducers, ShardedReducer
from tersor.torch.sharding import ModuleLayout, ShardedParameter


class Sender:
    """What the exchanges of all modules of a model share: reducers, and the pass under way."""

    def __init__(self, options: ReducerOptions, unsupported: Unsupported = "warn") -> None:
        self.options = fill(_core.ReducerOptions(), options)
        self.unsupported = unsupported
        self.reducers = Reducers(options)
        self.exchanges: list[GradientExchange] = []
        self.groups: set[dist.ProcessGroup] = set()
        self._channels: dict[dist.ProcessGroup, Transport] = {}
        self._late: list[Tensor] = []
        self._last: list[ShardedReducer] = []
        self._error: Exception | None = None

    def begin(self) -> bool:
        """A gradient came. True within a backward pass: what comes late is there at its end."""
        return after_pass(self._end)

    def end_steps(self) -> None:
        """Waits for all that was sent."""
        under_way = [one for one in self.reducers.all() if one.under_way]
        self._last = under_way or self._last
        for reducer in under_way:
            reducer.finish()

    def leave(self, output: Tensor) -> None:
        """The result will be there when the pass is over."""
        self._late.append(output)

    def fail(self, error: Exception, output: Tensor) -> None:
        """Leaves NaN behind, and raises ``error`` as soon as the backward pass is over.

        To raise at once would leave FSDP in the middle of its pass, and the next one without
        exchange.
        """
        output.fill_(math.nan)
        if not self.begin():
            raise error
        self._error = self._error or error

    def discard_step(self) -> None:
        """Brings back the residuals from before the last pass."""
        if not self._last:
            raise InvalidArgument("there is no step to discard: nothing was sent yet")
        for reducer in self._last:
            reducer.discard_step()

    def poison(self, error: Exception, group: dist.ProcessGroup, device: torch.device) -> None:
        """Lets the other ranks hear of an error of this one alone: they would wait for it.

        What cannot be told, as of a connection that was not made, must not hide the error.
        """
        with contextlib.suppress(Exception):
            transport(group, device).poison(str(error))

    def weight_channel(self, group: dist.ProcessGroup, device: torch.device) -> Transport:
        """For what gradients never meet."""
        if group not in self._channels:
            self.groups.add(group)
            self._channels[group] = transport(group, device).channel()
        return self._channels[group]

    def reset(self) -> None:
        """Gives the transports back; new ones are made when they are needed."""
        self.reducers.reset()
        self._last.clear()
        self._late.clear()
        self._channels.clear()
        for group in self.groups:
            close(group)
        self.groups.clear()

    def _end(self) -> None:
        late, self._late = self._late, []
        try:
            self.end_steps()
        except Exception as found:  # also what is not ours
            self._error = self._error or found
        error, self._error = self._error, None
        if error is not None:
            for output in late:
                output.fill_(math.nan)
            raise error


class Exchange:
    """What both exchanges have in common."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._active = True

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what FSDP hands over or gets back."""
        return torch.empty(*size, dtype=dtype, device=device)

    def remove(self) -> None:
        """From now on the calls are PyTorch's own."""
        self._active = False

    @property
    def removed(self) -> bool:
        return not self._active

    def _takes(self, values: Tensor) -> bool:
        return self._active and values.dtype in DTYPE_NAMES


class GradientExchange(Exchange):
    """The reduce-scatter of one ``FSDPModule``."""

    def __init__(self, name: str, layout: ModuleLayout, sender: Sender) -> None:
        super().__init__(sender)
        self.name = name or "(root)"
        self.calls = 0
        self.layout = layout
        self._reported = False
        self.number = len(sender.exchanges)
        sender.exchanges.append(self)

    def expected(self) -> list[tuple[ShardedParameter, _core.CodecChoice]]:
        """How each parameter will travel as f32. Raises InvalidArgument where no rule matches."""
        return [
            (one, _core.choose_codec(self._sender.options, one.name, list(one.shape), "f32"))
            for one in self.layout.expected()
        ]

    def expected_kind(self) -> Kind:
        """What FSDP will ask for, as far as can be told before it does."""
        dtype = self.layout.dtype
        reduction: Reduction = "sum" if dtype == torch.float16 else "mean"
        return Kind(self.layout.process_group, self.layout.device, dtype, reduction)

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
        try:
            if self._takes(input_tensor):
                self._exchange(output_tensor, input_tensor, group, op)
            else:
                self._report_once(input_tensor)
                plain_reduce_scatter(output_tensor, input_tensor, group, op)
        except Exception as error:  # also what is not ours
            if self._takes(input_tensor):
                self._sender.poison(error, group, input_tensor.device)
            self._sender.fail(error, output_tensor)

    def _report_once(self, values: Tensor) -> None:
        if self._active and not self._reported:
            self._reported = True
            report_unsupported({self.name: reason_of(values)}, self._sender.unsupported)

    def _exchange(self, output: Tensor, values: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        self._sender.groups.add(group)
        in_pass = self._sender.begin()
        reduction, factor = reduction_of(op)
        rows = values.view(group.size(), -1)
        reducer, names = self._reducer(rows, Kind(group, values.device, values.dtype, reduction))
        late = in_pass and factor == 1.0 and not values.is_cuda
        late = late and self.layout.leaves_views(values.dtype)  # before there is a gradient
        sent = reducer.send(names, rows, output)
        if late:
            return self._sender.leave(output)
        reducer.wait(sent)
        if not in_pass:
            self._sender.end_steps()
        if factor != 1.0:
            output.mul_(factor)

    def _reducer(self, rows: Tensor, kind: Kind) -> tuple[ShardedReducer, list[str]]:
        """What reduces them, and what they are called there."""
        parameters = self.layout.parameters(rows.shape[1])
        reducers = self._sender.reducers
        if parameters is not None:
            found = reducers.of(self, kind, self._sender.exchanges)
            return found, [one.name for one in parameters]
        message = self._odd_message(rows)
        return reducers.odd(self, kind, message), [message.parameter.name]

    def _odd_message(self, rows: Tensor) -> OddMessage:
        if not self.layout.known:
            whole = ShardedParameter(self.name, rows.shape, 0, rows.shape[1])
            reason = "borders of parameters are not known: the module's gradients are one tensor"
            return OddMessage(whole, {}, reason)
        # Which parameters these are nobody says, so their residuals wait for another step.
        name = f"{self.name}, {rows.shape[1]} values a rank"
        codec = "bf16" if rows.dtype == torch.float32 else "none"
        return OddMessage(
            ShardedParameter(name, rows.shape, 0, rows.shape[1]),
            {"rules": [("*", codec)]},
            "some of the module's parameters had no gradient",
        )


def reduction_of(op: Any) -> tuple[Reduction, float]:
    """How a reduction of PyTorch's is asked for, and the factor that the sum is multiplied by."""
    kind, factor = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else op.__getstate__()
    if kind == dist.ReduceOp.AVG:
        return "mean", 1.0
    if kind == dist.ReduceOp.SUM:
        return "sum", 1.0
    if str(kind).endswith("PREMUL_SUM") and isinstance(factor, float):
        return "sum", factor
    raise InvalidArgument(f"gradients are summed or averaged, but FSDP asks for {kind}")


def plain_reduce_scatter(output: Tensor, values: Tensor, group: dist.ProcessGroup, op: Any) -> None:
    """PyTorch's own, by the name that this version has for it."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(output, values, group=group, op=op)
