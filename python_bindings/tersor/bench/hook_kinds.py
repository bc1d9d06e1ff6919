"""The kinds of hooks of `hooks`: how each exchanges gradients, and how its bytes are counted."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import Mark, Sender, Span, Traffic, mark_of
from tersor.bench.models import Batch, scores_of
from tersor.bench.records import Record
from tersor.bench.world import World

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


class Waits:
    """The spans of waiting for other ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._kind = device, mark_of(device)
        self._start, self._spans = self._kind(), list[Span]()

    def begin(self, *_: object) -> None:
        """Begins a span. May be a tensor's or an optimizer's hook."""
        self._start = self._kind()

    def end(self, *_: object) -> None:
        """Ends the span. May be a tensor's or an optimizer's hook."""
        self._spans.append((self._start, self._kind()))

    def during(self, call: Callable[[], Any]) -> Any:
        """Calls, and counts the call as waiting."""
        self.begin()
        result = call()
        self.end()
        return result

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, counted as waiting."""
        return lambda *arguments: self.during(lambda: call(*arguments))

    def pop_spans(self) -> list[Span]:
        """The spans since the last call."""
        spans, self._spans = self._spans, []
        return spans


class Hook(abc.ABC):
    """A model whose gradients are exchanged in one of these ways."""

    bytes_are = "counted"  # the origin of sent_bytes: "counted" or "computed"
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

    def step_traffic(self, steps: int, world: World) -> Record:
        """The mean traffic of each of the `steps` since the last call, as fields of a record. A
        collective call."""
        own = self.traffic(steps).fields()
        known = {key: value / steps for key, value in own.items() if value is not None}
        means = world.mean([*known.values()])
        return own | dict(zip(known, means, strict=True))

    @property
    def settled(self) -> bool:
        """True if the hook does not change its choices any more; equal on all ranks."""
        return True

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """The optimizer that replaces ``plain``, the optimizer of averaged gradients."""
        return plain

    def set_sample_count(self, count: int) -> None:  # noqa: B027
        """Announces the number of samples of the next backward pass."""

    def run_backward(self, batch: Batch) -> Tensor:
        """The forward and backward pass of a step. Returns the loss."""
        self.set_sample_count(len(batch[0]))
        loss = functional.cross_entropy(*scores_of(self.model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """The spans of waiting for other ranks before the optimizer's step. The rank's last
        gradient was ready when `computed`, all ranks' gradients when `reduced`."""
        return [(computed, reduced)]

    def exposed_in_step(self) -> list[Span]:
        """The spans of waiting for other ranks in the last step of the optimizer."""
        return []

    def gather(self, what: Literal["data", "grad"] = "data") -> None:  # noqa: B027
        """Gives all ranks the weights or the gradients of all parameters."""

    def close(self) -> None:  # noqa: B027
        """Ends the hook. The model must not be used after."""


class ComputedHook(Hook):
    """A way of PyTorch. A function computes the bytes of a number of steps."""

    bytes_are = "computed"

    def __init__(
        self,
        model: nn.Module,
        sent_bytes: Callable[[int], float],
        wrap: Callable[[torch.optim.Optimizer], Any] = lambda plain: plain,
    ) -> None:
        """``wrap`` makes the optimizer that replaces the plain one."""
        super().__init__(model)
        self._sent_bytes, self._wrap = sent_bytes, wrap

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        return self._wrap(plain)

    def total(self, steps: int) -> Traffic:
        return Traffic(self._sent_bytes(steps))


class CountedHook(Hook):
    """Tersor: the reducer counts bytes and seconds."""

    def __init__(
        self, model: nn.Module, handle: Any, end: Callable[[], None] = lambda: None
    ) -> None:
        """``end`` ends the handle."""
        super().__init__(model)
        self._handle, self._end = handle, end

    def total(self, steps: int) -> Traffic:
        totals = self._handle.totals()
        fields = dataclasses.fields(Traffic)
        return Traffic(*(getattr(totals, one.name) or 0.0 for one in fields))

    @property
    def settled(self) -> bool:
        return bool(self._handle.settled())

    def close(self) -> None:
        self._end()


class WeightedHook(CountedHook):
    """Tersor under DDP; the batches of ranks may have different sizes."""

    def set_sample_count(self, count: int) -> None:
        self._handle.samples = count


class OptimizerHook(CountedHook):
    """A compressed optimizer. Gradients stay each rank's own."""

    def __init__(self, module: nn.Module, own: Any, replaces: type[torch.optim.Optimizer]) -> None:
        super().__init__(module, own)
        self._replaces, self._waits = replaces, Waits(next(module.parameters()).device)
        for part, name in ((own._exchange, "wait"), (own._presence, "_sums")):
            setattr(part, name, self._waits.wrap(getattr(part, name)))

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """Raises BenchmarkError if ``plain`` has another class than the replaced optimizer."""
        defaults = expected(plain, self._replaces, type(self._handle).__name__).defaults
        for group in self._handle.param_groups:
            group.update({key: defaults[key] for key in defaults.keys() & group.keys()})
        return self._handle

    def exposed_in_step(self) -> list[Span]:
        return self._waits.pop_spans()


class WaitingHook(Hook):
    """Counts its own spans of waiting."""

    def __init__(self, model: nn.Module, *arguments: Any) -> None:
        super().__init__(model, *arguments)
        self.waits = Waits(next(model.parameters()).device)

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        return self.waits.pop_spans()

    def exposed_in_step(self) -> list[Span]:
        return self.waits.pop_spans()


class PeerHook(WaitingHook):
    """An optimizer of `peers` or `optimizers`. Gradients stay each rank's own."""

    def __init__(
        self,
        module: nn.Module,
        make: Callable[[torch.optim.AdamW, Sender], torch.optim.Optimizer],
        name: str,
    ) -> None:
        """``make`` makes the optimizer that replaces the plain one."""
        super().__init__(module)
        self._make, self._name = make, name

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        adamw = expected(plain, torch.optim.AdamW, self._name)
        self._sender = Sender(self.waits.during)
        return self._make(adamw, self._sender)

    def total(self, steps: int) -> Traffic:
        return Traffic(self._sender.sent_bytes)


class LocalHook(WaitingHook):
    """Each rank's own optimizer changes its weights. Between two steps, the model may show the
    common values of all ranks."""

    def __init__(self, model: nn.Module, *arguments: Any) -> None:
        super().__init__(model, *arguments)
        self._own_values: list[tuple[Tensor, Tensor]] = []  # parameters, and this rank's own values

    @abc.abstractmethod
    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter with the common values."""

    @torch.no_grad()
    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """Shows the common values until the next step."""
        for one, common in list(self._common()):
            self._own_values.append((one, one.clone()))
            one.copy_(common)

    def run_backward(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            for one, own in self._own_values:
                one.copy_(own)
        self._own_values.clear()
        return super().run_backward(batch)


def expected(plain: torch.optim.Optimizer, kind: type[Kind], name: str) -> Kind:
    """``plain``. Raises BenchmarkError if ``plain`` has another class."""
    if not isinstance(plain, kind):
        wanted = kind.__name__
        raise BenchmarkError(f"{name}: needs {wanted}, but this model has another optimizer")
    return plain
