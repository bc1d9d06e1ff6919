"""The exchanges of DiLoCo: sends differences, and moves the common weights by the mean."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from tersor._core import RanksLostError, TransportError
from tersor.collectives import allreduce
from tersor.torch._src.diloco.fragments import PendingFragment, SyncSchedule, differences, divide
from tersor.torch._src.diloco.stragglers import Role, Stragglers
from tersor.torch._src.gradients.exchange import Presence, Result
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import shards_of
from tersor.torch._src.statistics.handles import ElasticReporting
from tersor.torch._src.statistics.records import ParameterStatistics


class FragmentExchange(ElasticReporting):
    """The exchanges of a model, in fragments. The subclass makes the attributes."""

    fragment_update_alpha: float
    error_decay: float
    steps: int
    outer_optimizer: torch.optim.Optimizer
    _model: nn.Module
    _parameters: Mapping[str, nn.Parameter]
    _presence: Presence
    _schedule: SyncSchedule
    _fragments: list[list[str]]
    _start: dict[str, nn.Parameter]  # the common parameters
    _active: list[str]  # the parameters that some rank moved
    _pending: PendingFragment | None
    _role: Role
    _stragglers: Stragglers | None

    @property
    def held_steps(self) -> int:
        """With ``straggler_timeout``: inner steps of this rank since its last exchange; else 0."""
        return 0 if self._stragglers is None else self._stragglers.steps

    def close(self) -> None:
        """Ends the threads of ``straggler_timeout`` on all ranks. Waits for a fragment under way.

        A collective call, the last of a training. Without ``close``, ranks would treat the end of
        other ranks as a loss. Call ``synchronize`` or ``close`` before you free a ``DiLoCo`` with a
        fragment under way. Otherwise all handles of the process group raise TransportError.

        Raises:
            InvalidArgumentError: Other ranks make another call.
            TransportError: The fragment under way failed.

        Example::

            outer.synchronize()
            outer.close()
        """
        if self._stragglers is None:
            self._wait_pending()  # freeing a reducer in a step aborts the group's exchanges
        else:
            self._stragglers.close()

    def resume(self) -> None:
        super().resume() if self._stragglers is None else self._stragglers.resume()

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        with self._exclusive():
            return super().statistics(residual_norms=residual_norms)

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        with self._exclusive():
            return super().totals(residual_norms=residual_norms)

    def _exclusive(self) -> contextlib.AbstractContextManager[object]:
        """A context in which no other thread uses the reducer."""
        return contextlib.nullcontext() if self._stragglers is None else self._stragglers.lock

    def _run_elastic(self, work: Callable[[], Result]) -> Result:
        """Leaves out the fragment under way if ranks are lost; the next exchange sends it."""

        def attempt() -> Result:
            try:
                return work()
            except TransportError:
                self._pending = None
                raise

        return self._exchange.run_elastic(attempt)

    def _step(self) -> bool:
        fragment = self._schedule.fragment_at(self.steps)
        arrived = self._apply_due(self.steps if fragment is None else math.inf)
        if fragment is None:
            return arrived
        if fragment == 0 or not self._active:
            self._find_active()
        delay = self._schedule.fragment_sync_delay
        self._send(self._fragments[fragment], delay, self.fragment_update_alpha)
        return self._apply_due(self.steps) or arrived

    def _synchronize(self) -> None:
        self._apply_due(math.inf)
        self._find_active()
        self._send(list(self._start), 0, 0.0)
        self._apply_due(math.inf)

    def _refresh(self) -> Mapping[str, nn.Parameter]:
        self._parameters = selection.refreshed(self._model, self._parameters, "DiLoCo")
        return self._parameters

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        selection.refuse_unsupported(parameters, "DiLoCo")
        selection.refuse_sharded(parameters, self._process_group(), "use tersor.torch.compress")

    def _make_fragments(self) -> list[list[str]]:
        counts = {name: one.numel() for name, one in self._parameters.items()}  # of all shards
        return divide(counts, self._schedule.fragments)

    def _find_active(self, extra: Sequence[bool] = ()) -> list[int]:
        """Finds the moved and the newly trained parameters of all ranks. A collective call.

        Late ranks count as ranks without parameters. Returns the number of ranks with each of
        ``extra`` set.
        """
        shards, present = self._weights(), self._role.present
        moved = torch.stack([(start != shards[n]).any() for n, start in self._start.items()])
        own = dict(zip(self._start, moved.tolist(), strict=True))
        every = selection.every_parameter(self._model)
        trained = {n: own.get(n, present and one.requires_grad) for n, one in every.items()}
        self._active, counts = self._presence.on_any_rank(trained, extra)
        return counts

    def _weights(self) -> Mapping[str, Tensor]:
        return shards_of(self._refresh()) if self._role.present else self._start

    def _run_exchange(self, role: Role) -> bool:
        """An exchange of all ranks, some of them late, on the thread of ``Stragglers``.

        Returns whether some rank had a difference. An unfrozen parameter waits until no rank is
        late.
        """
        self._role = role
        if role.present and self._stragglers is not None:
            self._stragglers.apply_missed()
        (contributing,) = self._find_active([role.samples > 0])
        if not (contributing or role.all_present):
            return False
        if not contributing:
            self._role = Role()  # no rank counted a step: differences have equal weights
        if not role.all_present:
            self._active = [name for name in self._active if name in self._start]
        self._send(list(self._start), 0, 0.0)
        return self._apply_due(math.inf)

    def _send(self, names: Sequence[str], delay: int, alpha: float) -> None:
        """Sends the moved parameters. The update is ``delay`` steps later."""
        if self.error_decay != 1 and self._role.samples > 0:
            self.reducer.scale_residuals(self.error_decay, names)
        shards, active = self._weights(), set(self._active)
        moving = {n: (self._start[n], shards[n]) for n in names if n in active}
        self._pending = PendingFragment(self.steps + delay, alpha, {})
        if self._stragglers is not None:
            self.reducer.weigh(self._role.samples)
        for flat, parts in differences(moving):
            self._exchange.acquire()
            self.reducer.ready_flat(list(parts), flat)
            self._pending.mean.update(parts)
        self.reducer.flush()

    def _wait_pending(self) -> None:
        if self._pending is not None and not self._pending.is_complete:
            self._exchange.wait()
            self._pending.is_complete = True

    def _apply_due(self, step: float) -> bool:
        """Updates the weights by the fragment under way, if the update is due after this step."""
        if self._pending is None:
            return False
        if self._pending.due > step:
            with contextlib.suppress(RanksLostError):  # the completed step counts
                self.reducer.progress()
            return False
        self._wait_pending()
        mean, alpha, self._pending = self._pending.mean, self._pending.alpha, None
        if self._role.present:
            self._outer_step(mean)
            live = self._refresh()
            for name in mean:
                own, start = selection.local_shard(live[name]), self._start[name]
                own.lerp_(start, 1 - alpha) if alpha else own.copy_(start)
        elif self._stragglers is not None:
            before = {name: self._start[name].clone() for name in mean}
            self._outer_step(mean)
            self._stragglers.add_missed({n: self._start[n] - one for n, one in before.items()})
        self._add_newcomers([name for name in self._active if name not in self._start])
        return True

    def _outer_step(self, mean: Mapping[str, Tensor]) -> None:
        for name, start in self._start.items():
            start.grad = mean.get(name)
        self.outer_optimizer.step()
        self.outer_optimizer.zero_grad()

    def _add_newcomers(self, newcomers: Collection[str]) -> None:
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
        self._fragments = self._make_fragments()
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
