"""The exchanges of DiLoCo: sends differences, and moves the common weights by the mean."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from tersor._core import RanksLostError, TransportError
from tersor.collectives import allreduce
from tersor.torch._src.diloco.fragments import Timetable, UnderWay, differences, divide
from tersor.torch._src.diloco.stragglers import LateReporting, Part
from tersor.torch._src.gradients.exchange import Presence, Result
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import shards_of


class FragmentExchange(LateReporting):
    """The exchanges of a model, in fragments. The subclass makes the attributes."""

    fragment_update_alpha: float
    error_decay: float
    steps: int
    outer_optimizer: torch.optim.Optimizer
    _model: nn.Module
    _parameters: Mapping[str, nn.Parameter]
    _presence: Presence
    _timetable: Timetable
    _fragments: list[list[str]]
    _start: dict[str, nn.Parameter]  # the common parameters
    _somewhere: list[str]  # the parameters that some rank moved
    _under_way: UnderWay | None
    _part: Part

    def _together(self, work: Callable[[], Result]) -> Result:
        """Leaves out the fragment under way if ranks are lost; the next exchange sends it."""

        def attempt() -> Result:
            try:
                return work()
            except TransportError:
                self._under_way = None
                raise

        return self._exchange.run_elastic(attempt)

    def _step(self) -> bool:
        turn = self._timetable.turn_of(self.steps)
        arrived = self._settle(self.steps if turn is None else math.inf)
        if turn is None:
            return arrived
        if turn == 0 or not self._somewhere:
            self._look()
        delay = self._timetable.fragment_sync_delay
        self._send(self._fragments[turn], delay, self.fragment_update_alpha)
        return self._settle(self.steps) or arrived

    def _synchronize(self) -> None:
        self._settle(math.inf)
        self._look()
        self._send(list(self._start), 0, 0.0)
        self._settle(math.inf)

    def _follow(self) -> Mapping[str, nn.Parameter]:
        self._parameters = selection.refreshed(self._model, self._parameters, "DiLoCo")
        return self._parameters

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        selection.refuse_unsupported(parameters, "DiLoCo")
        selection.refuse_sharded(parameters, self._process_group(), "use tersor.torch.compress")

    def _divided(self) -> list[list[str]]:
        counts = {name: one.numel() for name, one in self._parameters.items()}  # of all shards
        return divide(counts, self._timetable.fragments)

    def _look(self, also: Sequence[bool] = ()) -> list[int]:
        """Finds the moved and the newly trained parameters of all ranks. A collective call.

        Late ranks count as ranks without parameters. Returns the number of ranks with each of
        ``also`` set.
        """
        shards, here = self._weights(), self._part.here
        moved = torch.stack([(start != shards[n]).any() for n, start in self._start.items()])
        own = dict(zip(self._start, moved.tolist(), strict=True))
        every = selection.every_parameter(self._model)
        trained = {n: own.get(n, here and one.requires_grad) for n, one in every.items()}
        self._somewhere, counts = self._presence.on_any_rank(trained, also)
        return counts

    def _weights(self) -> Mapping[str, Tensor]:
        return shards_of(self._follow()) if self._part.here else self._start

    def _take_part(self, part: Part) -> bool:
        """An exchange of all ranks, some of them late, on the thread of ``Stragglers``.

        Returns whether some rank had a difference. An unfrozen parameter waits until no rank is
        late.
        """
        self._part = part
        if part.here and self._stragglers is not None:
            self._stragglers.follow_now()
        (weighing,) = self._look([part.samples > 0])
        if not (weighing or part.everyone):
            return False
        if not weighing:
            self._part = Part()  # no rank counted a step: differences have equal weights
        if not part.everyone:
            self._somewhere = [name for name in self._somewhere if name in self._start]
        self._send(list(self._start), 0, 0.0)
        return self._settle(math.inf)

    def _send(self, names: Sequence[str], delay: int, mix: float) -> None:
        """Sends the moved parameters. The update is ``delay`` steps later."""
        if self.error_decay != 1 and self._part.samples > 0:
            self.reducer.scale_residuals(self.error_decay, names)
        shards, active = self._weights(), set(self._somewhere)
        moving = {n: (self._start[n], shards[n]) for n in names if n in active}
        self._under_way = UnderWay(self.steps + delay, mix, {})
        if self._stragglers is not None:
            self.reducer.weigh(self._part.samples)
        for flat, parts in differences(moving):
            self._exchange.acquire()
            self.reducer.ready_flat(list(parts), flat)
            self._under_way.mean.update(parts)
        self.reducer.flush()

    def close(self) -> None:
        if self._stragglers is None:
            self._fetch()  # to free a reducer with a step under way aborts the group's exchanges
        super().close()

    def _fetch(self) -> None:
        if self._under_way is not None and not self._under_way.is_here:
            self._exchange.wait()
            self._under_way.is_here = True

    def _settle(self, step: float) -> bool:
        """Updates the weights by the fragment under way, if the update is due after this step."""
        if self._under_way is None:
            return False
        if self._under_way.due > step:
            with contextlib.suppress(RanksLostError):  # the completed step counts
                self.reducer.progress()
            return False
        self._fetch()
        mean, mix, self._under_way = self._under_way.mean, self._under_way.mix, None
        if self._part.here:
            self._step_outside(mean)
            live = self._follow()
            for name in mean:
                own, start = selection.local_shard(live[name]), self._start[name]
                own.lerp_(start, 1 - mix) if mix else own.copy_(start)
        elif self._stragglers is not None:
            before = {name: self._start[name].clone() for name in mean}
            self._step_outside(mean)
            self._stragglers.fall_behind({n: self._start[n] - one for n, one in before.items()})
        self._take_in([name for name in self._somewhere if name not in self._start])
        return True

    def _step_outside(self, mean: Mapping[str, Tensor]) -> None:
        for name, start in self._start.items():
            start.grad = mean.get(name)
        self.outer_optimizer.step()
        self.outer_optimizer.zero_grad()

    def _take_in(self, newcomers: Collection[str]) -> None:
        """Averages parameters that were frozen at the last exchange."""
        if not newcomers:
            return
        every = selection.every_parameter(self._model)
        new = {name: every[name] for name in newcomers}
        self._check(new)
        ranks, limit = self._exchange.channel(), self._exchange.options["timeout"]
        for shard in shards_of(new).values():
            mean = shard.contiguous()
            allreduce(ranks, mean, codec="none", reduction="mean", timeout=limit)
            shard.copy_(mean)
        exchanged = {*self._start, *newcomers}
        parameters = {name: one for name, one in every.items() if name in exchanged}
        start = self._with_start(parameters)
        self._exchange.register(shards_of(start))
        self._parameters, self._start = parameters, start  # an error before leaves newcomers out
        self._fragments = self._divided()
        (group, *others) = self.outer_optimizer.param_groups
        if others:
            self.outer_optimizer.add_param_group({"params": [self._start[n] for n in newcomers]})
        else:
            group["params"][:] = self._start.values()  # in the order of a new one's

    def _with_start(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """The common parameters, and copies of the others."""
        before = self._start
        return {
            name: before[name] if name in before else nn.Parameter(shard.clone())
            for name, shard in shards_of(parameters).items()
        }
