"""Trainings whose ranks do not wait for all others: a parameter server, and gossip."""

from __future__ import annotations

import re
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.hook_kinds import Hook
from tersor.bench.hooks import first_word
from tersor.bench.measures import Mark, Span, Traffic, mark_of
from tersor.bench.models import Batch

SERVER, GOSSIP = "server", "gossip"
SUMMARY = (
    "server=BSP|SSPn|ASP:PUSH[/PULL] (PULL int8), gossip=ring|torus|exponential[,step=SIZE]:CODEC"
)
_PATTERNS = {
    SERVER: r"server=(BSP|ASP|SSP(\d+)):([^/]+)(?:/(.+))?",
    GOSSIP: r"gossip=(ring|torus|exponential)(?:,step=((?:\d*\.)?\d+))?:(.+)",
}


def has(name: str) -> bool:
    """True for the name of such a hook, right or wrong."""
    return first_word(name) in _PATTERNS


def check(name: str) -> re.Match[str]:
    """The parts of a name. Raises BenchmarkError for an unknown hook."""
    found = re.fullmatch(_PATTERNS[first_word(name)], name)
    if found is None:
        raise BenchmarkError(f'no hook "{name}"; there are: {SUMMARY}')
    return found


def attach(module: nn.Module, name: str) -> Hook:
    """The model with this hook."""
    return (ServerHook if first_word(name) == SERVER else GossipHook)(module, check(name))


class LooseHook(Hook):
    """Spans of waiting, and counted bytes."""

    bytes_are = "counted"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._mark = mark_of(next(module.parameters()).device)
        self._spans: list[Span] = []

    def _wait_in(self, call: Any) -> None:
        start = self._mark()
        call()
        self._spans.append((start, self._mark()))

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans


class _Pushing:
    """Replaces the optimizer: the server's optimizer makes the steps."""

    def __init__(self, plain: torch.optim.Optimizer, push: Any) -> None:
        self.param_groups, self.zero_grad, self.step = plain.param_groups, plain.zero_grad, push


class ServerHook(LooseHook):
    """Rank 0 serves, and works like the others. The server's optimizer has the training's class
    and options, at the learning rate of rank 0's clock."""

    def __init__(self, module: nn.Module, found: re.Match[str]) -> None:
        super().__init__(module)
        bound = None if found[1] == "ASP" else int(found[2] or 0)
        self._options: Any = {"staleness": bound, "push": found[3], "pull": found[4] or "int8"}
        self._options["workers"] = range(dist.get_world_size())
        self._server: tersor.torch.ParameterServer | None = None

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        if dist.get_rank() == 0:
            self._server = tersor.torch.ParameterServer(
                self.model, lambda parts: _alike(plain, parts), **self._options
            )
        self._client = tersor.torch.ParameterClient(
            self.model, server=self._server, **self._options
        )
        return _Pushing(plain, lambda: self._wait_in(self._client.push))

    def learn(self, batch: Batch) -> Tensor:
        self._wait_in(self._client.pull)
        return super().learn(batch)

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


class GossipHook(LooseHook):
    """Each rank's own optimizer changes its weights, which are mixed with the neighbours'."""

    def __init__(self, module: nn.Module, found: re.Match[str]) -> None:
        super().__init__(module)
        step_size = float(found[2] or 0.0)
        self._gossip = tersor.torch.Gossip(module, found[1], found[3], step_size=step_size)
        self._own: list[tuple[Tensor, Tensor]] = []

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        plain.register_step_post_hook(lambda *_: self._wait_in(self._gossip.step))
        return plain

    def learn(self, batch: Batch) -> Tensor:
        for one, own in self._own:
            one.copy_(own)
        self._own.clear()
        return super().learn(batch)

    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """Shows the mean of all ranks' weights until the next step."""
        for one in self.model.parameters():
            self._own.append((one.data, one.detach().clone()))
            dist.all_reduce(one.data)
            one.data.div_(dist.get_world_size())

    def total(self, steps: int) -> Traffic:
        return Traffic(self._gossip.statistics().sent_bytes)


def _alike(plain: torch.optim.Optimizer, parts: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of a server's parts that follows the training's options and learning rate."""
    made = type(plain)(parts, lr=plain.defaults["lr"])  # type: ignore[call-arg]
    (group,) = made.param_groups
    group.update({key: plain.defaults[key] for key in plain.defaults.keys() & group.keys()})

    def follow(*_: object) -> None:
        group["lr"] = plain.param_groups[0]["lr"]

    made.register_step_pre_hook(follow)
    return made
