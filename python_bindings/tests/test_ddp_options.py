"""Options of DistributedDataParallel: communication outside of DDP's hook."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor
import tersor.torch

WIDTH = 16
STEPS = 4
KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
OPTIONS: list[dict[str, Any]] = [
    {"static_graph": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"broadcast_buffers": False},
    {"forward_sync_buffers": False},
    {"batched_grad_copy": True},
    {"lazy_bucket_allocation": True, "gradient_as_bucket_view": True},
    {"require_manual_backward_finalization": True},
]


class Model(nn.Module):
    """A model with buffers. A step may leave out the second layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor, *, second: bool) -> Tensor:
        values = self.norm(self.first(inputs))
        outputs: Tensor = self.last(values + self.second(values) if second else values)
        return outputs


def trained(rank: int, options: dict[str, Any], *, compressed: bool) -> Tensor:
    """Returns the parameters after some steps, and the buffers at the start of the last pass."""
    manual = options.pop("require_manual_backward_finalization", False)
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.001, **options)
    if compressed:
        tersor.torch.compress(model, codec="none")
    if manual:
        model.require_manual_backward_finalization = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unused = options.get("find_unused_parameters", False)
    for step in range(STEPS):
        inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(9 * rank + step))
        model(inputs, second=not unused or (rank + step) % 3 > 0).square().mean().backward()
        if manual:
            model.finalize_backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model.eval()(inputs, second=True)  # broadcasts buffers
    state = model.module.state_dict() if options.get("broadcast_buffers", True) else {}
    if "forward_sync_buffers" in options or not state:
        state = dict(model.module.named_parameters())
    return torch.cat([one.detach().flatten().double() for one in state.values()])


@ranks.on(2)
def test_parameters_equal_ddp_bit_for_bit_with_every_option(rank: int, count: int) -> None:
    for options in OPTIONS:
        if not all(name in KNOWN or hasattr(DistributedDataParallel, name) for name in options):
            continue  # of a newer PyTorch
        plain = trained(rank, dict(options), compressed=False)
        found = trained(rank, dict(options), compressed=True)
        assert torch.equal(found, plain), options
        everywhere = [torch.empty_like(found) for _ in range(count)]
        dist.all_gather(everywhere, found)
        assert torch.equal(*everywhere), options


def refused(model: DistributedDataParallel, rank: int, text: str) -> None:
    """Checks the error of ``compress``, and of the hook of a state without a model."""
    with pytest.raises(tersor.InvalidArgumentError, match=text):
        tersor.torch.compress(model, codec="none")
    model.register_comm_hook(tersor.torch.HookState(codec="none"), tersor.torch.hook)
    loss = model(torch.randn(8, WIDTH), second=True).sum()
    with pytest.raises(tersor.InvalidArgumentError, match=text):
        loss.backward()


@ranks.on(2)
def test_options_bypassing_the_hook_are_rejected(rank: int, count: int) -> None:
    for all_of_them in (False, True):
        module = Model()
        module.second.requires_grad_(False)
        named = [one for one in module.named_parameters() if one[1].requires_grad]
        delayed: dict[str, Any] = {
            "delay_all_reduce_named_params": named if all_of_them else named[-1:],
            "param_to_hook_all_reduce": module.first.weight,
        }
        model = DistributedDataParallel(module, **delayed)
        text = r"delay_all_reduce_named_params.*last\.bias.*leave"
        if all_of_them:  # then there is no hook
            with pytest.raises(tersor.InvalidArgumentError, match=text):
                tersor.torch.compress(model, codec="none")
        else:
            refused(model, rank, text)
    if "skip_all_reduce_unused_params" in KNOWN:
        options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
        model = DistributedDataParallel(Model(), **options)  # type: ignore[arg-type]
        refused(model, rank, "skip_all_reduce_unused_params=True.*leave")
