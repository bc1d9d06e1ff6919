"""Local SGD and DiLoCo: ranks train alone for some steps, then average what they learned.

DiLoCo (Douillard et al. 2023, arXiv:2311.08105): after H inner steps each rank's difference
θ(start) - θ(now) is taken for a gradient, averaged over ranks, and given to an outer optimizer,
Nesterov momentum, which moves θ(start). With plain SGD of rate 1 outside it is local SGD (Stich
2018, arXiv:1805.09767), the mean of the ranks' parameters. Without momentum outside, and with
residuals that decay instead, it is SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706). A part of the
model at a time, which travels while ranks train on, it is Streaming DiLoCo (Douillard et al. 2025,
arXiv:2501.18512).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError, RanksLostError, TransportError
from tersor._options import expect
from tersor.collectives import allreduce
from tersor.torch._src.checkpoint.residuals import Mode, check_mode, save_reducer
from tersor.torch._src.collectives.models import broadcast_start
from tersor.torch._src.diloco import outer_optimizers, stragglers
from tersor.torch._src.diloco.fragments import Timetable, UnderWay, differences, divide, hidden
from tersor.torch._src.diloco.stragglers import Grace, LateReporting, Part, Tasks
from tersor.torch._src.gradients.exchange import (
    ElasticOptions,
    Presence,
    Result,
    TensorExchange,
    refuse_elastic_shards,
)
from tersor.torch._src.gradients.sample_weights import refuse_weighted
from tersor.torch._src.parameters.selection import (
    every_parameter,
    followed,
    local_shard,
    only_device,
    refuse_sharded,
    refuse_unsupported,
    shards_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DiLoCo(LateReporting):
    """Averages compressed differences of a model's parameters every so many steps.

    ::

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        outer = tersor.torch.DiLoCo(model, every=500, codec="int4+ef")
        for batch in batches:
            inner.zero_grad()
            loss(model, batch).backward()
            inner.step()
            outer.step()    # every 500th call exchanges; the others return at once

    Besides the model it keeps one copy of the parameters, the outer optimizer's state, and for
    ``+ef`` the residuals. Buffers (running means of batch norms) begin alike and stay each rank's
    own. A parameter that no rank has moved since the last exchange is left alone. An unfrozen one
    takes part from the next exchange on, at which all ranks take the mean, uncompressed.

    With ``fragments`` each exchange is of one of so many parts of the model, in turn, ``every``
    steps after its last one; with a ``delay`` it travels during so many inner steps, while the
    ranks train on. Weights then are each rank's own until ``synchronize``, which ends a training;
    ``common_parameters`` has what ranks agree on. Who moves is asked once a round.

    With ``grace`` any rank calls an exchange once its difference holds ``every`` inner steps, the
    others join it after the step they are in, and a difference weighs as much as its steps, or
    their ``samples``. All ranks then make the calls for checkpoints together, and last ``close``.
    """

    _exchange: TensorExchange

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        every: int = 500,
        fragments: int = 1,
        delay: int = 0,
        mix: float | None = None,
        grace: float | None = None,
        outer_optimizer: outer_optimizers.OuterOptimizer = outer_optimizers.nesterov,
        residual_factor: float = 1.0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ElasticOptions],
    ) -> None:
        """All ranks begin with rank 0's parameters, frozen ones too, and buffers.

        ``every``: inner steps between two exchanges, of the same fragment. ``fragments``: at most
        ``every``, and the number of parameters. ``delay``: inner steps from sending a fragment to
        its new weights, below ``every / fragments``. ``mix``: what a rank keeps of its own weights
        then, from 0 to below 1; default 0.5 with a delay, as in the paper, else 0.
        ``grace``: seconds for which an exchange waits for ranks that are late, and goes on without
        them (docs/how-to/diloco.md); default: for all, to the ``timeout``.
        ``outer_optimizer``: makes the optimizer from the list of parameters, once; ``nesterov`` or
        ``averaging``, or any other.
        ``residual_factor``: from 0 to 1, what ``+ef`` held back of a fragment is multiplied by
        before each exchange of it; 0.95 in SparseLoCo. ``group``: who takes part, default the whole
        world. ``codec="auto"`` stays with what it predicts where there are fragments or a delay,
        which hide what it would measure. Parameters that want no gradient are left alone while they
        want none. Raises InvalidArgumentError for options that are wrong, and for parameters that
        no codec takes or that are sharded over ranks of ``group``; nothing was changed then.
        """
        expect(model, torch.nn.Module, "model must be a torch.nn.Module")
        outer_optimizers.check_outer(outer_optimizer)
        self._timetable = Timetable(every, fragments, delay)
        if grace is not None:
            stragglers.check_grace(grace, fragments, delay)
        self.mix = (0.5 if delay else 0.0) if mix is None else mix
        expect(self.mix, (float, int), "mix must be a number")
        if not 0 <= self.mix < 1:
            raise InvalidArgumentError(f"mix={mix}: give a number from 0 to below 1")
        if not 0 <= residual_factor <= 1:
            raise InvalidArgumentError(
                f"residual_factor={residual_factor}: give a number from 0 to 1"
            )
        self.every, self.residual_factor, self.steps = every, residual_factor, 0
        self.samples = 1.0  #: of this rank's inner step, which weigh its difference with ``grace``
        self._model = model
        found = every_parameter(model)
        self._parameters = {n: one for n, one in found.items() if one.requires_grad}
        if not self._parameters:
            raise InvalidArgumentError("no parameter of the model requires a gradient")
        self._group = group
        self._check(self._parameters)
        refuse_elastic_shards(options, self._parameters)
        refuse_weighted(options, "DiLoCo", "takes the mean over ranks")
        self._fragments = self._divided()
        told: ElasticOptions = {**options, "order": "of-ready"}
        if fragments > 1 or delay > 0:
            told["auto_learning"] = False
        if grace is not None:
            told["weighted"] = True
        self._exchange = TensorExchange(group, only_device(self._parameters), told)
        broadcast_start(model, group, self._exchange.options["timeout"])
        self._start: dict[str, torch.nn.Parameter] = {}
        self._take_start(self._parameters)
        self.outer_optimizer = outer_optimizer(list(self._start.values()))
        self._exchange.hold(shards_of(self._start))
        self._presence = Presence(self._exchange)
        self._somewhere: list[str] = []
        self._under_way: UnderWay | None = None
        self._part = Part()
        self._grace: Grace | None = None
        if grace is not None:
            done = (self._exchange, self._presence, self._together, self._take_part)
            self._grace = Grace(Tasks(*done, lambda: shards_of(self._follow())), every, grace)

    @torch.no_grad()
    def step(self) -> bool:
        """After each inner step, on all ranks. Returns True if an exchange or the fragment that
        arrived in this step changed weights. Raises what ``synchronize`` does."""
        if not 0 <= self.samples < math.inf:
            raise InvalidArgumentError(
                f"samples={self.samples}: give a number of samples, 0 or more"
            )
        self.steps += 1
        if self._grace is not None:
            return self._grace.step(self.samples)
        return self._together(self._step)

    def _together(self, work: Callable[[], Result]) -> Result:
        """Where ranks are lost, what is under way is left out: the next exchange has it."""

        def attempt() -> Result:
            try:
                return work()
            except TransportError:
                self._under_way = None
                raise

        return self._exchange.together(attempt)

    def _step(self) -> bool:
        turn = self._timetable.turn_of(self.steps)
        arrived = self._settle(self.steps if turn is None else math.inf)
        if turn is None:
            return arrived
        if turn == 0 or not self._somewhere:
            self._look()
        self._send(self._fragments[turn], self._timetable.delay, self.mix)
        return self._settle(self.steps) or arrived

    @torch.no_grad()
    def synchronize(self) -> None:
        """Averages all differences now, and takes the outer step: all ranks have equal parameters.

        Waits for a fragment under way before; nothing of a rank's own weights is mixed in. Raises
        TransportError where a rank is gone or does something else; the model then is as it was.
        With ``elastic=True`` RanksLostError: ``resume``, and go on; what was under way is left out,
        and the next exchange has it.
        """
        return self._grace.synchronize() if self._grace else self._together(self._synchronize)

    def _synchronize(self) -> None:
        self._settle(math.inf)
        self._look()
        self._send(list(self._start), 0, 0.0)
        self._settle(math.inf)

    def common_parameters(self) -> dict[str, torch.Tensor]:
        """What all ranks have in common: of each parameter what its last outer step made of it.

        For ``torch.func.functional_call``, or a model to keep; of sharded parameters this rank's
        shards. Copied with ``grace`` alone, since late ranks' start moves any time.
        """
        with self._alone():
            starts = {name: start.detach() for name, start in self._start.items()}
            return starts if self._grace is None else {n: one.clone() for n, one in starts.items()}

    def explain(self) -> str:
        """Which codec each parameter travels by, and why; and whether a delay hides it."""
        with self._alone():
            told, delay = super().explain(), self._timetable.delay
        return told + hidden(delay, self.reducer.statistics_so_far())

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: the last start, the outer optimizer, the residuals; and the mean
        of a fragment that is under way, for which it waits.

        ``"exact"``: each rank's residuals; the same run goes on bit for bit if the model's own
        parameters are saved by rank too, or it is saved right after an exchange. ``"portable"`` (a
        collective call): the residuals' sum, for any number of ranks. With ``grace`` both are
        collective calls, between two exchanges, and so is ``load_state_dict``.
        """
        if self._grace is None:
            return self._state(mode)
        return self._grace.ask(f"{check_mode(mode)} state_dict", lambda: self._state(mode))

    def _state(self, mode: Mode) -> dict[str, Any]:
        self._fetch()
        under_way = {} if self._under_way is None else {"under_way": self._under_way.state()}
        return {
            "steps": self.steps,
            "start": {name: start.detach().clone() for name, start in self._start.items()},
            "outer_optimizer": self.outer_optimizer.state_dict(),
            "residuals": save_reducer(self.reducer, self._process_group(), self._check_exact(mode)),
            "somewhere": list(self._somewhere),
            **under_way,
            **({} if self._grace is None else {"grace": self._grace.state()}),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings back what ``state_dict`` gave, in either mode, also with other fragments or delay.

        Raises InvalidArgumentError that names what does not fit or is damaged; nothing was changed
        then. The next exchange raises TransportError if ranks loaded different saves.
        """
        outer = self.outer_optimizer
        names = every_parameter(self._model).keys()
        outer_optimizers.check_all(state, self._start, names, self._grace, outer)
        if self._grace is None:
            return self._load(state)
        self._grace.ask("load_state_dict", lambda: self._load(state))

    def _load(self, state: Mapping[str, Any]) -> None:
        self._fetch()
        outer_optimizers.load_all(self.reducer, self._process_group(), self.outer_optimizer, state)
        for name, start in self._start.items():
            start.copy_(state["start"][name])
        self.steps = state["steps"]
        self._somewhere = list(state.get("somewhere", []))
        kept = state.get("under_way")
        self._under_way = UnderWay.of(kept, self._start) if kept else None
        if self._grace is not None:
            self._grace.load(stragglers.check_state(state.get("grace"), self._grace), self._start)

    def _follow(self) -> Mapping[str, torch.nn.Parameter]:
        self._parameters = followed(self._model, self._parameters, "DiLoCo")
        return self._parameters

    def _check(self, parameters: Mapping[str, torch.Tensor]) -> None:
        refuse_unsupported(parameters, "DiLoCo")
        refuse_sharded(parameters, self._process_group(), "use tersor.torch.compress")

    def _divided(self) -> list[list[str]]:
        counts = {name: one.numel() for name, one in self._parameters.items()}  # of all shards
        return divide(counts, self._timetable.fragments)

    def _look(self, also: Sequence[bool] = ()) -> list[int]:
        """Finds the parameters that some rank has moved, and those that some rank trains and none
        did at the last exchange; a collective call. Of a rank that is late, none. On how many ranks
        each of ``also`` is set."""
        shards, here = self._weights(), self._part.here
        moved = torch.stack([(start != shards[n]).any() for n, start in self._start.items()])
        own = dict(zip(self._start, moved.tolist(), strict=True))
        every = every_parameter(self._model)
        trained = {n: own.get(n, here and one.requires_grad) for n, one in every.items()}
        self._somewhere, counts = self._presence.somewhere(trained, also)
        return counts

    def _weights(self) -> Mapping[str, torch.Tensor]:
        return shards_of(self._follow()) if self._part.here else self._start

    def _take_part(self, part: Part) -> bool:
        """An exchange with ``grace``, on its thread; all ranks, some of them late.

        Returns whether some rank had a difference. What is unfrozen waits until no rank is late.
        """
        self._part = part
        if part.here and self._grace is not None:
            self._grace.follow_now()
        (weighing,) = self._look([part.samples > 0])
        if not (weighing or part.everyone):
            return False
        if not weighing:
            self._part = Part()  # nobody told of a step: what was moved counts alike
        if not part.everyone:
            self._somewhere = [name for name in self._somewhere if name in self._start]
        self._send(list(self._start), 0, 0.0)
        return self._settle(math.inf)

    def _send(self, names: Sequence[str], delay: int, mix: float) -> None:
        """Of these parameters those that some rank has moved; they count so many steps later."""
        if self.residual_factor != 1 and self._part.samples > 0:
            self.reducer.scale_residuals(self.residual_factor, names)
        shards, somewhere = self._weights(), set(self._somewhere)
        moving = {n: (self._start[n], shards[n]) for n in names if n in somewhere}
        self._under_way = UnderWay(self.steps + delay, mix, {})
        if self._grace is not None:
            self.reducer.weigh(self._part.samples)
        for flat, parts in differences(moving):
            self._exchange.take_over()
            self.reducer.ready_flat(list(parts), flat)
            self._under_way.mean.update(parts)
        self.reducer.flush()

    def _fetch(self) -> None:
        if self._under_way is not None and not self._under_way.is_here:
            self._exchange.wait()
            self._under_way.is_here = True

    def _settle(self, step: float) -> bool:
        """What is under way counts from now on, if it is due after this step."""
        if self._under_way is None:
            return False
        if self._under_way.due > step:
            with contextlib.suppress(RanksLostError):  # what is complete already stands
                self.reducer.progress()
            return False
        self._fetch()
        mean, mix, self._under_way = self._under_way.mean, self._under_way.mix, None
        if self._part.here:
            self._step_outside(mean)
            live = self._follow()
            for name in mean:
                own, start = local_shard(live[name]), self._start[name]
                own.lerp_(start, 1 - mix) if mix else own.copy_(start)
        elif self._grace is not None:
            before = {name: self._start[name].clone() for name in mean}
            self._step_outside(mean)
            self._grace.fall_behind({n: self._start[n] - one for n, one in before.items()})
        self._take_in([name for name in self._somewhere if name not in self._start])
        return True

    def _step_outside(self, mean: Mapping[str, torch.Tensor]) -> None:
        for name, start in self._start.items():
            start.grad = mean.get(name)
        self.outer_optimizer.step()
        self.outer_optimizer.zero_grad()

    def _take_in(self, newcomers: Collection[str]) -> None:
        """Parameters that were frozen at the last exchange: all ranks go on from their mean."""
        if not newcomers:
            return
        every = every_parameter(self._model)
        new = {name: every[name] for name in newcomers}
        self._check(new)
        ranks, limit = self._exchange.channel(), self._exchange.options["timeout"]
        for shard in shards_of(new).values():
            mean = shard.contiguous()
            allreduce(ranks, mean, codec="none", reduction="mean", timeout=limit)
            shard.copy_(mean)
        self._parameters = {
            name: one for name, one in every.items() if name in self._start or name in newcomers
        }
        self._fragments = self._divided()
        self._take_start(self._parameters)
        self._exchange.hold(shards_of(self._start))
        (group, *others) = self.outer_optimizer.param_groups
        if others:
            self.outer_optimizer.add_param_group({"params": [self._start[n] for n in newcomers]})
        else:
            group["params"][:] = self._start.values()  # in the order of a new one's

    def _take_start(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        before = self._start
        self._start = {
            name: before[name] if name in before else torch.nn.Parameter(shard.clone())
            for name, shard in shards_of(parameters).items()
        }
