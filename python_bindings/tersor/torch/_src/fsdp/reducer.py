"""The reducers of a sharded model: one reducer per kind of request of FSDP.

All ranks call the collectives of modules in the same order. The reducers therefore learn no order,
and a module without gradients takes no part in a step. A step is a backward pass, or ends when a
module is reduced again.

On a 2-D mesh, further reducers exchange shards between replicas. A shard uses the codec of the
whole parameter. An all-reduce encodes twice. A rank therefore keeps residuals of sent values and of
forwarded sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import ParameterState, ReadyGradients, ReducerState
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.collectives import Reduction
from tersor.reducer import ReducerOptions
from tersor.torch._src.fsdp.layout import ModuleLayout, ResidualView, ShardedParameter
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.parameters.selection import literal_pattern
from tersor.torch._src.process_group.connections import hosts_of
from tersor.torch._src.statistics.records import ParameterStatistics, of_parameter

_MAX_FALLBACKS = 16  # reducers of messages as one tensor; all ranks drop the same reducers


@dataclass(frozen=True)
class Kind:
    """The common properties of the gradients of one reducer."""

    group: dist.ProcessGroup
    device: torch.device
    dtype: torch.dtype
    reduction: Reduction


class ShardedReducer:
    """One reducer, ``core``, for the gradients of some modules."""

    _traffic_factor: ClassVar = 0.5  # bytes of a reduce-scatter compared with an all-reduce

    def __init__(
        self,
        kind: Kind,
        parameters: Iterable[ShardedParameter],
        options: ReducerOptions,
        reason: str | None = None,
        samples: Samples | None = None,
    ) -> None:
        """``reason`` replaces the reason of the rules in statistics."""
        self.kind, self._samples = kind, samples
        self.parameters = {one.name: one for one in parameters}  #: the parameters of this reducer
        self._reason = reason
        self._ready: set[str] = set()
        self._exchange = TensorExchange(kind.group, kind.device, options)
        extra: ReducerOptions = {"reduction": kind.reduction, "order": "ready_order"}
        if "hosts" in options:
            extra["hosts"] = hosts_of(kind.group, options["hosts"])
        self._hosts = extra.get("hosts")
        self.core = self._exchange.make({**extra, **self._rules(self._exchange.options)})
        for one in self.parameters.values():
            self._add(one)

    def _rules(self, options: ReducerOptions) -> ReducerOptions:
        """Returns options that replace ``options``."""
        return {}

    def _add(self, one: ShardedParameter) -> None:
        like = torch.empty(0, dtype=self.kind.dtype, device=self.kind.device)
        self.core.add_sharded(one.name, like, list(one.shape), one.shard_count)

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Starts to reduce the columns of ``rows`` (ranks, shards of these parameters).

        ``output`` receives this rank's shards. Do not touch ``rows`` and ``output`` before.
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
        self._exchange.acquire()

    def wait(self, sent: ReadyGradients) -> None:
        """Waits for results. On a device, the current stream waits."""
        sent.wait()
        self._exchange.release()

    def finish(self) -> None:
        """Ends the current step, if any."""
        if self._ready:
            self._ready.clear()
            self.core.wait()

    @property
    def in_step(self) -> bool:
        """True in a step."""
        return bool(self._ready)

    def statistics(self, *, residual_norms: bool) -> Iterator[ParameterStatistics]:
        """Returns the statistics of the sent parameters."""
        every = self.core.parameter_statistics()
        norms = self.core.residual_norms() if residual_norms else [None] * len(every)
        pairs, own = zip(every, norms, strict=True), self.parameters
        return (self._record(one, norm) for one, norm in pairs if one.steps and one.name in own)

    def totals(self, *, residual_norm: bool) -> ParameterStatistics:
        """Returns the statistics of all parameters together, of the completed steps."""
        norm = None
        if residual_norm:  # without parameters that another reducer has taken
            names = [one.name for one in self.core.parameter_statistics()]
            norms = zip(names, self.core.residual_norms(), strict=True)
            norm = math.hypot(*(one for name, one in norms if name in self.parameters))
        return self._counts(self.core.statistics_so_far(), norm)

    def _record(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        found = self._counts(one, norm)
        found.reason = self._reason or one.reason
        return found

    def _counts(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        found = of_parameter(one, self.kind.group.size(), norm)
        found.uncompressed_bytes *= self._traffic_factor
        return found

    def read(self) -> tuple[ReducerState, dict[str, ResidualView]]:
        """Returns the state, and a view of each parameter's residual in the state."""
        state = ReducerState.read(self.core.save_state())
        every = self.core.parameter_statistics()
        changing = {one.name for one in every if one.codec_may_change}
        group, views = self.kind.group, {}
        for one in state.parameters:
            if (parameter := self.parameters.get(one.name)) is None:
                continue
            for name, values, longest in self._residuals(one):
                if longest:
                    residual = torch.from_numpy(values)
                    shards = self._shards(len(values) // parameter.shard_count)
                    views[name] = ResidualView(
                        parameter, one.codec, group.size(), group.rank(), residual, longest,
                        state.step, shards, one.name in changing,
                    )  # fmt: skip
        return state, views

    def _residuals(self, one: ParameterState) -> Iterable[tuple[str, Any, int]]:
        return [(one.name, one.residual, one.longest_residual)]

    def _shards(self, count: int) -> list[int]:
        """Returns the ``count`` shards for this rank to encode: all, or a part of the host's."""
        group = self.kind.group
        if count == group.size():
            return list(range(count))
        hosts = self._hosts or self._exchange.transport.hosts()
        positions = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        return [rank for rank, one in enumerate(positions) if one == positions[group.rank()]]

    def move_from(self, others: Sequence[ShardedReducer]) -> None:
        """Moves residuals of parameters from other reducers. Between replicas a collective call."""
        self._move_residuals(others)
        for other in others:
            for name in self.parameters:
                other.parameters.pop(name, None)

    def _move_residuals(self, others: Sequence[ShardedReducer]) -> None:
        state, own = self.read()
        for other in others:
            previous, views = other.read()
            state.step = max(state.step, previous.step)
            for name in own.keys() & views.keys():
                if own[name].residual.shape == views[name].residual.shape:
                    own[name].residual.copy_(views[name].residual)
        self.write(state, {})

    def write(self, state: ReducerState, views: Mapping[str, ResidualView]) -> None:
        """Loads a state that ``read`` returned, after changes in its views."""
        state.step = max((one.step for one in views.values()), default=state.step)
        self.core.load_state(state.write())


class ReplicaReducer(ShardedReducer):
    """One reducer for the shards of some modules. Statistics add ``(replicas)`` to the names."""

    _traffic_factor: ClassVar = 1.0

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Starts to reduce the shards of these parameters in place: ``rows`` is ``output``."""
        self._begin(names)
        return self.core.ready_flat(list(names), output)

    def sums(self) -> dict[str, Tensor]:
        """Returns the sums of residuals over replicas by parameter. A collective call."""
        state = ReducerState.read(self.core.save_portable_state())
        own = [one for one in state.parameters if one.name in self.parameters]
        return {one.name: torch.from_numpy(one.residual) for one in own if len(one.residual)}

    def _move_residuals(self, others: Sequence[ShardedReducer]) -> None:
        """Moves sums over replicas. The owner of a part depends on the shard's index."""
        step, sums = 0, {}
        for other in others:
            assert isinstance(other, ReplicaReducer)
            step = max(step, other.read()[0].step)
            sums.update(other.sums())
        self.load_sums(sums, dict.fromkeys(sums, step), step)

    def load_sums(
        self, sums: Mapping[str, Tensor], steps: Mapping[str, int], step: int
    ) -> list[str]:
        """Loads sums of residuals over replicas. Other parameters start at zero.

        Args:
            sums: This rank's shard of each parameter's sum.
            steps: Step of each parameter.
            step: Step of a reducer without these parameters.

        Returns:
            The names of parameters that took a residual.
        """
        state = ReducerState.read(self.core.save_portable_state())
        loaded = {one.name for one in state.parameters if len(one.residual)}
        loaded &= sums.keys() & self.parameters.keys()
        for one in state.parameters:
            residual = torch.from_numpy(one.residual).zero_()
            if one.name in loaded:
                residual.copy_(sums[one.name])
        state.step = max((steps[name] for name in loaded), default=step)
        self.core.load_state(state.write())
        return list(loaded)

    def _rules(self, options: ReducerOptions) -> ReducerOptions:
        core_options = fill(_core.ReducerOptions(), options)
        dtype = dtype_text(self.kind.dtype)
        self._choices = {n: one.choice(core_options, dtype) for n, one in self.parameters.items()}
        rules = [
            (literal_pattern(name), codec, step)
            for name, choice in self._choices.items()
            for step, codec in choice.phases or [(0, choice.codec)]
        ]
        chosen = [rule for rule in rules if rule[1] != "auto"]
        if len(chosen) < len(rules):
            chosen.append(("*", "auto", 0))
        # Between replicas, the prediction stays: the pass's time is for the reduce-scatter.
        return {"rules": chosen, "auto_learning": False}

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

    def _record(self, one: _core.ReducerStatistics, norm: float | None) -> ParameterStatistics:
        choice = self._choices[one.name]
        found = self._counts(one, norm)
        found.name = f"{one.name} (replicas)"
        found.reason = self._reason or (one.reason if choice.codec == "auto" else choice.reason)
        return found


class Requester:
    """A module's reduce-scatter or all-reduce between replicas, which requests reducers."""

    active: bool
    layout: ModuleLayout
    _replicas: dist.ProcessGroup | None  #: the group of the all-reduce; None: a reduce-scatter

    @property
    def group(self) -> dist.ProcessGroup:
        """The expected group of the exchange."""
        return self._replicas or self.layout.scatter_group

    def expected_kind(self) -> Kind:
        """Returns the kind of exchange that FSDP is expected to request."""
        averages = self.layout.averages(replicas=self._replicas is not None)
        reduction: Reduction = "mean" if averages else "sum"
        return Kind(self.group, self.layout.device, self.layout.dtype, reduction)

    @property
    def is_expected(self) -> bool:
        """True if the kind of exchange can be predicted."""
        return self.active and self.layout.known


ReducerT = TypeVar("ReducerT", bound=ShardedReducer)


class Reducers(Generic[ReducerT]):
    """One reducer per kind of exchange. A step with more parameters makes a new reducer.

    Parameters stay in the order of modules, as in a new run, because stochastic rounding depends
    on a parameter's index.
    """

    def __init__(self, options: ReducerOptions, make: Callable[..., ReducerT]) -> None:
        """``make`` takes the kind, parameters, options and reason."""
        self.exchanges: list[Requester] = []  #: in the order of modules
        self._options = options
        self._new = make
        self._reducers: dict[Requester, ReducerT] = {}
        self._fallbacks: dict[tuple[int, str, int, Kind], ReducerT] = {}  # at most _MAX_FALLBACKS

    def all(self) -> list[ReducerT]:
        """Returns the reducers in the order of modules."""
        others = [self._fallbacks[key] for key in sorted(self._fallbacks, key=lambda key: key[:3])]
        return [*dict.fromkeys(self._reducers.values()), *others]

    def units(self) -> dict[str, tuple[float, float]]:
        """Returns the factors from sums of residuals to the gradient, as ``FsdpGroup.units``."""
        pairs = [(exchange.layout, one.kind.dtype) for exchange, one in self._reducers.items()]
        return {
            name: layout.units(dtype) for layout, dtype in pairs for name, _ in layout.trained()
        }

    def prepare(self) -> None:
        """Makes the reducers of later steps, as far as FSDP's requests can be predicted."""
        for exchange in self.exchanges:
            if exchange.is_expected and exchange not in self._reducers:
                self._make(exchange.expected_kind(), exchange)

    def reducer_for(self, exchange: Requester, kind: Kind) -> ReducerT:
        """Returns the reducer of the module's trained parameters."""
        reducer = self._reducers.get(exchange)
        if reducer is None or reducer.kind != kind:
            return self._make(kind, exchange)
        exchanges = [exchange] if reducer.in_step else self._same_kind(kind, exchange)
        wanted = {one.name for other in exchanges for one in other.layout.expected()}
        return reducer if wanted <= reducer.parameters.keys() else self._make(kind, exchange)

    def fallback(
        self,
        exchange: Requester,
        kind: Kind,
        message: ShardedParameter,
        options: ReducerOptions,
        reason: str,
    ) -> ReducerT:
        """Returns the reducer of a message with unknown parameters, sent as a single tensor.

        ``options`` are added to the common options; statistics report ``reason``.
        """
        key = (self.exchanges.index(exchange), message.name, message.shard_count, kind)
        if key not in self._fallbacks:
            idle = [one for one, reducer in self._fallbacks.items() if not reducer.in_step]
            if len(self._fallbacks) >= _MAX_FALLBACKS and idle:
                del self._fallbacks[idle[0]]
            self._fallbacks[key] = self._new(kind, [message], {**self._options, **options}, reason)
        return self._fallbacks[key]

    def reset(self) -> None:
        self._reducers.clear()
        self._fallbacks.clear()

    def _same_kind(self, kind: Kind, requested: Requester) -> list[Requester]:
        """Returns the exchanges of this kind, requested or expected, that are not in a step."""

        def matches(one: Requester) -> bool:
            reducer = self._reducers.get(one)
            if reducer is None:
                return one.is_expected and one.expected_kind() == kind
            return reducer.kind == kind and not reducer.in_step

        return [one for one in self.exchanges if one is requested or matches(one)]

    def _make(self, kind: Kind, requested: Requester) -> ReducerT:
        exchanges = self._same_kind(kind, requested)
        before = {self._reducers[one]: None for one in exchanges if one in self._reducers}
        known = {name for old in before for name in old.parameters}  # frozen parameters too
        parameters = [one for other in exchanges for one in other.layout.expected(known)]
        reducer = self._new(kind, parameters, self._options)
        if before:
            reducer.move_from(list(before))
        self._reducers.update(dict.fromkeys(exchanges, reducer))
        return reducer
