"""Local SGD and DiLoCo: ranks train alone for some steps, then average what they learned.

DiLoCo (Douillard et al. 2023, arXiv:2311.08105): after H inner steps each rank's difference
θ(start) - θ(now) is taken for a gradient, averaged over ranks, and given to an outer optimizer,
Nesterov momentum, which moves θ(start). With plain SGD of rate 1 outside it is local SGD (Stich
2018, arXiv:1805.09767), the mean of the ranks' parameters. Without momentum outside, and with
residuals that decay instead, it is SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgument
from tersor._options import described, expect
from tersor.reducer import ReducerOptions
from tersor.torch.checkpoint import Mode, load_reducer, save_reducer
from tersor.torch.collectives import allreduce, broadcast
from tersor.torch.exchange import TensorExchange
from tersor.torch.parameters import (
    local_shard,
    only_device,
    refuse_sharded,
    refuse_unsupported,
    shards_of,
    unwrapped,
)
from tersor.torch.presence import Presence
from tersor.torch.reporting import ReducerReporting

if TYPE_CHECKING:
    from typing_extensions import Unpack

OuterOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of the DiLoCo paper (section 3.1): rate 0.7, Nesterov momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The outer optimizer of local SGD: every rank goes on from the mean of all."""
    return torch.optim.SGD(parameters, lr=1.0)


class DiLoCo(ReducerReporting):
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
    """

    _exchange: TensorExchange

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        every: int = 500,
        outer_optimizer: OuterOptimizer = nesterov,
        residual_factor: float = 1.0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ReducerOptions],
    ) -> None:
        """All ranks begin with rank 0's parameters, which this hands to the others.

        ``every``: inner steps between two exchanges. ``outer_optimizer``: makes it from the list of
        parameters, once; :func:`nesterov` or :func:`averaging`, or any other. ``residual_factor``:
        from 0 to 1, what ``+ef`` held back is multiplied by before each exchange; 0.95 in
        SparseLoCo. ``group``: who takes part, default the whole world. Parameters that want no
        gradient are left alone while they want none. Raises InvalidArgument for options that are
        wrong, and for parameters that no codec takes or that are sharded over ranks of ``group``;
        nothing was changed then.
        """
        expect(model, torch.nn.Module, "DiLoCo takes the model")
        expect(every, int, "every is a number of steps")
        if not callable(outer_optimizer):
            raise TypeError(
                "outer_optimizer makes an optimizer of a list of parameters, as nesterov or "
                "functools.partial(torch.optim.SGD, lr=0.7) do; it is not "
                f"{described(outer_optimizer)}"
            )
        if every < 1:
            raise InvalidArgument(f"every={every}: at least 1 step between two exchanges")
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
        self._exchange = TensorExchange(group, only_device(self._parameters), options)
        for shard in shards_of(self._parameters).values():
            broadcast(shard, group=group, timeout=self._exchange.options["timeout"])
        self._start: dict[str, torch.nn.Parameter] = {}
        self._take_start(self._parameters)
        self.outer_optimizer = outer_optimizer(list(self._start.values()))
        self._exchange.hold(shards_of(self._start))
        self._presence = Presence(group, self._exchange.options)

    def step(self) -> bool:
        """To be called after each inner step, by all ranks. Returns whether this one exchanged."""
        self.steps += 1
        if self.steps % self.every != 0:
            return False
        self.synchronize()
        return True

    @torch.no_grad()
    def synchronize(self) -> None:
        """Averages the differences now, and takes the outer step: all ranks have equal parameters.

        Raises TransportError where a rank is gone or does something else; the model then is as it
        was.
        """
        differences = {
            name: (start - local_shard(self._parameters[name])).contiguous()
            for name, start in self._start.items()
        }
        somewhere = self._somewhere(differences)
        if self.residual_factor != 1:
            self.reducer.scale_residuals(self.residual_factor)
        self._exchange.take_over()
        for name, difference in differences.items():
            self.reducer.ready(name, difference, "gradient" if name in somewhere else "nowhere")
        self._exchange.wait()
        for name, start in self._start.items():
            start.grad = differences[name] if name in somewhere else None
        self.outer_optimizer.step()
        self.outer_optimizer.zero_grad()
        for name in differences:
            if name in somewhere:
                local_shard(self._parameters[name]).copy_(self._start[name])
        self._take_in([name for name in somewhere if name not in self._start])

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: the last start, the outer optimizer, the residuals.

        ``"exact"``: each rank's residuals; the same run goes on bit for bit if the model's own
        parameters are saved by rank too, or it is saved right after an exchange. ``"portable"`` (a
        collective call): the residuals' sum, for any number of ranks.
        """
        return {
            "steps": self.steps,
            "start": {name: start.detach().clone() for name, start in self._start.items()},
            "outer_optimizer": self.outer_optimizer.state_dict(),
            "residuals": save_reducer(self.reducer, self._process_group(), mode),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings back what ``state_dict`` gave, in either mode.

        Raises InvalidArgument that names what does not fit.
        """
        if state["start"].keys() != self._start.keys():
            other = sorted(state["start"].keys() ^ self._start.keys())
            raise InvalidArgument(f"the state is of another model: {', '.join(other)}")
        load_reducer(self.reducer, self._process_group(), state["residuals"])
        self.outer_optimizer.load_state_dict(state["outer_optimizer"])
        for name, start in self._start.items():
            start.copy_(state["start"][name])
        self.steps = state["steps"]

    def _every(self) -> dict[str, torch.nn.Parameter]:
        return unwrapped(dict(self._model.named_parameters()))

    def _check(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Before anything of them is touched."""
        refuse_unsupported(parameters, "DiLoCo")
        refuse_sharded(parameters, self._process_group(), "use tersor.torch.compress")

    def _somewhere(self, differences: Mapping[str, torch.Tensor]) -> list[str]:
        """The parameters that some rank has moved, and those that some rank trains and none did at
        the last exchange; a collective call."""
        moved = torch.stack([one.any() for one in differences.values()]).tolist()
        own = dict(zip(differences, moved, strict=True))
        present = {name: own.get(name, one.requires_grad) for name, one in self._every().items()}
        return self._presence.somewhere(present)[0]

    def _take_in(self, newcomers: Collection[str]) -> None:
        """Parameters that were frozen at the last exchange: all ranks go on from their mean."""
        if not newcomers:
            return
        every = self._every()
        new = {name: every[name] for name in newcomers}
        self._check(new)
        limit = self._exchange.options["timeout"]
        for shard in shards_of(new).values():
            allreduce(shard, codec="none", reduction="mean", group=self._group, timeout=limit)
        self._parameters = {
            name: one for name, one in every.items() if name in self._start or name in newcomers
        }
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
