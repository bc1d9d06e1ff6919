"""What optimizers have in common that exchange what a rank made of its own gradients."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgumentError, RanksLostError
from tersor._options import described
from tersor.reducer import ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import Mode
from tersor.torch._src.gradients.exchange import (
    ElasticOptions,
    Presence,
    TensorExchange,
    refuse_elastic_shards,
)
from tersor.torch._src.gradients.low_bit_adam import chosen_codecs
from tersor.torch._src.gradients.sample_weights import refuse_weighted
from tersor.torch._src.optim.rules import Part, Rule
from tersor.torch._src.optim.state import Kept, load, plain_groups, save
from tersor.torch._src.parameters.selection import (
    OptimizedParameters,
    is_supported,
    literal_pattern,
    local_shard,
    only_device,
    refuse_sharded,
    refuse_unsupported,
    shards_of,
)
from tersor.torch._src.statistics.handles import ElasticReporting

DEFAULT_CODEC = "hadamard:bits=1+ef"
# Values, of which there may be temporary copies: on hosts as many as caches hold, on devices more,
# which else wait for launches.
_TOGETHER, _TOGETHER_ON_DEVICES = 1 << 20, 1 << 24


class CompressedOptimizer(torch.optim.Optimizer, ElasticReporting):
    """An optimizer that exchanges in its steps, by a codec with feedback."""

    _exchange: TensorExchange
    _step_supports_amp_scaling = True  # the scaler calls step() even where it found an infinity
    # Of parameters that are sharded.
    _instead: ClassVar = "use tersor.torch.compress with a codec of two bits or more"

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        dense: tuple[str, int],
        group: dist.ProcessGroup | None,
        options: ElasticOptions,
    ) -> None:
        """``dense``: a codec, and how many steps it has first."""
        who = type(self).__name__
        if isinstance(params, (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(f"{who} needs model.named_parameters(), not {described(params)}")
        super().__init__(params, defaults)
        self._group = group
        told = _with_default_codec(options, who)
        self._dense_codec, self._dense_steps = dense
        if self._dense_steps != 0:
            _check_schedule(told, self._dense_steps)
        self._optimized = OptimizedParameters(self, None)
        refuse_elastic_shards(told, self._parameters)
        self._exchange = TensorExchange(group, only_device(self._parameters), told)
        self._presence = Presence(self._exchange)
        self._codecs: dict[str, str] = {}
        self._rules: dict[str, Rule] = {}
        self._begin(self._parameters)
        self._hold()
        self.skipped_steps = 0  #: because a gradient was not finite on some rank
        #: Of how many samples this rank's gradient in the next step is the mean, so that what
        #: arrives is the mean over all samples; None: of as many as on the other ranks. 0 is right
        #: for a rank that has none left.
        self.samples: float | None = None

    @abstractmethod
    def _rule(self, parameter: Tensor, codec: str) -> Rule:
        """By which a parameter moves that travels by a codec."""

    # Dynamo would compile the step again for each learning rate.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and moves the weights; a collective call. Returns what ``closure`` does.

        A gradient that is not finite on one rank skips the step on all. Raises InvalidArgumentError
        for a sparse gradient, and what ended the exchange: TransportError where a rank is gone or
        does something else, WireError where a message is damaged. Weights and moments then are as
        they were. With ``elastic=True`` RanksLostError where ranks are gone: ``resume``, and step
        again.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_finite = self._is_finite()
        samples, self.samples = self.samples, None
        try:
            made = self._exchange.together(lambda: self._exchange_step(is_finite, samples))
        except RanksLostError:  # the step may be called again
            self.samples = samples
            raise
        if made is None:
            self.skipped_steps += 1
            return loss
        for part, arrived in made:
            part.rule.move(part, arrived)
        return loss

    def _exchange_step(
        self, is_finite: bool, samples: float | None
    ) -> list[tuple[Part, list[Tensor]]] | None:
        """What moves, and what arrived of it; None where a gradient is not finite on some rank."""
        flags = self._optimized.with_gradients(), [not is_finite]
        somewhere, [skips], weight = self._presence.weighted(*flags, samples)
        if skips > 0:
            return None
        self._take_in([name for name in somewhere if name not in self._parameters])
        self._begin_replaced()
        parameters = self._parameters
        gradients = {name: self._gradient(name, parameters[name]) for name in somewhere}
        if self._exchange.elastic:  # the step may be done again
            gradients = {name: one.clone() for name, one in gradients.items()}
        parts = list(self._parts(self._unscaled(gradients)))
        return list(zip(parts, self._exchanged(parts, weight), strict=True))

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: parameter groups, common moments by parameter's name, and under
        ``"tersor"`` in the first group each rank's own moments and residuals.

        ``"exact"``: the same run goes on bit for bit; for a file of each rank, or a distributed
        checkpoint. ``"portable"`` (a collective call): the own moments' mean and the residuals'
        sum, for any number of ranks.
        """
        return save(self._kept(), super().state_dict(), self._check_exact(mode))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Brings back what ``state_dict`` gave, in either mode.

        Raises InvalidArgumentError, which names what does not fit, where it is the state of other
        parameters, another codec, another optimizer, or in the exact mode of another number of
        ranks, or for a damaged state; nothing was changed then. The next step raises
        TransportError if ranks loaded different saves.
        """
        load(self._kept(), self, state_dict)
        moments = dict(self.state)
        super().load_state_dict({"state": {}, "param_groups": plain_groups(state_dict)})
        self.state.update(moments)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Between two steps, on all ranks alike."""
        super().add_param_group(param_group)
        _check_group(self.param_groups[-1])

    @property
    def _parameters(self) -> dict[str, Tensor]:
        return self._optimized.taking_part

    def _begin(self, newcomers: Mapping[str, Tensor]) -> None:
        """Codecs and moments of parameters that will take part."""
        refuse_unsupported(newcomers, type(self).__name__)
        refuse_sharded(newcomers, self._process_group(), self._instead)
        codecs = chosen_codecs(self._exchange.options, shards_of(newcomers))
        self._codecs.update(codecs)
        for name, parameter in newcomers.items():
            rule = self._rules[name] = self._rule(parameter, codecs[name])
            step = torch.tensor(0.0, dtype=torch.float32, device="cpu")
            self.state[parameter] = {"step": step, **rule.begin(parameter.detach())}

    def _hold(self) -> None:
        sent = {name: self._like_sent(name) for name in self._parameters}
        options: ReducerOptions = {"rules": self._schedule()} if self._dense_steps else {}
        self._exchange.hold(shards_of(sent), options)

    def _like_sent(self, name: str) -> Tensor:
        moments: dict[str, Tensor] = self.state[self._parameters[name]]
        return moments[self._rules[name].moments[0]]

    def _take_in(self, newcomers: Collection[str]) -> None:
        """Parameters that had no gradient before, of all ranks alike."""
        if not newcomers:
            return
        self._begin({name: self._optimized.all[name] for name in newcomers})
        self._optimized.join(newcomers)
        self._hold()

    def _schedule(self) -> list[tuple[str, str, int]]:
        rules = []
        for name, codec in self._codecs.items():
            pattern, later = literal_pattern(name), Codec(codec).has_feedback
            if later:
                rules.append((pattern, self._dense_codec, 0))
            rules.append((pattern, codec, self._dense_steps if later else 0))
        return rules

    def _begin_replaced(self) -> None:
        """Moments start at zero for a replaced parameter, and if a program clears ``state``."""
        for former in self._optimized.take_replaced().values():
            self.state.pop(former, None)
        if new := {name: one for name, one in self._parameters.items() if not self.state.get(one)}:
            self._begin(new)

    def _kept(self) -> Kept:
        self._optimized.follow_groups()
        self._begin_replaced()
        names = {id(one): name for name, one in self._optimized.all.items()}
        return Kept(
            {name: self.state[one] for name, one in self._parameters.items()},
            [[names[id(one)] for one in group["params"]] for group in self.param_groups],
            {name: rule.own for name, rule in self._rules.items() if rule.own},
            self._exchange,
            self._process_group(),
            type(self).__name__,
        )

    def _is_finite(self) -> bool:
        """Of this rank's gradients; a scaler has looked already. Where parameters are sharded a
        collective call of those who have the other parts."""
        if (found := getattr(self, "found_inf", None)) is not None:
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
            warnings.warn(
                f"the gradient of {bad} is not finite: all ranks skip the step", stacklevel=4
            )
        return not _somewhere_in(bool(found), parameters.values())

    def _unscaled(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Divided by the scaler's scale: f32 gradients in place, 16-bit gradients as f32 copies."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None and gradients:
            gradients = {name: one.float() for name, one in gradients.items()}
            _compat.foreach_div_(list(gradients.values()), scale.to(self._exchange.device))
        return gradients

    def _exchanged(self, parts: Sequence[Part], weight: float) -> list[list[Tensor]]:
        """What arrived of each part. What is made is sent while the rest is made."""
        arrived = []
        for part in parts:
            arrived.append([one.contiguous() for one in part.rule.sent(part)])
            if weight != 1:
                _compat.foreach_mul_(arrived[-1], weight)
            self._exchange.take_over()
            for name, one in zip(part.names, arrived[-1], strict=True):
                self.reducer.ready(name, one)
        taken = {name for part in parts for name in part.names}
        for name in self._parameters:
            if name not in taken:
                self._exchange.leave_out(name, self._like_sent(name))
        self._exchange.wait()
        return arrived

    def _parts(self, gradients: Mapping[str, Tensor]) -> Iterator[Part]:
        """Of few values each, or one parameter: temporary copies are small."""
        groups = {id(one): group for group in self.param_groups for one in group["params"]}
        alike: dict[Any, list[tuple[str, Tensor, dict[str, Tensor]]]] = {}
        counts: Counter[Any] = Counter()
        parameters = self._parameters
        on_host = self._exchange.device.type == "cpu"
        together = _TOGETHER if on_host else _TOGETHER_ON_DEVICES
        for name, gradient in gradients.items():
            parameter, rule = parameters[name], self._rules[name]
            state = self.state[parameter]
            likeness = rule.likeness(parameter)
            key = (int(state["step"]), id(groups[id(parameter)]), id(rule), likeness)
            alike.setdefault((*key, counts[key] // together), []).append((name, parameter, state))
            counts[key] += gradient.numel()
        for (steps, *_), some in alike.items():
            names, own, states = (list(each) for each in zip(*some, strict=True))
            rule = self._rules[names[0]]
            yield Part(
                rule,
                groups[id(own[0])],
                steps,
                [one["step"] for one in states],
                names,
                own,
                [gradients[name] for name in names],
                {key: [local_shard(one[key]) for one in states] for key in rule.moments},
            )

    def _gradient(self, name: str, parameter: Tensor) -> Tensor:
        if (gradient := parameter.grad) is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise InvalidArgumentError(
                f"the gradient of {name} is sparse: {type(self).__name__} takes dense ones; make "
                "the embedding with sparse=False"
            )
        return local_shard(gradient)


def _somewhere_in(flag: bool, tensors: Collection[Tensor]) -> bool:
    """Whether it is set on a rank that has a part of one of these that are sharded."""
    for mesh in dict.fromkeys(one.device_mesh for one in tensors if isinstance(one, DTensor)):
        told = torch.tensor(flag, dtype=torch.int32, device=mesh.device_type)
        for group in mesh.get_all_groups():
            dist.all_reduce(told, dist.ReduceOp.MAX, group)
        flag = bool(told)
    return flag


def _check_group(group: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError for options that no optimizer takes."""
    for name in ("lr", "eps", "weight_decay"):
        if name in group and not group[name] >= 0:
            raise InvalidArgumentError(f"{name}={group[name]}: give 0 or more")
    if not 0 <= group.get("momentum", 0) < 1:
        raise InvalidArgumentError(f"momentum={group['momentum']}: give at least 0 and below 1")
    if group.get("ns_steps", 1) < 1:
        raise InvalidArgumentError(f"ns_steps={group['ns_steps']}: give 1 or more")
    betas = group.get("betas", (0, 0))
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidArgumentError(f"betas={betas}: give two numbers, each at least 0 and below 1")


def _with_default_codec(options: ReducerOptions, who: str) -> ReducerOptions:
    """With the default codec. Raises InvalidArgumentError for what has no meaning here."""
    found = cast(ReducerOptions, {"codec": DEFAULT_CODEC, **options})
    rules = list(found.get("rules", ()))
    codecs = [rule[1] for rule in rules] or [found["codec"]]
    if "auto" in codecs:
        raise InvalidArgumentError(f'codec="auto" is for gradients: name a codec for {who}')
    if not any(Codec(codec).has_feedback for codec in codecs):
        listed = ", ".join(codecs)
        raise InvalidArgumentError(
            f"{listed}: {who} needs codecs with error feedback: add +ef, or average gradients for "
            "an ordinary optimizer (tersor.torch.compress, DistributedOptimizer)"
        )
    refuse_weighted(options, who, "does not take it; set samples before step(), on all ranks")
    if (reduction := found.get("reduction", "mean")) != "mean":
        raise InvalidArgumentError(f"reduction={reduction!r}: {who} supports only 'mean'")
    return {**found, "rules": rules}


def _check_schedule(options: ReducerOptions, dense_steps: int) -> None:
    """Raises InvalidArgumentError for first steps that are none, or that rules say, too."""
    if dense_steps < 0:
        raise InvalidArgumentError(f"dense_steps={dense_steps}: give 0 or more")
    if any(len(rule) > 2 for rule in options.get("rules", ())):
        raise InvalidArgumentError(
            "dense_steps= cannot be combined with rules with steps: use rules alone"
        )
