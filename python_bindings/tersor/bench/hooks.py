"""Ways to exchange gradients in `DistributedDataParallel`: PyTorch's own, and Tersor's.

``none`` is DDP without a hook. ``torch:bf16``, ``torch:fp16`` and
``torch:powersgd[=RANK][,start=STEPS]`` are PyTorch's hooks. These ways replace DDP:
``adamw[=STEPS]:CODEC`` is `CompressedAdamW` after a number of bf16 steps, and ``sgd`` and ``muon``
are `CompressedSGD` and `CompressedMuon`; ``onebit-adam[=STEPS]`` is 1-bit Adam after a number of
float32 steps (100); ``demo``, ``dion`` and ``sparseloco`` are explained in `peers`; ``diloco=…``
and ``torchft=…`` are `DiLoCo` and torchft's DiLoCo; ``server=…`` and ``gossip=…`` do not wait for
all ranks. ``muon[,momentum=M]`` is PyTorch's Muon under DDP. ``weighted:CODEC`` weighs gradients by
samples. Any other word is a codec, also ``tersor:none``.
"""

import argparse
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench import local_training, peers
from tersor.bench.errors import BenchmarkError
from tersor.bench.hook_kinds import (
    ComputedHook,
    CountedHook,
    Hook,
    OptimizerHook,
    WeightedHook,
    expected,
)
from tersor.bench.loose_hooks import GossipHook, ServerHook
from tersor.bench.measures import parameter_count, ring_bytes
from tersor.bench.optimizers import MuonWithAdamW
from tersor.bench.records import add

TERSOR, TORCH, WEIGHTED = "tersor:", "torch:", "weighted:"
CASTS = {
    TORCH + "bf16": default_hooks.bf16_compress_hook,
    TORCH + "fp16": default_hooks.fp16_compress_hook,
}
POWERSGD_START = 10  # default of steps without compression
ONE_BUCKET_MIB = 1 << 20
SUMMARY = (
    "none (DDP itself), torch:bf16, torch:fp16, torch:powersgd[=RANK][,start=STEPS], "
    "adamw[=STEPS]:CODEC (CompressedAdamW), sgd[=STEPS]:CODEC (CompressedSGD), "
    "onebit-adam[=STEPS], demo[=K][,decay=B] (DeMo), "
    "dion=RANK[,momentum=M][,factor=F][,bf16] (Dion), "
    "sparseloco=EVERY[,density=D][,rate=R][,values=sign|int4] (SparseLoCo's settings, by DiLoCo), "
    "muon[=STEPS][,momentum=M]:CODEC (CompressedMuon), muon[,momentum=M] (PyTorch's, under DDP), "
    "diloco=EVERY[,rate=R][,momentum=M][,residual=B][,fragments=P][,delay=T][,mix=A][,muon=M]"
    ":CODEC[/SMALL] (DiLoCo, of AdamWs or Muons), "
    "torchft=EVERY[,fragments=P][,delay=T][:CODEC] (torchft's DiLoCo), "
    "weighted:CODEC (by samples), server=BSP|SSPn|ASP:PUSH[/PULL] (a parameter server, PULL int8), "
    "gossip=ring|torus|exponential[,step=SIZE]:CODEC, or a codec of Tersor"
)
_COUNT, _NUMBER = r"0*[1-9]\d*", r"(?:\d*\.)?\d+"
_MOMENTUM = rf"(?:,momentum=(?P<momentum>{_NUMBER}))?"
_CODEC = "(?P<codec>.+)"
#: By the first word of a name, the pattern of the name.
PATTERNS = {
    "torch": rf"torch:(?:bf16|fp16|powersgd(?:=(?P<rank>{_COUNT}))?"
    r"(?:,start=(?P<start>[2-9]|[1-9]\d+))?)",  # PowerSGD needs two dense steps
    "adamw": rf"adamw(?:=(?P<steps>\d+))?:{_CODEC}",
    "sgd": rf"sgd(?:=(?P<steps>\d+))?:{_CODEC}",
    "onebit-adam": rf"onebit-adam(?:=(?P<steps>{_COUNT}))?",
    "demo": rf"demo(?:=(?P<top>{_COUNT}))?(?:,decay=(?P<decay>{_NUMBER}))?",
    "dion": (
        rf"dion=(?P<rank>{_COUNT})(?:,momentum=(?P<mu>{_NUMBER}))?"
        rf"(?:,factor=(?P<factor>{_NUMBER}))?(?P<cast>,bf16)?"
    ),
    "sparseloco": (
        rf"sparseloco=(?P<every>{_COUNT})(?:,density=(?P<density>{_NUMBER}))?"
        rf"(?:,rate=(?P<rate>{_NUMBER}))?(?:,values=(?P<values>sign|int4))?"
    ),
    "muon": rf"muon(?:=(?P<steps>\d+)(?=.*:))?{_MOMENTUM}(?::{_CODEC})?",
    "diloco": (
        rf"diloco=(?P<every>{_COUNT})(?P<options>(?:,(?:rate|momentum|residual|mix|muon)={_NUMBER}"
        rf"|,(?:fragments|delay)=\d+)*):{_CODEC}"
    ),
    "torchft": (
        rf"torchft=(?P<every>{_COUNT})(?P<options>(?:,(?:fragments|delay)=\d+)*)(?::{_CODEC})?"
    ),
    "server": r"server=(?P<mode>BSP|ASP|SSP\d+):(?P<push>[^/]+)(?:/(?P<pull>.+))?",
    "gossip": rf"gossip=(?P<graph>ring|torus|exponential)(?:,step=(?P<step>{_NUMBER}))?:{_CODEC}",
}


def add_hooks(parser: argparse.ArgumentParser, default: list[str], split: str) -> None:
    """Adds ``--hooks``. Each command checks the names."""
    text = f"{SUMMARY}; default: {' '.join(default)}. {split}"
    add(parser, "hooks", None, text, nargs="+", metavar="NAME")


def _first_word(name: str) -> str:
    return re.split("[:=,]", name)[0]


def in_optimizer(name: str) -> bool:
    """True for a way of `_FACTORIES`, which exchanges nothing in a backward pass."""
    return _first_word(name) in _FACTORIES


def check(name: str) -> dict[str, Any]:
    """The parts of a name. Raises BenchmarkError for an unknown hook. Codecs are checked at their
    first use."""
    word = _first_word(name)
    if word not in PATTERNS:
        return {}
    if (found := re.fullmatch(PATTERNS[word], name)) is None:
        raise BenchmarkError(f'no hook "{name}"; there are: {SUMMARY}')
    if word in ("diloco", "torchft"):
        local_training.parse(found["every"], found["options"])
    peers.check(name, found.groupdict())
    return found.groupdict()


def method_of(name: str) -> tuple[str, str]:
    """The method and the options of a name, such as ``("torch:powersgd", "4")``."""
    if name != "none" and _first_word(name) not in (*PATTERNS, WEIGHTED[:-1]):
        return "tersor", name.removeprefix(TERSOR)
    method = re.split("(?<!^torch)[:=,]", name)[0]
    return method, name[len(method) + 1 :]


def attach(module: nn.Module, name: str, bucket_mib: float | None = None) -> Hook:
    """Wraps `module` in DDP with this hook. ``bucket_mib``: size of a bucket; None: PyTorch's."""
    parts = check(name)
    if in_optimizer(name):
        return _FACTORIES[_first_word(name)](module, **parts)
    if name.startswith(TORCH + "powersgd"):
        return _powersgd(module, int(parts["rank"] or 1), int(parts["start"] or POWERSGD_START))
    model = distributed(module, bucket_mib)
    if name == "none" or name in CASTS:
        if name in CASTS:
            model.register_comm_hook(None, CASTS[name])
        return ComputedHook(model, _plain_bytes(module, 2 if name in CASTS else 4))
    weighted = name.startswith(WEIGHTED)
    codec = name.removeprefix(WEIGHTED).removeprefix(TERSOR)
    handle = tersor.torch.compress(model, codec=codec, weighted=weighted)
    return (WeightedHook if weighted else CountedHook)(model, handle, handle.close)


def _powersgd(module: nn.Module, rank: int, start: int) -> Hook:
    """PowerSGD (Vogels, Karimireddy and Jaggi 2019): ``start`` uncompressed steps, then two
    factors. PowerSGD waits in callbacks, and hangs with a second bucket."""
    model = distributed(module, ONE_BUCKET_MIB)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=start
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    plain_bytes, ranks = _plain_bytes(module), dist.get_world_size()

    def sent_bytes(steps: int) -> float:
        compressed = ring_bytes(4 * state.total_numel_after_compression, ranks)
        return plain_bytes(min(steps, start)) + compressed

    hook = ComputedHook(model, sent_bytes)
    hook.plain_steps = start
    return hook


def _compressed(
    kind: Any, replaces: type[torch.optim.Optimizer] = torch.optim.AdamW, **defaults: float
) -> Callable[..., Hook]:
    """A way with an optimizer of Tersor. ``defaults``: of the options in names."""

    def factory(module: nn.Module, codec: str, steps: str | None, **given: str | None) -> Hook:
        options = {key: float(given[key] or default) for key, default in defaults.items()}
        own = kind(module.named_parameters(), codec=codec, warmup_steps=int(steps or 0), **options)
        return OptimizerHook(module, own, replaces)

    return factory


def _muon(module: nn.Module, codec: str | None, momentum: str | None, steps: str | None) -> Hook:
    if codec is not None:
        factory = _compressed(tersor.torch.CompressedMuon, momentum=0.8)
        return factory(module, codec, steps, momentum=momentum)
    return ComputedHook(
        distributed(module),
        _plain_bytes(module),
        lambda plain: MuonWithAdamW(
            module, expected(plain, torch.optim.AdamW, "muon"), float(momentum or 0.95)
        ),
    )


#: By the first word of a name, the way that replaces the optimizer or DDP.
_FACTORIES: dict[str, Callable[..., Hook]] = {
    "adamw": _compressed(tersor.torch.CompressedAdamW),
    "sgd": _compressed(tersor.torch.CompressedSGD, torch.optim.SGD),
    "muon": _muon,
    "onebit-adam": peers.onebit_adam,
    "demo": peers.demo,
    "dion": peers.dion,
    "sparseloco": peers.sparseloco,
    "diloco": local_training.DiLoCoHook,
    "torchft": local_training.TorchftHook,
    "server": ServerHook,
    "gossip": GossipHook,
}


def _plain_bytes(module: nn.Module, value_bytes: int = 4) -> Callable[[int], float]:
    """The bytes of a number of uncompressed steps."""
    step_bytes = ring_bytes(parameter_count(module) * value_bytes, dist.get_world_size())
    return lambda steps: steps * step_bytes


def distributed(module: nn.Module, bucket_mib: float | None = None) -> DistributedDataParallel:
    """The module in DDP."""
    device = next(module.parameters()).device
    own = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=own, bucket_cap_mb=bucket_mib)
