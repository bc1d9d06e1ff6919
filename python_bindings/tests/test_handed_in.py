"""Arguments of a wrong type: Tersor's TypeError describes the argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor
import tersor.torch
from tersor.torch import pipeline
from tersor.torch.fsdp import compress as compress_sharded


@ranks.on(1)
def test_wrong_argument_types_raise_type_error(rank: int, count: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (1,))
    handed_in: dict[str, list[Callable[[], object]]] = {
        r"such as \"int8\", not None": [lambda: tersor.Codec(None)],  # type: ignore[arg-type]
        r"model of .* tersor.torch.DistributedOptimizer.*, not SGD": [
            lambda: tersor.torch.compress(optimizer),  # type: ignore[call-overload]
        ],
        r"went through fully_shard, not SGD": [
            lambda: compress_sharded(optimizer),  # type: ignore[arg-type]
        ],
        r"the model that DDP wraps, and codec=, not 'int8'": [
            lambda: tersor.torch.HookState("int8"),  # type: ignore[arg-type]
        ],
        r"needs an optimizer, .*, not Sequential": [
            lambda: tersor.torch.DistributedOptimizer(model),  # type: ignore[arg-type]
        ],
        r"must be model.named_parameters\(\)": [
            lambda: tersor.torch.DistributedOptimizer(optimizer, model.parameters()),  # type: ignore[arg-type]
            lambda: tersor.torch.DistributedOptimizer(optimizer, dict(model.named_parameters())),  # type: ignore[arg-type]
        ],
        r"needs model.named_parameters\(\), not Sequential": [
            lambda: tersor.torch.CompressedAdamW(model),  # type: ignore[arg-type]
            lambda: tersor.torch.CompressedMuon(model),  # type: ignore[arg-type]
        ],
        r"model must be a torch.nn.Module, not SGD": [
            lambda: tersor.torch.DiLoCo(optimizer),  # type: ignore[arg-type]
            lambda: tersor.torch.allocate(optimizer, bits=2),  # type: ignore[arg-type]
            lambda: tersor.torch.broadcast_parameters(optimizer),  # type: ignore[arg-type]
        ],
        r"optimizer must be a torch.optim.Optimizer, not Sequential": [
            lambda: tersor.torch.broadcast_optimizer_state(model),  # type: ignore[arg-type]
        ],
        r"outer_optimizer must be .* not SGD": [
            lambda: tersor.torch.DiLoCo(model, outer_optimizer=optimizer),  # type: ignore[arg-type]
        ],
        r"codec must be a string, not Codec": [
            lambda: tersor.torch.compress(ddp, codec=tersor.Codec("int8")),
        ],
        r"rules must be a list of pairs": [
            lambda: tersor.torch.compress(ddp, rules="int8"),
            lambda: tersor.torch.compress(ddp, rules={"*": "int8"}),
        ],
        r"timeout must be a number, not '5'": [lambda: tersor.torch.compress(ddp, timeout="5")],
        r"GradScaler, not True": [lambda: tersor.torch.compress(ddp, scaler=True)],
        r"new_group or .*, not list": [lambda: tersor.torch.DiLoCo(model, process_group=[0])],  # type: ignore[arg-type]
        r"mesh.get_group\(\), not DeviceMesh": [
            lambda: tersor.torch.all_reduce(torch.ones(3), process_group=mesh),  # type: ignore[arg-type]
        ],
        r"tensor must be a torch.Tensor, not list": [lambda: tersor.torch.all_reduce([1.0])],  # type: ignore[arg-type]
        r"must be a PipelineStage .*, not Sequential": [lambda: pipeline.compress(model)],
        r"must be a tersor Transport .*, not None": [
            lambda: tersor.GradientReducer(None),  # type: ignore[arg-type]
            lambda: tersor.allreduce(None, torch.ones(3)),  # type: ignore[arg-type]
            lambda: tersor.broadcast(None, torch.ones(3)),  # type: ignore[arg-type]
        ],
        r"writer must be a SummaryWriter, not 1": [lambda: tersor.torch.log_statistics(1, 2, 3)],  # type: ignore[arg-type]
    }
    for message, calls in handed_in.items():
        for call in calls:
            with pytest.raises(TypeError, match=message):
                call()
