"""The exchange of a ``DistributedOptimizer``: sends gradients and writes the means back."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from tersor._core import InvalidArgumentError, RanksLostError
from tersor.reducer import ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.gradients.copies import SentGradients, write_means
from tersor.torch._src.gradients.low_bit_adam import has_feedback
from tersor.torch._src.gradients.sample_weights import SampleWeighted
from tersor.torch._src.optim.handle import OptimizerHandle
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import Unsupported

_RESIDUALS = (
    "their residuals (+ef) will still reach the weights; pass transactional=True, or compute no "
    "gradients in this pass (requires_grad_(False) of the module)"
)


class AveragedGradients(SampleWeighted, OptimizerHandle):
    """The gradients of a wrapped optimizer. The subclass has the attributes in ``__slots__``."""

    optimizer: torch.optim.Optimizer
    _sparse: set[str]  # parameters with sparse gradients before
    _options: ReducerOptions
    _passes: dict[str, tuple[int, weakref.ref[Tensor]]]
    _passes_per_step: int
    _sent: SentGradients
    _synchronized: bool
    _uncompressed: dict[str, str]
    _unsupported: Unsupported

    def _exchange_gradients(self) -> None:
        if self._removed:
            return self._average_uncompressed()
        active = self._end_exchange(discards=False)
        self._exchange_newcomers([name for name in active if name not in self._parameters])
        self._presence.check_equal({name: self._parameters[name] for name in active})
        self._samples.end()

    def _average_uncompressed(self) -> None:
        self._passes.clear()
        self._samples.begin()
        active, _ = self._presence.on_any_rank(self._optimized.with_gradients())
        for name in active:
            gradient = self._dense_gradient(name, self._optimized.all[name])
            selection.reduce_uncompressed(gradient, self._group, self._samples)
        self._samples.end()

    def _reset_step(self) -> None:
        self._sent = SentGradients(self._exchange.device)
        self._passes.clear()
        self._samples.end()
        self._synchronized = False

    def _skip_step(self, lost: RanksLostError) -> None:
        _compat.warn(f"{lost}. The step is skipped.")
        self.resume()
        self.optimizer.zero_grad(set_to_none=True)
        self._synchronized = True

    def _check_newcomers(self, newcomers: Mapping[str, Tensor]) -> None:
        group, how = self._process_group(), self._unsupported
        selection.refuse_sharded(newcomers, group, "use tersor.torch.compress")
        found = selection.reasons_of(newcomers)
        selection.report_unsupported(found, "error" if self._exchange.elastic else how, group)
        self._uncompressed.update(found)

    def _register_hooks(self, names: Iterable[str]) -> None:
        for name in names:
            if self._parameters[name].requires_grad:  # may still be frozen on this rank
                hook = functools.partial(_grad_hook, weakref.ref(self), name)
                self._parameters[name].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _end_exchange(self, *, discards: bool) -> list[str]:
        """Ends the exchange. Returns the parameters with a gradient on some rank."""
        try:
            present = self._optimized.with_gradients()
            if replaced := self._optimized.pop_replaced():
                self._register_hooks(replaced)
                self._presence.compare_again()
            active, [discarding] = self._presence.on_any_rank(present, [discards])
            self._samples.weigh_once(self.reducer)
            self._send_remaining(self._parameters, [] if discards else active)
        finally:  # an error must not make zero_grad fail
            self._passes.clear()
            sent = self._sent.end()
        self._exchange.wait()
        if 0 < discarding < self._ranks():
            raise InvalidArgumentError(
                f"{discarding} of {self._ranks()} ranks discard the gradients of this step: call "
                "zero_grad() or discard_step() before a step on all ranks or on no rank"
            )
        if not discards:
            write_means(sent, sums=self._options.get("reduction") == "sum")
            self._reduce_uncompressed(active)
            grads = {n: one.grad for n, one in self._parameters.items() if n in active}
            self._passes = {n: (0, weakref.ref(one)) for n, one in grads.items() if one is not None}
        return active

    def _were_cleared(self) -> bool:
        """True if a program removed averaged gradients without this object's ``zero_grad``."""
        now = {n: one.grad for n, one in self._parameters.items()}
        return any(n in now and last() is not now[n] for n, (_, last) in self._passes.items())

    def _discard_gradients(self) -> None:
        if self._removed:
            self._synchronized = False
            return
        transactional = self._options.get("transactional", False)
        leaves_residuals = has_feedback(self._options) and not transactional
        if leaves_residuals and len(self._sent):
            raise InvalidArgumentError(f"gradients that are being sent are discarded: {_RESIDUALS}")
        if leaves_residuals:
            warnings.warn(f"averaged gradients were discarded: {_RESIDUALS}", stacklevel=3)
        if len(self._sent):
            self._end_exchange(discards=True)
            self._samples.end()
        self._synchronized = False
        if transactional:
            self.reducer.discard_step()

    def _send_remaining(self, names: Iterable[str], active: Collection[str]) -> None:
        for name in names:
            if name in self._sent:
                continue
            if name in active:
                self._send(name, self._parameters[name])
            elif name not in self._uncompressed:
                self._exchange.skip(name, self._parameters[name])

    def _exchange_newcomers(self, newcomers: Collection[str]) -> None:
        """Adds parameters without an earlier gradient. All ranks add the same parameters.

        The first gradients are sent alone, in an additional step of the new reducer. This step is
        not a step of the training.
        """
        if not newcomers:
            return
        self._check_newcomers({name: self._optimized.all[name] for name in newcomers})
        extended = self._optimized.extended(newcomers)
        self._exchange.register(self._compressed(extended), steps_back=1)
        self._optimized.exchanged = extended  # an error before leaves newcomers out
        self._register_hooks(newcomers)
        self._samples.weigh(self.reducer)
        self._send_remaining(self._parameters, newcomers)
        sent = self._sent.end()
        self._exchange.wait()
        write_means(sent, sums=self._options.get("reduction") == "sum")
        self._reduce_uncompressed(newcomers)
        self.reducer.relearn_order()

    def _compressed(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shards = selection.shards_of(parameters)
        return {name: one for name, one in shards.items() if name not in self._uncompressed}

    def _on_accumulated(self, name: str, parameter: Tensor) -> None:
        """Called by autograd when a gradient was added to ``parameter.grad``."""
        if self._removed:
            return
        gradient = parameter.grad
        assert gradient is not None
        if name in self._sent:
            if gradient is self._sent.gradient(name) or gradient.requires_grad:
                raise InvalidArgumentError(
                    f"the gradient of {name} was computed again while it is being sent: call "
                    f"step() or synchronize() after {self._passes_per_step} backward passes, or "
                    "pass a larger backward_passes_per_step"
                )
            self._discard_gradients()
        transactional = self._options.get("transactional", False)
        if self._synchronized and transactional and self._were_cleared():
            self._discard_gradients()  # the step was skipped, and model.zero_grad() was called, say
        self._synchronized = False
        passes, last = self._passes.get(name, (0, None))
        passes = 1 if last is None or last() is not gradient else passes + 1  # 1: a new gradient
        self._passes[name] = passes, weakref.ref(gradient)
        if passes == self._passes_per_step:
            self._send(name, parameter)

    def _send(self, name: str, parameter: Tensor) -> None:
        missing = parameter.grad is None
        gradient = self._dense_gradient(name, parameter)
        if name in self._uncompressed:
            self._sent.add(name, gradient)
            return
        values = self._sent.copy(name, gradient)
        self._exchange.acquire()
        with contextlib.suppress(RanksLostError):  # raised by step() instead
            self._samples.weigh_once(self.reducer)
            self.reducer.ready(name, values, "none" if missing else "gradient")
        self._sent.add(name, gradient, values)

    def _dense_gradient(self, name: str, parameter: Tensor) -> Tensor:
        """The gradient as a dense tensor; zeros if this rank has none."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            if name not in self._sparse:
                self._sparse.add(name)
                found = {name: "sparse, as dense"}
                selection.report_unsupported(found, self._unsupported, self._process_group())
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _reduce_uncompressed(self, names: Collection[str]) -> None:
        for name in filter(names.__contains__, self._uncompressed):
            selection.reduce_uncompressed(self._parameters[name].grad, self._group, self._samples)


def _grad_hook(owner: weakref.ref[AveragedGradients], name: str, parameter: Tensor) -> None:
    """A hook of autograd, with only a weak reference to the optimizer."""
    if (optimizer := owner()) is not None:
        optimizer._on_accumulated(name, parameter)
