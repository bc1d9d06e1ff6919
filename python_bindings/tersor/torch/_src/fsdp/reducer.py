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
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import ParameterState, ReadyGradients, ReducerState
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.collectives import Reduction
from tersor.reducer import ReducerOptions
from tersor.torch._src.fsdp.layout import Kept, ShardedParameter
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.parameters.selection import literal_pattern
from tersor.torch._src.process_group.connections import hosts_of
from tersor.torch._src.statistics.records import ParameterStatistics, of_parameter

if TYPE_CHECKING:
    from tersor.torch._src.fsdp.exchange import ModuleExchange

_MOST_ODD = 16  # reducers of messages as one tensor; all ranks drop the same reducers


@dataclass(frozen=True)
class Kind:
    """The common properties of the gradients of one reducer."""

    group: dist.ProcessGroup
    device: torch.device
    dtype: torch.dtype
    reduction: Reduction


class ShardedReducer:
    """One reducer, ``core``, for the gradients of some modules."""

    _sent_whole: ClassVar = 0.5  # bytes of a reduce-scatter compared with an all-reduce

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
        told: ReducerOptions = {"reduction": kind.reduction, "order": "ready_order"}
        if "hosts" in options:
            told["hosts"] = hosts_of(kind.group, options["hosts"])
        self._hosts = told.get("hosts")
        self.core = self._exchange.make({**told, **self._rules(self._exchange.options)})
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
    def under_way(self) -> bool:
        """True in a step."""
        return bool(self._ready)

    def statistics(self, *, residual_norms: bool) -> Iterator[ParameterStatistics]:
        """Returns the statistics of the sent parameters."""
        every = self.core.parameter_statistics()
        norms = self.core.residual_norms() if residual_norms else [None] * len(every)
        pairs, own = zip(every, norms, strict=True), self.parameters
        return (self._told(one, norm) for one, norm in pairs if one.steps and one.name in own)

    def totals(self, *, residual_norm: bool) -> ParameterStatistics:
        """Returns the statistics of all parameters together, of the completed steps."""
        norm = None
        if residual_norm:  # without parameters that another reducer has taken
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
        """Returns the state, and a view of each parameter's residual in the state."""
        state = ReducerState.read(self.core.save_state())
        every = self.core.parameter_statistics()
        changing = {one.name for one in every if one.codec_may_change}
        group, kept = self.kind.group, {}
        for one in state.parameters:
            if (parameter := self.parameters.get(one.name)) is None:
                continue
            for name, values, longest in self._residuals(one):
                if longest:
                    residual = torch.from_numpy(values)
                    shards = self._shards(len(values) // parameter.shard_count)
                    kept[name] = Kept(
                        parameter, one.codec, group.size(), group.rank(), residual, longest,
                        state.step, shards, one.name in changing,
                    )  # fmt: skip
        return state, kept

    def _residuals(self, one: ParameterState) -> Iterable[tuple[str, Any, int]]:
        return [(one.name, one.residual, one.longest_residual)]

    def _shards(self, count: int) -> list[int]:
        """Returns the ``count`` shards for this rank to encode: all, or a part of the host's."""
        group = self.kind.group
        if count == group.size():
            return list(range(count))
        hosts = self._hosts or self._exchange.transport.hosts()
        place = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        return [rank for rank, one in enumerate(place) if one == place[group.rank()]]

    def take_from(self, others: Sequence[ShardedReducer]) -> None:
        """Takes residuals of parameters from other reducers. Between replicas a collective call."""
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
        """Loads a state that ``read`` returned, after changes in its views."""
        state.step = max((one.step for one in kept.values()), default=state.step)
        self.core.load_state(state.write())


class ReplicaReducer(ShardedReducer):
    """One reducer for the shards of some modules. Statistics add ``(replicas)`` to the names."""

    _sent_whole: ClassVar = 1.0

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Starts to reduce the shards of these parameters in place: ``rows`` is ``output``."""
        self._begin(names)
        return self.core.ready_flat(list(names), output)

    def sums(self) -> dict[str, Tensor]:
        """Returns the sums of residuals over replicas by parameter. A collective call."""
        state = ReducerState.read(self.core.save_portable_state())
        own = [one for one in state.parameters if one.name in self.parameters]
        return {one.name: torch.from_numpy(one.residual) for one in own if len(one.residual)}

    def _take_residuals(self, others: Sequence[ShardedReducer]) -> None:
        """Takes sums over replicas. The owner of a part depends on the shard's index."""
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
        taken = {one.name for one in state.parameters if len(one.residual)}
        taken &= sums.keys() & self.parameters.keys()
        for one in state.parameters:
            kept = torch.from_numpy(one.residual).zero_()
            if one.name in taken:
                kept.copy_(sums[one.name])
        state.step = max((steps[name] for name in taken), default=step)
        self.core.load_state(state.write())
        return list(taken)

    def _rules(self, options: ReducerOptions) -> ReducerOptions:
        asked = fill(_core.ReducerOptions(), options)
        dtype = dtype_text(self.kind.dtype)
        self._choices = {n: one.choice(asked, dtype) for n, one in self.parameters.items()}
        rules = [
            (literal_pattern(name), codec, step)
            for name, choice in self._choices.items()
            for step, codec in choice.phases or [(0, choice.codec)]
        ]
        told = [rule for rule in rules if rule[1] != "auto"]
        if len(told) < len(rules):
            told.append(("*", "auto", 0))
        # Between replicas, the prediction stays: the pass's time is for the reduce-scatter.
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


Made = TypeVar("Made", bound=ShardedReducer)


class Reducers(Generic[Made]):
    """One reducer per kind of exchange. A step with more parameters makes a new reducer.

    Parameters stay in the order of modules, as in a new run, because stochastic rounding depends
    on a parameter's index.
    """

    def __init__(self, options: ReducerOptions, make: Callable[..., Made]) -> None:
        """``make`` takes the kind, parameters, options and reason."""
        self.exchanges: list[ModuleExchange] = []  #: in the order of modules
        self._options = options
        self._new = make
        self._of: dict[ModuleExchange, Made] = {}
        self._odd: dict[tuple[int, str, int, Kind], Made] = {}  # at most _MOST_ODD

    def all(self) -> list[Made]:
        """Returns the reducers in the order of modules."""
        odd = [self._odd[key] for key in sorted(self._odd, key=lambda key: key[:3])]
        return [*dict.fromkeys(self._of.values()), *odd]

    def units(self) -> dict[str, tuple[float, float]]:
        """Returns the factors from sums of residuals to the gradient, as ``FsdpGroup.units``."""
        pairs = [(exchange.layout, made.kind.dtype) for exchange, made in self._of.items()]
        return {
            name: layout.units(dtype) for layout, dtype in pairs for name, _ in layout.trained()
        }

    def prepare(self) -> None:
        """Makes the reducers of later steps, as far as FSDP's requests can be predicted."""
        for exchange in self.exchanges:
            if exchange.is_expected and exchange not in self._of:
                self._make(exchange.expected_kind(), exchange)

    def of(self, exchange: ModuleExchange, kind: Kind) -> Made:
        """Returns the reducer of the module's trained parameters."""
        made = self._of.get(exchange)
        if made is None or made.kind != kind:
            return self._make(kind, exchange)
        coming = [exchange] if made.under_way else self._alike(kind, exchange)
        wanted = {one.name for other in coming for one in other.layout.expected()}
        return made if wanted <= made.parameters.keys() else self._make(kind, exchange)

    def odd(
        self,
        exchange: ModuleExchange,
        kind: Kind,
        message: ShardedParameter,
        options: ReducerOptions,
        reason: str,
    ) -> Made:
        """Returns the reducer of a message with unknown parameters, sent as a single tensor.

        ``options`` are added to the common options; statistics report ``reason``.
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

    def _alike(self, kind: Kind, certain: ModuleExchange) -> list[ModuleExchange]:
        """Returns the exchanges of this kind, requested or expected, that are not in a step."""

        def is_alike(one: ModuleExchange) -> bool:
            made = self._of.get(one)
            if made is None:
                return one.is_expected and one.expected_kind() == kind
            return made.kind == kind and not made.under_way

        return [one for one in self.exchanges if one is certain or is_alike(one)]

    def _make(self, kind: Kind, certain: ModuleExchange) -> Made:
        alike = self._alike(kind, certain)
        before = {self._of[one]: None for one in alike if one in self._of}
        kept = {name for old in before for name in old.parameters}  # frozen parameters too
        parameters = [one for other in alike for one in other.layout.expected(kept)]
        made = self._new(kind, parameters, self._options)
        if before:
            made.take_from(list(before))
        self._of.update(dict.fromkeys(alike, made))
        return made
