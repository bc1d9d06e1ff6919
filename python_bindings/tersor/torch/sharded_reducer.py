"""The reducers of a sharded model: one, but where modules differ in what FSDP asks for.

All ranks call their modules' collectives in one order, so nothing is learned, and a module without
gradients takes no part in a step. A step is a backward pass, or what comes of a module before the
next time it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import ParameterState, ReadyGradients, ReducerState
from tersor.collectives import Reduction
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch.checkpoint import zeros
from tersor.torch.group import transport, with_timeout
from tersor.torch.sharding import ModuleLayout, ShardedParameter
from tersor.torch.side_stream import SideStream
from tersor.torch.statistics import ParameterStatistics, of_scattered

DTYPE_NAMES: dict[torch.dtype, Literal["f32", "bf16", "f16"]] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
"""What codecs take, and how the library calls it."""


@dataclass(frozen=True)
class Kind:
    """What gradients of one reducer have in common."""

    group: dist.ProcessGroup
    device: torch.device
    dtype: torch.dtype
    reduction: Reduction


class Reduced(Protocol):
    """What one module's gradients go through, as far as reducers ask."""

    layout: ModuleLayout

    @property
    def removed(self) -> bool:
        """Whether its calls are PyTorch's own from now on."""

    def expected_kind(self) -> Kind:
        """What FSDP will ask for, as far as can be told before it does."""


@dataclass(frozen=True)
class OddMessage:
    """A message of unknown parameters, as one, and why it travels as it does."""

    parameter: ShardedParameter
    options: ReducerOptions
    reason: str


@dataclass
class Kept:
    """What error feedback keeps of one parameter, on the host.

    Attributes:
        codec: whose errors these are.
        ranks: of the reducer.
        rank: this one's number among them.
        residual: f32, a value for each of the padded parameter, shard after shard; by hosts, of
            those shards that this rank encodes; between replicas, what it keeps of its shard.
        shards: of which ranks these are; none between replicas.
        longest: values of the longest of any rank.
        step: of the reducer.
        codec_may_change: "auto" or a schedule may have chosen another when a state was saved.
    """

    parameter: ShardedParameter
    codec: str
    ranks: int
    rank: int
    residual: Tensor
    longest: int
    step: int
    shards: list[int]
    codec_may_change: bool = False

    def spread(self) -> Tensor:
        """The residual at its place in the padded parameter; a copy."""
        whole = zeros(self.ranks, self.parameter.shard_count)
        whole[self.shards] = self.residual.view(len(self.shards), -1)
        return whole.view(-1)

    def take(self, whole: Tensor) -> None:
        """Keeps its part of what all ranks would keep of the padded parameter, were they alike."""
        part = whole.view(self.ranks, -1)[self.shards] * (self.ranks / len(self.shards))
        self.residual.copy_(part.view(-1))


class ShardedReducer:
    """One reducer for the gradients of some modules."""

    def __init__(
        self,
        kind: Kind,
        parameters: Iterable[ShardedParameter],
        options: ReducerOptions,
        reason: str | None = None,
    ) -> None:
        """``reason``: instead of the rules', in statistics."""
        self.kind = kind
        self.parameters = {one.name: one for one in parameters}
        self.used = False
        self._reason = reason
        self._ready: set[str] = set()
        options = with_timeout(options, kind.group)
        options = {**options, "reduction": kind.reduction, "order": "of-ready"}
        ranks = transport(kind.group, kind.device)
        if "hosts" in options:
            options["hosts"] = hosts_of(kind.group, options["hosts"])
        self._hosts = options.get("hosts")
        self._side_stream = SideStream(kind.device, options)
        self._core = GradientReducer(ranks, **self._with_rules(self._side_stream.options))
        for one in self.parameters.values():
            self._add(one)

    def _with_rules(self, options: ReducerOptions) -> ReducerOptions:
        return options

    def _add(self, one: ShardedParameter) -> None:
        like = torch.empty(0, dtype=self.kind.dtype, device=self.kind.device)
        self._core.add_sharded(one.name, like, list(one.shape), one.shard_count)

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Begins to reduce the columns of ``rows`` (ranks, shards of these parameters).

        This rank's shards go to ``output``. Neither is touched until all of it is back.
        """
        counts = [self.parameters[name].shard_count for name in names]
        columns = [part.contiguous().view(-1) for part in torch.split(rows, counts, dim=1)]
        self._begin(names)
        return self._core.ready_sharded(list(names), columns, list(torch.split(output, counts)))

    def _begin(self, names: Sequence[str]) -> None:
        if self._ready.intersection(names):
            self.finish()
        self._ready.update(names)
        self.used = True
        self._side_stream.take_over()

    def wait(self, sent: ReadyGradients) -> None:
        """Waits for results; on a device the current stream does."""
        sent.wait()
        self._side_stream.give_back()

    def finish(self) -> None:
        """Ends the step, where one is under way; its results were waited for, or lie on a host."""
        if self._ready:
            self._ready.clear()
            self._core.wait()

    def lacks(self, parameters: Iterable[ShardedParameter]) -> bool:
        return any(one.name not in self.parameters for one in parameters)

    def drop(self, names: Iterable[str]) -> None:
        """Another reducer has them from now on."""
        for name in names:
            self.parameters.pop(name, None)

    @property
    def under_way(self) -> bool:
        """Whether a step is."""
        return bool(self._ready)

    def scale_residuals(self, factor: float) -> None:
        self._core.scale_residuals(factor)

    def discard_step(self) -> None:
        self._core.discard_step()

    def statistics(self) -> Iterator[ParameterStatistics]:
        """Of the parameters that were sent."""
        every = self._core.parameter_statistics()
        return (self._told(one) for one in every if one.steps and one.name in self.parameters)

    def _told(self, one: _core.ReducerStatistics) -> ParameterStatistics:
        return of_scattered(one, self._reason or one.reason, self.kind.group.size())

    @property
    def overflows(self) -> int:
        """Values that were finite and left the range of the wire's type."""
        return self._core.statistics().overflows

    def settled(self) -> bool:
        """Whether ``"auto"`` tries nothing, for now."""
        return self._core.settled()

    def explain_choice(self) -> str:
        """What ``"auto"`` measured, predicted and tried; empty where it was not asked."""
        return self._core.explain_choice().strip()

    def read(self) -> tuple[ReducerState, dict[str, Kept]]:
        """The state, and views of it for each parameter with a residual."""
        state = ReducerState.read(self._core.save_state())
        every = self._core.parameter_statistics()
        changing = {one.name for one in every if one.codec_may_change}
        kept = {
            name: Kept(
                self.parameters[one.name],
                one.codec,
                self.kind.group.size(),
                self.kind.group.rank(),
                torch.from_numpy(values),
                longest,
                state.step,
                self._shards(len(values) // self.parameters[one.name].shard_count),
                one.name in changing,
            )
            for one in state.parameters
            if one.name in self.parameters
            for name, values, longest in self._residuals(one)
            if longest
        }
        return state, kept

    def _residuals(self, one: ParameterState) -> Iterable[tuple[str, Any, int]]:
        """What it is called, the values, and how many the longest of any rank are."""
        return [(one.name, one.residual, one.longest_residual)]

    def _shards(self, count: int) -> list[int]:
        """Whose shards this rank encodes, so many: all, or by hosts those of its place."""
        group = self.kind.group
        if count == group.size():
            return list(range(count))
        hosts = self._hosts or transport(group, self.kind.device).hosts()
        place = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        return [rank for rank, one in enumerate(place) if one == place[group.rank()]]

    def write(self, state: ReducerState, kept: dict[str, Kept]) -> None:
        """Loads what became of a state that was read, and of the views."""
        state.step = max((one.step for one in kept.values()), default=state.step)
        self._core.load_state(state.write())


Made = TypeVar("Made", bound=ShardedReducer)


class Reducers(Generic[Made]):
    """Finds, or makes, the reducers of modules' gradients. ``make``: their class.

    Attributes:
        exchanges: of all modules, in their order.
    """

    def __init__(self, options: ReducerOptions, make: type[Made]) -> None:
        self.exchanges: list[Reduced] = []
        self._options = options
        self._class = make
        self._of: dict[Reduced, Made] = {}
        self._odd: dict[tuple[int, str, Kind], Made] = {}

    def all(self) -> list[Made]:
        """In the order of modules."""
        odd = [self._odd[key] for key in sorted(self._odd, key=lambda key: key[:2])]
        return [*dict.fromkeys(self._of.values()), *odd]

    def prepare(self) -> None:
        """Makes those that steps to come will need, as far as that can be told."""
        for exchange in self.exchanges:
            if exchange.layout.known and exchange not in self._of and not exchange.removed:
                self._make(exchange.expected_kind())

    def of(self, exchange: Reduced, kind: Kind) -> Made:
        """The one for all parameters of a module that want a gradient."""
        found = self._of.get(exchange)
        if found is None or found.kind != kind or found.lacks(exchange.layout.expected()):
            self._make(kind, exchange)
        return self._of[exchange]

    def odd(self, exchange: Reduced, kind: Kind, message: OddMessage) -> Made:
        """The one for a message of which nobody says which parameters it holds."""
        key = (self.exchanges.index(exchange), message.parameter.name, kind)
        if key not in self._odd:
            options: ReducerOptions = {**self._options, **message.options}
            self._odd[key] = self._class(kind, [message.parameter], options, message.reason)
        return self._odd[key]

    def reset(self) -> None:
        self._of.clear()
        self._odd.clear()

    def _make(self, kind: Kind, certain: Reduced | None = None) -> None:
        """One for ``certain``, and for all exchanges of which the same is expected."""
        taken = [
            one
            for one in self.exchanges
            if one is certain
            or (one.layout.known and self._is_free(one) and one.expected_kind() == kind)
        ]
        parameters = [parameter for one in taken for parameter in one.layout.expected()]
        made = self._class(kind, parameters, self._options)
        before = {self._of[one] for one in taken if one in self._of}
        _move_residuals(before, made)
        for old in before:
            old.drop(made.parameters)
        self._of.update(dict.fromkeys(taken, made))

    def _is_free(self, exchange: Reduced) -> bool:
        """Whether no reducer is in use for it, or one that lacks a parameter, once frozen."""
        found = self._of.get(exchange)
        unused = found is None or not found.used or found.lacks(exchange.layout.expected())
        return unused and not exchange.removed


def hosts_of(group: dist.ProcessGroup, hosts: Sequence[int]) -> list[int]:
    """Of the ranks of a group, of the hosts of all ranks."""
    return [hosts[dist.get_global_rank(group, rank)] for rank in range(group.size())]


def _move_residuals(before: Iterable[ShardedReducer], made: ShardedReducer) -> None:
    state, kept = made.read()
    moved = {}
    for old in before:
        was, views = old.read()
        state.step = max(state.step, was.step)
        for name, one in views.items():
            if name in kept and kept[name].residual.shape == one.residual.shape:
                kept[name].residual.copy_(one.residual)
                kept[name].step = one.step
                moved[name] = kept[name]
    if moved or state.step > 0:
        made.write(state, moved)
