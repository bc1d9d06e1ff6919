"""Ranks whose batches differ in size: of how many samples a rank's gradients are the mean."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.torch import _compat


class Samples:
    """What a trainer tells of a backward pass, for the reducers that its gradients go through."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.weighted: bool = options.get("weighted", False)
        self._sums = options.get("reduction") == "sum"
        self.count: float | None = None  #: of the pass to come
        self._step: float | None = None  # of the pass under way
        self._told = False
        self._share: float | None = None

    def begin(self, *, is_done: bool = False) -> None:
        """Takes those of the pass that begins; ``is_done``: this rank has no inputs left.

        Raises InvalidArgumentError where none were set, or were set without ``weighted=True``.
        """
        count, self.count = self.count, None
        if is_done and self.weighted and count is None:
            count = 0.0
        if count is not None and not self.weighted:
            raise InvalidArgumentError(f"samples={count} needs weighted=True, on all ranks")
        if count is None and self.weighted:
            raise InvalidArgumentError(
                "weighted=True: set samples before each backward pass whose gradients are "
                "exchanged, on all ranks: the number of samples in this rank's loss, or 0"
            )
        self._step = count

    def weigh(self, reducer: _core.GradientReducer) -> None:
        """The step of a reducer that begins. Raises as ``begin``, where that was not called."""
        if self._step is None:
            self.begin()
        if self._step is not None:
            try:
                reducer.weigh(self._step)
            except Exception:
                self.end()
                raise
        self._told = True

    def weigh_once(self, reducer: _core.GradientReducer) -> None:
        """The same, at the first call until ``end``."""
        if not self._told:
            self.weigh(reducer)

    def share(self, gradients: torch.Tensor, group: dist.ProcessGroup | None) -> float:
        """What this rank's part of a mean, or sum, is multiplied by that goes without a reducer.

        A collective call of ``group``, for memory like these gradients'. Raises
        InvalidArgumentError on all ranks where one of them told nothing, or all have no samples.
        """
        if self._sums:
            return 1.0
        if not self.weighted:
            return 1 / dist.get_world_size(group)
        if self._share is None:
            own = math.nan if self._step is None else self._step
            total = torch.tensor(own, dtype=torch.float64, device=gradients.device)
            dist.all_reduce(total, group=group)
            if not 0 < total < math.inf:
                raise InvalidArgumentError(
                    f"the samples of all ranks add up to {float(total)}: set more than 0"
                )
            self._share = own / float(total)
        return self._share

    def end(self) -> None:
        """The pass is over, or void."""
        self._step = self._share = None
        self._told = False


class Weighed:
    """A handle that may be told of how many samples a backward pass is."""

    _samples: Samples

    @property
    def samples(self) -> float | None:
        """Over how many samples this rank's loss is the mean, with ``weighted=True``.

        What arrives is the mean over all ranks' samples. To be set before each backward pass whose
        gradients are exchanged (of accumulated ones for the last, of as many samples as together),
        on all ranks; 0 for a rank that has none, whose gradients are not looked at then. None again
        once the pass's first gradient was there.
        """
        return self._samples.count

    @samples.setter
    def samples(self, count: float | None) -> None:
        self._samples.count = count


def refuse_weighted(options: Mapping[str, Any], who: str, instead: str) -> None:
    """Raises InvalidArgumentError for ``weighted=True`` where it has no meaning."""
    if options.get("weighted"):
        raise InvalidArgumentError(f"weighted=True: {who} {instead}")


def scale(gradients: torch.Tensor, share: float) -> torch.Tensor:
    """In place; those of no samples may hold anything."""
    return gradients.mul_(share) if share else gradients.zero_()


class UnevenInputs:
    """What is known of DDP's ``join``, by the state of its hook."""

    def __init__(self, state: object) -> None:
        self._state = weakref.ref(state)
        self._model: Callable[[], DistributedDataParallel | None] | None = None

    def of(self, model: DistributedDataParallel) -> None:
        """Which one it is."""
        self._model = weakref.ref(model)

    def model(self) -> DistributedDataParallel | None:
        """The model whose hook has this state, if a model was found."""
        if self._model is None:
            found = _compat.ddp_with_hook(self._state())
            self._model = (lambda: None) if found is None else weakref.ref(found)
        return self._model()

    def check(self) -> None:
        """Before a pass. Raises InvalidArgumentError for a mean over the ranks that are left.

        PyTorch divides by their number where there is no hook; to a hook it does not tell it.
        """
        model = self.model()
        if model is not None and _compat.divides_by_remaining_ranks(model):
            raise InvalidArgumentError(
                "join(divide_by_initial_world_size=False) with compressed gradients: pass "
                "weighted=True and set samples before each backward pass (ranks without inputs "
                "count for none then), or divide by the initial world size"
            )
