"""FSDP2's all-gather of weights, compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core, collectives
from tersor._core import InvalidArgumentError, Workspace
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.collectives import Algorithm, CollectiveOptions
from tersor.torch._src.fsdp.exchange import Exchange, GradientExchange, Sender
from tersor.torch._src.fsdp.layout import ShardedParameter
from tersor.torch._src.process_group.connections import hosts_of

# The name depends on PyTorch's version.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Message:
    """Columns of (ranks, shard) in an encoded message. ``name`` is of the first parameter."""

    name: str
    codec: str
    columns: list[slice]

    def gather(self, rows: Tensor) -> Tensor:
        """Returns the message's values of ``rows``, without a copy if possible."""
        parts = [rows[:, one] for one in self.columns]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).reshape(-1)

    def scatter(self, values: Tensor, rows: Tensor) -> None:
        """Copies all ranks' values to ``rows``."""
        counts = [one.stop - one.start for one in self.columns]
        for one, part in zip(self.columns, torch.split(values, counts, dim=1), strict=True):
            rows[:, one] = part


class WeightExchange(Exchange):
    """The all-gather of an ``FSDPModule``, by a codec without feedback.

    Each parameter is encoded alone, and small parameters are sent as bf16, like gradients without
    rules. The values of a norm would otherwise dominate the scale of weights in the same block.

    Weights change after the reduction of the module's gradients. All gathers before have the same
    rounding noise, so forward and backward pass compute with equal weights.
    """

    def __init__(self, codec: str, sender: Sender, gradients: GradientExchange) -> None:
        super().__init__(sender)
        self._gradients = gradients
        self._plans: dict[tuple[torch.dtype, int], list[Message]] = {}
        self._workspaces: dict[tuple[object, ...], Workspace] = {}
        self._undo.callback(self._workspaces.clear)
        rules = fill(_core.ReducerOptions(), {"rules": [("*", codec)]})
        if codec == "auto" or _core.choose_codec(rules, "weights", [1], "f32").feedback:
            raise InvalidArgumentError(
                f"weights_codec={codec!r}: name a codec without feedback, such as int8"
            )
        self._options = fill(_core.ReducerOptions(), {"codec": codec})
        self._codec = codec

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gathers ``input_tensor``, which may be part of ``output_tensor``, equal on all ranks."""
        if not self._handles(input_tensor):  # bytes of mixed dtypes, or of FP8
            work: dist.Work | None
            work = _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
            return work
        with self._sender.guard(output_tensor, group):
            self._gather(output_tensor.view(group.size(), -1), input_tensor, group)
        return None

    def _gather(self, rows: Tensor, values: Tensor, group: dist.ProcessGroup) -> None:
        for message in self._messages(values):
            shard = message.gather(values.view(1, -1))
            whole = len(shard) == values.numel()
            found = rows if whole else rows.new_empty(group.size(), len(shard))
            self._send(message, shard, found.view(-1), group)
            if not whole:
                message.scatter(found, rows)

    def _send(
        self, message: Message, shard: Tensor, output: Tensor, group: dist.ProcessGroup
    ) -> None:
        """Gathers one message, separate from messages of gradients."""
        key = (message.codec, shard.numel(), shard.dtype, shard.device)
        if key not in self._workspaces:
            self._workspaces[key] = Workspace(self._sender.options.threads)
        common = self._sender.options
        options: CollectiveOptions = {
            "codec": message.codec,
            "algorithm": cast(Algorithm, common.algorithm),
            "hosts": hosts_of(group, common.hosts) if common.hosts else [],
            "host_codec": common.host_codec,
            "workspace": self._workspaces[key],
            "chunk_count": common.chunk_count,
            "checksum": common.checksum,
            "timeout": self._sender.seconds(group),
            "seed": common.seed + zlib.crc32(f"weights of {message.name}".encode()),
            "step": self._gradients.calls,
        }
        channel = self._sender.weight_channel(group, shard.device)
        collectives.allgather(channel, shard, output, **options)

    def _messages(self, values: Tensor) -> list[Message]:
        key = (values.dtype, values.numel())
        if key not in self._plans:
            found = self._gradients.layout.gathered(values.numel())
            if found is None:
                # With reshard_after_forward=2, say, few ranks gather rounded weights again.
                codec = "none" if self._gradients.layout.known else self._codec
                whole = slice(0, values.numel())
                self._plans[key] = [Message(self._gradients.name, codec, [whole])]
            else:
                self._plans[key] = plan_messages(self._options, found, dtype_text(values.dtype))
        return self._plans[key]


def plan_messages(
    options: _core.ReducerOptions, parameters: Iterable[ShardedParameter], dtype: str
) -> list[Message]:
    """Plans one message per parameter. Codecs of single values share one message."""
    separate: list[Message] = []
    shared: dict[str, Message] = {}
    start = 0
    for one in parameters:
        columns = slice(start, start + one.shard_count)
        start = columns.stop
        choice = one.choice(options, dtype)
        if choice.by_value:
            message = shared.setdefault(choice.codec, Message(one.name, choice.codec, []))
        else:
            separate.append(message := Message(one.name, choice.codec, []))
        message.columns.append(columns)
    return [*separate, *shared.values()]
