"""An optimizer that averages gradients over ranks, for trainers without DDP or FSDP.

In the manner of Horovod (Sergeev and Del Balso 2018, arXiv:1802.05799): the trainer calls
``backward`` and ``step`` itself, and gradients travel while the rest of the backward pass computes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tersor._core import InvalidArgument
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch.adam_warning import chosen_codecs, warn_of
from tersor.torch.checkpoint import Mode, load_reducer, save_reducer
from tersor.torch.group import transport, with_message_sizes
from tersor.torch.parameters import (
    Unsupported,
    is_supported,
    optimized_parameters,
    reason_of,
    report_unsupported,
)
from tersor.torch.reporting import ReducerReporting
from tersor.torch.side_stream import SideStream

if TYPE_CHECKING:
    from typing_extensions import Unpack

Closure = Callable[[], Any]


class DistributedOptimizer(torch.optim.Optimizer, ReducerReporting):
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
    mean of the others; one that no rank used has a gradient of zeros afterwards. Ranks must begin
    with equal parameters: nothing is broadcast here.

    ``state_dict`` is the wrapped optimizer's own; ``residual_state_dict`` goes beside it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        backward_passes_per_step: int = 1,
        unsupported: Unsupported = "warn",
        **options: Unpack[ReducerOptions],
    ) -> None:
        """``named_parameters``: as ``model.named_parameters()``; rules look at these names.

        Default names are ``"parameter.0"``, …, in the optimizer's order. Parameters that the
        optimizer does not have are left alone. ``group``: who takes part, default the whole world.
        ``backward_passes_per_step``: how many gradients are accumulated before they are sent.
        ``unsupported``: what gradients mean that cannot be encoded: with ``"warn"`` float64 and
        complex ones travel uncompressed, and sparse ones are made dense, which is told once; with
        ``"error"`` they raise. ``options``: as of ``tersor.GradientReducer``.
        Raises InvalidArgument for a name that stands for two parameters, a parameter without a
        name, and options that are wrong.
        """
        if backward_passes_per_step < 1:
            raise InvalidArgument(
                f"backward_passes_per_step={backward_passes_per_step}: at least 1"
            )
        self._parameters = optimized_parameters(optimizer, named_parameters)
        self._adopt(optimizer)
        self._group = group
        self._unsupported = unsupported
        self._uncompressed = {
            name: reason_of(one) for name, one in self._parameters.items() if not is_supported(one)
        }
        report_unsupported(self._uncompressed, unsupported)
        self._passes_per_step = backward_passes_per_step
        self._passes = dict.fromkeys(self._parameters, 0)
        self._ready: dict[str, int] = {}  # the version of each gradient that is being sent
        self._dense: set[str] = set()  # whose gradients were sparse
        self._synchronized = False
        self._skip = False
        self.reducer = self._make_reducer(options)
        warn_of(optimizer, chosen_codecs(options, self._compressed()))
        for name, parameter in self._parameters.items():
            watch = _watch(weakref.ref(self), name)
            parameter.register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Sends what was not sent yet and waits: every gradient is the mean over ranks now.

        ``step`` does so itself where it was not done. Raises what ended the exchange:
        TransportError where a rank is gone or does something else, WireError where a message is
        damaged; InvalidArgument where a gradient was changed while it was being sent.
        """
        changed = self._changed()
        try:
            for name, parameter in self._parameters.items():
                if name not in self._ready:
                    self._send(name, parameter)
        finally:  # nor is zero_grad refused after an error
            self._passes = dict.fromkeys(self._parameters, 0)
            self._ready.clear()
        self.reducer.wait()
        self._side_stream.give_back()
        if changed:
            raise InvalidArgument(
                f"the gradient of {changed[0]} was changed while it was being sent: call "
                "synchronize() before clipping, and before a scaler's unscale_"
            )
        for name in self._uncompressed:
            self._average(self._parameters[name])
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` takes the gradients as they are: ``synchronize`` was called before."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: Closure | None = None) -> Any:
        """The wrapped optimizer's step, on the mean gradients.

        With a closure, each of its evaluations is followed by an exchange. Raises InvalidArgument
        within ``skip_synchronize`` while gradients are under way.
        """
        if closure is not None:
            return self.optimizer.step(self._reduced(closure))
        if self._skip and self._ready:
            raise InvalidArgument(
                "step() within skip_synchronize() while gradients are being sent: call "
                "synchronize() before"
            )
        if not (self._skip or self._synchronized):
            self.synchronize()
        self._synchronized = False
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's. An error while gradients are under way."""
        if self._ready:
            raise InvalidArgument(
                "zero_grad() between backward() and step() or synchronize() would change gradients "
                "that are being sent: call it after step()"
            )
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._share()

    def residual_state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """The residuals, for a checkpoint, between two steps.

        ``"exact"``: each rank's own, from which the same run goes on bit for bit; ``"portable"``
        (a collective call): their sum over ranks, for any number of ranks.
        """
        return save_reducer(self.reducer, self._process_group(), mode)

    def load_residual_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Brings back what ``residual_state_dict`` gave, in either mode; None: they are zero.

        Raises InvalidArgument, which names the parameter, where it belongs to another model or
        codec.
        """
        load_reducer(self.reducer, self._process_group(), state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: which parameters there are was agreed among the ranks."""
        raise InvalidArgument("parameters cannot be added to a DistributedOptimizer: wrap it anew")

    def _adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes this an optimizer in the eyes of schedulers and scalers, over the same groups."""
        self.optimizer = optimizer
        self.defaults = optimizer.defaults
        self._share()
        self.__setstate__({})

    def _share(self) -> None:
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    def _make_reducer(self, options: ReducerOptions) -> GradientReducer:
        device = next(iter(self._parameters.values())).device
        ranks = transport(self._group, device)
        self._side_stream = SideStream(device, options)
        parameters = self._parameters.values()
        options = with_message_sizes(self._side_stream.options, ranks, parameters)
        reducer = GradientReducer(ranks, **options)
        for name, parameter in self._compressed().items():
            reducer.add(name, parameter.detach())
        return reducer

    def _compressed(self) -> dict[str, torch.Tensor]:
        return {n: one for n, one in self._parameters.items() if n not in self._uncompressed}

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        """Called by autograd when a gradient was added to ``parameter.grad``."""
        if name in self._ready:
            raise InvalidArgument(
                f"the gradient of {name} was computed again while it is being sent: call step() or "
                f"synchronize() after {self._passes_per_step} backward passes, or pass a larger "
                "backward_passes_per_step"
            )
        self._synchronized = False
        self._passes[name] += 1
        if self._passes[name] == self._passes_per_step:
            self._send(name, parameter)

    def _send(self, name: str, parameter: torch.Tensor) -> None:
        missing = parameter.grad is None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            self._make_dense(name, parameter, parameter.grad)
        if name not in self._uncompressed:
            self._side_stream.take_over()
            self.reducer.ready(name, parameter.grad, "none" if missing else "gradient")
        self._ready[name] = parameter.grad._version

    def _changed(self) -> list[str]:
        """Whose gradients PyTorch wrote to since they were sent; the reducer's writes are free."""
        gradients = {name: self._parameters[name].grad for name in self._ready}
        return [
            name
            for name, gradient in gradients.items()
            if gradient is None or gradient._version != self._ready[name]
        ]

    def _make_dense(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if name not in self._dense:
            self._dense.add(name)
            report_unsupported({name: "sparse, sent as a dense one"}, self._unsupported)
        parameter.grad = gradient.to_dense()

    def _average(self, parameter: torch.Tensor) -> None:
        """By the trainer's own group, uncompressed, as DistributedDataParallel would."""
        assert parameter.grad is not None  # _send saw to it
        parameter.grad.mul_(1 / dist.get_world_size(self._group))
        dist.all_reduce(parameter.grad, group=self._group)

    def _reduced(self, closure: Closure) -> Closure:
        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return evaluate


def _watch(watcher: weakref.ref[DistributedOptimizer], name: str) -> Callable[[torch.Tensor], None]:
    """A hook of autograd's, which does not keep the optimizer alive."""

    def accumulated(parameter: torch.Tensor) -> None:
        if (optimizer := watcher()) is not None:
            optimizer._accumulated(name, parameter)

    return accumulated
