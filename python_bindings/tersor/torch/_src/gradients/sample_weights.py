"""Sample-weighted means, for ranks with batches of different sizes."""

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
    """The sample count of a backward pass, for all reducers of the pass."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.weighted: bool = options.get("weighted", False)
        self._sums = options.get("reduction") == "sum"
        self.count: float | None = None  #: of the next pass
        self.ended = ""  #: the reason why counts have no effect any longer
        self._step: float | None = None  # of the current pass
        self._weighed = False
        self._share: float | None = None

    def begin(self, *, is_done: bool = False) -> None:
        """Starts a pass with the current count. ``is_done``: this rank has no more inputs. Raises
        InvalidArgumentError if ``weighted`` is True without a count, or False with a count."""
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
        """Weights a new step of a reducer. Calls ``begin`` if necessary."""
        if self._step is None:
            self.begin()
        if self._step is not None:
            try:
                reducer.weigh(self._step)
            except Exception:
                self.end()
                raise
        self._weighed = True

    def weigh_once(self, reducer: _core.GradientReducer) -> None:
        """Calls ``weigh`` once until ``end``."""
        if not self._weighed:
            self.weigh(reducer)

    def share(self, gradients: torch.Tensor, group: dist.ProcessGroup | None) -> float:
        """Returns the factor of this rank's gradients in a mean, or sum, without a reducer. A
        collective call of ``group``. If a rank has no count, or the sum is 0, all ranks raise
        InvalidArgumentError."""
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
        """Ends or discards the pass."""
        self._step = self._share = None
        self._weighed = False


class SampleWeighted:
    """A handle with a sample count per backward pass."""

    _samples: Samples

    @property
    def samples(self) -> float | None:
        """Number of samples of this rank's loss, a mean over these samples (``weighted=True``).

        The result is the mean over the samples of all ranks. Set ``samples`` on all ranks before
        each backward pass that exchanges gradients. With gradient accumulation, set the number of
        all accumulated samples before the last pass. 0: the gradients of this rank are ignored.
        ``samples`` becomes None at the pass's first gradient.

        Example::

            handle.samples = len(inputs)
            loss.backward()
        """
        return self._samples.count

    @samples.setter
    def samples(self, count: float | None) -> None:
        if count is not None and self._samples.ended:
            raise InvalidArgumentError(f"samples={count} {self._samples.ended}")
        self._samples.count = count


def refuse_weighted(options: Mapping[str, Any], name: str, remedy: str) -> None:
    if options.get("weighted"):
        raise InvalidArgumentError(f"weighted=True: {name} {remedy}")


def scale(gradients: torch.Tensor, share: float) -> torch.Tensor:
    """Scales in place. Gradients with share 0 may be NaN, and become 0."""
    return gradients.mul_(share) if share else gradients.zero_()


class UnevenInputs:
    """DDP's ``join``, of the model with a given hook state."""

    def __init__(self, state: object) -> None:
        self._state = weakref.ref(state)
        self._model: Callable[[], DistributedDataParallel | None] | None = None

    def set_model(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)

    def model(self) -> DistributedDataParallel | None:
        """The model whose hook has this state, if a model was found."""
        if self._model is None:
            found = _compat.ddp_with_hook(self._state())
            self._model = (lambda: None) if found is None else weakref.ref(found)
        return self._model()

    def check(self) -> None:
        """Raises InvalidArgumentError for a mean over the remaining ranks, before a pass. PyTorch
        divides by the number of remaining ranks only without a hook."""
        model = self.model()
        if model is not None and _compat.divides_by_remaining_ranks(model):
            raise InvalidArgumentError(
                "join(divide_by_initial_world_size=False) with compressed gradients: pass "
                "weighted=True and set samples before each backward pass (ranks without inputs "
                "count for none then), or divide by the initial world size"
            )
