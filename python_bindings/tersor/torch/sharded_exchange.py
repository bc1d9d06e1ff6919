"""What FSDP2 calls instead of its own reduce-scatter and all-gather.

PyTorch asks for objects with ``allocate`` and ``__call__``; their base classes are not public, so
these are none of theirs. A call is complete when it returns (host), or in order on the current
stream (device).
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core, collectives
from tersor._core import CollectiveStatistics, InvalidArgument, Transport, Workspace
from tersor._options import fill
from tersor.collectives import CollectiveOptions, Reduction
from tersor.torch.backward import after_pass
from tersor.torch.group import close, transport
from tersor.torch.messages import Choice, Feedback, Message, Track, plan_messages
from tersor.torch.parameters import Unsupported, reason_of, report_unsupported
from tersor.torch.sharding import ModuleLayout, ShardedParameter

DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
"""What codecs take, and how the library calls it."""

RESIDUAL_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Sender:
    """Sends messages; what the exchanges of all modules of a model share."""

    def __init__(self, options: _core.ReducerOptions, unsupported: Unsupported = "warn") -> None:
        self.options = options
        self.unsupported = unsupported
        self._groups: set[dist.ProcessGroup] = set()
        self._channels: dict[dist.ProcessGroup, Transport] = {}
        self._workspaces: dict[tuple[object, ...], Workspace] = {}

    def choose(self, parameter: ShardedParameter, dtype: torch.dtype) -> Choice:
        """How a gradient travels. Raises InvalidArgument where no rule matches."""
        choice = choose(self.options, parameter, dtype)
        if choice.codec == "auto":
            raise InvalidArgument(
                f"{parameter.name}: codec auto predicts all-reduces, not FSDP's reduce-scatters: "
                "name a codec"
            )
        return choice

    def send(
        self,
        message: Message,
        values: Tensor,
        shard: Tensor,
        group: dist.ProcessGroup,
        reduction: Reduction,
    ) -> CollectiveStatistics:
        """Reduces ``values`` (ranks shards of the message) over the group into ``shard``."""
        self._groups.add(group)
        first = message.columns[0].track
        options: CollectiveOptions = {
            **self._call("reduce_scatter", message.codec, values),
            **self.noise(first.parameter.name, first.totals.steps),
        }
        options["reduction"] = reduction
        if first.feedback is not None:
            options["state"] = first.feedback.state
        return collectives.reduce_scatter(transport(group, values.device), values, shard, **options)

    def gather(
        self,
        codec: str,
        shard: Tensor,
        output: Tensor,
        group: dist.ProcessGroup,
        noise: CollectiveOptions,
    ) -> None:
        """Collects the shards of weights, by messages that gradients never meet."""
        if group not in self._channels:
            self._groups.add(group)
            self._channels[group] = transport(group, shard.device).channel()
        options: CollectiveOptions = {**self._call("allgather", codec, shard), **noise}
        collectives.allgather(self._channels[group], shard, output, **options)

    def noise(self, name: str, step: int) -> CollectiveOptions:
        """What stochastic rounding draws from: other noise for each name and step."""
        return {"seed": self.options.seed + zlib.crc32(name.encode()), "step": step}

    def poison(self, error: Exception, group: dist.ProcessGroup, device: torch.device) -> None:
        """Lets the other ranks hear of an error of this one alone: they would wait for it.

        What cannot be told, as of a connection that was not made, must not hide the error.
        """
        with contextlib.suppress(Exception):
            transport(group, device).poison(str(error))

    def reset(self) -> None:
        """Gives the transports back; new ones are made when they are needed."""
        self._workspaces.clear()
        self._channels.clear()
        for group in self._groups:
            close(group)
        self._groups.clear()

    def _call(self, collective: str, codec: str, values: Tensor) -> CollectiveOptions:
        # Layers of one shape share what is prepared for a message, as they are never sent at once.
        key = (collective, codec, values.numel(), values.dtype, values.device)
        if key not in self._workspaces:
            self._workspaces[key] = Workspace(self.options.threads)
        return {
            "codec": codec,
            "workspace": self._workspaces[key],
            "chunk_count": self.options.chunk_count,
            "checksum": self.options.checksum,
            "timeout": self.options.timeout,
        }


def choose(
    options: _core.ReducerOptions, parameter: ShardedParameter, dtype: torch.dtype
) -> Choice:
    """How the options let a parameter travel. Raises InvalidArgument where no rule matches."""
    shape = list(parameter.shape)
    chosen = _core.choose_codec(options, parameter.name, shape, DTYPE_NAMES[dtype])
    return Choice(chosen.codec, chosen.reason, chosen.by_value, chosen.feedback)


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
        self._plans: dict[tuple[object, ...], list[Message]] = {}
        self.tracks: dict[tuple[str, torch.dtype], Track] = {}
        self.feedback: dict[str, Feedback] = {}
        self.reduction: Reduction = "mean"
        self._reported = False

    def expected(self) -> list[tuple[ShardedParameter, Choice]]:
        """How each parameter will travel as f32. Raises InvalidArgument where no rule matches."""
        every = self.layout.expected()
        return [(one, self._sender.choose(one, torch.float32)) for one in every]

    def prepare(self) -> None:
        """Makes the residuals that steps to come will need, for a state to be loaded into."""
        for parameter, choice in self.expected():
            if choice.feedback:
                self._feedback_of(parameter, choice, self.layout.ranks, self.layout.device)

    def remove(self) -> None:
        """Drops the residuals too."""
        super().remove()
        self.reset()

    def reset(self) -> None:
        """Begins anew, residuals at zero."""
        self.tracks.clear()
        self.feedback.clear()
        self._plans.clear()

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
            fail(error, output_tensor)

    def _report_once(self, values: Tensor) -> None:
        if self._active and not self._reported:
            self._reported = True
            report_unsupported({self.name: reason_of(values)}, self._sender.unsupported)

    def _exchange(self, output: Tensor, values: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        self.reduction, factor = reduction_of(op)
        rows = values.view(group.size(), -1)
        for message in self._messages(rows):
            whole = message.shard_count == output.numel()
            shard = output if whole else output.new_empty(message.shard_count)
            call = self._sender.send(message, message.gather(rows), shard, group, self.reduction)
            message.account(call, group.size())
            if not whole:
                message.scatter(shard, output)
        if factor != 1.0:
            output.mul_(factor)

    def _messages(self, rows: Tensor) -> list[Message]:
        parameters = self.layout.parameters(rows.shape[1])
        key = (rows.dtype, rows.shape[1], None if parameters is None else tuple(parameters))
        if key not in self._plans:
            self._plans[key] = plan_messages(self._tracks(rows, parameters))
        return self._plans[key]

    def _tracks(self, rows: Tensor, parameters: list[ShardedParameter] | None) -> list[Track]:
        if parameters is not None:
            return [self._track(one, rows) for one in parameters]
        whole = ShardedParameter(self.name, rows.shape, 0, rows.shape[1])
        if not self.layout.known:
            track = self._track(whole, rows)
            reason = "borders of parameters are not known: the module's gradients are one tensor"
            track.choice = replace(track.choice, reason=reason)
            return [track]
        # Which parameters these are nobody says, so their residuals wait for another step.
        codec = "bf16" if rows.dtype == torch.float32 else "none"
        key = (f"{self.name}, {rows.shape[1]} values a rank", rows.dtype)
        choice = Choice(codec, "some of the module's parameters had no gradient", by_value=True)
        return [self.tracks.setdefault(key, Track(replace(whole, name=key[0]), choice))]

    def _track(self, parameter: ShardedParameter, rows: Tensor) -> Track:
        key = (parameter.name, rows.dtype)
        if key not in self.tracks:
            track = Track(parameter, self._sender.choose(parameter, rows.dtype))
            if track.choice.feedback:
                track.feedback = self._feedback_of(
                    parameter, track.choice, rows.shape[0], rows.device
                )
            self.tracks[key] = track
        return self.tracks[key]

    def _feedback_of(
        self, parameter: ShardedParameter, choice: Choice, ranks: int, device: torch.device
    ) -> Feedback:
        if parameter.name not in self.feedback:
            dtype = RESIDUAL_DTYPES[self._sender.options.residual_dtype]
            like = torch.empty(0, dtype=dtype, device=device)
            self.feedback[parameter.name] = Feedback(parameter, choice.codec, ranks, like)
        return self.feedback[parameter.name]


class WeightExchange(Exchange):
    """The all-gather of one ``FSDPModule``, by a codec without feedback.

    Each parameter travels by itself, small ones as bf16, as gradients do without rules: the ones of
    a norm would drown the weights that share a block with them.

    Weights change after the module's gradients were reduced. All gathers up to then have the same
    noise, so that forward and backward pass compute with the same weights.
    """

    def __init__(self, codec: str, sender: Sender, gradients: GradientExchange) -> None:
        super().__init__(sender)
        self._gradients = gradients
        self._plans: dict[tuple[torch.dtype, int], list[Message]] = {}
        rules = fill(_core.ReducerOptions(), {"rules": [("*", codec)]})
        if codec == "auto" or _core.choose_codec(rules, "weights", [1], "f32").feedback:
            raise InvalidArgument(f"weights={codec!r}: name a codec without feedback, such as int8")
        self._options = fill(_core.ReducerOptions(), {"codec": codec})
        self._codec = codec

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Every rank's ``input_tensor``, which may lie in ``output_tensor``, decoded alike."""
        if not self._takes(input_tensor):  # bytes of mixed dtypes, or of FP8
            return plain_all_gather(output_tensor, input_tensor, group, async_op)
        try:
            self._gather(output_tensor.view(group.size(), -1), input_tensor, group)
        except Exception as error:  # also what is not ours
            self._sender.poison(error, group, input_tensor.device)
            fail(error, output_tensor)
        return None

    def _gather(self, rows: Tensor, values: Tensor, group: dist.ProcessGroup) -> None:
        for message in self._messages(values):
            name = message.columns[0].track.parameter.name
            noise = self._sender.noise(f"weights of {name}", self._gradients.calls)
            whole = message.shard_count == values.numel()
            found = rows if whole else rows.new_empty(group.size(), message.shard_count)
            shard = message.gather(values.view(1, -1))
            self._sender.gather(message.codec, shard, found.view(-1), group, noise)
            if not whole:
                message.scatter(found, rows)

    def _messages(self, values: Tensor) -> list[Message]:
        key = (values.dtype, values.numel())
        if key not in self._plans:
            self._plans[key] = plan_messages(self._tracks(values))
        return self._plans[key]

    def _tracks(self, values: Tensor) -> list[Track]:
        parameters = self._gradients.layout.gathered(values.numel())
        if parameters is not None:
            return [Track(one, choose(self._options, one, values.dtype)) for one in parameters]
        whole = ShardedParameter(self._gradients.name, values.shape, 0, values.numel())
        reason = "borders of parameters are not known: the module's weights are one tensor"
        return [Track(whole, Choice(self._codec, reason, by_value=False))]


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


def fail(error: Exception, output: Tensor) -> None:
    """Leaves NaN behind, and raises ``error`` as soon as the backward pass is over.

    To raise at once would leave FSDP in the middle of its pass, and the next one without exchange.
    """
    output.fill_(math.nan)

    def raise_error() -> None:
        raise error

    if not after_pass(raise_error):
        raise error


def plain_reduce_scatter(output: Tensor, values: Tensor, group: dist.ProcessGroup, op: Any) -> None:
    """PyTorch's own, by the name that this version has for it."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(output, values, group=group, op=op)


def plain_all_gather(
    output: Tensor, shard: Tensor, group: dist.ProcessGroup, async_op: bool
) -> dist.Work | None:
    """PyTorch's own, by the name that this version has for it."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work: dist.Work | None = call(output, shard, group=group, async_op=async_op)
    return work
