"""What handles exchange tensors by: a reducer over a process group, beside the trainer's stream."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tersor.reducer import GradientReducer, ReducerOptions, lasting
from tersor.torch import group as groups
from tersor.torch.checkpoint import move_residuals
from tersor.torch.layout import in_order
from tersor.torch.parameters import local_shard


class TensorExchange:
    """Of tensors on one device, each with a name, among the ranks of a process group.

    Memory that was handed over is the reducer's between ``take_over`` and ``give_back``: it is
    neither freed nor written in between.

    Attributes:
        options: as the caller gave them, with a time limit.
        stream: on which the reducer takes gradients and gives results; None for host memory, or
            where the caller chose one for the reducer.
        device: on which the tensors lie.
        reducer: of what was held last.
    """

    reducer: GradientReducer

    def __init__(
        self, group: dist.ProcessGroup | None, device: torch.device, options: ReducerOptions
    ) -> None:
        self.options = groups.with_timeout(lasting(options), group)
        self.transport = groups.transport(group, device)
        self.stream: torch.cuda.Stream | None = None
        self.device = device
        if device.type == "cuda" and "stream" not in options:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def make(self, options: ReducerOptions) -> GradientReducer:
        """A reducer without tensors. ``options``: beside those that all have."""
        told: ReducerOptions = {**self.options, **options}
        if self.stream is not None:
            told["stream"] = self.stream
        if "trace" in told and self.transport.ranks != dist.get_world_size():
            path = pathlib.PurePath(told["trace"])  # other groups have ranks of these numbers, too
            told["trace"] = str(path.with_stem(f"{path.stem}.of{dist.get_rank()}"))
        return GradientReducer(self.transport, **told)

    def hold(
        self,
        tensors: Mapping[str, Tensor],
        options: ReducerOptions | None = None,
        *,
        steps_back: int = 0,
    ) -> None:
        """Makes the reducer for such tensors; where there was one, with its residuals.

        A collective call then. A new one, since who owns which part of a tensor depends on its
        number, so that the same run may go on from a checkpoint. ``steps_back``: so many steps
        fewer are counted.
        """
        told: ReducerOptions = {**self.options, **(options or {})}
        made = self.make(groups.with_message_sizes(told, self.transport, tensors.values()))
        for name, one in tensors.items():
            made.add(name, in_order(one))
        if hasattr(self, "reducer"):
            move_residuals(self.reducer, made, steps_back)
        self.reducer = made

    def take_over(self) -> None:
        """What follows on the stream waits for what the caller's current stream has queued."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def give_back(self) -> None:
        """What follows on the caller's current stream waits for what this one has queued."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def leave_out(self, name: str, like: Tensor) -> None:
        """No rank has anything of this tensor, and all say so."""
        nothing = torch.empty_like(local_shard(like.detach()))
        self.reducer.ready(name, in_order(nothing), "nowhere")

    def wait(self) -> None:
        """Ends the step: all results are there, on a device in the current stream's order."""
        self.reducer.wait()
        self.give_back()
