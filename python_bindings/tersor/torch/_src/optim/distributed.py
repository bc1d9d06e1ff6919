"""An optimizer that averages gradients over ranks, for trainers without DDP or FSDP.

In the manner of Horovod (Sergeev and Del Balso 2018, arXiv:1802.05799): the trainer calls
``backward`` and ``step`` itself, and gradients travel while the rest of the backward pass computes.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError, RanksLostError
from tersor.torch._src.checkpoint.residuals import Mode, load_reducer, save_reducer
from tersor.torch._src.gradients.copies import SentGradients, write_means
from tersor.torch._src.gradients.exchange import (
    ElasticOptions,
    Presence,
    TensorExchange,
    refuse_elastic_shards,
)
from tersor.torch._src.gradients.low_bit_adam import chosen_codecs, has_feedback, warn_of
from tersor.torch._src.gradients.sample_weights import Samples, Weighed
from tersor.torch._src.optim.wrapper import OwnMethod, merged
from tersor.torch._src.parameters.selection import (
    OptimizedParameters,
    Unsupported,
    is_supported,
    reason_of,
    reduce_uncompressed,
    refuse_sharded,
    report_unsupported,
    shards_of,
)
from tersor.torch._src.statistics.handles import ElasticReporting

if TYPE_CHECKING:
    from typing_extensions import Unpack

Closure = Callable[[], Any]

_LEFT_OVER = (
    "their residuals (+ef) will still reach the weights; pass transactional=True, or compute no "
    "gradients in this pass (requires_grad_(False) of the module)"
)


class DistributedOptimizer(ElasticReporting, Weighed, torch.optim.Optimizer):
    """Wraps an optimizer: before each step, gradients become their mean over ranks.

    ::

        optimizer = tersor.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), codec="int8"
        )
        loss.backward()     # each gradient is sent as soon as it is there
        optimizer.step()    # waits for the means, then the wrapped optimizer steps

    To look at the means before the step, for clipping, or for a ``GradScaler`` (whose ``unscale_``
    belongs between ``synchronize`` and ``step``)::

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    A parameter without a gradient on this rank contributes zeros, keeps its residual, and gets the
    mean of the others; one that no rank has a gradient of is left alone. One that is unfrozen, or
    added to the wrapped optimizer, is exchanged from its first gradient on. Ranks must begin with
    equal parameters: call ``tersor.torch.broadcast_parameters(model)``, which includes buffers.

    Gradients may be thrown away, by all ranks alike: ``zero_grad`` before a step takes back what
    residuals held of them, with ``transactional=True``; ``discard_step`` does so by itself. So does
    a step that a ``GradScaler`` skips.

    Between ``backward`` and ``synchronize`` a gradient keeps this rank's values, because copies are
    sent: one copy of each gradient. A gradient that is edited or replaced meanwhile raises an error
    that names the parameter. The sent values and the means do not change.

    A ``DistributedOptimizer`` is a subclass of the wrapped optimizer's class, too, and shares all
    attributes with the wrapped optimizer. ``step``, ``zero_grad`` and the methods listed here come
    first. ``state_dict`` is the wrapped optimizer's; ``residual_state_dict`` goes beside it.
    """

    # Attributes of the wrapper alone: ``__dict__`` is the wrapped optimizer's.
    __slots__ = (
        *("_dense", "_exchange", "_group", "_optimized", "_options", "_passes", "_passes_per_step"),
        *("_presence", "_replaced", "_samples", "_sent", "_skip", "_synchronized", "_uncompressed"),
        *("_unsupported", "optimizer"),
    )
    _exchange: TensorExchange
    # False, whatever the wrapped optimizer supports: a scaler looks at this rank's gradients.
    _step_supports_amp_scaling = property(lambda _: False)

    def __new__(cls, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        return super().__new__(merged(cls, optimizer))

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        backward_passes_per_step: int = 1,
        unsupported: Unsupported = "warn",
        **options: Unpack[ElasticOptions],
    ) -> None:
        """``named_parameters``: as ``model.named_parameters()``; rules look at these names.

        Default names are those of the optimizer's groups, or ``"parameter.0"``, …, in its order.
        Parameters that the optimizer does not have are left alone. ``group``: who takes part,
        default the whole world. ``backward_passes_per_step``: how many gradients are accumulated
        before they are sent.
        ``unsupported``: what gradients mean that cannot be encoded: with ``"warn"`` float64 and
        complex ones travel uncompressed, and sparse ones are made dense, which is told once; with
        ``"error"`` they raise. ``options``: as of ``tersor.GradientReducer``.
        Raises InvalidArgumentError for a name that stands for two parameters, a parameter without a
        name or sharded over ranks of ``group``, and options that are wrong.
        """
        if backward_passes_per_step < 1:
            raise InvalidArgumentError(
                f"backward_passes_per_step={backward_passes_per_step}: give at least 1"
            )
        self.__dict__ = optimizer.__dict__
        self.optimizer = optimizer
        self._replaced: dict[str, Any] = {}
        self._optimized = OptimizedParameters(optimizer, named_parameters)
        if not self._optimized.all:
            raise InvalidArgumentError("the optimizer has no parameters")
        self._group = group
        self._unsupported, self._samples = unsupported, Samples(options)
        self._uncompressed: dict[str, str] = {}
        self._passes_per_step = backward_passes_per_step
        self._passes: dict[str, tuple[int, weakref.ref[torch.Tensor]]] = {}
        self._dense: set[str] = set()  # whose gradients were sparse
        self._synchronized = self._skip = False
        refuse_elastic_shards(options, self._optimized.all)
        device = next(iter(self._optimized.all.values())).device
        self._exchange = TensorExchange(group, device, options)
        self._sent = SentGradients(device)
        self._options = self._exchange.options
        self._take_part(self._parameters)
        self._exchange.hold(self._compressed())
        self._presence = Presence(self._exchange)
        warn_of(optimizer, chosen_codecs(self._options, self._compressed()))

    def synchronize(self) -> None:
        """Sends what was not sent yet and waits: every gradient is the mean over ranks now.

        ``step`` does so itself where it was not done. Raises what ended the exchange:
        TransportError where a rank is gone or does something else, WireError where a message is
        damaged; InvalidArgumentError where a gradient was changed while it was being sent. With
        ``elastic=True`` RanksLostError: gradients are undefined then; ``resume``, and compute them
        again. With ``on_loss="continue"`` there are none then, and ``step`` moves nothing.
        """
        changed = self._sent.changed(self._parameters)
        try:
            self._exchange.together(self._exchange_gradients, again=False)
        except RanksLostError as lost:
            if self._exchange.on_loss == "raise":
                raise
            return self._leave_out_step(lost)
        if changed:
            raise InvalidArgumentError(
                f"the gradient of {changed[0]} was changed while it was being sent: call "
                "synchronize() before clipping, and before a scaler's unscale_"
            )
        self._synchronized = True

    def _exchange_gradients(self) -> None:
        somewhere = self._end_exchange(discards=False)
        self._exchange_newcomers([name for name in somewhere if name not in self._parameters])
        self._samples.end()

    def resume(self) -> None:
        super().resume()
        self._sent = SentGradients(self._exchange.device)
        self._samples.end()

    def _leave_out_step(self, lost: RanksLostError) -> None:
        warnings.warn(f"{lost}. The step is skipped.", stacklevel=4)
        self.resume()
        self.optimizer.zero_grad(set_to_none=True)
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` takes the gradients as they are: ``synchronize`` was called before."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    @OwnMethod
    def step(self, closure: Closure | None = None, **options: Any) -> Any:
        """The wrapped optimizer's step, on the mean gradients. ``options``: of that step.

        With a closure, each of its evaluations is followed by an exchange. Step hooks run once,
        around the wrapped step. Raises InvalidArgumentError within ``skip_synchronize`` while
        gradients are under way.
        """
        if closure is not None:
            return self.optimizer.step(functools.partial(self._evaluate, closure), **options)
        if self._skip and len(self._sent):
            raise InvalidArgumentError(
                "step() within skip_synchronize() while gradients are being sent: call "
                "synchronize() before"
            )
        if not (self._skip or self._synchronized):
            self.synchronize()
        self._synchronized = False
        return self.optimizer.step(**options)

    @OwnMethod
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; between backward and step it throws the gradients away.

        All ranks do so alike. An error where gradients are being sent, a codec has ``+ef``, and
        there is no ``transactional=True``.
        """
        if len(self._sent) or self._synchronized:
            self._throw_away()
        self._passes.clear()
        self.optimizer.zero_grad(set_to_none)

    def discard_step(self) -> None:
        """Takes back what residuals hold of the last exchange (``transactional=True`` only), or of
        the one under way, which it ends: where no step follows it. All ranks do so alike."""
        if len(self._sent):
            return self._throw_away()
        self._synchronized = False
        self.reducer.discard_step()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def residual_state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """The residuals, for a checkpoint, between two steps, as :meth:`HookState.state_dict`."""
        return save_reducer(self.reducer, self._process_group(), self._check_exact(mode))

    def load_residual_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Brings back what ``residual_state_dict`` gave, as :meth:`HookState.load_state_dict`."""
        load_reducer(self.reducer, self._process_group(), state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Between two steps, on all ranks alike."""
        self.optimizer.add_param_group(param_group)

    @property
    def _parameters(self) -> dict[str, torch.Tensor]:
        return self._optimized.taking_part

    def _take_part(self, newcomers: Mapping[str, torch.Tensor]) -> None:
        group, how = self._process_group(), self._unsupported
        refuse_sharded(newcomers, group, "use tersor.torch.compress")
        found = {name: reason_of(one) for name, one in newcomers.items() if not is_supported(one)}
        report_unsupported(found, "error" if self._exchange.elastic else how, group)
        self._uncompressed.update(found)
        self._watch(newcomers)

    def _watch(self, names: Iterable[str]) -> None:
        for name in names:
            if self._parameters[name].requires_grad:  # a rank may have it frozen still
                watch = functools.partial(_accumulated, weakref.ref(self), name)
                self._parameters[name].register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]

    def _end_exchange(self, *, discards: bool) -> list[str]:
        """The parameters with a gradient on some rank."""
        try:
            present = self._optimized.with_gradients()
            self._watch(self._optimized.take_replaced())
            somewhere, [discarding] = self._presence.somewhere(present, [discards])
            self._samples.weigh_once(self.reducer)
            self._send_rest(self._parameters, [] if discards else somewhere)
        finally:  # nor is zero_grad refused after an error
            self._passes.clear()
            sent = self._sent.end()
        self._exchange.wait()
        if 0 < discarding < self._ranks():
            raise InvalidArgumentError(
                f"{discarding} of {self._ranks()} ranks discard the gradients of this step: call "
                "zero_grad() or discard_step() before a step on all ranks or on no rank"
            )
        if not discards:
            write_means(sent)
            self._reduce_uncompressed(somewhere)
        return somewhere

    def _throw_away(self) -> None:
        transactional = self._options.get("transactional", False)
        leaves_some = has_feedback(self._options) and not transactional
        if leaves_some and len(self._sent):
            raise InvalidArgumentError(f"gradients that are being sent are discarded: {_LEFT_OVER}")
        if leaves_some:
            warnings.warn(f"averaged gradients were discarded: {_LEFT_OVER}", stacklevel=3)
        if len(self._sent):
            self._end_exchange(discards=True)
            self._samples.end()
        self._synchronized = False
        if transactional:
            self.reducer.discard_step()

    def _send_rest(self, names: Iterable[str], somewhere: Collection[str]) -> None:
        for name in names:
            if name in self._sent:
                continue
            if name in somewhere:
                self._send(name, self._parameters[name])
            elif name not in self._uncompressed:
                self._exchange.leave_out(name, self._parameters[name])

    def _exchange_newcomers(self, newcomers: Collection[str]) -> None:
        """Gradients that were none before, of all ranks alike: they take part from now on.

        They go by themselves, once, in a step of the new reducer that is no step of training.
        """
        if not newcomers:
            return
        self._optimized.join(newcomers)
        self._take_part({name: self._parameters[name] for name in newcomers})
        self._exchange.hold(self._compressed(), steps_back=1)
        self._samples.weigh(self.reducer)
        self._send_rest(self._parameters, newcomers)
        sent = self._sent.end()
        self._exchange.wait()
        write_means(sent)
        self._reduce_uncompressed(newcomers)
        self.reducer.relearn_order()

    def _compressed(self) -> dict[str, torch.Tensor]:
        shards = shards_of(self._parameters)
        return {name: one for name, one in shards.items() if name not in self._uncompressed}

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        """Called by autograd when a gradient was added to ``parameter.grad``."""
        gradient = parameter.grad
        assert gradient is not None
        if name in self._sent:
            if gradient is self._sent.gradient(name) or gradient.requires_grad:
                raise InvalidArgumentError(
                    f"the gradient of {name} was computed again while it is being sent: call "
                    f"step() or synchronize() after {self._passes_per_step} backward passes, or "
                    "pass a larger backward_passes_per_step"
                )
            self._throw_away()
        self._synchronized = False
        passes, last = self._passes.get(name, (0, None))
        passes = 1 if last is None or last() is not gradient else passes + 1  # else thrown away
        self._passes[name] = passes, weakref.ref(gradient)
        if passes == self._passes_per_step:
            self._send(name, parameter)

    def _send(self, name: str, parameter: torch.Tensor) -> None:
        missing = parameter.grad is None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            if name not in self._dense:
                self._dense.add(name)
                found = {name: "sparse, as dense"}
                report_unsupported(found, self._unsupported, self._process_group())
            parameter.grad = parameter.grad.to_dense()
        if name in self._uncompressed:
            self._sent.add(name, parameter.grad)
            return
        values = self._sent.copy(name, parameter.grad)
        self._exchange.take_over()
        with contextlib.suppress(RanksLostError):  # step() raises it, not the backward pass
            self._samples.weigh_once(self.reducer)
            self.reducer.ready(name, values, "none" if missing else "gradient")
        self._sent.add(name, parameter.grad, values)

    def _reduce_uncompressed(self, names: Collection[str]) -> None:
        for name in filter(names.__contains__, self._uncompressed):
            reduce_uncompressed(self._parameters[name].grad, self._group, self._samples)

    def _evaluate(self, closure: Closure) -> Any:
        loss = closure()
        self.synchronize()
        self._synchronized = False
        return loss


def _accumulated(
    watcher: weakref.ref[DistributedOptimizer], name: str, parameter: torch.Tensor
) -> None:
    """A hook of autograd's, which does not keep the optimizer alive."""
    if (optimizer := watcher()) is not None:
        optimizer._accumulated(name, parameter)
