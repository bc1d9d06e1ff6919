"""The reducers of a sharded model: one, but where modules differ in what FSDP asks for.

All ranks call their modules' collectives in one order, so nothing is learned, and a module without
gradients takes no part in a step. A step is a backward pass, or what comes of a module before the
next time it comes.

On a mesh of two dimensions there are others, between replicas. A shard has the codec that rules
choose for the whole parameter, and an all-reduce encodes twice: beside what a rank sends there is a
residual of the part whose sum it sends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import ParameterState, ReadyGradients, ReducerState
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.collectives import Reduction
from tersor.reducer import ReducerOptions
from tersor.torch._src.fsdp.layout import Kept, ModuleLayout, ShardedParameter
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.parameters.selection import literal_pattern
from tersor.torch._src.process_group.connections import hosts_of
from tersor.torch._src.statistics.records import ParameterStatistics, of_parameter

_MOST_ODD = 16  # reducers of messages as one tensor; all ranks drop the same ones


@dataclass(frozen=True)
class Kind:
    """What gradients of one reducer have in common."""

    group: dist.ProcessGroup
    device: torch.device
    dtype: torch.dtype
    reduction: Reduction


class ShardedReducer:
    """One reducer, ``core``, for the gradients of some modules."""

    _sent_whole: ClassVar = 0.5  # of what an all-reduce sends: values are scattered only

    def __init__(
        self,
        kind: Kind,
        parameters: Iterable[ShardedParameter],
        options: ReducerOptions,
        reason: str | None = None,
        samples: Samples | None = None,
    ) -> None:
        """``reason``: instead of the rules', in statistics. ``samples``: of the passes."""
        self.kind, self._samples = kind, samples
        self.parameters = {one.name: one for one in parameters}  #: those that it has
        self._reason = reason
        self._ready: set[str] = set()
        self._exchange = TensorExchange(kind.group, kind.device, options)
        told: ReducerOptions = {"reduction": kind.reduction, "order": "ready_order"}
        if "hosts" in options:
            told["hosts"] = hosts_of(kind.group, options["hosts"])
        self._hosts = told.get("hosts")
        self.core = self._exchange.make({**told, **self._rules(self._exchange.options)})
        for one in self.parameters.values():
            self._add(one)

    def _rules(self, options: ReducerOptions) -> ReducerOptions:
        """Others than those of the options."""
        return {}

    def _add(self, one: ShardedParameter) -> None:
        like = torch.empty(0, dtype=self.kind.dtype, device=self.kind.device)
        self.core.add_sharded(one.name, like, list(one.shape), one.shard_count)

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Begins to reduce the columns of ``rows`` (ranks, shards of these parameters).

        This rank's shards go to ``output``. Neither is touched until all of it is back.
        """
        counts = [self.parameters[name].shard_count for name in names]
        columns = [part.contiguous().view(-1) for part in torch.split(rows, counts, dim=1)]
        self._begin(names)
        return self.core.ready_sharded(list(names), columns, list(torch.split(output, counts)))

    def _begin(self, names: Sequence[str]) -> None:
        if self._ready.intersection(names):
            self.finish()
        if self._samples is not None and not self._ready:
            self._samples.weigh(self.core)
        self._ready.update(names)
        self._exchange.take_over()

    def wait(self, sent: ReadyGradients) -> None:
        """Waits for results; on a device the current stream does."""
        sent.wait()
        self._exchange.give_back()

    def finish(self) -> None:
        """Ends the step, where one is under way; its results were waited for, or lie on a host."""
        if self._ready:
            self._ready.clear()
            self.core.wait()

    @property
    def under_way(self) -> bool:
        """Whether a step is."""
        return bool(self._ready)

    def statistics(self, *, residual_norms: bool) -> Iterator[ParameterStatistics]:
        """Of the parameters that were sent."""
        every = self.core.parameter_statistics()
        norms = self.core.residual_norms() if residual_norms else [None] * len(every)
        return (
            self._told(one, norm)
            for one, norm in zip(every, norms, strict=True)
            if one.steps and one.name in self.parameters
        )

    def totals(self, *, residual_norm: bool) -> ParameterStatistics:
        """Of all of them together, in the steps that are complete."""
        norm = None
        if residual_norm:  # of those that did not move to another
            names = [one.name for one in self.core.parameter_statistics()]
            norms = zip(names, self.core.residual_norms(), strict=True)
            norm = math.hypot(*(one for name, one in norms if name in self.parameters))
        return self._counted(self.core.statistics_so_far(), norm)

    def _told(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        found = self._counted(one, norm)
        found.reason = self._reason or one.reason
        return found

    def _counted(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        found = of_parameter(one, self.kind.group.size(), norm)
        found.uncompressed_bytes *= self._sent_whole
        return found

    def read(self) -> tuple[ReducerState, dict[str, Kept]]:
        """The state, and views of it for each parameter with a residual."""
        state = ReducerState.read(self.core.save_state())
        every = self.core.parameter_statistics()
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
        return [(one.name, one.residual, one.longest_residual)]

    def _shards(self, count: int) -> list[int]:
        """Whose shards this rank encodes, so many: all, or by hosts those of its place."""
        group = self.kind.group
        if count == group.size():
            return list(range(count))
        hosts = self._hosts or self._exchange.transport.hosts()
        place = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        return [rank for rank, one in enumerate(place) if one == place[group.rank()]]

    def take_from(self, others: Sequence[ShardedReducer]) -> None:
        """What is kept of the parameters that are its own from now on. Between replicas a
        collective call."""
        self._take_residuals(others)
        for other in others:
            for name in self.parameters:
                other.parameters.pop(name, None)

    def _take_residuals(self, others: Sequence[ShardedReducer]) -> None:
        state, kept = self.read()
        for other in others:
            was, views = other.read()
            state.step = max(state.step, was.step)
            for name in kept.keys() & views.keys():
                if kept[name].residual.shape == views[name].residual.shape:
                    kept[name].residual.copy_(views[name].residual)
        self.write(state, {})

    def write(self, state: ReducerState, kept: Mapping[str, Kept]) -> None:
        """Loads what became of a state that was read, and of the views."""
        state.step = max((one.step for one in kept.values()), default=state.step)
        self.core.load_state(state.write())


class ReplicaReducer(ShardedReducer):
    """One reducer for the shards of some modules; its names end in ``(replicas)`` outside."""

    _sent_whole: ClassVar = 1.0

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Begins to reduce the shards of these parameters in place: ``rows`` is ``output``."""
        self._begin(names)
        return self.core.ready_flat(list(names), output)

    def sums(self) -> dict[str, Tensor]:
        """What is kept of each parameter's shard, the sum over replicas; a collective call."""
        state = ReducerState.read(self.core.save_portable_state())
        return {
            one.name: torch.from_numpy(one.residual)
            for one in state.parameters
            if len(one.residual) and one.name in self.parameters
        }

    def _take_residuals(self, others: Sequence[ShardedReducer]) -> None:
        """By the sums over replicas: who owns which part of a shard depends on its number."""
        step, sums = 0, {}
        for other in others:
            assert isinstance(other, ReplicaReducer)
            step = max(step, other.read()[0].step)
            sums.update(other.sums())
        self.load_sums(sums, self.kind.group.size(), dict.fromkeys(sums, step), step)

    def load_sums(
        self, sums: Mapping[str, Tensor], ranks: int, steps: Mapping[str, int], step: int
    ) -> list[str]:
        """Adds to results what so many ranks would have; nothing of a parameter that is not there.

        ``sums``: shards of the sums over those ranks. ``steps``: of each; ``step``: where there is
        none. Returns the names of those for which there is a residual.
        """
        state = ReducerState.read(self.core.save_portable_state())
        taken = {one.name for one in state.parameters if len(one.residual)}
        taken &= sums.keys() & self.parameters.keys()
        for one in state.parameters:
            kept = torch.from_numpy(one.residual).zero_()
            if one.name in taken:
                kept.copy_(sums[one.name])
        state.ranks = ranks
        state.step = max((steps[name] for name in taken), default=step)
        self.core.load_state(state.write())
        return list(taken)

    def _rules(self, options: ReducerOptions) -> ReducerOptions:
        asked = fill(_core.ReducerOptions(), options)
        dtype = dtype_text(self.kind.dtype)
        self._choices = {
            one.name: _core.choose_codec(asked, one.name, list(one.shape), dtype)
            for one in self.parameters.values()
        }
        rules = [
            (literal_pattern(name), codec, step)
            for name, choice in self._choices.items()
            for step, codec in choice.phases or [(0, choice.codec)]
        ]
        told = [rule for rule in rules if rule[1] != "auto"]
        if len(told) < len(rules):
            told.append(("*", "auto", 0))
        # Between replicas the prediction stays: the pass's time tells how shards should travel.
        return {"rules": told, "auto_learning": False}

    def _add(self, one: ShardedParameter) -> None:
        like = torch.empty(one.shard_count, dtype=self.kind.dtype, device=self.kind.device)
        self.core.add(one.name, like)

    def _residuals(self, one: ParameterState) -> Iterable[tuple[str, Any, int]]:
        return [
            (f"{one.name} (replicas)", one.residual, one.longest_residual),
            (f"{one.name} (replicas, sums)", one.owner, one.longest_owner),
        ]

    def _shards(self, count: int) -> list[int]:
        return []

    def _told(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        choice = self._choices[one.name]
        found = self._counted(one, norm)
        found.name = f"{one.name} (replicas)"
        found.reason = self._reason or (one.reason if choice.codec == "auto" else choice.reason)
        return found


class ReducedModule(Protocol):
    """The gradients of one ``FSDPModule``, or the shards between its replicas."""

    layout: ModuleLayout

    @property
    def is_expected(self) -> bool:
        """Whether the kind is known before FSDP asks for it."""

    def expected_kind(self) -> Kind:
        """The kind that FSDP will ask for."""


Made = TypeVar("Made", bound=ShardedReducer)


class Reducers(Generic[Made]):
    """One reducer for what FSDP asks for alike, made anew before a step with more parameters.

    They are in the order of modules then, as in a new run: noise depends on their numbers.
    """

    def __init__(self, options: ReducerOptions, make: Callable[..., Made]) -> None:
        """``make``: of their kind, parameters, options and reason."""
        self.exchanges: list[ReducedModule] = []  #: of all modules, in their order
        self._options = options
        self._new = make
        self._of: dict[ReducedModule, Made] = {}
        self._odd: dict[tuple[int, str, int, Kind], Made] = {}  # at most _MOST_ODD

    def all(self) -> list[Made]:
        """In the order of modules."""
        odd = [self._odd[key] for key in sorted(self._odd, key=lambda key: key[:3])]
        return [*dict.fromkeys(self._of.values()), *odd]

    def prepare(self) -> None:
        """Makes those that steps to come will need, as far as that can be told."""
        for exchange in self.exchanges:
            if exchange.is_expected and exchange not in self._of:
                self._make(exchange.expected_kind(), exchange)

    def of(self, exchange: ReducedModule, kind: Kind) -> Made:
        """The one for all parameters of a module that want a gradient."""
        made = self._of.get(exchange)
        if made is None or made.kind != kind:
            return self._make(kind, exchange)
        coming = [exchange] if made.under_way else self._alike(kind, exchange)
        wanted = {one.name for other in coming for one in other.layout.expected()}
        return made if wanted <= made.parameters.keys() else self._make(kind, exchange)

    def odd(
        self,
        exchange: ReducedModule,
        kind: Kind,
        message: ShardedParameter,
        options: ReducerOptions,
        reason: str,
    ) -> Made:
        """The one for a message, as one tensor, of which nobody says which parameters it holds.

        ``options``: beside those that all have; ``reason``: why it travels so.
        """
        key = (self.exchanges.index(exchange), message.name, message.shard_count, kind)
        if key not in self._odd:
            idle = [one for one, made in self._odd.items() if not made.under_way]
            if len(self._odd) >= _MOST_ODD and idle:
                del self._odd[idle[0]]
            self._odd[key] = self._new(kind, [message], {**self._options, **options}, reason)
        return self._odd[key]

    def reset(self) -> None:
        self._of.clear()
        self._odd.clear()

    def _alike(self, kind: Kind, certain: ReducedModule) -> list[ReducedModule]:
        """Those of which this is asked, or expected; no others that are in a step."""

        def is_alike(one: ReducedModule) -> bool:
            made = self._of.get(one)
            if made is None:
                return one.is_expected and one.expected_kind() == kind
            return made.kind == kind and not made.under_way

        return [one for one in self.exchanges if one is certain or is_alike(one)]

    def _make(self, kind: Kind, certain: ReducedModule) -> Made:
        alike = self._alike(kind, certain)
        before = {self._of[one]: None for one in alike if one in self._of}
        kept = {name for old in before for name in old.parameters}  # frozen ones, too
        parameters = [one for other in alike for one in other.layout.expected(kept)]
        made = self._new(kind, parameters, self._options)
        if before:
            made.take_from(list(before))
        self._of.update(dict.fromkeys(alike, made))
        return made
