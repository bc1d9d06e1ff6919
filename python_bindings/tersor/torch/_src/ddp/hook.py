"""Compressed gradients under ``DistributedDataParallel``, by its communication hook.

DDP looks at the annotations of ``hook`` themselves, so their evaluation is not postponed here.
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

from tersor._core import InvalidArgumentError, Transport
from tersor._options import expect, takes_advanced
from tersor.reducer import AdvancedOptions, ResidualDtype, Rules, gathered
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import (
    Mode,
    as_mapping,
    load_reducer,
    read_bytes,
    save_reducer,
)
from tersor.torch._src.ddp.copies import CopiedHookState
from tersor.torch._src.ddp.options import check_reducer, checked_ddp, refuse_options
from tersor.torch._src.gradients.backward import Backward, Bucket, BucketParameters, Future, in_pass
from tersor.torch._src.gradients.exchange import TensorExchange
from tersor.torch._src.gradients.loss_scale import LossScale, Scaler
from tersor.torch._src.gradients.low_bit_adam import chosen_codecs, watch
from tersor.torch._src.gradients.sample_weights import Samples, UnevenInputs, Weighed, scale
from tersor.torch._src.parameters.memory_order import as_it_lies
from tersor.torch._src.parameters.replaced import Registered
from tersor.torch._src.parameters.selection import (
    Names,
    Unsupported,
    is_supported,
    only_device,
    reason_of,
    report_unsupported,
    split_parameters,
    unsupported_parameters,
    wrapped_in,
)
from tersor.torch._src.process_group import connections
from tersor.torch._src.statistics.handles import ReducerReporting


class HookState(ReducerReporting, Weighed):
    """What ``hook`` works with: for those who leave it to others to build DDP.

    ::

        state = tersor.torch.HookState(model, codec="int8")      # the model that DDP will wrap
        strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=tersor.torch.hook)

    Everything is made in the first backward pass, of the parameters that DDP reduces. Without
    ``model`` these are called ``parameter.0``, … in the order of DDP's first buckets.
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
            trained, self._frozen = split_parameters(wrapped_in(model))
            self._names = Names(trained)
        self._group = process_group
        self._options = gathered(
            AdvancedOptions,
            advanced,
            codec=codec,
            rules=rules,
            timeout=timeout,
            residual_dtype=residual_dtype,
            weighted=weighted,
            transactional=transactional,
        )
        self._samples = Samples(self._options)
        self._uneven = UnevenInputs(self)
        self._unsupported_means: Unsupported = unsupported
        self._loss_scale = LossScale(scaler, transactional)
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tersor")
        self._transport: Transport | None = None
        self._exchange: TensorExchange | None = None
        self._parameters: Mapping[str, torch.Tensor] = {}
        self._backward: Backward | None = None
        self._buckets: dict[int, BucketParameters] = {}
        self._rebuilt = False
        self._removed = self._checks_parameters = False
        self._unsupported: dict[str, str] = {}
        self._reported = False
        self._loaded: Mapping[str, Any] | None = None
        #: What takes a bucket in this one's place: a hook that came later.
        self.instead: Callable[[GradBucket], Future] | None = None

    @property
    def skipped_steps(self) -> int:
        """Steps that the scaler skipped because a gradient was not finite."""
        return self._loss_scale.skipped_steps

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """The residuals, for a checkpoint, between two steps.

        ``"exact"``: each rank's own, from which the same run goes on bit for bit; ``"portable"``
        (a collective call): their sum over ranks, for any number of ranks.
        """
        self._loss_scale.settle(self.reducer, lambda: self._parameters)
        state = save_reducer(self.reducer, self._process_group(), mode)
        return {**state, **self._loss_scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Brings back what ``state_dict`` gave, in either mode; None: residuals start at zero.

        Raises InvalidArgumentError, which names the parameter, where it belongs to another model or
        codec, or is damaged. Nothing was changed then. The next pass raises TransportError if ranks
        loaded different saves.
        """
        if self._exchange is None:
            self._loaded = as_mapping(state)
            if state:
                read_bytes(state, self._process_group())
            return
        load_reducer(self.reducer, self._process_group(), state)
        self._loss_scale.load_state_dict(state or {}, self.reducer)

    def discard_step(self) -> None:
        """Brings back the residuals from before the last pass (``transactional=True`` only), whose
        gradients no step takes. With a scaler: from before all passes since its last ``update``.
        All ranks do so alike."""
        self.reducer.discard_step()

    def remove(self) -> None:
        """From the next backward pass on gradients travel uncompressed. All ranks do so alike."""
        self._removed = True

    def reset(self) -> None:
        """After an error that ended an exchange: connects the ranks anew, residuals at zero.

        Schedules begin anew. A collective call of all ranks, each of which had the error raised by
        ``backward()``. Other handles over the same process group are to be reset, too. Where the
        first pass ended before there was a reducer, the next one makes it.
        """
        self._exchange = self._transport = None
        connections.close(self._group)
        if self._parameters:
            self._hold(self._parameters)

    def close(self) -> None:
        """Ends what was made for the hook; gradients travel uncompressed from then on."""
        self._removed = True
        self._executor.shutdown()
        self._exchange = None

    def bind(self, model: DistributedDataParallel) -> None:
        """Makes everything now, for the parameters that this DDP reduces; a collective call."""
        parameters, self._frozen = split_parameters(model.module, model.parameters_to_ignore)
        self._group = model.process_group
        self._uneven.of(model)
        self._names = Names(parameters)
        self._unsupported = unsupported_parameters(model.module, parameters)
        self._report_unsupported()
        self._check_parameters_of(model)
        self._hold(compressible(model))

    def reduce(self, bucket: GradBucket) -> Future:
        """What ``hook`` does: takes a bucket of DDP's, whose future gets the mean over ranks."""
        if self.instead is not None:
            return self.instead(bucket)
        check_reducer(isinstance(bucket, GradBucket))
        if self._backward is None:
            refuse_options(self._uneven.model())
            self._check_parameters_of(self._uneven.model())
            self._backward = self._begin()
        compressed = is_supported(bucket.buffer()) and self._known(bucket).supported
        compressed = compressed and not self._removed
        take = self._take if compressed else self._pass_on
        future = take(self._backward, bucket)
        if bucket.is_last():
            self._end(self._backward)
        return future

    def __reduce_ex__(self, protocol: object) -> Any:
        """Of a copy of the model, and in a file, there is no more than that there was one."""
        return CopiedHookState, ()

    def _check_parameters_of(self, model: DistributedDataParallel | None) -> None:
        """Before each forward pass from now on; once for a model."""
        if model is not None and not self._checks_parameters:
            self._checks_parameters = True
            parameters, _ = split_parameters(model.module, model.parameters_to_ignore)
            model.register_forward_pre_hook(Registered(parameters, model.modules()))

    def _begin(self) -> Backward:
        backward = Backward(None if self._exchange is None else self._exchange.stream)
        with backward.guard():
            if not self._samples.weighted:
                self._uneven.check()
            self._samples.begin(is_done=not in_pass())
            if not self._removed:
                _refuse_unfrozen(self._frozen)
            if self._exchange is not None:
                self._loss_scale.follow(self.reducer, lambda: self._parameters)
        return backward

    def _take(self, backward: Backward, bucket: GradBucket) -> Future:
        taken = backward.add(bucket.buffer())
        with backward.guard():
            known = self._known(bucket)
            if known.names is None:
                known.names = self._names.of(known.parameters)
            taken.names = known.names
            if self._exchange is not None and backward.error is None:
                if self._rebuilt and len(backward.buckets) == 1:  # in another order
                    self._rebuilt = False
                    self.reducer.relearn_order()
                self._send(self._exchange, taken)
        return taken.future

    def _known(self, bucket: GradBucket) -> BucketParameters:
        """A bucket's parameters, which are most often those that it had before."""
        parameters = bucket.parameters()
        known = self._buckets.get(bucket.index())
        if known is None or not known.are(parameters):
            # DDP rebuilds its buckets after the first steps, in the order in which gradients came.
            self._rebuilt |= known is not None
            # A complex parameter has a bucket of real numbers, so parameters are looked at.
            known = BucketParameters(parameters, all(map(is_supported, parameters)))
            self._buckets[bucket.index()] = known
        return known

    def _pass_on(self, backward: Backward, bucket: GradBucket) -> Future:
        """As DDP does without a hook. Of no bucket is a collective started in a callback."""
        if self._exchange is None and not self._removed:
            parameters = bucket.parameters()
            for name, parameter in zip(self._names.of(parameters), parameters, strict=True):
                found = bucket.buffer() if is_supported(parameter) else parameter
                self._unsupported[name] = reason_of(found)
        share = math.nan
        with backward.guard():
            share = self._samples.share(bucket.buffer(), self._group)
        gradients = scale(bucket.buffer(), share)
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def _end(self, backward: Backward) -> None:
        self._backward = None
        with backward.guard():
            self._report_unsupported()
        if backward.buckets:
            self._reduce_all(backward)
        self._samples.end()
        backward.end()

    def _report_unsupported(self) -> None:
        if not self._reported:
            report_unsupported(self._unsupported, self._unsupported_means, self._group)
            self._reported = True

    def _reduce_all(self, backward: Backward) -> None:
        """Sends what waits, and completes the futures of the pass as results come in."""
        with backward.guard():
            if self._exchange is None and backward.error is None:
                self._learn(backward)
            if backward.error is None:
                self.reducer.flush()
        if backward.error is not None and self._transport is not None:
            self._transport.poison(str(backward.error))  # the others would wait for this rank
        backward.complete_on(self._executor)

    def _learn(self, backward: Backward) -> None:
        names = [name for bucket in backward.buckets for name in bucket.names]
        exchange = self._hold(self._names.in_order(names))
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
        self._loss_scale.follow(exchange.reducer, lambda: self._parameters)
        for bucket in backward.buckets:
            self._send(exchange, bucket)

    def _send(self, exchange: TensorExchange, bucket: Bucket) -> None:
        """Parameters whose gradient is all zero keep their residuals.

        DDP throws away what comes back for a parameter that no rank used, and with it whatever a
        residual had added. On a device nobody looks, and residuals are lost so.
        """
        exchange.take_over()
        self._samples.weigh_once(exchange.reducer)
        bucket.sent = exchange.reducer.ready_flat(
            bucket.names, bucket.gradients, "gradient-unless-zero"
        )

    def _hold(self, parameters: Mapping[str, torch.Tensor]) -> TensorExchange:
        device, options = only_device(parameters), self._options.copy()
        if device.type == "cuda":
            options.pop("stream", None)  # what completes a pass waits on the exchange's own
        exchange = TensorExchange(self._group, device, options)
        self._transport = exchange.transport
        exchange.hold({name: as_it_lies(one.detach()) for name, one in parameters.items()})
        if not self._parameters:  # after a reset they were told
            watch(parameters, chosen_codecs(self._options, parameters))
        self._parameters, self._exchange = parameters, exchange
        return exchange


def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: ``ddp_model.register_comm_hook(state, tersor.torch.hook)``."""
    return state.reduce(bucket)


def compress(model: DistributedDataParallel, **options: Any) -> HookState:
    """Registers a new ``HookState`` with the keyword arguments ``options``, and binds the model."""
    ddp = checked_ddp(model)
    state = HookState(**options)
    try:
        state.bind(ddp)  # first: a hook cannot be taken off again
        _register(ddp, state)
    except BaseException:
        state.close()
        raise
    return state


def compressible(model: nn.Module) -> dict[str, nn.Parameter]:
    """What ``compress`` would send encoded, by name. Raises InvalidArgumentError where it would
    not."""
    ddp = checked_ddp(model)
    parameters, _ = split_parameters(ddp.module, ddp.parameters_to_ignore)
    unsupported = unsupported_parameters(ddp.module, parameters)
    found = {name: one for name, one in parameters.items() if name not in unsupported}
    only_device(found)
    return found


def _refuse_unfrozen(frozen: Mapping[str, nn.Parameter]) -> None:
    """Raises InvalidArgumentError where one wants a gradient now: ranks would part without a
    word."""
    if found := [name for name, one in frozen.items() if one.requires_grad]:
        raise InvalidArgumentError(
            f"{', '.join(found)}: frozen when DistributedDataParallel was made, so it does not "
            "exchange their gradients: call tersor.torch.close(), wrap the module in a new "
            "one and compress that; or make it while all parameters are trainable, with "
            "find_unused_parameters=True, and freeze afterwards"
        )


def _register(ddp: DistributedDataParallel, state: HookState) -> None:
    try:
        ddp.register_comm_hook(state, hook)
    except RuntimeError as error:
        _compat.forget_hook(ddp, state)
        raise InvalidArgumentError(
            f"this DistributedDataParallel has a communication hook already ({error}); wrap the "
            "module in a new one"
        ) from error
