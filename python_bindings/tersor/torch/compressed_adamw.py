"""AdamW that exchanges what each rank has divided by its own variance, in few bits.

Adam divides by the root of the mean square of what arrives; gradients that arrive late or noisy, as
error feedback has them, then move the weights too little (1-bit Adam, Tang et al. 2021,
arXiv:2102.02888, section 3). So each rank divides its own gradient by the root of its own variance
first, and the common momentum of these is exchanged, with feedback behind the division::

    v ← β2 · v + (1 - β2) · g²        of this rank alone
    p = β1 · m + (1 - β1) · g / (√(v / (1 - β2^t)) + ε)
    m ← mean of p over ranks          by the codec; the same bits on every rank
    weights ← weights · (1 - rate · decay) - rate · m / (1 - β1^t)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgument
from tersor._options import described
from tersor.reducer import ReducerOptions
from tersor.torch.adam_warning import chosen_codecs
from tersor.torch.checkpoint import Mode
from tersor.torch.compressed_adamw_state import Kept, load, plain_groups, save
from tersor.torch.exchange import TensorExchange
from tersor.torch.parameters import (
    OptimizedParameters,
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

DEFAULT_CODEC = "hadamard:bits=1+ef"

Group = Mapping[str, Any]


class CompressedAdamW(torch.optim.Optimizer, ReducerReporting):
    """AdamW whose ranks exchange their normalised momentum, for codecs below two bits a value.

    ::

        optimizer = tersor.torch.CompressedAdamW(
            model.named_parameters(), lr=2e-3, codec="topk:density=0.01+ef"
        )
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()    # each rank's own gradient; DDP within no_sync()
            optimizer.step()                    # exchanges, and moves all ranks alike

    Gradients must not be averaged before. A rank's gradient is noisier than the mean, so steps are
    smaller: learning rates want to be up to two or three times those of AdamW. Parameters that
    travel by a codec without ``+ef`` (without ``rules`` those of one dimension and those under
    4,096 values, as bf16) go by AdamW on the mean gradient. A parameter without a gradient on this
    rank counts as one whose gradient is zero; one that no rank has a gradient of is left alone. One
    that is unfrozen, or added, takes part from its first gradient on. Ranks must begin with equal
    parameters: nothing is broadcast here. Moments of parameters with ``+ef`` are float32, whatever
    the parameters are.

    A ``GradScaler`` goes around it as around any optimizer: a gradient that is not finite on one
    rank skips the step on all of them, and changes nothing on any.
    """

    _exchange: TensorExchange
    _step_supports_amp_scaling = True  # the scaler calls step() even where it found an infinity

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        dense_codec: str = "bf16",
        dense_steps: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ReducerOptions],
    ) -> None:
        """``params``, ``lr``, ``betas``, ``eps``, ``weight_decay``: as of ``torch.optim.AdamW``.

        Rules, statistics and checkpoints have the names of ``named_parameters()``; without,
        ``"parameter.0"``, …. ``dense_steps``: so many first steps go by ``dense_codec``, where the
        rest has ``+ef``: a schedule, and so with ``+ef`` too. ``group``: who takes part, default
        the whole world. ``options``: as of ``tersor.GradientReducer``; ``codec`` has ``+ef``,
        default ``"hadamard:bits=1+ef"``. Raises InvalidArgument for options that are wrong, and for
        parameters that no codec takes or that are sharded over ranks of ``group``.
        """
        if isinstance(params, (torch.nn.Module, torch.optim.Optimizer)):
            raise TypeError(
                f"CompressedAdamW takes model.named_parameters(), not {described(params)}"
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        for one in self.param_groups:
            _check_group(one)
        self._group = group
        options = _checked(options)
        self._dense_codec, self._dense_steps = dense_codec, dense_steps
        if dense_steps != 0:
            _check_schedule(options, dense_steps)
        self._optimized = OptimizedParameters(self, None)
        self._exchange = TensorExchange(group, only_device(self._parameters), options)
        self._codecs: dict[str, str] = {}
        self._with_feedback: set[str] = set()
        self._begin(self._parameters)
        self._hold()
        self._presence = Presence(group, self._exchange.options)
        self.skipped_steps = 0  #: because a gradient was not finite on some rank

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges, and moves the weights; a collective call. Returns what ``closure`` does.

        Raises InvalidArgument for a sparse gradient, and what ended the exchange: TransportError
        where a rank is gone or does something else, WireError where a message is damaged. Weights
        and moments then are as they were.
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
        gradients = {name: _gradient(name, self._parameters[name]) for name in somewhere}
        self._unscale(gradients)
        self._move(gradients, self._exchanged(gradients))
        return loss

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: parameter groups, the common moments by parameter's name, and
        under ``"tersor"`` in the first group each rank's own variances and residuals.

        ``"exact"``: the same run goes on bit for bit; for a file of each rank, or a distributed
        checkpoint. ``"portable"`` (a collective call): the variances' mean and the residuals' sum,
        for any number of ranks.
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
        _check_group(self.param_groups[-1])

    @property
    def _parameters(self) -> dict[str, Tensor]:
        return self._optimized.taking_part

    def _begin(self, newcomers: Mapping[str, Tensor]) -> None:
        """Codecs and moments of parameters that will take part."""
        refuse_unsupported(newcomers, "CompressedAdamW")
        other = "use tersor.torch.compress with a codec of two bits or more"
        refuse_sharded(newcomers, self._process_group(), other)
        codecs = chosen_codecs(self._exchange.options, shards_of(newcomers))
        self._codecs.update(codecs)
        self._with_feedback |= {name for name in codecs if Codec(codecs[name]).has_feedback}
        for name, parameter in newcomers.items():
            dtype = torch.float32 if name in self._with_feedback else parameter.dtype
            self.state[parameter] = {
                "step": torch.tensor(0.0, dtype=torch.float32, device="cpu"),
                "exp_avg": torch.zeros_like(parameter, dtype=dtype, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, dtype=dtype, requires_grad=False),
            }

    def _hold(self) -> None:
        """For the moments of all that take part."""
        sent = {name: self.state[one]["exp_avg"] for name, one in self._parameters.items()}
        options: ReducerOptions = {"rules": self._schedule()} if self._dense_steps else {}
        self._exchange.hold(shards_of(sent), options)

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
            pattern, later = literal_pattern(name), name in self._with_feedback
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
            frozenset(self._with_feedback),
            self._exchange,
            self._process_group(),
        )

    def _somewhere(self) -> list[str] | None:
        """Those of all parameters that some rank has a gradient of; None where a scaler found an
        infinity on some rank. A collective call."""
        infinite = float(getattr(self, "found_inf", 0.0)) != 0
        present = self._optimized.with_gradients()
        somewhere, [skips] = self._presence.somewhere(present, [infinite])
        return None if skips > 0 else somewhere

    def _unscale(self, gradients: Mapping[str, Tensor]) -> None:
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for gradient in gradients.values():
                gradient.div_(scale.to(gradient.device))

    def _exchanged(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The common momenta, and of parameters without feedback the mean gradients."""
        sent = {}
        for name, group, state in self._entries(gradients):
            sent[name] = gradients[name]
            if name in self._with_feedback:
                sent[name] = _own_momentum(gradients[name], state, group)
            sent[name] = sent[name].contiguous()
        self._exchange.take_over()
        for name, parameter in self._parameters.items():
            if name in sent:
                self.reducer.ready(name, sent[name])
            else:
                self._exchange.leave_out(name, self.state[parameter]["exp_avg"])
        self._exchange.wait()
        return sent

    def _move(self, gradients: Mapping[str, Tensor], common: Mapping[str, Tensor]) -> None:
        for name, group, state in self._entries(gradients):
            weights = local_shard(self._parameters[name])
            if name in self._with_feedback:
                _follow(weights, gradients[name], common[name], state, group)
            else:
                _adamw(weights, common[name], state, group)

    def _entries(self, names: Collection[str]) -> Iterator[tuple[str, Group, dict[str, Tensor]]]:
        """Name, parameter group and moments of these parameters."""
        groups = {id(one): group for group in self.param_groups for one in group["params"]}
        for name in names:
            parameter = self._parameters[name]
            state = {key: local_shard(value) for key, value in self.state[parameter].items()}
            yield name, groups[id(parameter)], state


def _own_momentum(gradient: Tensor, state: dict[str, Tensor], group: Group) -> Tensor:
    """p of this rank, in memory of its own; the moments stay until all ranks have it."""
    beta1, beta2 = group["betas"]
    average, variance = state["exp_avg"], state["exp_avg_sq"]
    gradient = gradient.to(variance.dtype)
    correction = 1 - beta2 ** (int(state["step"]) + 1)
    root = torch.mul(variance, beta2 / correction)
    root.addcmul_(gradient, gradient, value=(1 - beta2) / correction).sqrt_().add_(group["eps"])
    return torch.div(gradient, root, out=root).mul_(1 - beta1).add_(average, alpha=beta1)


def _follow(
    weights: Tensor, gradient: Tensor, common: Tensor, state: dict[str, Tensor], group: Group
) -> None:
    """Moves the weights by the common momentum, which is kept, as is this rank's variance."""
    beta1, beta2 = group["betas"]
    rate = float(group["lr"])
    state["step"] += 1
    gradient = gradient.to(common.dtype)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    state["exp_avg"].copy_(common)
    weights.mul_(1 - rate * group["weight_decay"])
    weights.add_(common, alpha=-rate / (1 - beta1 ** int(state["step"])))


def _adamw(weights: Tensor, gradient: Tensor, state: dict[str, Tensor], group: Group) -> None:
    """As PyTorch does."""
    beta1, beta2 = group["betas"]
    adamw(
        [weights],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _gradient(name: str, parameter: Tensor) -> Tensor:
    """This rank's own, which is made where there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout != torch.strided:
        raise InvalidArgument(
            f"the gradient of {name} is sparse: CompressedAdamW takes dense ones; make the "
            "embedding with sparse=False"
        )
    return local_shard(parameter.grad)


def _check_group(group: Group) -> None:
    """Raises InvalidArgument for what AdamW refuses."""
    for name in ("lr", "eps", "weight_decay"):
        if not group[name] >= 0:
            raise InvalidArgument(f"{name}={group[name]}: 0 or more")
    if len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
        raise InvalidArgument(f"betas={group['betas']}: two numbers, each at least 0 and below 1")


def _checked(options: ReducerOptions) -> ReducerOptions:
    """With the default codec. Raises InvalidArgument for what has no meaning here."""
    found = cast(ReducerOptions, {"codec": DEFAULT_CODEC, **options})
    rules = list(found.get("rules", ()))
    codecs = [rule[1] for rule in rules] or [found["codec"]]
    if "auto" in codecs:
        raise InvalidArgument('codec="auto" is for gradients: give CompressedAdamW a codec by name')
    if not any(Codec(codec).has_feedback for codec in codecs):
        listed = ", ".join(codecs)
        raise InvalidArgument(
            f"{listed}: CompressedAdamW is for codecs with error feedback: add +ef, or average "
            "gradients for an ordinary AdamW (tersor.torch.compress, DistributedOptimizer)"
        )
    if (reduction := found.get("reduction", "mean")) != "mean":
        raise InvalidArgument(f"reduction={reduction!r}: CompressedAdamW takes the mean")
    return {**found, "rules": rules}


def _check_schedule(options: ReducerOptions, dense_steps: int) -> None:
    if dense_steps < 0:
        raise InvalidArgument(f"dense_steps={dense_steps}: 0 or more")
    if any(len(rule) > 2 for rule in options.get("rules", ())):
        raise InvalidArgument("dense_steps= and rules with steps: say all of it by rules")
