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

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from tersor import Codec
from tersor._core import InvalidArgument
from tersor.collectives import allreduce
from tersor.reducer import GradientReducer, ReducerOptions
from tersor.torch.adam_warning import chosen_codecs
from tersor.torch.checkpoint import Mode
from tersor.torch.compressed_adamw_state import Kept, load, save
from tersor.torch.group import transport, with_message_sizes
from tersor.torch.parameters import (
    is_supported,
    literal_pattern,
    local_shard,
    only_device,
    optimized_parameters,
    reason_of,
)
from tersor.torch.reporting import ReducerReporting
from tersor.torch.side_stream import SideStream

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
    rank counts as one whose gradient is zero. Ranks must begin with equal parameters: nothing is
    broadcast here. Moments of parameters with ``+ef`` are float32, whatever the parameters are.

    A ``GradScaler`` goes around it as around any optimizer: a gradient that is not finite on one
    rank skips the step on all of them, and changes nothing on any.
    """

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
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        for one in self.param_groups:
            _check_group(one)
        self._group = group
        self._parameters = optimized_parameters(self, _names_in(self))
        self._device = only_device(self._parameters)
        self._transport = transport(group, self._device)
        _check_parameters(self._parameters, self._process_group())
        options = _checked(options)
        codecs = chosen_codecs(options, _shards(self._parameters))
        self._with_feedback = frozenset(
            name for name, codec in codecs.items() if Codec(codec).has_feedback
        )
        if dense_steps != 0:
            _refuse_schedule(options)
            options = {**options, "rules": self._schedule(codecs, dense_codec, dense_steps)}
        self._begin()
        self._side_stream = SideStream(self._device, options)
        self.reducer = self._make_reducer(self._side_stream.options)
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
        gradients = {name: _gradient(name, one) for name, one in self._parameters.items()}
        if self._not_finite():
            self.skipped_steps += 1
            return loss
        self._unscale(gradients)
        self._move(gradients, self._exchanged(gradients))
        return loss

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """What a run goes on from: parameter groups, the common moments by parameter's name, and
        under ``"tersor"`` each rank's own variances and residuals.

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
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self.state.update(moments)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after the beginning: which parameters there are was agreed among the ranks."""
        if hasattr(self, "reducer"):
            raise InvalidArgument("parameters cannot be added to a CompressedAdamW: make it anew")
        super().add_param_group(param_group)

    def _schedule(
        self, codecs: Mapping[str, str], dense_codec: str, dense_steps: int
    ) -> list[tuple[str, str, int]]:
        if dense_steps < 0:
            raise InvalidArgument(f"dense_steps={dense_steps}: 0 or more")
        rules = []
        for name, codec in codecs.items():
            pattern, later = literal_pattern(name), name in self._with_feedback
            if later:
                rules.append((pattern, dense_codec, 0))
            rules.append((pattern, codec, dense_steps if later else 0))
        return rules

    def _begin(self) -> None:
        for name, parameter in self._parameters.items():
            dtype = torch.float32 if name in self._with_feedback else parameter.dtype
            self.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter, dtype=dtype, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, dtype=dtype, requires_grad=False),
            }

    def _make_reducer(self, options: ReducerOptions) -> GradientReducer:
        sent = _shards({name: self.state[one]["exp_avg"] for name, one in self._parameters.items()})
        reducer = GradientReducer(
            self._transport, **with_message_sizes(options, self._transport, sent.values())
        )
        for name, one in sent.items():
            reducer.add(name, one)
        return reducer

    def _kept(self) -> Kept:
        return Kept(
            {name: self.state[one] for name, one in self._parameters.items()},
            [len(group["params"]) for group in self.param_groups],
            self._with_feedback,
            self.reducer,
            self._transport,
            self._process_group(),
        )

    def _steps(self) -> int:
        return int(self.state[next(iter(self._parameters.values()))]["step"])

    def _not_finite(self) -> bool:
        """Whether a scaler found an infinity on any rank; asked only where there is a scaler."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return False
        flag = torch.full((1,), float(found), device=self._device)
        allreduce(self._transport, flag, codec="none")
        return bool(flag.item() != 0)

    def _unscale(self, gradients: Mapping[str, Tensor]) -> None:
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for gradient in gradients.values():
                gradient.div_(scale.to(gradient.device))

    def _exchanged(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The common momenta, and of parameters without feedback the mean gradients."""
        step = self._steps() + 1
        sent = {}
        for name, group, state in self._entries():
            sent[name] = gradients[name]
            if name in self._with_feedback:
                sent[name] = _own_momentum(gradients[name], state, group, step)
            self._side_stream.take_over()
            self.reducer.ready(name, sent[name])
        self.reducer.wait()
        self._side_stream.give_back()
        return sent

    def _move(self, gradients: Mapping[str, Tensor], common: Mapping[str, Tensor]) -> None:
        for name, group, state in self._entries():
            weights = local_shard(self._parameters[name])
            if name in self._with_feedback:
                _follow(weights, gradients[name], common[name], state, group)
            else:
                _adamw(weights, common[name], state, group)

    def _entries(self) -> Iterator[tuple[str, Group, dict[str, Tensor]]]:
        """Name, parameter group and moments of each parameter."""
        groups = {id(one): group for group in self.param_groups for one in group["params"]}
        for name, parameter in self._parameters.items():
            state = {key: local_shard(value) for key, value in self.state[parameter].items()}
            yield name, groups[id(parameter)], state


def _own_momentum(gradient: Tensor, state: dict[str, Tensor], group: Group, step: int) -> Tensor:
    """p of this rank, in memory of its own; the moments stay until all ranks have it."""
    beta1, beta2 = group["betas"]
    average, variance = state["exp_avg"], state["exp_avg_sq"]
    gradient = gradient.to(variance.dtype)
    correction = 1 - beta2**step
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


def _names_in(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]] | None:
    """As ``named_parameters()`` gave them; None where parameters came without names."""
    groups = optimizer.param_groups
    if not all("param_names" in group for group in groups):
        return None
    return [
        pair for group in groups for pair in zip(group["param_names"], group["params"], strict=True)
    ]


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


def _refuse_schedule(options: ReducerOptions) -> None:
    if any(len(rule) > 2 for rule in options.get("rules", ())):
        raise InvalidArgument("dense_steps= and rules with steps: say all of it by rules")


def _shards(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: local_shard(one) for name, one in parameters.items()}


def _check_parameters(parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Raises InvalidArgument, with names, for those whose gradients are not this rank's own."""
    if refused := [
        f"{name} ({reason_of(one)})" for name, one in parameters.items() if not is_supported(one)
    ]:
        raise InvalidArgument(
            f"CompressedAdamW takes parameters of float32, bfloat16 and float16, not "
            f"{', '.join(refused)}"
        )
    others = set(dist.get_process_group_ranks(group)) - {dist.get_rank()}
    for name, one in parameters.items():
        if isinstance(one, DTensor) and others & set(one.device_mesh.mesh.flatten().tolist()):
            raise InvalidArgument(
                f"{name} is sharded over ranks of the group, so that its gradient is a mean "
                "already and no rank's own: shard over other ranks than those of group= (a host's, "
                "say), or use tersor.torch.compress with a codec of two bits or more"
            )
