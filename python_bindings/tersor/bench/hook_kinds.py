"""The kinds of hooks of `hooks`: how each exchanges gradients, and how its bytes are counted."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import Mark, Span, Traffic, parameter_count, ring_bytes
from tersor.bench.models import Batch, scores_of
from tersor.bench.optimizers import OneBitAdamW

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
Wrap = Callable[[torch.optim.Optimizer], torch.optim.Optimizer]

POWERSGD_START = 10  # steps without compression; PowerSGD needs at least 2


class Hook(abc.ABC):
    """A model whose gradients are exchanged in one of these ways."""

    bytes_are: str  # the origin of sent_bytes: "counted" or "computed"
    plain_steps = 0  # uncompressed steps at the start
    period = 1  # steps after which all ranks have equal weights again

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._steps, self._reported = 0, Traffic(0)

    @abc.abstractmethod
    def total(self, steps: int) -> Traffic:
        """The traffic of all `steps` so far."""

    def traffic(self, steps: int) -> Traffic:
        """The traffic of the `steps` since the last call."""
        self._steps += steps
        before, self._reported = self._reported, self.total(self._steps)
        return self._reported.since(before)

    @property
    def settled(self) -> bool:
        """True if the hook does not change its choices any more; equal on all ranks."""
        return True

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """The optimizer that replaces ``plain``, the optimizer of averaged gradients."""
        return plain

    def samples_follow(self, count: int) -> None:  # noqa: B027
        """Announces the number of samples of the next backward pass."""

    def learn(self, batch: Batch) -> Tensor:
        """The forward and backward pass of a step. Returns the loss."""
        self.samples_follow(len(batch[0]))
        loss = functional.cross_entropy(*scores_of(self.model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """The spans in which the last step waited for other ranks. The rank's last gradient was
        ready when `computed`, all ranks' gradients when `reduced`."""
        return [(computed, reduced)]

    def gather(self, what: Literal["data", "grad"] = "data") -> None:  # noqa: B027
        """Gives all ranks the weights or the gradients of all parameters."""

    def close(self) -> None:  # noqa: B027
        """Ends the hook. The model must not be used after."""


class PyTorchHook(Hook):
    """DDP or FSDP2 itself, or a cast before it. The bytes of each step are constant."""

    bytes_are = "computed"

    def __init__(self, model: nn.Module, step_bytes: float, wrap: Wrap = lambda one: one) -> None:
        super().__init__(model)
        self._step_bytes, self._wrap = step_bytes, wrap

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        return self._wrap(plain)

    def total(self, steps: int) -> Traffic:
        return Traffic(steps * self._step_bytes)


class PowerSgdHook(Hook):
    """PowerSGD (Vogels, Karimireddy and Jaggi 2019): uncompressed steps, then two factors."""

    bytes_are = "computed"
    plain_steps = POWERSGD_START

    def __init__(self, model: DistributedDataParallel, matrix_rank: int) -> None:
        super().__init__(model)
        self._state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=POWERSGD_START
        )
        model.register_comm_hook(self._state, powerSGD_hook.powerSGD_hook)
        self._plain_count = parameter_count(model)

    def total(self, steps: int) -> Traffic:
        plain_count = min(steps, POWERSGD_START) * self._plain_count
        count = plain_count + self._state.total_numel_after_compression
        return Traffic(ring_bytes(4 * count, dist.get_world_size()))


class CountedHook(Hook):
    """Tersor: the reducer counts bytes and seconds."""

    bytes_are = "counted"

    def __init__(
        self, model: nn.Module, handle: Any, end: Callable[[], None] = lambda: None
    ) -> None:
        """``end`` ends the handle."""
        super().__init__(model)
        self._handle, self._end = handle, end

    def total(self, steps: int) -> Traffic:
        totals = self._handle.totals()
        return Traffic(
            *(getattr(totals, field.name) or 0.0 for field in dataclasses.fields(Traffic))
        )

    @property
    def settled(self) -> bool:
        return bool(self._handle.settled())

    def close(self) -> None:
        self._end()


class WeightedHook(CountedHook):
    """Tersor under DDP; the batches of ranks may have different sizes."""

    def samples_follow(self, count: int) -> None:
        self._handle.samples = count


class OptimizerHook(CountedHook):
    """A compressed optimizer. Gradients stay each rank's own."""

    def __init__(self, module: nn.Module, own: Any, replaces: type[torch.optim.Optimizer]) -> None:
        super().__init__(module, own)
        self._replaces = replaces

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """Raises BenchmarkError if ``plain`` has another class than the replaced optimizer."""
        defaults = _expected(plain, self._replaces, type(self._handle).__name__).defaults
        for group in self._handle.param_groups:
            group.update({key: defaults[key] for key in defaults.keys() & group.keys()})
        return self._handle


class OneBitAdamHook(Hook):
    """1-bit Adam. Gradients stay each rank's own."""

    bytes_are = "computed"

    def __init__(self, module: nn.Module, dense_steps: int) -> None:
        super().__init__(module)
        self._dense_steps = dense_steps

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """Raises BenchmarkError if ``plain`` is not AdamW."""
        self._own = OneBitAdamW(adamw(plain, "onebit-adam"), self._dense_steps)
        return self._own

    def total(self, steps: int) -> Traffic:
        count = parameter_count(self.model) * min(self._own.steps, self._dense_steps)
        dense_bytes = ring_bytes(4 * count, dist.get_world_size())
        return Traffic(dense_bytes + self._own.exchange.sent_bytes)


def _expected(plain: torch.optim.Optimizer, kind: type[Kind], name: str) -> Kind:
    if not isinstance(plain, kind):
        wanted = kind.__name__
        raise BenchmarkError(f"{name}: needs {wanted}, but this model has another optimizer")
    return plain


def adamw(plain: torch.optim.Optimizer, name: str) -> torch.optim.AdamW:
    """``plain``. Raises BenchmarkError if it is not AdamW."""
    return _expected(plain, torch.optim.AdamW, name)
