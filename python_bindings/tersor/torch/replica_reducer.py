"""The reducer between replicas: of a mesh of two dimensions, each rank's shard among its replicas.

A parameter has the codec that rules choose for the whole of it, not for its shard. An all-reduce
encodes twice, so beside what a rank sends there is a residual of the part whose sum it sends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor._core import CodecChoice, ParameterState, ReadyGradients, ReducerState
from tersor._options import fill
from tersor.reducer import ReducerOptions
from tersor.torch.checkpoint import zeros
from tersor.torch.parameters import literal_pattern
from tersor.torch.sharded_reducer import DTYPE_NAMES, ShardedReducer
from tersor.torch.sharding import ShardedParameter
from tersor.torch.statistics import ParameterStatistics, of_replicas


class ReplicaReducer(ShardedReducer):
    """One reducer for the shards of some modules; its names end in ``(replicas)`` outside."""

    _choices: dict[str, CodecChoice]

    def send(self, names: Sequence[str], rows: Tensor, output: Tensor) -> ReadyGradients:
        """Begins to reduce the shards of these parameters in place: ``rows`` is ``output``."""
        self._begin(names)
        return self._core.ready_flat(list(names), output)

    def keeps(self, name: str) -> bool:
        """Whether there is a residual of this parameter."""
        return name in self.parameters and f"{name} (replicas)" in self.read()[1]

    def sums(self) -> dict[str, Tensor]:
        """What is kept of each parameter's shard, the sum over replicas; a collective call."""
        state = ReducerState.read(self._core.save_portable_state())
        return {
            one.name: torch.from_numpy(one.residual)
            for one in state.parameters
            if len(one.residual) and one.name in self.parameters
        }

    def load_sums(self, sums: Mapping[str, Tensor], ranks: int, step: int) -> None:
        """Adds to results what so many ranks would have; nothing of a parameter that is not there.

        ``sums``: shards of the sums over those ranks.
        """
        own = ReducerState.read(self._core.save_portable_state())
        state = ReducerState()
        state.form, state.reduction = "portable", self.kind.reduction
        state.ranks, state.step = ranks, step
        nothing = zeros(0).numpy()
        for one in own.parameters:
            kept = zeros(len(one.residual))
            if one.name in sums and len(kept):
                kept.copy_(sums[one.name])
            state.add(one.name, one.codec, one.count, 0, kept.numpy(), nothing, nothing)
        self._core.load_state(state.write())

    def _with_rules(self, options: ReducerOptions) -> ReducerOptions:
        asked = fill(_core.ReducerOptions(), options)
        dtype = DTYPE_NAMES[self.kind.dtype]
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
        return {**options, "rules": told, "auto_learning": False}

    def _add(self, one: ShardedParameter) -> None:
        like = torch.empty(one.shard_count, dtype=self.kind.dtype, device=self.kind.device)
        self._core.add(one.name, like)

    def _residuals(self, one: ParameterState) -> Iterable[tuple[str, Any, int]]:
        """Of what this rank sends, and of what it sends on."""
        return [
            (f"{one.name} (replicas)", one.residual, one.longest_residual),
            (f"{one.name} (replicas, sums)", one.owner, one.longest_owner),
        ]

    def _shards(self, count: int) -> list[int]:
        return []

    def _told(self, one: _core.ReducerStatistics) -> ParameterStatistics:
        choice = self._choices[one.name]
        reason = self._reason or (one.reason if choice.codec == "auto" else choice.reason)
        return of_replicas(one, f"{one.name} (replicas)", reason, self.kind.group.size())


def residual_count(one: ShardedParameter, replicas: dist.ProcessGroup | None) -> int:
    """How many values a rank keeps between replicas, at most."""
    return 0 if replicas is None else one.shard_count + -(-one.shard_count // replicas.size())
