"""The exchange of tensors by a handle: a reducer over a process group, on a stream of its own."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tersor._core import InvalidArgumentError, RanksLostError, Transport, TransportError
from tersor._renamed import deprecated
from tersor.collectives import allreduce
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import move_residuals
from tersor.torch._src.parameters.memory_order import contiguous_like
from tersor.torch._src.parameters.selection import local_shard
from tersor.torch._src.process_group import connections

_SUM_BITS = 64
_STEPS_BETWEEN_CHECKS = 1000
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
OnLoss = Literal["raise", "continue"]
Result = TypeVar("Result")


class ElasticOptions(ReducerOptions, total=False):
    """Options of an exchange over connections of its own.

    Attributes:
        on_loss: The reaction to a lost rank, for ``elastic=True``. ``"raise"`` (default) raises
            RanksLostError, and ``resume()`` continues. ``"continue"`` warns, and the remaining
            ranks repeat the interrupted exchange, or skip an exchange that cannot be repeated.

    Example::

        options: tersor.torch.ElasticOptions = {"elastic": True, "on_loss": "continue"}
        optimizer = tersor.torch.DistributedOptimizer(optimizer, **options)
    """

    on_loss: OnLoss


class TensorExchange:
    """Exchanges named tensors on one device among the ranks of a process group. Do not free or
    write a tensor between ``acquire`` and ``release``."""

    reducer: GradientReducer  #: the reducer of the latest ``register``

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        options: ElasticOptions | ReducerOptions,
    ) -> None:
        on_loss: str = cast(ElasticOptions, options).get("on_loss", "raise")
        self.elastic = options.get("elastic", False)
        if on_loss == "go on":
            deprecated('on_loss="go on"', 'use "continue"')
            on_loss = "continue"
        if on_loss not in ("raise", "continue"):
            raise InvalidArgumentError(f'on_loss={on_loss!r}: give "raise" or "continue"')
        if on_loss == "continue" and not self.elastic:
            raise InvalidArgumentError('on_loss="continue" needs elastic=True')
        self.on_loss = cast(OnLoss, on_loss)
        given = {key: value for key, value in options.items() if key != "on_loss"}
        #: The caller's options, with a timeout.
        self.options = connections.with_timeout(cast(ReducerOptions, given), group)
        self.group = connections.as_group(group)
        #: The transport of all ranks, including lost ranks.
        self.transport = connections.transport(group, None if self.elastic else device)
        self.members = list(range(self.transport.ranks))  #: remaining ranks of the group
        self._reducer_members = self.members  # of the reducer
        self.losses = 0  #: number of losses of ranks
        #: The stream of the reducer; None on a CPU, or if the caller chose a stream.
        self.stream: torch.cuda.Stream | None = None
        self.device = device  #: device of the tensors
        if device.type == "cuda" and "stream" not in options:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def make(self, options: ReducerOptions) -> GradientReducer:
        """Makes a reducer without tensors. ``options`` are added to the common options."""
        merged: ReducerOptions = {**self.options, **options}
        if self.stream is not None:
            merged["stream"] = self.stream
        if "trace" in merged and self.transport.ranks != dist.get_world_size():
            path = pathlib.PurePath(merged["trace"])  # other groups have equal rank numbers
            merged["trace"] = str(path.with_stem(f"{path.stem}.of{dist.get_rank()}"))
        return GradientReducer(self.transport if not self.losses else self.channel(), **merged)

    def register(
        self,
        tensors: Mapping[str, Tensor],
        options: ReducerOptions | None = None,
        *,
        steps_back: int = 0,
    ) -> None:
        """Makes the reducer for tensors like these, and moves residuals of an earlier reducer.

        A collective call if there was an earlier reducer. Owners of parts depend on a tensor's
        index, so a new reducer has the indices of a run that resumes from a checkpoint.
        ``steps_back`` is subtracted from the step.
        """
        merged: ReducerOptions = {**self.options, **(options or {})}
        made = self.make(connections.with_message_sizes(merged, self.transport, tensors.values()))
        for name, one in tensors.items():
            made.add(name, contiguous_like(one))
        if hasattr(self, "reducer"):
            move_residuals(self.reducer, made, steps_back)
        if self.elastic:  # a rank that computes before the first step takes part in agreements
            made.check_faults()
        self.reducer = made
        self._reducer_members = self.members

    @property
    def ranks(self) -> int:
        """Number of remaining ranks."""
        return len(self.members)

    def channel(self) -> Transport:
        """Returns a transport of the remaining ranks for CPU memory. A collective call."""
        if self.elastic and hasattr(self, "reducer"):
            return self.reducer.channel()
        return connections.transport(self.group).channel()

    def run_elastic(self, work: Callable[[], Result], *, repeat: bool = True) -> Result:
        """Returns the result of ``work``, which exchanges with the other ranks.

        After a loss, all ranks raise RanksLostError. With ``on_loss="continue"`` and ``repeat``,
        resumes and repeats ``work``.
        """
        while True:
            try:
                try:
                    return work()
                except TransportError as error:
                    if self.elastic and not isinstance(error, RanksLostError):
                        self.reducer.check_faults()
                    raise
            except RanksLostError as lost:
                lost.members = self.members = [self._reducer_members[one] for one in lost.members]
                if self.on_loss == "raise" or not repeat:
                    raise
                _compat.warn(f"{lost}. The exchange under way is repeated.")
                self.resume()

    def resume(self) -> None:
        """Continues after RanksLostError, on all remaining ranks, also if more ranks are lost."""
        while True:
            try:
                self.reducer.resume()
                break
            except RanksLostError as lost:
                self.members = [self._reducer_members[one] for one in lost.members]
        self.losses += 1

    def acquire(self) -> None:
        """Makes this exchange's stream wait for the caller's current stream."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def release(self) -> None:
        """Makes the caller's current stream wait for this exchange's stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def skip(self, name: str, like: Tensor) -> None:
        """Omits a tensor from the step. Call on all ranks."""
        empty = torch.empty_like(local_shard(like.detach()))
        self.reducer.ready(name, contiguous_like(empty), "globally-unused")

    def wait(self) -> None:
        """Ends the step and waits for all results. On a device, the current stream waits."""
        self.reducer.wait()
        self.release()


class Presence:
    """Counts flags over the ranks. All ranks make the same calls in the same order.

    A parameter without a gradient on any rank does not change: no decay, no momentum, and the
    residual stays. If only some ranks have a gradient, the others contribute zeros. A rank cannot
    know the gradients of other ranks, so every step exchanges one number per parameter.
    """

    def __init__(self, exchange: TensorExchange) -> None:
        """Uses the ranks and timeout of ``exchange``. A collective call."""
        self._exchange = exchange
        self._begin_comparison()
        self._ranks, self._losses = exchange.channel(), exchange.losses

    def _begin_comparison(self) -> None:
        self._compared: set[str] = set()
        self._compares_again = self._is_routine = False
        self._calls = 0  # of check_equal, since all parameters were compared

    def check_equal(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises InvalidArgumentError on all ranks if ranks have other values of a parameter.

        Compares each parameter once. Compares again after 1,000 calls, and then only warns, because
        different processors may round differently. A collective call with the same names.
        """
        self._calls += 1
        is_routine, self._is_routine = self._is_routine, False
        names = sorted(parameters.keys() - self._compared)
        if not names:
            return
        sums = torch.stack([_bit_sum(parameters[name]).cpu() for name in names])
        bits = sums.unsqueeze(1) >> torch.arange(_SUM_BITS, device="cpu") & 1
        counts = torch.tensor(self.counts(bits.flatten().tolist()), device="cpu").view_as(bits)
        differ = ((counts != 0) & (counts != self._exchange.ranks)).any(1).tolist()
        if wrong := [name for name, one in zip(names, differ, strict=True) if one]:
            text = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else "")
            if not is_routine:
                raise InvalidArgumentError(
                    f"the ranks begin with different values of {text}: load the same weights on "
                    "all ranks, or call tersor.torch.broadcast_parameters(model) before the first "
                    "step"
                )
            _compat.warn(
                f"the ranks have different values of {text}: a rank may have another learning "
                "rate, or changed its weights"
            )
        self._compared.update(names)

    def compare_again(self) -> None:
        """On all ranks, ``check_equal`` compares all parameters again after the next count."""
        self._compares_again = True

    def on_any_rank(
        self, present: Mapping[str, bool], extra: Sequence[bool] = ()
    ) -> tuple[list[str], list[int]]:
        """Returns the names present on some rank, and the number of ranks per flag of ``extra``."""
        return _split_counts(present, self.counts([*present.values(), *extra]))

    def weighted(
        self, present: Mapping[str, bool], extra: Sequence[bool], samples: float | None
    ) -> tuple[list[str], list[int], float]:
        """Returns the results of ``on_any_rank``, and this rank's weight in the mean over samples.
        The weight is 1 if no rank has samples. Raises InvalidArgumentError if ``samples`` is
        negative or not finite. If only some ranks have samples, or the sum is 0, all ranks raise
        the error."""
        if samples is not None and not 0 <= samples < math.inf:
            raise InvalidArgumentError(f"samples={samples}: give a number of samples, 0 or more")
        flags = [*present.values(), *extra, samples is not None]
        (*counts, reporting), total = self._sums(flags, samples or 0.0)
        if 0 < reporting < self._exchange.ranks:
            raise InvalidArgumentError(
                f"{reporting} of {self._exchange.ranks} ranks set samples: set samples before "
                "a step on all ranks, or on no rank"
            )
        if reporting and not 0 < total < math.inf:
            raise InvalidArgumentError(
                f"the samples of all ranks add up to {total}: set more than 0"
            )
        weight = (samples or 0.0) * reporting / total if reporting else 1.0
        return (*_split_counts(present, counts), weight)

    def abort(self, cause: str) -> None:
        """Aborts the current exchange of all ranks. Any thread may call ``abort``."""
        self._ranks.abort(cause)

    def counts(self, flags: Sequence[bool]) -> list[int]:
        """Returns the number of ranks per flag. A collective call with equally many flags."""
        return self._sums(flags, 0.0)[0]

    def _sums(self, flags: Sequence[bool], value: float) -> tuple[list[int], float]:
        """The sums of flags and value over the ranks."""
        is_due = self._calls >= _STEPS_BETWEEN_CHECKS
        *counts, again, due, total = self._sum_of([*flags, self._compares_again, is_due, value])
        if again or due:
            self._compared.clear()
            self._compares_again, self._is_routine, self._calls = False, not again, 0
        return list(map(int, counts)), total

    def _sum_of(self, numbers: list[float]) -> list[float]:
        if self._losses != self._exchange.losses:
            self._ranks, self._losses = self._exchange.channel(), self._exchange.losses
        sums = torch.tensor(numbers, dtype=torch.float32, device="cpu")
        allreduce(self._ranks, sums, codec="none", timeout=self._exchange.options["timeout"])
        return cast(list[float], sums.tolist())


def _bit_sum(parameter: Tensor) -> Tensor:
    """Returns a weighted sum modulo 2^64 of the bits of this rank's values. Row and column
    determine the weight, so other orders have other sums."""
    values = local_shard(parameter.detach())
    if type(values) is not Tensor:  # a subclass may have no bits to view
        return torch.zeros((), dtype=torch.int64)
    values = torch.view_as_real(values) if values.is_complex() else values
    bits = values.view(_INTEGERS[values.element_size()])
    bits = bits.flatten(1) if bits.dim() > 1 else bits.view(1, -1)
    total = bits.new_zeros((), dtype=torch.int64)
    for axis in (0, 1):
        sums = bits.sum(1 - axis, dtype=torch.int64)
        odd = torch.arange(1, 2 * len(sums), 2, device=sums.device)
        total += (sums * odd).sum() * (axis + 1)
    return total


def _split_counts(present: Mapping[str, bool], counts: list[int]) -> tuple[list[str], list[int]]:
    return [name for name, n in zip(present, counts, strict=False) if n], counts[len(present) :]
