"""Ways for gradients to travel in `DistributedDataParallel`: PyTorch's own, and ours.

``none`` is DDP without a hook; ``torch:bf16``, ``torch:fp16`` and ``torch:powersgd[=RANK]`` are
PyTorch's hooks; ``adamw[=STEPS]:CODEC`` is `CompressedAdamW` without DDP, after so many steps of
bf16, ``sgd[=STEPS]:CODEC`` `CompressedSGD` likewise; ``onebit-adam[=STEPS]`` is 1-bit Adam after
so many steps (100) of f32,
``diloco=EVERY[,rate=R][,momentum=M][,residual=B][,fragments=P][,delay=T][,mix=A][,muon=M]:CODEC``
is `DiLoCo`, both without DDP too; ``muon[=STEPS][,momentum=M]:CODEC`` is `CompressedMuon`,
``muon[,momentum=M]`` PyTorch's Muon under DDP; ``weighted:CODEC`` a codec of ours with gradients
weighed by samples; any other word is a codec of ours, also ``tersor:none``.
"""

import abc
import dataclasses
import re
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench import local_training, torchft_training
from tersor.bench.errors import BenchmarkError
from tersor.bench.models import Batch, scores_of
from tersor.bench.muon import MuonBesideAdamW
from tersor.bench.onebit_adam import OneBitAdamW
from tersor.bench.timing import Mark, Span
from tersor.bench.traffic import Traffic, parameter_count, ring_bytes
from tersor.torch import HookState, ShardedHandle
from tersor.torch._src.optim.compressed import CompressedOptimizer

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

OURS = "tersor:"
THEIRS = "torch:"
POWERSGD = THEIRS + "powersgd"
ADAMW = "adamw"
SGD = "sgd"
ONEBIT = "onebit-adam"
DILOCO = "diloco"
MUON = "muon"
TORCHFT = "torchft"
WEIGHTED = "weighted:"
MOMENTUM = r"(?:,momentum=((?:\d*\.)?\d+))?"
CASTS = {
    THEIRS + "bf16": default_hooks.bf16_compress_hook,
    THEIRS + "fp16": default_hooks.fp16_compress_hook,
}
POWERSGD_START = 10  # steps without compression; it needs 2 at least
MUON_MOMENTUM, COMPRESSED_MUON_MOMENTUM = 0.95, 0.8  # the defaults of PyTorch and of ours
ONEBIT_START = 100  # likewise: a fifth of the GPT's; the paper has 15 to 25 %
ONE_BUCKET_MIB = 1 << 20
SUMMARY = (
    "none (DDP itself), torch:bf16, torch:fp16, torch:powersgd[=RANK], adamw[=STEPS]:CODEC "
    "(CompressedAdamW), sgd[=STEPS]:CODEC (CompressedSGD), onebit-adam[=STEPS], "
    "muon[=STEPS][,momentum=M]:CODEC (CompressedMuon), muon[,momentum=M] (PyTorch's, under DDP), "
    "diloco=EVERY[,rate=R][,momentum=M][,residual=B][,fragments=P][,delay=T][,mix=A][,muon=M]"
    ":CODEC[/SMALL] (DiLoCo, of AdamWs or Muons), "
    "torchft=EVERY[,fragments=P][,delay=T][:CODEC] (torchft's DiLoCo), "
    "weighted:CODEC (by samples), server=BSP|SSPn|ASP:PUSH[/PULL] (a parameter server), "
    "gossip=ring|torus|exponential[,step=SIZE]:CODEC, or a codec of ours"
)


class Hook(abc.ABC):
    """A model whose gradients travel in one of these ways."""

    bytes_are: str  # how sent_bytes is known: "counted" or "computed"
    plain_steps = 0  # at the beginning, before it compresses
    period = 1  # steps after which all ranks hold the same weights again

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._steps, self._told = 0, Traffic(0)

    @abc.abstractmethod
    def total(self, steps: int) -> Traffic:
        """Of all `steps` until now."""

    def traffic(self, steps: int) -> Traffic:
        """Of the `steps` since the last call, or the beginning."""
        self._steps += steps
        before, self._told = self._told, self.total(self._steps)
        return self._told.since(before)

    @property
    def settled(self) -> bool:
        """Whether it goes on as it goes now; the same on all ranks."""
        return True

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """What moves the weights, where ``plain`` does so if gradients were averaged."""
        return plain

    def samples_follow(self, count: int) -> None:  # noqa: B027
        """Before a backward pass whose loss is the mean of so many."""

    def learn(self, batch: Batch) -> Tensor:
        """A step's forward and backward pass, after which gradients are there. Returns the loss."""
        self.samples_follow(len(batch[0]))
        loss = functional.cross_entropy(*scores_of(self.model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """When the last step waited for other ranks. Its own last gradient was there when it was
        `computed`, those of all ranks when they were `reduced`."""
        return [(computed, reduced)]

    def gather(self, what: Literal["data", "grad"] = "data") -> None:  # noqa: B027
        """Gives all ranks the weights, or the gradients, of all parameters, if they are spread."""

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """Ends what the hook started. The model is not to be used any more."""


class PyTorchHook(Hook):
    """DDP or FSDP2 itself, or a cast before it: a rank sends as many bytes in each step."""

    bytes_are = "computed"

    def __init__(self, model: nn.Module, step_bytes: float) -> None:
        super().__init__(model)
        self._step_bytes = step_bytes

    def total(self, steps: int) -> Traffic:
        return Traffic(steps * self._step_bytes)


class PowerSgdHook(Hook):
    """PowerSGD (Vogels, Karimireddy and Jaggi 2019): plain steps first, then two factors."""

    bytes_are = "computed"
    plain_steps = POWERSGD_START

    def __init__(self, model: DistributedDataParallel, matrix_rank: int) -> None:
        super().__init__(model)
        self._state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=POWERSGD_START
        )
        model.register_comm_hook(self._state, powerSGD_hook.powerSGD_hook)
        self._plain_count = parameter_count(model)

    def total(self, steps: int) -> Traffic:
        plain_count = min(steps, POWERSGD_START) * self._plain_count
        count = plain_count + self._state.total_numel_after_compression
        return Traffic(ring_bytes(4 * count, dist.get_world_size()))


class CountedHook(Hook):
    """Ours: bytes and times are those that the reducer counted."""

    bytes_are = "counted"

    def __init__(
        self,
        model: nn.Module,
        handle: HookState | ShardedHandle | CompressedOptimizer | tersor.torch.DiLoCo,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """``end``: of the handle."""
        super().__init__(model)
        self._handle, self._end = handle, end

    def total(self, steps: int) -> Traffic:
        totals = self._handle.totals()
        return Traffic(
            *(getattr(totals, field.name) or 0.0 for field in dataclasses.fields(Traffic))
        )

    @property
    def settled(self) -> bool:
        return self._handle.settled()

    def close(self) -> None:
        self._end()


class WeightedHook(CountedHook):
    """Ours under DDP; ranks' batches may differ in size."""

    def __init__(self, model: DistributedDataParallel, codec: str) -> None:
        self._state = tersor.torch.compress(model, codec=codec, weighted=True)
        super().__init__(model, self._state, self._state.close)

    def samples_follow(self, count: int) -> None:
        self._state.samples = count


class OptimizerHook(CountedHook):
    """Ours, in the optimizer: gradients stay each rank's own."""

    def __init__(
        self,
        module: nn.Module,
        own: CompressedOptimizer,
        stands_for: type[torch.optim.Optimizer] = torch.optim.AdamW,
    ) -> None:
        super().__init__(module, own)
        self._own, self._stands_for = own, stands_for

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Raises BenchmarkError where ``plain`` is another than it stands for."""
        defaults = _expected(plain, self._stands_for, type(self._own).__name__).defaults
        for group in self._own.param_groups:
            group.update({key: defaults[key] for key in defaults.keys() & group.keys()})
        return self._own


class MuonHook(PyTorchHook):
    """DDP itself, whose mean gradients PyTorch's Muon takes."""

    def __init__(self, model: DistributedDataParallel, momentum: float) -> None:
        count = parameter_count(model)
        super().__init__(model, ring_bytes(4 * count, dist.get_world_size()))
        self._momentum = momentum

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Raises BenchmarkError where ``plain`` is no AdamW."""
        return MuonBesideAdamW(self.model, _adamw(plain, MUON), self._momentum)


class OneBitAdamHook(Hook):
    """1-bit Adam, in the optimizer: gradients stay each rank's own."""

    bytes_are = "computed"

    def __init__(self, module: nn.Module, dense_steps: int) -> None:
        super().__init__(module)
        self._dense_steps = dense_steps

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Raises BenchmarkError where ``plain`` is no AdamW."""
        self._own = OneBitAdamW(_adamw(plain, ONEBIT), self._dense_steps)
        return self._own

    def total(self, steps: int) -> Traffic:
        count = parameter_count(self.model) * min(self._own.steps, self._dense_steps)
        dense_bytes = ring_bytes(4 * count, dist.get_world_size())
        return Traffic(dense_bytes + self._own.exchange.sent_bytes)


class LocalHook(Hook):
    """Every rank's own optimizer moves the weights, and every so many steps they meet."""

    _local: local_training.LocalTraining | torchft_training.TorchftTraining

    def learn(self, batch: Batch) -> Tensor:
        self._local.go_on()
        return super().learn(batch)

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """All that is DiLoCo's, its outer optimizer's step too."""
        return [self._local.span]

    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """What all ranks have in common; no exchange, and the next step goes on from their own."""
        self._local.show_common()


class DiLoCoHook(LocalHook, CountedHook):
    """Ours."""

    def __init__(self, module: nn.Module, local: local_training.LocalTraining) -> None:
        super().__init__(module, local.outer)
        self._local = self._ours = local
        self.period = local.outer.sync_every

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if self._ours.muon is not None:
            plain = MuonBesideAdamW(self.model, _adamw(plain, DILOCO), self._ours.muon)
        plain.register_step_post_hook(self._ours.exchange)
        return plain


class TorchftHook(LocalHook, PyTorchHook):
    """torchft's DiLoCo, whose bytes are computed: with a codec those of the interface are right."""

    def __init__(self, module: nn.Module, local: torchft_training.TorchftTraining) -> None:
        count = parameter_count(module) / local.every
        super().__init__(module, ring_bytes(4 * count, dist.get_world_size()))
        self._local = self._theirs = local
        self.period = local.every

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._theirs.around(plain)
        return plain


def _expected(plain: torch.optim.Optimizer, kind: type[Kind], name: str) -> Kind:
    if not isinstance(plain, kind):
        wanted = kind.__name__
        raise BenchmarkError(f"{name}: needs {wanted}, but this model has another optimizer")
    return plain


def _adamw(plain: torch.optim.Optimizer, name: str) -> torch.optim.AdamW:
    return _expected(plain, torch.optim.AdamW, name)


def check(name: str) -> None:
    """Raises BenchmarkError where there is no such hook. Codecs are checked when they are used."""
    if in_optimizer(name):
        known = re.fullmatch(
            rf"({ADAMW}|{SGD})(=\d+)?:.+|{ONEBIT}(=0*[1-9]\d*)?|{DILOCO}={local_training.PATTERN}:.+"
            rf"|{MUON}((=\d+)?{MOMENTUM}:.+|{MOMENTUM})"
            rf"|{TORCHFT}={torchft_training.PATTERN}(:.+)?",
            name,
        )
    elif name.startswith(THEIRS) and name not in CASTS:
        known = re.fullmatch(rf"{POWERSGD}(=0*[1-9]\d*)?", name)
    else:
        return
    if known is None:
        raise BenchmarkError(f'no hook "{name}"; there are: {SUMMARY}')
    if name.startswith(DILOCO):
        local_training.check(name.partition("=")[2].partition(":")[0])


def in_optimizer(name: str) -> bool:
    """Whether it is an optimizer of its own, or around one, and has no backward pass by itself."""
    return re.split("[:=,]", name)[0] in (ADAMW, SGD, ONEBIT, DILOCO, MUON, TORCHFT)


def attach(module: nn.Module, name: str, bucket_mib: float | None = None) -> Hook:
    """Wraps `module` in DDP with buckets of so many MiB (None: PyTorch's choice) and this hook."""
    check(name)
    if name.startswith(POWERSGD):  # it waits in callbacks, and hangs with a second bucket
        rank = int(name.partition("=")[2] or 1)
        return PowerSgdHook(distributed(module, ONE_BUCKET_MIB), rank)
    if in_optimizer(name):
        return _attach_optimizer(module, name, bucket_mib)
    model = distributed(module, bucket_mib)
    if name == "none":
        return _ring(model, value_bytes=4)
    if name in CASTS:
        model.register_comm_hook(None, CASTS[name])
        return _ring(model, value_bytes=2)
    if name.startswith(WEIGHTED):
        return WeightedHook(model, name.removeprefix(WEIGHTED))
    handle = tersor.torch.compress(model, codec=name.removeprefix(OURS))
    return CountedHook(model, handle, handle.close)


def _attach_optimizer(module: nn.Module, name: str, bucket_mib: float | None) -> Hook:
    head, _, codec = name.partition(":")
    if found := re.fullmatch(rf"{MUON}(?:=(\d+))?{MOMENTUM}", head):
        steps, momentum = found.groups()
        if not codec:
            return MuonHook(distributed(module, bucket_mib), float(momentum or MUON_MOMENTUM))
        return OptimizerHook(
            module,
            tersor.torch.CompressedMuon(
                module.named_parameters(),
                codec=codec,
                momentum=float(momentum or COMPRESSED_MUON_MOMENTUM),
                warmup_steps=int(steps or 0),
            ),
        )
    kind, _, options = head.partition("=")
    if kind == ADAMW:
        return OptimizerHook(
            module,
            tersor.torch.CompressedAdamW(
                module.named_parameters(), codec=codec, warmup_steps=int(options or 0)
            ),
        )
    if kind == SGD:
        own = tersor.torch.CompressedSGD(
            module.named_parameters(), codec=codec, warmup_steps=int(options or 0)
        )
        return OptimizerHook(module, own, torch.optim.SGD)
    if kind == ONEBIT:
        return OneBitAdamHook(module, int(options or ONEBIT_START))
    if kind == TORCHFT:
        return TorchftHook(module, torchft_training.TorchftTraining(module, options, codec))
    return DiLoCoHook(module, local_training.LocalTraining(module, options, codec))


def _ring(model: DistributedDataParallel, value_bytes: int) -> PyTorchHook:
    reduced_bytes = parameter_count(model) * value_bytes
    return PyTorchHook(model, ring_bytes(reduced_bytes, dist.get_world_size()))


def distributed(module: nn.Module, bucket_mib: float | None = None) -> DistributedDataParallel:
    """Wrapped in DDP."""
    device = next(module.parameters()).device
    own = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=own, bucket_cap_mb=bucket_mib)
