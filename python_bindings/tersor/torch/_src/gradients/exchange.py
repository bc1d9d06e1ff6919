"""What handles exchange tensors by: a reducer over a process group, beside the trainer's stream."""

from __future__ import annotations

import math
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tersor._core import InvalidArgumentError, RanksLostError, Transport, TransportError
from tersor.collectives import allreduce
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch._src.checkpoint.residuals import move_residuals
from tersor.torch._src.parameters.memory_order import in_order
from tersor.torch._src.parameters.selection import local_shard
from tersor.torch._src.process_group import connections

OnLoss = Literal["raise", "go on"]
Result = TypeVar("Result")


class ElasticOptions(ReducerOptions, total=False):
    """Options of what exchanges by a reducer over connections of its own."""

    on_loss: OnLoss
    """What a rank that dies means to the others, with ``elastic=True``. Default ``"raise"``:
    ``RanksLostError``, and ``resume()`` goes on. ``"go on"``: a warning; what was under way is done
    again by those who are left, or left out where it cannot be."""


def refuse_elastic_shards(options: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """The same of ``elastic=True`` where a parameter is sharded over a mesh of PyTorch's."""
    sharded = [name for name, one in parameters.items() if isinstance(one, DTensor)]
    if options.get("elastic") and sharded:
        raise InvalidArgumentError(
            f"elastic=True: {sharded[0]} is sharded, and a lost rank takes its shards with it; "
            "use whole parameters, or torchft around your training"
        )


class TensorExchange:
    """Of tensors on one device, each with a name, among the ranks of a process group.

    Memory that was handed over is the reducer's between ``take_over`` and ``give_back``: it is
    neither freed nor written in between.
    """

    reducer: GradientReducer  #: of what was held last

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        options: ElasticOptions | ReducerOptions,
    ) -> None:
        self.on_loss: OnLoss = cast(ElasticOptions, options).get("on_loss", "raise")
        self.elastic = options.get("elastic", False)
        if self.on_loss not in ("raise", "go on"):
            raise InvalidArgumentError(f'on_loss={self.on_loss!r}: give "raise" or "go on"')
        if self.on_loss == "go on" and not self.elastic:
            raise InvalidArgumentError('on_loss="go on" needs elastic=True')
        told = {key: value for key, value in options.items() if key != "on_loss"}
        #: As the caller gave them, with a time limit.
        self.options = connections.with_timeout(cast(ReducerOptions, told), group)
        self.group = connections.checked(group)
        #: Of all ranks, whoever was lost since.
        self.transport = connections.transport(group, None if self.elastic else device)
        self.members = list(range(self.transport.ranks))  #: the group's numbers of who are left
        self._reducer_members = self.members  # when it was made
        self.losses = 0  #: how often ranks were lost
        #: On which the reducer takes gradients and gives results; None for host memory, or where
        #: the caller chose one for the reducer.
        self.stream: torch.cuda.Stream | None = None
        self.device = device  #: on which the tensors lie
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
        return GradientReducer(self.transport if not self.losses else self.channel(), **told)

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
        made = self.make(connections.with_message_sizes(told, self.transport, tensors.values()))
        for name, one in tensors.items():
            made.add(name, in_order(one))
        if hasattr(self, "reducer"):
            move_residuals(self.reducer, made, steps_back)
        self.reducer = made
        self._reducer_members = self.members

    @property
    def ranks(self) -> int:
        """How many exchange: those who are left."""
        return len(self.members)

    def channel(self) -> Transport:
        """Of these, for host memory; a collective call. Good until ranks are lost."""
        if self.elastic and hasattr(self, "reducer"):
            return self.reducer.channel()
        return connections.transport(self.group).channel()

    def together(self, work: Callable[[], Result], *, again: bool = True) -> Result:
        """Returns what ``work`` does, exchanges with the other ranks.

        Where it ends since ranks are lost, raises RanksLostError, whoever noticed; with ``"go on"``
        resumes, and does it ``again``.
        """
        while True:
            try:
                try:
                    return work()
                except TransportError as error:
                    if self.elastic and not isinstance(error, RanksLostError):
                        self.reducer.hear_fault()
                    raise
            except RanksLostError as lost:
                lost.members = self.members = [self._reducer_members[one] for one in lost.members]
                if self.on_loss == "raise" or not again:
                    raise
                warnings.warn(f"{lost}. The exchange under way is repeated.", stacklevel=4)
                self.resume()

    def resume(self) -> None:
        """After RanksLostError, by all who are left. Others may be lost meanwhile: they are left
        out."""
        while True:
            try:
                self.reducer.resume()
                break
            except RanksLostError as lost:
                self.members = [self._reducer_members[one] for one in lost.members]
        self.losses += 1

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
        self.reducer.ready(name, in_order(nothing), "globally-unused")

    def wait(self) -> None:
        """Ends the step: all results are there, on a device in the current stream's order."""
        self.reducer.wait()
        self.give_back()


class Presence:
    """Counts over the ranks that exchange. All make the same calls in the same order.

    A parameter that no rank has a gradient of is left alone: no decay, no momentum, its residual
    kept. On some ranks a missing gradient is one of zeros. A rank that has all gradients cannot
    know what the others lack, so every step asks: a number for each parameter, in one message.
    """

    def __init__(self, exchange: TensorExchange) -> None:
        """``exchange``: whose ranks and time limit it has. A collective call."""
        self._exchange = exchange
        self._ranks, self._losses = exchange.channel(), exchange.losses

    def somewhere(
        self, present: Mapping[str, bool], also: Sequence[bool] = ()
    ) -> tuple[list[str], list[int]]:
        """The names that are present on some rank, and on how many each of ``also`` is set."""
        return _told_apart(present, self.counts([*present.values(), *also]))

    def weighted(
        self, present: Mapping[str, bool], also: Sequence[bool], samples: float | None
    ) -> tuple[list[str], list[int], float]:
        """As ``somewhere``, and this rank's weight in a mean over the samples of all ranks: 1 where
        no rank tells of any. Raises InvalidArgumentError for less than none, before anything is
        sent; and on all ranks where only some tell, or all have none."""
        if samples is not None and not 0 <= samples < math.inf:
            raise InvalidArgumentError(f"samples={samples}: give a number of samples, 0 or more")
        flags = [*present.values(), *also, samples is not None]
        (*counts, told), total = self._sums(flags, samples or 0.0)
        if 0 < told < self._exchange.ranks:
            raise InvalidArgumentError(
                f"{told} of {self._exchange.ranks} ranks set samples: set samples before a step on "
                "all ranks, or on no rank"
            )
        if told and not 0 < total < math.inf:
            raise InvalidArgumentError(
                f"the samples of all ranks add up to {total}: set more than 0"
            )
        weight = (samples or 0.0) * told / total if told else 1.0
        return (*_told_apart(present, counts), weight)

    def poison(self, cause: str) -> None:
        """Ends what these ranks have under way; any thread."""
        self._ranks.poison(cause)

    def counts(self, flags: Sequence[bool]) -> list[int]:
        """On how many ranks each flag is set. A collective call, of as many flags on each."""
        return self._sums(flags, 0.0)[0]

    def _sums(self, flags: Sequence[bool], value: float) -> tuple[list[int], float]:
        if self._losses != self._exchange.losses:
            self._ranks, self._losses = self._exchange.channel(), self._exchange.losses
        sums = torch.tensor([*flags, value], dtype=torch.float32, device="cpu")
        allreduce(self._ranks, sums, codec="none", timeout=self._exchange.options["timeout"])
        *counts, total = sums.tolist()
        return list(map(int, counts)), total


def _told_apart(present: Mapping[str, bool], counts: list[int]) -> tuple[list[str], list[int]]:
    return [name for name, n in zip(present, counts, strict=False) if n], counts[len(present) :]
