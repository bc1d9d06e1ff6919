"""Trainings whose ranks do not wait for all others: a parameter server, and gossip."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.torch
from tersor.bench.hook_kinds import LocalHook, WaitingHook
from tersor.bench.measures import Traffic
from tersor.bench.models import Batch


class ServerHook(WaitingHook):
    """Rank 0 serves, and works like the others. The server's optimizer has the training's class
    and options, at the learning rate of rank 0's clock."""

    def __init__(self, module: nn.Module, mode: str, push: str, pull: str | None) -> None:
        """``mode``: BSP, ASP, or SSP with a number."""
        super().__init__(module)
        bound = None if mode == "ASP" else int(mode[3:] or 0)
        workers = range(dist.get_world_size())
        pull = pull or "int8"
        self._options: Any = dict(staleness=bound, push=push, pull=pull, workers=workers)  # noqa: C408
        self._server: tersor.torch.ParameterServer | None = None

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        if dist.get_rank() == 0:
            self._server = tersor.torch.ParameterServer(
                self.model, lambda parts: _matching(plain, parts), **self._options
            )
        self._client = tersor.torch.ParameterClient(
            self.model, server=self._server, **self._options
        )
        return types.SimpleNamespace(  # the server's optimizer makes the steps
            param_groups=plain.param_groups,
            zero_grad=plain.zero_grad,
            step=lambda: self.waits.during(self._client.push),
        )

    def run_backward(self, batch: Batch) -> Tensor:
        self.waits.during(self._client.pull)
        return super().run_backward(batch)

    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """Reads the server's weights after all pushes."""
        self._client.flush()
        dist.barrier()
        self._client.pull()

    def total(self, steps: int) -> Traffic:
        sent = self._client.statistics().sent_bytes
        if self._server is not None:  # without the bytes to this rank
            others = 1 - 1 / dist.get_world_size()
            sent += round(self._server.statistics().pulled_bytes * others)
        return Traffic(sent)

    def close(self) -> None:
        self._client.leave()
        if self._server is not None:
            self._server.wait()


class GossipHook(LocalHook):
    """Each rank's optimizer changes the weights. Neighbours then mix their weights."""

    def __init__(self, module: nn.Module, graph: str, step: str | None, codec: str) -> None:
        super().__init__(module)
        self._gossip = tersor.torch.Gossip(module, graph, codec, step_size=float(step or 0.0))

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        plain.register_step_post_hook(lambda *_: self.waits.during(self._gossip.step))
        return plain

    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The means of all ranks' weights."""
        for one in self.model.parameters():
            mean = one.detach().clone()
            dist.all_reduce(mean)
            yield one, mean.div_(dist.get_world_size())

    def total(self, steps: int) -> Traffic:
        return Traffic(self._gossip.statistics().sent_bytes)


def _matching(plain: torch.optim.Optimizer, parts: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of a server's parts that follows the training's options and learning rate."""
    optimizer = type(plain)(parts, lr=plain.defaults["lr"])  # type: ignore[call-arg]
    (group,) = optimizer.param_groups
    group.update({key: plain.defaults[key] for key in plain.defaults.keys() & group.keys()})
    optimizer.register_step_pre_hook(lambda *_: group.update(lr=plain.param_groups[0]["lr"]))
    return optimizer
