"""An optimizer that averages gradients over ranks, for training scripts without DDP or FSDP.

After Horovod (Sergeev and Del Balso 2018, arXiv:1802.05799): the script calls ``backward`` and
``step``, and Tersor sends gradients while the rest of the backward pass computes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError, RanksLostError
from tersor._options import expect, takes_advanced
from tersor._renamed import deprecated, renamed_keywords
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules, merged_options
from tersor.torch._src.checkpoint.residuals import Mode, as_mapping, load_reducer, save_reducer
from tersor.torch._src.gradients.copies import SentGradients
from tersor.torch._src.gradients.exchange import OnLoss, Presence, TensorExchange
from tersor.torch._src.gradients.low_bit_adam import chosen_codecs, warn_low_bits
from tersor.torch._src.gradients.sample_weights import Samples
from tersor.torch._src.optim import state as optimizer_state
from tersor.torch._src.optim.averaging import AveragedGradients
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import OptimizedParameters, Unsupported
from tersor.torch._src.statistics.handles import Handle, Reporting

Closure = Callable[[], Any]


class WrapperMethod:
    """A method of a wrapper. Programs may replace the method on the wrapper or the optimizer.

    Both objects share one ``__dict__``, so ``_replaced`` keeps the wrapper's replacements.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self._function
        replaced = instance._replaced.get(self._function.__name__)
        return MethodType(self._function, instance) if replaced is None else replaced

    def __set__(self, instance: Any, value: Any) -> None:
        instance._replaced[self._function.__name__] = value

    def __delete__(self, instance: Any) -> None:
        del instance._replaced[self._function.__name__]


class DistributedOptimizer(AveragedGradients, torch.optim.Optimizer, Handle):
    """Wraps an optimizer: before each step, gradients become their mean over ranks.

    To read or clip the means before the step, call ``synchronize``, then ``step`` within
    ``skip_synchronize``. A ``GradScaler``'s ``unscale_`` belongs between the two calls.

    A parameter without a gradient on this rank contributes zeros, keeps its residual and receives
    the mean. The optimizer leaves a parameter alone if no rank has a gradient. A parameter that is
    unfrozen or added takes part from its first gradient on. All ranks must begin with equal
    parameters: call ``tersor.torch.broadcast_parameters(model)``, which includes buffers.

    All ranks together may discard gradients before a step: with ``transactional=True``,
    ``zero_grad`` and ``discard_step`` restore the residuals, and so does a step that a
    ``GradScaler`` skips.

    Between ``backward`` and ``synchronize`` a gradient keeps this rank's values, because Tersor
    sends a copy of each gradient. If a program edits or replaces the gradient meanwhile,
    ``synchronize`` raises an error that names the parameter. The sent values and the means do not
    change.

    A ``DistributedOptimizer`` is an instance of the wrapped optimizer's class, and shares all
    attributes with the wrapped optimizer.

    Args:
        optimizer: The optimizer to wrap.
        named_parameters: Result of ``model.named_parameters()``; ``rules`` match these names. By
            default, names are those of the optimizer's groups, or ``"parameter.0"``, … in order.
            Parameters outside the optimizer are left alone.
        codec: Spec of the codec, such as ``"int8"``, or ``"auto"``.
        rules: Tuples ``(pattern, codec)`` or ``(pattern, codec, step)``, as in ``compress``.
        process_group: The ranks that take part. Default: all.
        timeout: Seconds after which a missing rank raises TransportError. Default: the timeout of
            the process group.
        residual_dtype: Dtype of the residuals, ``"f32"`` or ``"bf16"``.
        weighted: True if gradients are weighted by ``samples``. By default, every rank has the
            same weight.
        transactional: True if ``discard_step`` can restore the residuals from before the last
            step, which takes twice the memory.
        elastic: True if the remaining ranks may continue after the loss of a rank, see ``resume``.
        min_ranks: The minimum number of ranks to continue. 0: more than half of the ranks, or
            exactly half with the lowest rank.
        on_loss: ``"raise"`` raises RanksLostError after a loss. ``"continue"`` warns and omits
            the step. Needs ``elastic=True``.
        backward_passes_per_step: Number of backward passes to accumulate before sending.
        unsupported: ``"warn"`` sends float64 and complex gradients uncompressed and sparse
            gradients as dense, with one warning. ``"error"`` raises for such gradients.
        advanced: Further options.

    Raises:
        InvalidArgumentError: Two parameters have one name, a parameter has no name or is sharded
            over ranks of ``process_group``, or an option is wrong.

    Example::

        optimizer = tersor.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), codec="int8"
        )
        loss.backward()     # sends each gradient as soon as it is computed
        optimizer.step()    # waits for the means, then steps
    """

    # Attributes of the wrapper alone: ``__dict__`` is the wrapped optimizer's.
    __slots__ = (
        "_exchange", "_group", "_optimized", "_options", "_passes", "_passes_per_step", "_presence",
        "_removed", "_replaced", "_samples", "_sent", "_skip", "_sparse", "_synchronized",
        "_uncompressed", "_unsupported", "optimizer",
    )  # fmt: skip
    # False, whatever the wrapped optimizer supports: a scaler looks at this rank's gradients.
    _step_supports_amp_scaling = property(lambda _: False)

    @renamed_keywords(group="process_group", least_ranks="min_ranks")
    @takes_advanced(AdvancedOptions)
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        *,
        codec: str = "bf16",
        rules: Rules | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        weighted: bool = False,
        transactional: bool = False,
        elastic: bool = False,
        min_ranks: int = 0,
        on_loss: OnLoss = "raise",
        backward_passes_per_step: int = 1,
        unsupported: Unsupported = "warn",
        advanced: AdvancedOptions | None = None,
    ) -> None:
        if backward_passes_per_step < 1:
            raise InvalidArgumentError(
                f"backward_passes_per_step={backward_passes_per_step}: give at least 1"
            )
        options: Any = merged_options(AdvancedOptions, **locals())
        self.__dict__ = optimizer.__dict__
        self.optimizer = optimizer
        self._replaced: dict[str, Any] = {}
        self._optimized = OptimizedParameters(optimizer, named_parameters)
        if not self._optimized.all:
            raise InvalidArgumentError("the optimizer has no parameters")
        self._group = process_group
        self._unsupported, self._samples = unsupported, Samples(options)
        self._passes_per_step = backward_passes_per_step
        self._uncompressed, self._passes, self._sparse = {}, {}, set()
        self._synchronized = self._skip = self._removed = False
        selection.refuse_elastic_shards(options, self._optimized.all)
        device = next(iter(self._optimized.all.values())).device
        self._exchange = TensorExchange(process_group, device, options)
        self._sent = SentGradients(device)
        self._options = self._exchange.options
        self._check_newcomers(self._parameters)
        self._register_hooks(self._parameters)
        self._exchange.register(compressed := self._compressed(self._parameters))
        self._presence = Presence(self._exchange)
        warn_low_bits(optimizer, chosen_codecs(self._options, compressed))

    def __new__(cls, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        return super().__new__(_merged_class(cls, optimizer))

    functools.update_wrapper(__new__, __init__, (), ())  # the signature in help()

    def synchronize(self) -> None:
        """Sends the remaining gradients and waits: every gradient becomes the mean over ranks.

        ``step`` calls ``synchronize`` unless the program did.

        Raises:
            TransportError: A rank failed, or made another call.
            WireError: A message is damaged.
            InvalidArgumentError: A gradient was changed while Tersor was sending the gradient. Or
                ranks have other parameters, in the first step or after ``load_state_dict``.
            RanksLostError: With ``elastic=True``, ranks were lost. Gradients are undefined: call
                ``resume`` and compute them again. With ``on_loss="continue"``, ``synchronize``
                warns instead and removes the gradients, and ``step`` moves nothing.

        Example::

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """
        changed = self._sent.changed(self._parameters)
        try:
            self._exchange.run_elastic(self._exchange_gradients, repeat=False)
        except RanksLostError as lost:
            if self._exchange.on_loss == "raise":
                raise
            return self._skip_step(lost)
        if changed:
            raise InvalidArgumentError(
                f"the gradient of {changed[0]} was changed while it was being sent: call "
                "synchronize() before clipping, and before a scaler's unscale_"
            )
        self._synchronized = True

    def resume(self) -> None:
        super().resume()
        self._reset_step()

    def reset(self) -> None:
        super().reset()
        self._exchange.register(self._compressed(self._parameters))
        self._reset_step()

    def remove(self) -> None:
        self._check_idle("remove")
        super().remove()

    def _check_idle(self, call: str) -> None:
        if len(self._sent):
            raise InvalidArgumentError(
                f"{call}() while gradients are being sent: call {call}() after step() or before "
                "backward()"
            )

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the context, ``step`` uses the gradients as they are, after ``synchronize``.

        Returns:
            A context manager.

        Example::

            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    @WrapperMethod
    def step(self, closure: Closure | None = None, **options: Any) -> Any:
        """Calls the wrapped optimizer's ``step`` on the mean gradients. A collective call.

        Step hooks run once, around the wrapped step.

        Args:
            closure: Computes gradients and returns the loss. An exchange follows each evaluation.
            **options: Options of the wrapped optimizer's ``step``.

        Returns:
            The result of the wrapped ``step``.

        Raises:
            InvalidArgumentError: ``step`` is called within ``skip_synchronize`` while gradients
                are being sent. All errors of ``synchronize`` are raised too.

        Example::

            loss.backward()
            optimizer.step()
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

    @WrapperMethod
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. Between ``backward`` and ``step``, discards them on all ranks.

        Args:
            set_to_none: True to remove gradients; False to set them to zero.

        Raises:
            InvalidArgumentError: Gradients are being sent, a codec has ``+ef``, and
                ``transactional`` is False; or only some ranks discard.

        Example::

            optimizer.zero_grad()
            loss.backward()
        """
        if len(self._sent) or self._synchronized:
            self._discard_gradients()
        self._passes.clear()
        self.optimizer.zero_grad(set_to_none)

    def discard_step(self) -> None:
        """Restores the residuals from before the last exchange, if no step used its result.

        Ends an exchange under way. Call ``discard_step`` on all ranks. Needs
        ``transactional=True``.

        Raises:
            InvalidArgumentError: ``transactional`` is False, there is no step to discard, or only
                some ranks discard.

        Example::

            if not torch.isfinite(loss):
                optimizer.discard_step()
        """
        if len(self._sent):
            return self._discard_gradients()
        self._synchronized = False
        self.reducer.discard_step()

    def state_dict(self, mode: Mode | None = None) -> dict[str, Any]:
        """Returns the wrapped optimizer's state, with ``mode`` also the residuals.

        Args:
            mode: None returns the wrapped optimizer's state alone, which is equal on all ranks.
                ``"exact"`` adds each rank's residuals: save one file per rank, or a distributed
                checkpoint. ``"portable"`` adds the residuals' sum, for any number of ranks, and is
                a collective call.

        Returns:
            A dict as of ``torch.optim.Optimizer.state_dict``. Residuals are under ``"tersor"`` in
            the first parameter group.

        Raises:
            InvalidArgumentError: ``mode`` is unknown, or is ``"exact"`` after ranks were lost.

        Example::

            torch.save(optimizer.state_dict("exact"), f"optimizer{dist.get_rank()}.pt")
        """
        state = self.optimizer.state_dict()
        if mode is None:  # without residuals that the wrapped optimizer loaded before
            return {**state, "param_groups": optimizer_state.plain_groups(state)}
        return optimizer_state.with_residuals(state, self._residuals(mode))

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Loads the result of ``state_dict``, with residuals if the state has any.

        A state without residuals leaves the residuals as they are. After a state with residuals,
        the next step raises TransportError if ranks loaded different moments.

        Args:
            state_dict: Result of ``state_dict``. None or an empty dict sets residuals to zero with
                a warning, and changes nothing else.

        Raises:
            InvalidArgumentError: The residuals are damaged, or of another model, codec, or (if
                exact) number of ranks. Nothing was changed then.

        Example::

            optimizer.load_state_dict(torch.load(path, weights_only=True))
        """
        self._presence.compare_again()
        reducer, group = self.reducer, self._process_group()
        saved = as_mapping(state_dict)
        residuals = optimizer_state.residuals_of(saved) if saved else {}
        if saved and not residuals:
            return self.optimizer.load_state_dict(dict(saved))
        self._check_idle("load_state_dict")
        if residuals:
            state = optimizer_state.plain_state(self.optimizer, saved)
            load = self.optimizer.load_state_dict
            common = optimizer_state.tensors_of(state)
            optimizer_state.load_with(reducer, group, residuals, lambda: load(state), common)
        else:
            load_reducer(reducer, group, None)
        self._synchronized = False  # the step of earlier gradients cannot be discarded any more

    def _residuals(self, mode: Mode) -> dict[str, Any]:
        self._check_idle("state_dict")
        return save_reducer(self.reducer, self._process_group(), self._check_exact(mode))

    def residual_state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """Deprecated: returns the residuals alone. Use ``state_dict(mode)``."""
        deprecated("DistributedOptimizer.residual_state_dict(mode)", "use state_dict(mode)")
        return self._residuals(mode)

    def load_residual_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Deprecated: loads the result of ``residual_state_dict``. Use ``load_state_dict``."""
        old = "DistributedOptimizer.load_residual_state_dict(state)"
        deprecated(old, "use load_state_dict(state)")
        load_reducer(self.reducer, self._process_group(), state)
        self._synchronized = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the wrapped optimizer, between two steps, on all ranks.

        Args:
            param_group: A group as of ``torch.optim.Optimizer.add_param_group``.

        Raises:
            ValueError: A parameter is in another group already.

        Example::

            optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.01})
        """
        self.optimizer.add_param_group(param_group)

    def _evaluate(self, closure: Closure) -> Any:
        loss = closure()
        self.synchronize()
        self._synchronized = False
        return loss


def _merged_class(wrapper: type, optimizer: torch.optim.Optimizer) -> Any:
    """A subclass of ``wrapper`` and the optimizer's class. Attributes of ``wrapper`` come first."""
    name = wrapper.__name__
    wanted = f"{name} needs an optimizer, such as torch.optim.SGD(…)"
    expect(optimizer, torch.optim.Optimizer, wanted)
    if isinstance(optimizer, Reporting):
        raise InvalidArgumentError(
            f"a {type(optimizer).__name__} exchanges in its own step: use it without {name}"
        )
    return _subclass(wrapper, type(optimizer))  # type: ignore[arg-type]  # classes have hashes


@functools.cache
def _subclass(wrapper: type, wrapped: type) -> Any:
    options = {"__module__": wrapper.__module__, "__doc__": wrapper.__doc__, "__slots__": ()}
    return type(wrapper)(wrapper.__name__, (wrapper, wrapped), options)
