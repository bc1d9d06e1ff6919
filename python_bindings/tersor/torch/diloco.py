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

from tersor import _text
from tersor._core import InvalidArgument, RanksLost, TransportError
from tersor._options import described, expect
from tersor.collectives import allreduce
from tersor.torch.checkpoint import Mode, load_reducer, save_reducer
from tersor.torch.collectives import broadcast
from tersor.torch.exchange import ElasticOptions, Result, TensorExchange, refuse_elastic_shards
from tersor.torch.fragments import Timetable, UnderWay, differences, divide
from tersor.torch.parameters import (
    local_shard,
    only_device,
    refuse_sharded,
    refuse_unsupported,
    shards_of,
    unwrapped,
)
from tersor.torch.presence import Presence
from tersor.torch.reporting import ElasticReporting
from tersor.torch.samples import refuse_weighted

if TYPE_CHECKING:
    from typing_extensions import Unpack

OuterOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
_HIDDEN_ENOUGH = 0.05  # of the exchange may be waited for


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of the DiLoCo paper (section 3.1): rate 0.7, Nesterov momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of local SGD: every rank goes on from the mean of all."""
    return torch.optim.SGD(parameters, lr=1.0)


class DiLoCo(ElasticReporting):
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
    ``+ef`` the residuals. Buffers (running means of batch norms) stay each rank's own. A parameter
    that no rank has moved since the last exchange is left alone. One that is unfrozen takes part
    from the next exchange on, at which all ranks take the mean of theirs, uncompressed.

    With ``fragments`` each exchange is of one of so many parts of the model, in turn, ``every``
    steps after its last one; with a ``delay`` it travels during so many inner steps, while the
    ranks train on. Weights then are each rank's own until ``synchronize``, which ends a training;
    ``common_parameters`` has what ranks agree on. Who moves is asked once a round.
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
        outer_optimizer: OuterOptimizer = nesterov,
        residual_factor: float = 1.0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ElasticOptions],
    ) -> None:
        """All ranks begin with rank 0's parameters, which this hands to the others.

        ``every``: inner steps between two exchanges, of the same fragment. ``fragments``: at most
        ``every``, and the number of parameters. ``delay``: inner steps from sending a fragment to
        its new weights, below ``every / fragments``. ``mix``: what a rank keeps of its own weights
        then, from 0 to below 1; default 0.5 with a delay, as in the paper, else 0.
        ``outer_optimizer``: makes it from the list of parameters, once; :func:`nesterov` or
        :func:`averaging`, or any other. ``residual_factor``: from 0 to 1, what ``+ef`` held back of
        a fragment is multiplied by before each exchange of it; 0.95 in SparseLoCo. ``group``: who
        takes part, default the whole world. ``codec="auto"`` stays with what it predicts where
        there are fragments or a delay, which hide what it would measure. Parameters that want no
        gradient are left alone while they want none. Raises InvalidArgument for options that are
        wrong, and for parameters that no codec takes or that are sharded over ranks of ``group``;
        nothing was changed then.
        """
        expect(model, torch.nn.Module, "DiLoCo takes the model")
        if not callable(outer_optimizer):
            raise TypeError(
                "outer_optimizer makes an optimizer of a list of parameters, as nesterov or "
                "functools.partial(torch.optim.SGD, lr=0.7) do; it is not "
                f"{described(outer_optimizer)}"
            )
        self._timetable = Timetable(every, fragments, delay)
        self.mix = (0.5 if delay else 0.0) if mix is None else mix
        expect(self.mix, (float, int), "mix is a number")
        if not 0 <= self.mix < 1:
            raise InvalidArgument(f"mix={mix}: from 0 to below 1, which would take nothing")
        if not 0 <= residual_factor <= 1:
            raise InvalidArgument(f"residual_factor={residual_factor}: from 0 to 1")
        self.every = every
        self.residual_factor = residual_factor
        self.steps = 0
        self._model = model
        self._parameters = {n: one for n, one in self._every().items() if one.requires_grad}
        if not self._parameters:
            raise InvalidArgument("no parameter of the model wants a gradient")
        self._group = group
        self._check(self._parameters)
        refuse_elastic_shards(options, self._parameters)
        refuse_weighted(options, "DiLoCo", "takes the mean over ranks")
        self._fragments = self._divided()
        told: ElasticOptions = {**options, "order": "of-ready"}
        if fragments > 1 or delay > 0:
            told["auto_learning"] = False
        self._exchange = TensorExchange(group, only_device(self._parameters), told)
        for shard in shards_of(self._parameters).values():
            broadcast(shard, group=group, timeout=self._exchange.options["timeout"])
        self._start: dict[str, torch.nn.Parameter] = {}
        self._take_start(self._parameters)
        self.outer_optimizer = outer_optimizer(list(self._start.values()))
        self._exchange.hold(shards_of(self._start))
        self._presence = Presence(self._exchange)
        self._somewhere: list[str] = []
        self._under_way: UnderWay | None = None

    @torch.no_grad()
    def step(self) -> bool:
        """To be called after each inner step, by all ranks.

        Returns whether weights changed: by an exchange, or the fragment that arrived in this step.
        Raises what ``synchronize`` does.
        """
        self.steps += 1
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
        With ``elastic=True`` RanksLost: ``resume``, and go on; what was under way is left out, and
        the next exchange has it.
        """
        self._together(self._synchronize)

    def _synchronize(self) -> None:
        self._settle(math.inf)
        self._look()
        self._send(list(self._start), 0, 0.0)
        self._settle(math.inf)

    def common_parameters(self) -> dict[str, torch.Tensor]:
        """What all ranks have in common: of each parameter what its last outer step made of it.

        For ``torch.func.functional_call``, or a model to keep. Not copied; of parameters that are
        sharded this rank's shards.
        """
        return {name: start.detach() for name, start in self._start.items()}

    def explain(self) -> str:
        """Which codec each parameter travels by, and why; and whether a delay hides it."""
        told, delay = super().explain(), self._timetable.delay
        sofar = self.reducer.statistics_so_far()
        if not (delay and sofar.wire_seconds):
            return told
        waited = sofar.exposed_seconds / sofar.wire_seconds
        hint = ": a longer delay hides more" if waited > _HIDDEN_ENOUGH else ""
        spent = _text.seconds(sofar.wire_seconds)
        return (
            f"{told}delay={delay}: {100 * waited:.0f} % of {spent} of exchange waited for{hint}\n"
        )

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: the last start, the outer optimizer, the residuals; and the mean
        of a fragment that is under way, for which it waits.

        ``"exact"``: each rank's residuals; the same run goes on bit for bit if the model's own
        parameters are saved by rank too, or it is saved right after an exchange. ``"portable"`` (a
        collective call): the residuals' sum, for any number of ranks.
        """
        self._fetch()
        under_way = {} if self._under_way is None else {"under_way": self._under_way.state()}
        return {
            "steps": self.steps,
            "start": {name: start.detach().clone() for name, start in self._start.items()},
            "outer_optimizer": self.outer_optimizer.state_dict(),
            "residuals": save_reducer(self.reducer, self._process_group(), self._check_exact(mode)),
            "somewhere": list(self._somewhere),
            **under_way,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings back what ``state_dict`` gave, in either mode, also with other fragments or delay.

        Raises InvalidArgument that names what does not fit.
        """
        if state["start"].keys() != self._start.keys():
            other = sorted(state["start"].keys() ^ self._start.keys())
            raise InvalidArgument(f"the state is of another model: {', '.join(other)}")
        self._fetch()
        load_reducer(self.reducer, self._process_group(), state["residuals"])
        self.outer_optimizer.load_state_dict(state["outer_optimizer"])
        for name, start in self._start.items():
            start.copy_(state["start"][name])
        self.steps = state["steps"]
        self._somewhere = list(state.get("somewhere", []))
        kept = state.get("under_way")
        self._under_way = kept and UnderWay.of(kept, self._start)

    def _every(self) -> dict[str, torch.nn.Parameter]:
        return unwrapped(dict(self._model.named_parameters()))

    def _check(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Before anything of them is touched."""
        refuse_unsupported(parameters, "DiLoCo")
        refuse_sharded(parameters, self._process_group(), "use tersor.torch.compress")

    def _divided(self) -> list[list[str]]:
        counts = {name: one.numel() for name, one in self._parameters.items()}  # of all shards
        return divide(counts, self._timetable.fragments)

    def _look(self) -> None:
        """Finds the parameters that some rank has moved, and those that some rank trains and none
        did at the last exchange; a collective call."""
        shards = shards_of(self._parameters)
        moved = torch.stack([(start != shards[n]).any() for n, start in self._start.items()])
        own = dict(zip(self._start, moved.tolist(), strict=True))
        present = {name: own.get(name, one.requires_grad) for name, one in self._every().items()}
        self._somewhere = self._presence.somewhere(present)[0]

    def _send(self, names: Sequence[str], delay: int, mix: float) -> None:
        """Of these parameters those that some rank has moved; they count so many steps later."""
        if self.residual_factor != 1:
            self.reducer.scale_residuals(self.residual_factor, names)
        shards, somewhere = shards_of(self._parameters), set(self._somewhere)
        moving = {n: (self._start[n], shards[n]) for n in names if n in somewhere}
        self._under_way = UnderWay(self.steps + delay, mix, {})
        for flat, parts in differences(moving):
            self._exchange.take_over()
            self.reducer.ready_flat(list(parts), flat)
            self._under_way.mean.update(parts)
        self.reducer.flush()

    def _fetch(self) -> None:
        """Waits for what is under way."""
        if self._under_way is not None and not self._under_way.is_here:
            self._exchange.wait()
            self._under_way.is_here = True

    def _settle(self, step: float) -> bool:
        """What is under way counts from now on, if it is due after this step."""
        if self._under_way is None:
            return False
        if self._under_way.due > step:
            with contextlib.suppress(RanksLost):  # what is complete already stands
                self.reducer.progress()
            return False
        self._fetch()
        mean, mix, self._under_way = self._under_way.mean, self._under_way.mix, None
        for name, start in self._start.items():
            start.grad = mean.get(name)
        self.outer_optimizer.step()
        self.outer_optimizer.zero_grad()
        for name in mean:
            own, start = local_shard(self._parameters[name]), self._start[name]
            own.lerp_(start, 1 - mix) if mix else own.copy_(start)
        self._take_in([name for name in self._somewhere if name not in self._start])
        return True

    def _take_in(self, newcomers: Collection[str]) -> None:
        """Parameters that were frozen at the last exchange: all ranks go on from their mean."""
        if not newcomers:
            return
        every = self._every()
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
