"""Exchanges have the time limit of the trainer's process group, or a separate time limit."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor._options
import tersor.torch

SECONDS = 7200.0
GIVEN = 77.0


def model_of(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Linear(64, 64)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 64)).sum().backward()


def ddp(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = DistributedDataParallel(model_of(0), process_group=group)
    handle = tersor.torch.compress(model, codec="int8+ef", **options)
    backward(model)
    handle.state_dict("portable")


def hook(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = DistributedDataParallel(model_of(0), process_group=group)
    state = tersor.torch.HookState(model, process_group=group, **options)
    model.register_comm_hook(state, tersor.torch.hook)
    backward(model)


def fsdp(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = fully_shard(model_of(0), mesh=DeviceMesh.from_group(group, "cpu"))
    handle = tersor.torch.compress(model, codec="int8+ef", weights_codec="int8", **options)
    backward(model)
    handle.state_dict("portable")


def optimizer(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = model_of(0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = tersor.torch.DistributedOptimizer(
        sgd, process_group=group, codec="int8+ef", **options
    )
    backward(model)
    wrapped.step()
    wrapped.residual_state_dict("portable")


def adamw(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = model_of(0)
    own = tersor.torch.CompressedAdamW(model.named_parameters(), process_group=group, **options)
    backward(model)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 64)).sum()).backward()
    scaler.step(own)
    own.state_dict("portable")


def diloco(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    outer = tersor.torch.DiLoCo(
        model_of(dist.get_rank()), sync_every=1, process_group=group, **options
    )
    outer.step()
    outer.state_dict("portable")


def collectives(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    one, two = torch.ones(64), torch.ones(128)
    root = dist.get_rank() == 0
    tersor.torch.all_reduce(one, process_group=group, **options)
    tersor.torch.reduce_scatter(one, two, process_group=group, **options)
    tersor.torch.all_gather(two, one, process_group=group, **options)
    tersor.torch.broadcast(one, process_group=group, **options)
    tersor.torch.reduce(one, process_group=group, **options)
    tersor.torch.gather(one, output=two if root else None, process_group=group, **options)
    tersor.torch.scatter(one, two if root else None, process_group=group, **options)
    rows = torch.ones(2, 64, requires_grad=True)
    tersor.torch.all_to_all_single(
        torch.empty_like(rows), rows, process_group=group, **options
    ).sum().backward()


def model_and_optimizer(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    model = model_of(dist.get_rank())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tersor.torch.broadcast_parameters(model, process_group=group)
    tersor.torch.broadcast_optimizer_state(sgd, process_group=group)


Use = Callable[[dist.ProcessGroup, dict[str, Any]], None]


def limits(rank: int, count: int, use: Use, options: dict[str, Any]) -> set[float | None]:
    """Returns the time limits passed to the library."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=SECONDS))
    assert group is not None
    told = []

    def fill(target: Any, keywords: Any) -> Any:
        told.append(keywords.get("timeout"))
        return tersor._options.fill(target, keywords)

    with mock.patch("tersor.reducer.fill", fill), mock.patch("tersor.collectives.fill", fill):
        use(group, options)
    assert tersor.torch._src.process_group.connections.seconds_of(group) == SECONDS
    return set(told)


USES = [ddp, hook, fsdp, optimizer, adamw, diloco, collectives]


@pytest.mark.parametrize("use", [*USES, model_and_optimizer])
def test_default_timeout_is_the_group_timeout(use: Use) -> None:
    assert ranks.run(limits, 2, use, {}) == [{SECONDS}, {SECONDS}]


@pytest.mark.parametrize("use", USES)
def test_explicit_timeout_overrides_the_group_timeout(use: Use) -> None:
    assert ranks.run(limits, 2, use, {"timeout": GIVEN}) == [{GIVEN}, {GIVEN}]


def to_meet(rank: int, count: int) -> float:
    group = dist.new_group(timeout=datetime.timedelta(seconds=SECONDS))
    assert group is not None
    made = mock.Mock(wraps=tersor.torch._src.process_group.connections.TcpTransport)
    with mock.patch("tersor.torch._src.process_group.connections.TcpTransport", made):
        tersor.torch.transport(group)
    return float(made.call_args.args[-1])


def test_rendezvous_uses_the_group_timeout() -> None:
    assert ranks.run(to_meet, 2) == [SECONDS, SECONDS]
