"""Ways to exchange gradients in `DistributedDataParallel`: PyTorch's own, and Tersor's.

``none`` is DDP without a hook. ``torch:bf16``, ``torch:fp16`` and ``torch:powersgd[=RANK]`` are
PyTorch's hooks. These ways replace DDP: ``adamw[=STEPS]:CODEC`` is `CompressedAdamW` after a number
of bf16 steps, and ``sgd`` and ``muon`` are `CompressedSGD` and `CompressedMuon`;
``onebit-adam[=STEPS]`` is 1-bit Adam after a number of float32 steps (100); ``diloco=…`` and
``torchft=…`` are `DiLoCo` and torchft's DiLoCo. ``muon[,momentum=M]`` is PyTorch's Muon under DDP.
``weighted:CODEC`` weighs gradients by samples. Any other word is a codec, also ``tersor:none``.
"""

import argparse
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench import local_training
from tersor.bench.errors import BenchmarkError
from tersor.bench.hook_kinds import (
    CountedHook,
    Hook,
    OneBitAdamHook,
    OptimizerHook,
    PowerSgdHook,
    PyTorchHook,
    WeightedHook,
    adamw,
)
from tersor.bench.measures import parameter_count, ring_bytes
from tersor.bench.optimizers import MuonBesideAdamW
from tersor.bench.records import add

OURS, THEIRS, WEIGHTED = "tersor:", "torch:", "weighted:"
POWERSGD = THEIRS + "powersgd"
CASTS = {
    THEIRS + "bf16": default_hooks.bf16_compress_hook,
    THEIRS + "fp16": default_hooks.fp16_compress_hook,
}
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
