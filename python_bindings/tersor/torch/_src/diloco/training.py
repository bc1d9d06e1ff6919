"""Local SGD and DiLoCo: ranks train alone for some steps, then average their parameters.

DiLoCo (Douillard et al. 2023, arXiv:2311.08105): after H inner steps, the difference
θ(start) - θ(now) of each rank counts as a gradient. An outer optimizer with Nesterov momentum moves
θ(start) by the mean over ranks. Variants: local SGD (Stich 2018, arXiv:1805.09767) has plain SGD
with rate 1 outside, which averages the parameters. SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706)
has residuals that decay, and no momentum outside. Streaming DiLoCo (Douillard et al. 2025,
arXiv:2501.18512) exchanges a fragment of the model at a time while ranks train on.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError
from tersor._options import expect, takes_advanced
from tersor._renamed import renamed_attribute, renamed_keywords
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules, merged_options
from tersor.torch._src.checkpoint.residuals import Mode, check_mode, save_reducer
from tersor.torch._src.collectives.models import broadcast_model
from tersor.torch._src.diloco import outer_optimizers, stragglers
from tersor.torch._src.diloco.exchanges import FragmentExchange
from tersor.torch._src.diloco.fragments import PendingFragment, SyncSchedule, overlap
from tersor.torch._src.diloco.stragglers import Role, Stragglers, Tasks
from tersor.torch._src.gradients.exchange import OnLoss, Presence, TensorExchange
from tersor.torch._src.optim.state import load_with
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import only_device


class DiLoCo(FragmentExchange):
    """Averages compressed differences of a model's parameters every ``sync_every`` steps.

    A collective call: all ranks begin with the parameters and buffers of rank 0. Later, buffers
    (running means of batch norms) are each rank's own. ``DiLoCo`` keeps a copy of the parameters,
    the outer optimizer's state and, with ``+ef``, the residuals. An exchange leaves a parameter
    alone if no rank moved the parameter. An unfrozen parameter takes part from the next exchange
    on; its first exchange is an uncompressed mean.

    With ``fragments``, each exchange is of one part of the model, in turn. With
    ``fragment_sync_delay``, the exchange runs during the next inner steps. The weights of ranks
    then differ until ``synchronize``, which ends a training. Call ``close`` to end a training
    without ``synchronize``. ``common_parameters`` returns the parameters that ranks have in common.

    With ``straggler_timeout``, any rank calls an exchange after ``sync_every`` inner steps. The
    other ranks join after their current step. Each difference has the weight of its steps, or of
    their ``samples``. All ranks call ``state_dict`` and ``load_state_dict`` together, and finally
    ``close``.

    Args:
        model: The model, equal on all ranks in names and shapes. Parameters that require no
            gradient are left alone.
        codec: Spec of the codec, such as ``"int4+ef"``, or ``"auto"``, which makes no trials if
            there are fragments or a delay.
        rules: Tuples ``(pattern, codec)`` or ``(pattern, codec, step)``, as in ``compress``. Steps
            are exchanges.
        sync_every: Inner steps between two exchanges of the same fragment.
        fragments: Number of parts; at most ``sync_every`` and the number of parameters.
        fragment_sync_delay: Inner steps from sending a fragment to its new weights, below
            ``sync_every / fragments``.
        fragment_update_alpha: Share of its own weights that a rank keeps at an update, from 0 to
            below 1. Default: 0.5 with a delay, as in the paper, otherwise 0.
        straggler_timeout: Seconds for which an exchange waits for late ranks before it continues
            without them. Default: an exchange waits for all ranks, up to ``timeout``. Not with
            ``fragments`` or ``fragment_sync_delay``.
        outer_optimizer: Function of a list of parameters that returns the outer optimizer:
            ``nesterov``, ``averaging``, or another.
        error_decay: Factor from 0 to 1 for the residuals of a fragment before each exchange of the
            fragment. SparseLoCo uses 0.95.
        process_group: The ranks that take part. Default: all.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        elastic: True if the remaining ranks may continue after the loss of a rank, see ``resume``.
        min_ranks: The minimum number of ranks to continue. 0: more than half of the ranks, or
            exactly half with the lowest rank.
        on_loss: ``"raise"`` raises RanksLostError after a loss. ``"continue"`` warns, and the
            remaining ranks repeat the exchange. Needs ``elastic=True``.
        advanced: Further options. ``order`` has no effect.

    Raises:
        InvalidArgumentError: An option is wrong, no parameter requires a gradient, or a parameter
            has a dtype without a codec or is sharded over ranks of ``process_group``. Nothing was
            changed then.

    Example::

        outer = tersor.torch.DiLoCo(model, "int4+ef", sync_every=500)
        inner.step()
        outer.step()    # exchanges in every 500th call
    """

    every = renamed_attribute("sync_every")
    mix = renamed_attribute("fragment_update_alpha")
    residual_factor = renamed_attribute("error_decay")

    @renamed_keywords(
        delay="fragment_sync_delay",
        every="sync_every",
        grace="straggler_timeout",
        group="process_group",
        least_ranks="min_ranks",
        mix="fragment_update_alpha",
        residual_factor="error_decay",
    )
    @takes_advanced(AdvancedOptions)
    def __init__(
        self,
        model: torch.nn.Module,
        codec: str = "bf16",
        *,
        rules: Rules | None = None,
        sync_every: int = 500,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float | None = None,
        straggler_timeout: float | None = None,
        outer_optimizer: outer_optimizers.OuterOptimizer = outer_optimizers.nesterov,
        error_decay: float = 1.0,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        elastic: bool = False,
        min_ranks: int = 0,
        on_loss: OnLoss = "raise",
        advanced: AdvancedOptions | None = None,
    ) -> None:
        expect(model, torch.nn.Module, "model must be a torch.nn.Module")
        outer_optimizers.check_outer(outer_optimizer)
        self._schedule = SyncSchedule(sync_every, fragments, fragment_sync_delay)
        if straggler_timeout is not None:
            stragglers.check_timeout(straggler_timeout, self._schedule)
        usual = 0.5 if fragment_sync_delay else 0.0
        alpha = usual if fragment_update_alpha is None else fragment_update_alpha
        expect(alpha, (float, int), "fragment_update_alpha must be a number")
        if not 0 <= alpha < 1:
            raise InvalidArgumentError(
                f"fragment_update_alpha={alpha}: give a number from 0 to below 1"
            )
        self.fragment_update_alpha = alpha
        if not 0 <= error_decay <= 1:
            raise InvalidArgumentError(f"error_decay={error_decay}: give a number from 0 to 1")
        self.error_decay = error_decay
        self.steps = 0  #: Number of inner steps.
        #: Number of samples of this rank's inner step, for its weight with ``straggler_timeout``.
        self.samples = 1.0
        self._model = model
        found = selection.every_parameter(model)
        self._parameters = {n: one for n, one in found.items() if one.requires_grad}
        if not self._parameters:
            raise InvalidArgumentError("no parameter of the model requires a gradient")
        self._group = process_group
        self._check(self._parameters)
        late = straggler_timeout is not None
        options: Any = merged_options(AdvancedOptions, **locals(), weighted=late)
        options["order"] = "ready_order"
        if fragments > 1 or fragment_sync_delay > 0:
            options["auto_learning"] = False
        selection.refuse_elastic_shards(options, self._parameters)
        self._fragments = self._make_fragments()
        self._exchange = TensorExchange(process_group, only_device(self._parameters), options)
        broadcast_model(model, process_group, self._exchange.options["timeout"])
        self._start: dict[str, torch.nn.Parameter] = {}
        self._start = self._with_start(self._parameters)
        self.outer_optimizer = outer_optimizer(list(self._start.values()))
        self._exchange.register(selection.shards_of(self._start))
        self._presence = Presence(self._exchange)
        self._active: list[str] = []
        self._pending: PendingFragment | None = None
        self._role = Role()
        self._stragglers = None
        if straggler_timeout is not None:
            done = (self._exchange, self._presence, self._run_elastic, self._run_exchange)
            tasks = Tasks(*done, lambda: selection.shards_of(self._refresh()))
            self._stragglers = Stragglers(tasks, sync_every, straggler_timeout)

    @property
    def sync_every(self) -> int:
        """Inner steps between two exchanges of the same fragment, as passed to ``DiLoCo``."""
        return self._schedule.sync_every

    @torch.no_grad()
    def step(self) -> bool:
        """Counts an inner step and exchanges if due. Call ``step`` after each inner step.

        Returns:
            True if an exchange or an arrived fragment changed the weights.

        Raises:
            InvalidArgumentError: ``samples`` is negative or not finite.
            TransportError: As ``synchronize``.

        Example::

            inner.step()
            outer.step()
        """
        if not 0 <= self.samples < math.inf:
            raise InvalidArgumentError(
                f"samples={self.samples}: give a number of samples, 0 or more"
            )
        self.steps += 1
        if self._stragglers is not None:
            return self._stragglers.step(self.samples)
        return self._run_elastic(self._step)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Averages all differences now, with an outer step: all ranks have equal parameters.

        A collective call, which first waits for a fragment under way.

        Raises:
            TransportError: A rank failed or made another call. The model was not changed.
            RanksLostError: With ``elastic=True``, ranks were lost: call ``resume`` and continue.
                The next exchange includes the fragment under way.

        Example::

            outer.synchronize()
            torch.save(model.state_dict(), path)
        """
        late = self._stragglers
        return late.synchronize() if late else self._run_elastic(self._synchronize)

    def common_parameters(self) -> dict[str, torch.Tensor]:
        """Returns the parameters after the last outer step, which are equal on all ranks.

        Returns:
            Tensors per parameter name; of sharded parameters, this rank's shards. Do not write to
            them. With ``straggler_timeout`` the tensors are copies.

        Example::

            torch.func.functional_call(model, outer.common_parameters(), batch)
        """
        with self._exclusive():
            starts = {name: start.detach() for name, start in self._start.items()}
            if self._stragglers is None:
                return starts
            return {name: one.clone() for name, one in starts.items()}

    def explain(self) -> str:
        """Returns one line per parameter: its codec and the reason; and how much a delay hides.

        Example::

            print(outer.explain())
        """
        with self._exclusive():
            text = super().explain()
        return text + overlap(self._schedule.fragment_sync_delay, self.reducer.statistics_so_far())

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """Returns the state for a checkpoint, after waiting for a fragment under way.

        With ``straggler_timeout``, ``state_dict`` and ``load_state_dict`` are collective calls.

        Args:
            mode: ``"exact"`` has each rank's residuals. The run continues bit for bit if the
                model's parameters are saved per rank too, or right after an exchange.
                ``"portable"``, a collective call, has the residuals' sum, for any number of ranks.

        Returns:
            The common parameters, the outer optimizer's state, residuals and step numbers.

        Raises:
            InvalidArgumentError: ``mode`` is unknown, or is ``"exact"`` after ranks were lost.

        Example::

            torch.save(outer.state_dict(), f"outer{dist.get_rank()}.pt")
        """
        if self._stragglers is None:
            return self._state(mode)
        return self._stragglers.call(f"{check_mode(mode)} state_dict", lambda: self._state(mode))

    def _state(self, mode: Mode) -> dict[str, Any]:
        self._wait_pending()
        pending = {} if self._pending is None else {"under_way": self._pending.state()}
        return {
            "steps": self.steps,
            "start": {name: start.detach().clone() for name, start in self._start.items()},
            "outer_optimizer": copy.deepcopy(self.outer_optimizer.state_dict()),
            "residuals": save_reducer(self.reducer, self._process_group(), self._check_exact(mode)),
            "somewhere": list(self._active),
            **pending,
            **({} if self._stragglers is None else {"grace": self._stragglers.state()}),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the result of ``state_dict`` of either mode, also with other fragments or delay.

        The next exchange raises TransportError if ranks loaded different saves.

        Args:
            state: Result of ``state_dict``.

        Raises:
            InvalidArgumentError: The state is damaged or does not fit. Nothing was changed then.

        Example::

            outer.load_state_dict(torch.load(path, weights_only=True))
        """
        outer = self.outer_optimizer
        names = selection.every_parameter(self._model).keys()
        outer_optimizers.check_all(state, self._start, names, self._stragglers is not None, outer)
        if self._stragglers is None:
            return self._load(state)
        self._stragglers.call("load_state_dict", lambda: self._load(state))

    def _load(self, state: Mapping[str, Any]) -> None:
        self._wait_pending()
        outer, group = self.outer_optimizer, self._process_group()
        saved = copy.deepcopy(state["outer_optimizer"])  # PyTorch uses the tensors themselves
        common = outer_optimizers.common_tensors(state, self._start)
        load = functools.partial(outer.load_state_dict, saved)
        load_with(self.reducer, group, state["residuals"], load, common)
        for name, start in self._start.items():
            start.copy_(state["start"][name])
        self.steps = state["steps"]
        self._active = list(state.get("somewhere", []))
        kept = state.get("under_way")
        self._pending = PendingFragment.from_state(kept, self._start) if kept else None
        if self._stragglers is not None:
            self._stragglers.load(stragglers.check_state(state.get("grace"), True), self._start)
