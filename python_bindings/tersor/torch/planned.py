"""How the gradients of a model would travel, without sending any."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tersor import Codec, _core
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.reducer import ReducerOptions
from tersor.torch import ddp, fsdp
from tersor.torch.parameters import DTYPES


@dataclass(frozen=True)
class Planned:
    """Of one parameter: bytes that a rank would send in a step, headers not counted.

    ``sent_bytes``: None where a run has to decide (``"auto"``); of a schedule in its first step.
    """

    name: str
    codec: str
    sent_bytes: float | None
    uncompressed_bytes: float


Plan = tuple[Iterable[Planned], list[dist.ProcessGroup]]
"""How each parameter would travel, and the groups whose ranks would exchange, in one order."""


def plan_of_ddp(model: DistributedDataParallel, options: ReducerOptions) -> Plan:
    """An all-reduce sends each part of a gradient twice, but for what a rank keeps."""
    asked, group = fill(_core.ReducerOptions(), options), model.process_group
    share = 2 * (group.size() - 1) / group.size()

    def planned(name: str, one: torch.Tensor) -> Planned:
        choice = _core.choose_codec(asked, name, list(one.shape), dtype_text(one.dtype))
        return _planned(name, choice, one, share)

    return itertools.starmap(planned, ddp.compressible(model).items()), [group]


def plan_of_shards(model: nn.Module, options: ReducerOptions) -> Plan:
    """A reduce-scatter sends each part once."""
    _, _, exchanges = fsdp.prepared(model, options)  # type: ignore[arg-type]
    layouts = [one.layout for one in exchanges.values() if one.layout.known]
    groups = [group for one in layouts for group in (one.scatter_group, one.replicas) if group]
    plan = (
        _planned(
            one.name,
            choice,
            torch.empty(one.shape, dtype=each.layout.dtype, device="meta"),
            (each.layout.ranks - 1) / each.layout.ranks,
        )
        for each in exchanges.values()
        for one, choice in each.expected()
    )
    return plan, list(dict.fromkeys(groups))


def _planned(name: str, choice: _core.CodecChoice, like: torch.Tensor, share: float) -> Planned:
    codec, sent = choice.phases[0][1] if choice.phases else choice.codec, None
    if like.dtype not in DTYPES:
        return Planned(name, f"as it is ({like.dtype})", share * like.nbytes, share * like.nbytes)
    if codec != "auto":
        sent = share * Codec(codec).max_payload_bytes(tuple(like.shape), like.dtype)
    return Planned(name, f"{choice.codec} ({choice.reason})", sent, share * like.nbytes)
