"""What optimizers have in common that exchange what a rank made of its own gradients.

How parameters move say *rules*: what a rank sends of them, and what it does with what arrives.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgument
from tersor._options import described
from tersor.reducer import ReducerOptions
from tersor.torch.adam_warning import chosen_codecs
from tersor.torch.checkpoint import Mode
from tersor.torch.compressed_options import check_group, check_schedule, with_default_codec
from tersor.torch.compressed_state import Kept, load, plain_groups, save
from tersor.torch.exchange import TensorExchange
from tersor.torch.parameters import (
    OptimizedParameters,
    is_supported,
    literal_pattern,
    local_shard,
    only_device,
    refuse_sharded,
    refuse_unsupported,
    shards_of,
)
from tersor.torch.presence import Presence
from tersor.torch.reporting import ReducerReporting

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TOGETHER = 1 << 20  # values, of which there may be temporary copies

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """Parameters that move alike: by a rule, by the options of a group, after so many steps.

    Attributes:
        parameters: as the model has them; weights, gradients and moments are what this rank has.
        moments: by their names, those of all parameters.
        counters: of steps, of which there were so many.
    """

    rule: Rule
    group: Group
    steps: int
    counters: list[Tensor]
    names: list[str]
    parameters: list[Tensor]
    gradients: list[Tensor]
    moments: Mapping[str, list[Tensor]]

    @property
    def weights(self) -> list[Tensor]:
        """Written in place."""
        return [local_shard(one) for one in self.parameters]

    def float_gradients(self) -> list[Tensor]:
        """Those of 16 bits as copies."""
        return [one.float() for one in self.gradients]

    def end_step(self, arrived: list[Tensor], factor: float) -> None:
        """Weights decay, and move by so much of what arrived."""
        weights = self.weights
        torch._foreach_mul_(weights, 1 - float(self.group["lr"]) * self.group["weight_decay"])
        torch._foreach_add_(weights, arrived, alpha=factor)
        torch._foreach_add_(self.counters, 1)


class Rule(ABC):
    """How parameters move.

    Attributes:
        moments: the names of those that it keeps; the first is like what is sent.
        own: that of each rank's own; None: all are common.
    """

    moments: ClassVar[tuple[str, ...]]
    own: ClassVar[str | None] = None

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        """The moments before the first step."""
        return {key: torch.zeros_like(parameter, dtype=torch.float32) for key in self.moments}

    def likeness(self, parameter: Tensor) -> object:
        """Parameters of another one are no part of the same ``Part``."""
        return None

    @abstractmethod
    def sent(self, part: Part) -> list[Tensor]:
        """Of this rank, in memory of its own or that of gradients. Moments stay as they are."""

    @abstractmethod
    def move(self, part: Part, arrived: list[Tensor]) -> None:
        """Moves the weights by the mean of what ranks sent; moments and counters move on."""


class CompressedOptimizer(torch.optim.Optimizer, ReducerReporting):
    """An optimizer that exchanges in its steps, by a codec with feedback."""

    _exchange: TensorExchange
    _step_supports_amp_scaling = True  # the scaler calls step() even where it found an infinity
    _instead: ClassVar[str]  # of parameters that are sharded

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        dense_codec: str,
        dense_steps: int,
        group: dist.ProcessGroup | None,
        **options: Unpack[ReducerOptions],
    ) -> None:
        who = type(self).__name__
        if isinstance(params, (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(f"{who} takes model.named_parameters(), not {described(params)}")
        super().__init__(params, defaults)
        self._group = group
        options = with_default_codec(options, who)
        self._dense_codec, self._dense_steps = dense_codec, dense_steps
        if dense_steps != 0:
            check_schedule(options, dense_steps)
        self._optimized = OptimizedParameters(self, None)
        self._exchange = TensorExchange(group, only_device(self._parameters), options)
        self._presence = Presence(group, self._exchange.options)
        self._codecs: dict[str, str] = {}
        self._rules: dict[str, Rule] = {}
        self._begin(self._parameters)
        self._hold()
        self.skipped_steps = 0  #: because a gradient was not finite on some rank

    @abstractmethod
    def _rule(self, parameter: Tensor, codec: str) -> Rule:
        """By which a parameter moves that travels by a codec."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and moves the weights; a collective call. Returns what ``closure`` does.

        A gradient that is not finite on one rank skips the step on all. Raises InvalidArgument for
        a sparse gradient, and what ended the exchange: TransportError where a rank is gone or does
        something else, WireError where a message is damaged. Weights and moments then are as they
        were.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        somewhere = self._somewhere()
        if somewhere is None:
            self.skipped_steps += 1
            return loss
        self._take_in([name for name in somewhere if name not in self._parameters])
        gradients = {name: self._gradient(name) for name in somewhere}
        self._unscale(list(gradients.values()))
        parts = list(self._parts(gradients))
        for part, arrived in zip(parts, self._exchanged(parts), strict=True):
            part.rule.move(part, arrived)
        return loss

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: parameter groups, common moments by parameter's name, and under
        ``"tersor"`` in the first group each rank's own moments and residuals.

        ``"exact"``: the same run goes on bit for bit; for a file of each rank, or a distributed
        checkpoint. ``"portable"`` (a collective call): the own moments' mean and the residuals'
        sum, for any number of ranks.
        """
        return save(self._kept(), super().state_dict(), mode)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Brings back what ``state_dict`` gave, in either mode.

        Raises InvalidArgument, which names what does not fit, where it is the state of other
        parameters, another codec, another optimizer, or in the exact mode of another number of
        ranks; nothing was changed then.
        """
        load(self._kept(), state_dict)
        moments = dict(self.state)
        super().load_state_dict({"state": {}, "param_groups": plain_groups(state_dict)})
        self.state.update(moments)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Between two steps, on all ranks alike."""
        super().add_param_group(param_group)
        check_group(self.param_groups[-1])

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
        """For what is sent of all that take part."""
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

    def _kept(self) -> Kept:
        self._optimized.follow_groups()
        names = {id(one): name for name, one in self._optimized.all.items()}
        return Kept(
            {name: self.state[one] for name, one in self._parameters.items()},
            [[names[id(one)] for one in group["params"]] for group in self.param_groups],
            {name: rule.own for name, rule in self._rules.items() if rule.own},
            self._exchange,
            self._process_group(),
            type(self).__name__,
        )

    def _somewhere(self) -> list[str] | None:
        """Those of all parameters that some rank has a gradient of; None where a gradient is not
        finite on some rank. A collective call."""
        present = self._optimized.with_gradients()
        somewhere, [skips] = self._presence.somewhere(present, [not self._is_finite()])
        return None if skips > 0 else somewhere

    def _is_finite(self) -> bool:
        """Of this rank's gradients; a scaler has looked already. Where parameters are sharded a
        collective call of those who have the other parts."""
        if (found := getattr(self, "found_inf", None)) is not None:
            return float(found) == 0
        parameters = self._optimized.all
        grads = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        own = {name: local_shard(one) for name, one in grads.items() if is_supported(one)}
        if not (fine := _are_finite(list(own.values()))):
            bad = next(name for name, one in own.items() if not one.isfinite().all())
            warnings.warn(
                f"the gradient of {bad} is not finite: all ranks skip the step", stacklevel=4
            )
        return not _somewhere_in(not fine, parameters.values())

    def _unscale(self, gradients: list[Tensor]) -> None:
        scale = getattr(self, "grad_scale", None)
        if scale is not None and gradients:
            torch._foreach_div_(gradients, scale.to(gradients[0].device))

    def _exchanged(self, parts: Sequence[Part]) -> list[list[Tensor]]:
        """What arrived of each part. What is made is sent while the rest is made."""
        arrived = []
        for part in parts:
            arrived.append([one.contiguous() for one in part.rule.sent(part)])
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
        groups = {id(one): group for group in self.param_groups for one in group["params"]}
        alike: dict[Any, list[str]] = {}
        for name in gradients:
            parameter, rule = self._parameters[name], self._rules[name]
            group, steps = groups[id(parameter)], int(self.state[parameter]["step"])
            key = (id(group), id(rule), steps, rule.likeness(parameter))
            alike.setdefault(key, []).append(name)
        for (_, _, steps, _), names in alike.items():
            rule, group = self._rules[names[0]], groups[id(self._parameters[names[0]])]
            for some in _in_chunks(names, gradients):
                parameters = [self._parameters[name] for name in some]
                states = [self.state[one] for one in parameters]
                yield Part(
                    rule,
                    group,
                    steps,
                    [one["step"] for one in states],
                    some,
                    parameters,
                    [gradients[name] for name in some],
                    {key: [local_shard(one[key]) for one in states] for key in rule.moments},
                )

    def _gradient(self, name: str) -> Tensor:
        """This rank's own, which is made where there is none."""
        parameter = self._parameters[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            raise InvalidArgument(
                f"the gradient of {name} is sparse: {type(self).__name__} takes dense ones; make "
                "the embedding with sparse=False"
            )
        return local_shard(parameter.grad)


def _in_chunks(names: Sequence[str], sizes: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Of few values, or one parameter, so that temporary copies are small."""
    chunk: list[str] = []
    count = 0
    for name in names:
        if chunk and count + sizes[name].numel() > _TOGETHER:
            yield chunk
            chunk, count = [], 0
        chunk.append(name)
        count += sizes[name].numel()
    yield chunk


def _are_finite(gradients: Sequence[Tensor]) -> bool:
    """As a scaler looks, all at once."""
    if not gradients:
        return True
    found = torch.zeros((), dtype=torch.float32, device=gradients[0].device)
    for dtype in dict.fromkeys(one.dtype for one in gradients):
        alike = [one for one in gradients if one.dtype == dtype]
        torch._amp_foreach_non_finite_check_and_unscale_(alike, found, torch.ones_like(found))
    return not bool(found)


def _somewhere_in(flag: bool, tensors: Collection[Tensor]) -> bool:
    """Whether it is set on a rank that has a part of one of these that are sharded."""
    for mesh in dict.fromkeys(one.device_mesh for one in tensors if isinstance(one, DTensor)):
        told = torch.tensor(flag, dtype=torch.int32, device=mesh.device_type)
        for group in mesh.get_all_groups():
            dist.all_reduce(told, dist.ReduceOp.MAX, group)
        flag = bool(told)
    return flag
