"""Compressed gradients under ``DistributedDataParallel``, by the communication hook.

DDP looks at the annotations of ``hook``, so this file does not postpone the evaluation.
"""

import concurrent.futures
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # where it is documented
from torch.nn.parallel import DistributedDataParallel

from tersor._core import Transport
from tersor._options import expect, takes_advanced
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules, merged_options
from tersor.torch._src.checkpoint import residuals as checkpoint
from tersor.torch._src.checkpoint.residuals import Mode
from tersor.torch._src.ddp import options as ddp_options
from tersor.torch._src.ddp.copies import CopiedHookState
from tersor.torch._src.gradients.backward import Backward, Bucket, BucketCache, Future, in_pass
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.gradients.loss_scale import LossScale, Scaler
from tersor.torch._src.gradients.low_bit_adam import chosen_codecs, warn_at_first_step
from tersor.torch._src.gradients.sample_weights import Samples, SampleWeighted, UnevenInputs, scale
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.memory_order import check_layouts, in_memory_order, layouts
from tersor.torch._src.parameters.replaced import Registered
from tersor.torch._src.parameters.selection import (
    Names,
    Unsupported,
    is_supported,
    split_parameters,
)
from tersor.torch._src.process_group import connections
from tersor.torch._src.statistics.handles import Handle, ReducerReporting


class HookState(ReducerReporting, SampleWeighted, Handle):
    """The state of ``hook``, for programs in which other code builds DDP.

    ``compress`` returns a ``HookState`` for DDP. If you make a ``HookState``, the first backward
    pass connects the ranks and makes the reducer for the parameters that DDP reduces.

    Args:
        model: The module that DDP will wrap. Without ``model``, parameters are called
            ``parameter.0``, … in the order of DDP's first buckets.
        process_group: The process group of DDP. Default: all ranks.
        codec: As in ``compress``, where all other arguments are described.

    Raises:
        InvalidArgumentError: An option is invalid. The first backward pass checks some options.

    Example::

        state = tersor.torch.HookState(module, "int8")
        strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=tersor.torch.hook)
    """

    @takes_advanced(AdvancedOptions)
    def __init__(
        self,
        model: nn.Module | None = None,
        codec: str = "bf16",
        *,
        rules: Rules | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        residual_dtype: ResidualDtype = "f32",
        weighted: bool = False,
        transactional: bool = False,
        scaler: Scaler | None = None,
        unsupported: Unsupported = "warn",
        advanced: AdvancedOptions | None = None,
    ) -> None:
        self._names, self._frozen = Names(), dict[str, nn.Parameter]()
        if model is not None:
            expect(model, nn.Module, "HookState needs the model that DDP wraps, and codec=")
            trained, self._frozen = split_parameters(selection.inner_module(model))
            self._names = Names(trained, self._frozen)
        self._group = process_group
        self._options = merged_options(AdvancedOptions, **locals())
        self._samples = Samples(self._options)
        self._uneven = UnevenInputs(self)
        self._unsupported_policy: Unsupported = unsupported
        self._loss_scale = LossScale(scaler, transactional)
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tersor")
        self._transport: Transport | None = None
        self._exchange: TensorExchange | None = None
        self._parameters: Mapping[str, torch.Tensor] = {}
        self._backward: Backward | None = None
        self._buckets = BucketCache()
        self._removed = self._checks_parameters = self._reported = False
        self._unsupported: dict[str, str] = {}
        self._loaded: Mapping[str, Any] | None = None
        #: A hook that was registered later and takes the buckets instead.
        self.instead: Callable[[GradBucket], Future] | None = None

    @property
    def skipped_steps(self) -> int:
        """Number of steps that the scaler skipped because a gradient was not finite."""
        return self._loss_scale.skipped_steps

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        self._loss_scale.discard_skipped(self.reducer, lambda: self._parameters)
        residuals = checkpoint.save_reducer(self.reducer, self._process_group(), mode)
        return residuals | layouts(self._parameters.values()) | self._loss_scale.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if self._exchange is None:
            self._loaded = checkpoint.as_mapping(state)
            if state:
                checkpoint.state_bytes(state, self._process_group())
            return
        with checkpoint.reject_damage():
            check_layouts(state or {}, self._parameters)
        checkpoint.load_reducer(self.reducer, self._process_group(), state)
        self._loss_scale.load_state_dict(state or {}, self.reducer)

    def discard_step(self) -> None:
        self.reducer.discard_step()

    def remove(self) -> None:
        self._removed = True

    def reset(self) -> None:
        self._exchange = self._transport = None
        connections.close(self._group)
        if self._parameters:
            self._register(self._parameters)

    def close(self) -> None:
        """Releases the reducer and the thread. Later gradients are sent uncompressed.

        Example::

            handle.close()
        """
        self._removed = True
        self._executor.shutdown()
        self._exchange = None

    def bind(self, model: DistributedDataParallel) -> None:
        """Makes the reducer for the parameters of a model. A collective call.

        ``tersor.torch.compress`` calls this method.

        Args:
            model: The model that reduces gradients by this state.

        Raises:
            InvalidArgumentError: The model or an option is not supported.

        Example::

            state.bind(ddp_model)
        """
        parameters, self._frozen = split_parameters(model.module, model.parameters_to_ignore)
        self._group = model.process_group
        self._uneven.set_model(model)
        self._names = Names(parameters, self._frozen)
        self._unsupported = selection.unsupported_parameters(model.module, parameters)
        self._report_unsupported()
        self._check_parameters_of(model)
        self._register(compressible(model))

    def reduce(self, bucket: GradBucket) -> Future:
        """Sends a bucket of gradients. DDP calls :func:`hook`, which calls this method.

        Args:
            bucket: A bucket of DDP.

        Returns:
            A future that receives the mean over ranks, of the bucket's shape.

        Raises:
            InvalidArgumentError: The model or an option is not supported.

        Example::

            future = state.reduce(bucket)
        """
        if self.instead is not None:
            return self.instead(bucket)
        ddp_options.check_reducer(isinstance(bucket, GradBucket))
        if self._backward is None:
            ddp_options.refuse_options(self._uneven.model())
            self._check_parameters_of(self._uneven.model())
            self._backward = self._begin_pass()
        supported = is_supported(bucket.buffer()) and self._buckets.lookup(bucket).supported
        reduce = self._enqueue if supported and not self._removed else self._forward
        future = reduce(self._backward, bucket)
        if bucket.is_last():
            self._end_pass(self._backward)
        return future

    def __reduce_ex__(self, protocol: object) -> Any:
        """Replaces the state by a ``CopiedHookState`` in copies and files of the model."""
        return CopiedHookState, ()

    def _check_parameters_of(self, model: DistributedDataParallel | None) -> None:
        """Checks the model's parameters before each forward pass from now on."""
        if model is not None and not self._checks_parameters:
            self._checks_parameters = True
            parameters, frozen = split_parameters(model.module, model.parameters_to_ignore)
            model.register_forward_pre_hook(Registered(parameters, model.modules()))
            model.register_forward_pre_hook(ddp_options.NewParameterCheck([parameters, frozen]))
            if self._exchange is None and not self._names.complete:  # DDP's first buckets differ
                self._frozen, self._names = frozen, Names.numbered(parameters.values())

    def _begin_pass(self) -> Backward:
        stream = None if self._exchange is None else self._exchange.stream
        backward = Backward(stream, sums=self._options.get("reduction") == "sum")
        with backward.guard():
            if not self._samples.weighted:
                self._uneven.check()
            self._samples.begin(is_done=not in_pass())
            if not self._removed:
                ddp_options.refuse_unfrozen(self._frozen)
            if self._exchange is not None:
                self._loss_scale.begin_step(self.reducer, lambda: self._parameters)
        return backward

    def _enqueue(self, backward: Backward, bucket: GradBucket) -> Future:
        entry = backward.add(bucket.buffer())
        with backward.guard():
            known = self._buckets.lookup(bucket)
            if known.names is None:
                known.names = self._names.of(known.parameters)
            entry.names = known.names
            if self._exchange is not None and backward.error is None:
                if self._buckets.rebuilt and len(backward.buckets) == 1:  # in another order
                    self._buckets.rebuilt = False
                    self.reducer.relearn_order()
                self._send(self._exchange, entry)
        return entry.future

    def _forward(self, backward: Backward, bucket: GradBucket) -> Future:
        """Reduces a bucket as DDP does without a hook. Starts no collective in a callback."""
        if self._exchange is None and not self._removed:
            parameters = bucket.parameters()
            for name, parameter in zip(self._names.of(parameters), parameters, strict=True):
                found = bucket.buffer() if is_supported(parameter) else parameter
                self._unsupported[name] = selection.reason_of(found)
        share = math.nan
        with backward.guard():
            share = self._samples.share(bucket.buffer(), self._group)
        gradients = scale(bucket.buffer(), share)
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def _end_pass(self, backward: Backward) -> None:
        """Ends the reducer's step, and completes the futures of the pass as results arrive."""
        self._backward = None
        with backward.guard():
            self._report_unsupported()
        if backward.buckets:
            with backward.guard():
                if self._exchange is None and backward.error is None:
                    self._start_exchange(backward)
                if backward.error is None:
                    self.reducer.flush()
            if backward.error is not None and self._transport is not None:
                self._transport.abort(str(backward.error))  # the others would wait for this rank
            backward.complete_on(self._executor)
        self._samples.end()
        backward.end()

    def _report_unsupported(self) -> None:
        if not self._reported:
            selection.report_unsupported(self._unsupported, self._unsupported_policy, self._group)
            self._reported = True

    def _start_exchange(self, backward: Backward) -> None:
        names = [name for bucket in backward.buckets for name in bucket.names]
        exchange = self._register(self._names.in_order(names))
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
        self._loss_scale.begin_step(exchange.reducer, lambda: self._parameters)
        for bucket in backward.buckets:
            self._send(exchange, bucket)

    def _send(self, exchange: TensorExchange, bucket: Bucket) -> None:
        """Sends a bucket. Parameters with a gradient of zeros keep their residuals.

        DDP discards the result of a parameter that no rank used, including the part from the
        residual. On a device, zeros are not detected, and the residual is lost.
        """
        exchange.acquire()
        self._samples.weigh_once(exchange.reducer)
        names, gradients = bucket.names, bucket.gradients
        bucket.sent = exchange.reducer.ready_flat(names, gradients, "gradient-unless-zero")

    def _register(self, parameters: Mapping[str, torch.Tensor]) -> TensorExchange:
        device, options = selection.only_device(parameters), self._options.copy()
        if device.type == "cuda":
            options.pop("stream", None)  # the thread that completes a pass waits on the exchange's
        exchange = TensorExchange(self._group, device, options)
        self._transport = exchange.transport
        exchange.register({name: in_memory_order(one.detach()) for name, one in parameters.items()})
        if not self._parameters:  # not after a reset
            warn_at_first_step(parameters, chosen_codecs(self._options, parameters))
        self._parameters, self._exchange = parameters, exchange
        return exchange


def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook for DDP.

    Args:
        state: The state, one per DDP model.
        bucket: A bucket of DDP.

    Returns:
        A future that receives the mean over ranks, of the bucket's shape.

    Raises:
        InvalidArgumentError: The model or an option is not supported. ``backward()`` raises errors
            of the exchange.

    Example::

        state = tersor.torch.HookState(module, "int8")
        ddp_model.register_comm_hook(state, tersor.torch.hook)
    """
    return state.reduce(bucket)


def compress(model: DistributedDataParallel, **options: Any) -> HookState:
    """Registers a new ``HookState`` with the keyword arguments ``options``, and binds the model."""
    ddp = ddp_options.checked_ddp(model)
    state = HookState(**options)
    try:
        state.bind(ddp)  # first: a hook cannot be taken off again
        ddp_options.register(ddp, state, hook)
    except BaseException:
        state.close()
        raise
    return state


def compressible(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that ``compress`` would encode, by name. Raises as ``compress``."""
    ddp = ddp_options.checked_ddp(model)
    parameters, _ = split_parameters(ddp.module, ddp.parameters_to_ignore)
    unsupported = selection.unsupported_parameters(ddp.module, parameters)
    found = {name: one for name, one in parameters.items() if name not in unsupported}
    selection.only_device(found)
    return found
