"""The common part of CompressedAdamW, CompressedMuon and CompressedSGD."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgumentError, RanksLostError, ReducerState
from tersor._options import described
from tersor.reducer import OptimizerOptions, ReducerOptions, merged_options
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import Mode
from tersor.torch._src.gradients.exchange import Presence, TensorExchange
from tersor.torch._src.gradients.low_bit_adam import Phases, codec_phases
from tersor.torch._src.optim.handle import OptimizerHandle
from tersor.torch._src.optim.host_mean import HostMean
from tersor.torch._src.optim.rules import Part, Rule
from tersor.torch._src.optim.state import StateView, load, save
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import (
    OptimizedParameters,
    is_supported,
    local_shard,
    shards_of,
)

#: One bit per value. Owners of two-shot answer with two bits, which lowers the loss of many ranks.
DEFAULT_CODEC = "hadamard:bits=1,result=hadamard:bits=2+ef"
#: Former keywords.
RENAMED = {"dense_codec": "warmup_codec", "dense_steps": "warmup_steps"}
RENAMED |= {"group": "process_group", "least_ranks": "min_ranks"}
_MISSING = ("amsgrad", "dampening", "maximize", "nesterov")  # options of PyTorch's optimizers
# Values with temporary copies: on CPUs as many as fit into caches, on devices more, because
# launches take time there.
_BATCH_VALUES, _DEVICE_BATCH_VALUES = 1 << 20, 1 << 24
_SCALER_KEYS = {"grad_scale", "found_inf"}  # attributes of an optimizer in ``GradScaler.step``


class CompressedOptimizer(torch.optim.Optimizer, OptimizerHandle):
    """An optimizer whose steps exchange values by a codec with error feedback."""

    _step_supports_amp_scaling = True  # the scaler calls step() even where it found an infinity
    # The advice for sharded parameters.
    _remedy: ClassVar = "use tersor.torch.compress with a codec of two bits or more"

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """``arguments``: of the subclass, by name."""
        kind = type(self).__name__
        if isinstance(params, (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(f"{kind} needs model.named_parameters(), not {described(params)}")
        super().__init__(params, defaults)
        self._group = process_group = arguments["process_group"]
        found = merged_options(OptimizerOptions, **arguments)
        _check_codecs(found, kind)
        self._warmup_codec = arguments["warmup_codec"]
        self._warmup_steps = arguments["warmup_steps"]
        if self._warmup_steps != 0:
            _check_schedule(found, self._warmup_steps)
        self._optimized = OptimizedParameters(self, None)
        selection.refuse_elastic_shards(found, self._parameters)
        device = selection.only_device(self._parameters)
        self._exchange = TensorExchange(process_group, device, found)
        self._presence = Presence(self._exchange)
        in_host = arguments.get("average_gradients_in_host", False)
        self._host_mean = HostMean(self._exchange) if in_host else None
        self._codecs: dict[str, Phases] = {}
        self._rules: dict[str, Rule] = {}
        self._agree(self._parameters)
        self._init_state(self._parameters)
        self._register(self._parameters)
        self._removed = False
        self._scaler_values: dict[str, Any] = {}  # by a scaler, for a step that lost ranks
        self.skipped_steps = 0  #: Steps without an update: a gradient was not finite on some rank.
        #: Number of samples of which this rank's gradient in the next step is the mean; 0 for a
        #: rank without samples. Set on all ranks, or leave None: all ranks have equal weights.
        self.samples: float | None = None

    @abstractmethod
    def _rule(self, parameter: Tensor, codecs: Sequence[str]) -> Rule:
        """The update of a parameter with these codecs, one after the other."""

    # Dynamo would compile the step again for each learning rate.
    @_compat.uncompiled_function
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges the ranks' values and moves the weights. A collective call.

        A gradient that is not finite on one rank skips the step on all ranks. After an error,
        weights and moments are as before the step.

        Args:
            closure: Computes gradients and returns the loss.

        Returns:
            The result of ``closure``, or None.

        Raises:
            InvalidArgumentError: A gradient is sparse, or only some ranks set ``samples``. Or ranks
                have other parameters, in the first step or after ``load_state_dict``.
            TransportError: A rank failed, or made another call.
            WireError: A message is damaged.
            RanksLostError: With ``elastic=True``, ranks were lost: call ``resume``, then ``step``.

        Example::

            loss.backward()
            optimizer.step()
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        samples, self.samples = self.samples, None
        try:
            is_finite = self._is_finite()
            exchanged = self._exchange.run_elastic(lambda: self._exchange_step(is_finite, samples))
        except BaseException as error:
            # A scaler removes its attributes after a step, and multiplies with the rest otherwise.
            values = {key: vars(self).pop(key) for key in _SCALER_KEYS & vars(self).keys()}
            if isinstance(error, RanksLostError):  # the step may be called again
                self.samples, self._scaler_values = samples, {**self._scaler_values, **values}
            else:
                self._scaler_values = {}
            raise
        self._scaler_values = {}
        if exchanged is None:
            self.skipped_steps += 1
            return loss
        for part, means in exchanged:
            part.rule.update(part, means)
        return loss

    def _exchange_step(
        self, is_finite: bool, samples: float | None
    ) -> list[tuple[Part, list[Tensor]]] | None:
        """The parts with their mean over ranks; None if a gradient is not finite on some rank."""
        flags = self._optimized.with_gradients(), [not is_finite]
        active, [skips], weight = self._presence.weighted(*flags, samples)
        if skips > 0:
            return None
        self._add_newcomers([name for name in active if name not in self._parameters])
        self._reset_replaced()
        parameters = self._parameters
        self._presence.check_equal({name: parameters[name] for name in active})
        gradients = {name: self._gradient(name, parameters[name]) for name in active}
        if self._exchange.elastic:  # the step may be done again
            gradients = {name: one.clone() for name, one in gradients.items()}
        # Divided by the scaler's scale: f32 gradients in place, 16-bit gradients as f32 copies.
        if (scale := self._scaler_value("grad_scale")) is not None and gradients:
            gradients = {name: one.float() for name, one in gradients.items()}
            _compat.foreach_div_(list(gradients.values()), scale.to(self._exchange.device))
        if self._host_mean is not None:
            gradients = {name: one.float() for name, one in gradients.items()}
            own_weight = None if samples is None else weight
            weight = self._host_mean.average(list(gradients.values()), own_weight)
        parts = list(self._parts(gradients))
        return list(zip(parts, self._exchange_parts(parts, weight), strict=True))

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """Returns the state for a checkpoint, between two steps.

        Args:
            mode: ``"exact"``: the same number of ranks continues bit for bit; save one file per
                rank, or a distributed checkpoint. ``"portable"``, a collective call: the mean of
                the ranks' own moments and the sum of their residuals, for any number of ranks.

        Returns:
            A dict as of ``torch.optim.Optimizer.state_dict``, with common moments per parameter
            name, or per number without names. Each rank's own moments and residuals are under
            ``"tersor"`` in the first group.

        Raises:
            InvalidArgumentError: ``mode`` is unknown, or is ``"exact"`` after ranks were lost. Or a
                parameter was first trained after ``remove``.

        Example::

            torch.save(optimizer.state_dict(), f"optimizer{dist.get_rank()}.pt")
        """
        return save(self._state_view(), super().state_dict(), self._check_exact(mode))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of ``state_dict`` of either mode.

        The next step raises TransportError if ranks loaded different saves.

        Args:
            state_dict: Result of ``state_dict``.

        Raises:
            InvalidArgumentError: The state is damaged, or of other parameters, another codec,
                another optimizer, or (if exact) another number of ranks. Nothing was changed then.

        Example::

            optimizer.load_state_dict(torch.load(path, weights_only=True))
        """
        groups = load(self._state_view(), self, state_dict)
        moments = dict(self.state)
        super().load_state_dict({"state": {}, "param_groups": groups})
        self.state.update(moments)
        self._presence.compare_again()

    def discard_step(self) -> None:
        """Does nothing: only ``step`` sends gradients, so discarded gradients left no residual.

        To discard gradients, do not call ``step`` on any rank. A step that moved the weights
        cannot be discarded.

        Example::

            if not torch.isfinite(loss):
                optimizer.discard_step()
        """

    def reset(self) -> None:
        steps = max((int(one["step"]) for one in self.state.values()), default=0)
        super().reset()
        if self._host_mean is not None:
            self._host_mean = HostMean(self._exchange)
        self._register(self._parameters)
        state = ReducerState.read(self.reducer.save_state())
        state.step = steps  # schedules continue
        self.reducer.load_state(state.write())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, between two steps, on all ranks.

        Args:
            param_group: A group as of ``torch.optim.Optimizer.add_param_group``.

        Raises:
            InvalidArgumentError: An option of the group is out of range.
            ValueError: A parameter is in another group already.

        Example::

            optimizer.add_param_group({"params": model.head.named_parameters(), "lr": 0.01})
        """
        super().add_param_group(param_group)
        self._check_group(self.param_groups[-1])

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raises InvalidArgumentError for options out of range."""
        _check_options(group)

    def _agree(self, newcomers: Mapping[str, Tensor]) -> None:
        """Checks that ranks treat newcomers alike. A collective call."""

    def _init_state(self, newcomers: Mapping[str, Tensor]) -> None:
        """Makes the codecs and moments of parameters that will take part."""
        selection.refuse_unsupported(newcomers, type(self).__name__)
        selection.refuse_sharded(newcomers, self._process_group(), self._remedy)
        for name, phases in codec_phases(self._exchange.options, shards_of(newcomers)).items():
            if self._warmup_steps and Codec(phases[-1][1]).has_feedback:
                phases = [(0, self._warmup_codec), (self._warmup_steps, phases[-1][1])]
            self._codecs[name] = phases
        for name, parameter in newcomers.items():
            rule = self._rule(parameter, [codec for _, codec in self._codecs[name]])
            self._rules[name] = rule
            step = torch.tensor(0.0, dtype=torch.float32, device="cpu")
            self.state[parameter] = {"step": step, **rule.begin(parameter.detach())}

    def _register(self, parameters: Mapping[str, Tensor]) -> None:
        sent = {name: self._template(name, one) for name, one in parameters.items()}
        options: ReducerOptions = {"rules": self._schedule()} if self._warmup_steps else {}
        self._exchange.register(shards_of(sent), options)

    def _template(self, name: str, parameter: Tensor) -> Tensor:
        moments: dict[str, Tensor] = self.state[parameter]
        return moments[self._rules[name].moments[0]]

    def _add_newcomers(self, newcomers: Collection[str]) -> None:
        """Takes in parameters that had a gradient on no rank before."""
        if not newcomers:
            return
        new = {name: self._optimized.all[name] for name in newcomers}
        self._agree(new)
        self._init_state(new)
        extended = self._optimized.extended(newcomers)
        if not self._removed:
            self._register(extended)
        self._optimized.exchanged = extended  # an error before leaves newcomers out

    def _schedule(self) -> list[tuple[str, str, int]]:
        return [
            (selection.literal_pattern(name), codec, step)
            for name, phases in self._codecs.items()
            for step, codec in phases
        ]

    def _codec_at(self, name: str, step: int) -> str:
        """The codec of a parameter in a step; ``"none"`` if values are sent uncompressed."""
        if self._removed or self._exchange.ranks == 1:
            return "none"
        return next(codec for first, codec in reversed(self._codecs[name]) if first <= step)

    def _reset_replaced(self) -> None:
        """Sets moments of replaced parameters to zero, also if a program clears ``state``."""
        for former in self._optimized.pop_replaced().values():
            self.state.pop(former, None)
            self._presence.compare_again()
        if new := {name: one for name, one in self._parameters.items() if not self.state.get(one)}:
            self._init_state(new)

    def _state_view(self) -> StateView:
        self._optimized.sync_groups()
        self._reset_replaced()
        names = {id(one): name for name, one in self._optimized.all.items()}
        moments = {name: self.state[one] for name, one in self._parameters.items()}
        groups = [[names[id(one)] for one in group["params"]] for group in self.param_groups]
        own = {name: own for name in self._parameters if (own := self._rules[name].own)}
        group, kind = self._process_group(), type(self).__name__
        return StateView(moments, groups, own, self._exchange, group, kind, self._check_group)

    def _is_finite(self) -> bool:
        """True if this rank's gradients are finite, as a scaler already found out.

        If parameters are sharded, a collective call of the ranks with the other shards.
        """
        if (found := self._scaler_value("found_inf")) is not None:
            return float(found) == 0
        parameters = self._optimized.all
        grads = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        own = {name: local_shard(one) for name, one in grads.items() if is_supported(one)}
        found = torch.zeros((), device=self._exchange.device, dtype=torch.float32)
        for dtype in {one.dtype for one in own.values()}:
            alike = [one for one in own.values() if one.dtype == dtype]
            _compat.find_non_finite_(alike, found, torch.ones_like(found))
        if found:
            bad = next(name for name, one in own.items() if not one.isfinite().all())
            _compat.warn(f"the gradient of {bad} is not finite: all ranks skip the step")
        return not _any_over_shards(bool(found), parameters.values())

    def _scaler_value(self, key: str) -> Tensor | None:
        """An attribute that a scaler has set for this step, or for the lost step."""
        found: Tensor | None = vars(self).get(key, self._scaler_values.get(key))
        return found

    def _exchange_parts(self, parts: Sequence[Part], weight: float) -> list[list[Tensor]]:
        """The means of each part. Tersor sends a part while the next part is computed."""
        if self._removed:
            return [self._average_part(part, weight) for part in parts]
        means = []
        for part in parts:
            means.append([one.contiguous() for one in part.rule.to_send(part)])
            if weight != 1:
                _compat.foreach_mul_(means[-1], weight)
            self._exchange.acquire()
            for name, one in zip(part.names, means[-1], strict=True):
                self.reducer.ready(name, one)
        taken = {name for part in parts for name in part.names}
        for name, one in self._parameters.items():
            if name not in taken:
                self._exchange.skip(name, self._template(name, one))
        self._exchange.wait()
        return means

    def _average_part(self, part: Part, weight: float) -> list[Tensor]:
        """The means of a part by PyTorch's own all-reduce."""
        values = [one.contiguous() for one in part.rule.to_send(part)]
        for one in values:
            one.mul_(weight / self._exchange.ranks)
            dist.all_reduce(one, group=self._exchange.group)
        return values

    def _parts(self, gradients: Mapping[str, Tensor]) -> Iterator[Part]:
        """Parts of few values or one parameter each, so that temporary copies are small."""
        groups = {id(one): group for group in self.param_groups for one in group["params"]}
        alike: dict[Any, list[str]] = {}
        counts: Counter[Any] = Counter()
        parameters = self._parameters
        latest = max((int(one["step"]) for one in self.state.values()), default=0)
        on_host = self._exchange.device.type == "cpu"
        limit = _BATCH_VALUES if on_host else _DEVICE_BATCH_VALUES
        for name in gradients:
            parameter, rule = parameters[name], self._rules[name]
            steps, group = int(self.state[parameter]["step"]), groups[id(parameter)]
            batch_key = rule.batch_key(parameter, self._codec_at(name, latest))
            key = (steps, id(group), id(rule), batch_key)
            alike.setdefault((*key, counts[key] // limit), []).append(name)
            counts[key] += parameter.numel()  # of all shards, because their ranks need equal parts
        for (steps, *_), names in alike.items():
            own = [parameters[name] for name in names]
            states = [self.state[one] for one in own]
            taken = [gradients[name] for name in names]
            rule, group = self._rules[names[0]], groups[id(own[0])]
            codec = self._codec_at(names[0], latest)
            yield Part(rule, group, steps, codec, names, own, taken, states)

    def _gradient(self, name: str, parameter: Tensor) -> Tensor:
        if (gradient := parameter.grad) is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise InvalidArgumentError(
                f"the gradient of {name} is sparse: {type(self).__name__} takes dense ones; make "
                "the embedding with sparse=False"
            )
        return local_shard(gradient)


def _any_over_shards(flag: bool, tensors: Collection[Tensor]) -> bool:
    """True if ``flag`` is set on a rank with a shard of one of these tensors."""
    for mesh in dict.fromkeys(one.device_mesh for one in tensors if isinstance(one, DTensor)):
        found = torch.tensor(flag, dtype=torch.int32, device=mesh.device_type)
        for group in mesh.get_all_groups():
            dist.all_reduce(found, dist.ReduceOp.MAX, group)
        flag = bool(found)
    return flag


def _check_options(group: Mapping[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if name in group and (isinstance(group[name], bool) or not 0 <= group[name] < math.inf):
            raise InvalidArgumentError(f"{name}={group[name]}: give a finite number, 0 or more")
    sent = group.get("sent_momentum") or 0  # None: derived from the momentum
    for name, value in (("momentum", group.get("momentum", 0)), ("sent_momentum", sent)):
        if isinstance(value, bool) or not 0 <= value < 1:
            raise InvalidArgumentError(f"{name}={value}: give at least 0 and below 1")
    if type(steps := group.get("ns_steps", 1)) is not int or steps < 1:
        raise InvalidArgumentError(f"ns_steps={steps}: give an integer, 1 or more")
    for name in _MISSING:
        if group.get(name) and not (name == "nesterov" and "use_muon" in group):
            raise InvalidArgumentError(
                f"{name}={group[name]!r}: the compressed optimizers have no such option"
            )
    betas = group.get("betas", (0, 0))
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidArgumentError(f"betas={betas}: give two numbers, each at least 0 and below 1")


def _check_codecs(options: ReducerOptions, kind: str) -> None:
    """Raises InvalidArgumentError if no codec has error feedback, or a codec is ``"auto"``."""
    codecs = [rule[1] for rule in options.get("rules", ())] or [options["codec"]]
    if "auto" in codecs:
        raise InvalidArgumentError(f'codec="auto" is for gradients: name a codec for {kind}')
    if not any(Codec(codec).has_feedback for codec in codecs):
        listed = ", ".join(codecs)
        raise InvalidArgumentError(
            f"{listed}: {kind} needs codecs with error feedback: add +ef, or average gradients for "
            "an ordinary optimizer (tersor.torch.compress, DistributedOptimizer)"
        )


def _check_schedule(options: ReducerOptions, warmup_steps: int) -> None:
    """Raises InvalidArgumentError for a negative number, or for rules that have steps too."""
    if warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps={warmup_steps}: give 0 or more")
    if any(len(rule) > 2 for rule in options.get("rules", ())):
        raise InvalidArgumentError(
            "warmup_steps= cannot be combined with rules with steps: use rules alone"
        )
