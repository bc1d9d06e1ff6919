"""Ways to exchange gradients in `DistributedDataParallel`: PyTorch's own, and Tersor's.

``none`` is DDP without a hook. ``torch:bf16``, ``torch:fp16`` and ``torch:powersgd[=RANK]`` are
PyTorch's hooks. These ways replace DDP: ``adamw[=STEPS]:CODEC`` is `CompressedAdamW` after a number
of bf16 steps, and ``sgd`` and ``muon`` are `CompressedSGD` and `CompressedMuon`;
``onebit-adam[=STEPS]`` is 1-bit Adam after a number of float32 steps (100); ``diloco=…`` and
``torchft=…`` are `DiLoCo` and torchft's DiLoCo. ``muon[,momentum=M]`` is PyTorch's Muon under DDP.
``weighted:CODEC`` weighs gradients by samples. Any other word is a codec, also ``tersor:none``.
"""

import abc
import argparse
import dataclasses
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import Mark, Span, Traffic, parameter_count, ring_bytes
from tersor.bench.models import Batch, scores_of
from tersor.bench.optimizers import MuonBesideAdamW, OneBitAdamW
from tersor.bench.records import add

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
Wrap = Callable[[torch.optim.Optimizer], torch.optim.Optimizer]

OURS, THEIRS, WEIGHTED = "tersor:", "torch:", "weighted:"
POWERSGD = THEIRS + "powersgd"
CASTS = {
    THEIRS + "bf16": default_hooks.bf16_compress_hook,
    THEIRS + "fp16": default_hooks.fp16_compress_hook,
}
POWERSGD_START = 10  # steps without compression; PowerSGD needs at least 2
MUON_MOMENTUM, COMPRESSED_MUON_MOMENTUM = 0.95, 0.8  # the defaults of PyTorch and of Tersor
ONEBIT_START = 100  # a fifth of the GPT's steps; the paper has 15 to 25 %
ONE_BUCKET_MIB = 1 << 20
SUMMARY = (
    "none (DDP itself), torch:bf16, torch:fp16, torch:powersgd[=RANK], adamw[=STEPS]:CODEC "
    "(CompressedAdamW), sgd[=STEPS]:CODEC (CompressedSGD), onebit-adam[=STEPS], "
    "muon[=STEPS][,momentum=M]:CODEC (CompressedMuon), muon[,momentum=M] (PyTorch's, under DDP), "
    "diloco=EVERY[,rate=R][,momentum=M][,residual=B][,fragments=P][,delay=T][,mix=A][,muon=M]"
    ":CODEC[/SMALL] (DiLoCo, of AdamWs or Muons), "
    "torchft=EVERY[,fragments=P][,delay=T][:CODEC] (torchft's DiLoCo), "
    "weighted:CODEC (by samples), server=BSP|SSPn|ASP:PUSH[/PULL] (a parameter server), "
    "gossip=ring|torus|exponential[,step=SIZE]:CODEC, or a codec of Tersor"
)
_MOMENTUM = r"(?:,momentum=((?:\d*\.)?\d+))?"
_MUON = rf"muon(?:=(\d+))?{_MOMENTUM}"
#: By the first word of a name, the pattern of the name. These ways replace the optimizer or DDP.
PATTERNS = {
    "adamw": r"adamw(=\d+)?:.+",
    "sgd": r"sgd(=\d+)?:.+",
    "onebit-adam": r"onebit-adam(=0*[1-9]\d*)?",
    "muon": rf"{_MUON}:.+|muon{_MOMENTUM}",
    "diloco": (
        r"diloco=0*[1-9]\d*(?:,(?:rate|momentum|residual|mix|muon)=(?:\d*\.)?\d+"
        r"|,(?:fragments|delay)=\d+)*:.+"
    ),
    "torchft": r"torchft=0*[1-9]\d*(?:,(?:fragments|delay)=\d+)*(:.+)?",
}


class Hook(abc.ABC):
    """A model whose gradients are exchanged in one of these ways."""

    bytes_are: str  # the origin of sent_bytes: "counted" or "computed"
    plain_steps = 0  # uncompressed steps at the start
    period = 1  # steps after which all ranks have equal weights again

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._steps, self._reported = 0, Traffic(0)

    @abc.abstractmethod
    def total(self, steps: int) -> Traffic:
        """The traffic of all `steps` so far."""

    def traffic(self, steps: int) -> Traffic:
        """The traffic of the `steps` since the last call."""
        self._steps += steps
        before, self._reported = self._reported, self.total(self._steps)
        return self._reported.since(before)

    @property
    def settled(self) -> bool:
        """True if the hook does not change its choices any more; equal on all ranks."""
        return True

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """The optimizer that replaces ``plain``, the optimizer of averaged gradients."""
        return plain

    def samples_follow(self, count: int) -> None:  # noqa: B027
        """Announces the number of samples of the next backward pass."""

    def learn(self, batch: Batch) -> Tensor:
        """The forward and backward pass of a step. Returns the loss."""
        self.samples_follow(len(batch[0]))
        loss = functional.cross_entropy(*scores_of(self.model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """The spans in which the last step waited for other ranks. The rank's last gradient was
        ready when `computed`, all ranks' gradients when `reduced`."""
        return [(computed, reduced)]

    def gather(self, what: Literal["data", "grad"] = "data") -> None:  # noqa: B027
        """Gives all ranks the weights or the gradients of all parameters."""

    def close(self) -> None:  # noqa: B027
        """Ends the hook. The model must not be used after."""


class PyTorchHook(Hook):
    """DDP or FSDP2 itself, or a cast before it. The bytes of each step are constant."""

    bytes_are = "computed"

    def __init__(self, model: nn.Module, step_bytes: float, wrap: Wrap = lambda one: one) -> None:
        super().__init__(model)
        self._step_bytes, self._wrap = step_bytes, wrap

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        return self._wrap(plain)

    def total(self, steps: int) -> Traffic:
        return Traffic(steps * self._step_bytes)


class PowerSgdHook(Hook):
    """PowerSGD (Vogels, Karimireddy and Jaggi 2019): uncompressed steps, then two factors."""

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
    """Tersor: the reducer counts bytes and seconds."""

    bytes_are = "counted"

    def __init__(
        self, model: nn.Module, handle: Any, end: Callable[[], None] = lambda: None
    ) -> None:
        """``end`` ends the handle."""
        super().__init__(model)
        self._handle, self._end = handle, end

    def total(self, steps: int) -> Traffic:
        totals = self._handle.totals()
        return Traffic(
            *(getattr(totals, field.name) or 0.0 for field in dataclasses.fields(Traffic))
        )

    @property
    def settled(self) -> bool:
        return bool(self._handle.settled())

    def close(self) -> None:
        self._end()


class WeightedHook(CountedHook):
    """Tersor under DDP; the batches of ranks may have different sizes."""

    def samples_follow(self, count: int) -> None:
        self._handle.samples = count


class OptimizerHook(CountedHook):
    """A compressed optimizer. Gradients stay each rank's own."""

    def __init__(self, module: nn.Module, own: Any, replaces: type[torch.optim.Optimizer]) -> None:
        super().__init__(module, own)
        self._replaces = replaces

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """Raises BenchmarkError if ``plain`` has another class than the replaced optimizer."""
        defaults = _expected(plain, self._replaces, type(self._handle).__name__).defaults
        for group in self._handle.param_groups:
            group.update({key: defaults[key] for key in defaults.keys() & group.keys()})
        return self._handle


class OneBitAdamHook(Hook):
    """1-bit Adam. Gradients stay each rank's own."""

    bytes_are = "computed"

    def __init__(self, module: nn.Module, dense_steps: int) -> None:
        super().__init__(module)
        self._dense_steps = dense_steps

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        """Raises BenchmarkError if ``plain`` is not AdamW."""
        self._own = OneBitAdamW(adamw(plain, "onebit-adam"), self._dense_steps)
        return self._own

    def total(self, steps: int) -> Traffic:
        count = parameter_count(self.model) * min(self._own.steps, self._dense_steps)
        dense_bytes = ring_bytes(4 * count, dist.get_world_size())
        return Traffic(dense_bytes + self._own.exchange.sent_bytes)


def _expected(plain: torch.optim.Optimizer, kind: type[Kind], name: str) -> Kind:
    if not isinstance(plain, kind):
        wanted = kind.__name__
        raise BenchmarkError(f"{name}: needs {wanted}, but this model has another optimizer")
    return plain


def adamw(plain: torch.optim.Optimizer, name: str) -> torch.optim.AdamW:
    """``plain``. Raises BenchmarkError if it is not AdamW."""
    return _expected(plain, torch.optim.AdamW, name)


def add_hooks(parser: argparse.ArgumentParser, default: list[str], split: str) -> None:
    """Adds ``--hooks``. Each command checks the names."""
    text = f"{SUMMARY}; default: {' '.join(default)}. {split}"
    add(parser, "hooks", None, text, nargs="+", metavar="NAME")


def first_word(name: str) -> str:
    """The word that selects a way."""
    return re.split("[:=,]", name)[0]


def in_optimizer(name: str) -> bool:
    """True for an optimizer, or a wrapper of one, which exchanges nothing in a backward pass."""
    return first_word(name) in PATTERNS


def check(name: str) -> None:
    """Raises BenchmarkError for an unknown hook. Codecs are checked at their first use."""
    if in_optimizer(name):
        pattern = PATTERNS[first_word(name)]
    elif name.startswith(THEIRS) and name not in CASTS:
        pattern = rf"{POWERSGD}(=0*[1-9]\d*)?"
    else:
        return
    if re.fullmatch(pattern, name) is None:
        raise BenchmarkError(f'no hook "{name}"; there are: {SUMMARY}')
    if name.startswith("diloco"):
        from tersor.bench import local_training

        local_training.check(name.partition("=")[2].partition(":")[0])


def attach(module: nn.Module, name: str, bucket_mib: float | None = None) -> Hook:
    """Wraps `module` in DDP with this hook. ``bucket_mib``: size of a bucket; None: PyTorch's."""
    check(name)
    if name.startswith(POWERSGD):  # PowerSGD waits in callbacks, and hangs with a second bucket
        rank = int(name.partition("=")[2] or 1)
        return PowerSgdHook(distributed(module, ONE_BUCKET_MIB), rank)
    if in_optimizer(name):
        return _attach_optimizer(module, name, bucket_mib)
    model = distributed(module, bucket_mib)
    if name == "none" or name in CASTS:
        if name in CASTS:
            model.register_comm_hook(None, CASTS[name])
        return PyTorchHook(model, _step_bytes(module, 2 if name in CASTS else 4))
    weighted = name.startswith(WEIGHTED)
    codec = name.removeprefix(WEIGHTED).removeprefix(OURS)
    handle = tersor.torch.compress(model, codec=codec, weighted=weighted)
    return (WeightedHook if weighted else CountedHook)(model, handle, handle.close)


def _attach_optimizer(module: nn.Module, name: str, bucket_mib: float | None) -> Hook:
    head, _, codec = name.partition(":")
    kind, _, options = head.partition("=")
    if first_word(name) == "muon":
        found = re.fullmatch(_MUON, head)
        assert found is not None
        steps, momentum = found.groups()
        if not codec:
            return PyTorchHook(
                distributed(module, bucket_mib),
                _step_bytes(module, 4),
                lambda plain: MuonBesideAdamW(
                    module, adamw(plain, "muon"), float(momentum or MUON_MOMENTUM)
                ),
            )
        momentum = float(momentum or COMPRESSED_MUON_MOMENTUM)
        return _optimizer_hook(module, tersor.torch.CompressedMuon, codec, steps, momentum=momentum)
    if kind == "adamw":
        return _optimizer_hook(module, tersor.torch.CompressedAdamW, codec, options)
    if kind == "sgd":
        own = tersor.torch.CompressedSGD
        return _optimizer_hook(module, own, codec, options, torch.optim.SGD)
    if kind == "onebit-adam":
        return OneBitAdamHook(module, int(options or ONEBIT_START))
    from tersor.bench import local_training

    local = {"diloco": local_training.DiLoCoHook, "torchft": local_training.TorchftHook}
    return local[kind](module, options, codec)


def _optimizer_hook(
    module: nn.Module,
    kind: Any,
    codec: str,
    steps: str | None,
    replaces: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> OptimizerHook:
    own = kind(module.named_parameters(), codec=codec, warmup_steps=int(steps or 0), **options)
    return OptimizerHook(module, own, replaces)


def _step_bytes(module: nn.Module, value_bytes: int) -> float:
    return ring_bytes(parameter_count(module) * value_bytes, dist.get_world_size())


def distributed(module: nn.Module, bucket_mib: float | None = None) -> DistributedDataParallel:
    """The module in DDP."""
    device = next(module.parameters()).device
    own = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=own, bucket_cap_mb=bucket_mib)
