"""Trainings whose ranks do not wait for all others: a parameter server, and gossip."""

from __future__ import annotations

import re
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.hooks import Hook
from tersor.bench.models import Batch
from tersor.bench.timing import Mark, Span, mark_of
from tersor.bench.traffic import Traffic

SERVER, GOSSIP = "server", "gossip"
SUMMARY = (
    "server=BSP|SSPn|ASP:PUSH[/PULL] (PULL int8), gossip=ring|torus|exponential[,step=SIZE]:CODEC"
)
_BOUND = re.compile(r"(BSP|ASP|SSP(\d+))")
_GRAPH = re.compile(r"(ring|torus|exponential)(?:,step=((?:\d*\.)?\d+))?")


def has(name: str) -> bool:
    """Whether a hook is one of these."""
    return re.split("[:=]", name)[0] in (SERVER, GOSSIP)


def check(name: str) -> None:
    """Raises BenchmarkError where there is no such hook."""
    head, _, codec = name.partition(":")
    kind, _, options = head.partition("=")
    pattern = _BOUND if kind == SERVER else _GRAPH
    if not codec or pattern.fullmatch(options) is None:
        raise BenchmarkError(f'no hook "{name}"; there are: {SUMMARY}')


def attach(module: nn.Module, name: str) -> Hook:
    """A hook whose name was checked."""
    head, _, codec = name.partition(":")
    kind, _, options = head.partition("=")
    return (ServerHook if kind == SERVER else GossipHook)(module, options, codec)


class _Pushing:
    """Stands for the optimizer, whose steps are the server's."""

    def __init__(self, hook: ServerHook, plain: torch.optim.Optimizer) -> None:
        self._hook, self._plain = hook, plain
        self.param_groups = plain.param_groups

    def zero_grad(self) -> None:
        self._plain.zero_grad()

    def step(self) -> None:
        self._hook.push()


class ServerHook(Hook):
    """Rank 0 serves, and works as the others do. The server's optimizer is as the trainer's own, at
    the learning rate of rank 0's clock."""

    bytes_are = "counted"

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        super().__init__(module)
        push, _, pull = codec.partition("/")
        found = _BOUND.fullmatch(options)
        assert found is not None
        bound = None if options == "ASP" else int(found[2] or 0)
        self._options: Any = {"staleness": bound, "push": push, "pull": pull or "int8"}
        self._options["workers"] = range(dist.get_world_size())
        self._server: tersor.torch.ParameterServer | None = None
        self._mark = mark_of(next(module.parameters()).device)
        self._spans: list[Span] = []

    def optimizer(self, plain: torch.optim.Optimizer) -> Any:
        if dist.get_rank() == 0:
            self._server = tersor.torch.ParameterServer(
                self.model, lambda parts: _alike(plain, parts), **self._options
            )
        self._client = tersor.torch.ParameterClient(
            self.model, server=self._server, **self._options
        )
        return _Pushing(self, plain)

    def learn(self, batch: Batch) -> Tensor:
        start = self._mark()
        self._client.pull()
        self._spans = [(start, self._mark())]
        return super().learn(batch)

    def push(self) -> None:
        """After a backward pass."""
        start = self._mark()
        self._client.push()
        self._spans.append((start, self._mark()))

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """All pulls, and the pushes of the step before."""
        return self._spans

    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """The server's weights, once all pushes are in them."""
        self._client.flush()
        dist.barrier()
        self._client.pull()

    def total(self, steps: int) -> Traffic:
        sent = self._client.statistics().sent_bytes
        if self._server is not None:  # but what went to this rank
            others = 1 - 1 / dist.get_world_size()
            sent += round(self._server.statistics().pulled_bytes * others)
        return Traffic(sent)

    def close(self) -> None:
        self._client.leave()
        if self._server is not None:
            self._server.wait()


class GossipHook(Hook):
    """Each rank's own optimizer moves its weights, which are mixed with the neighbours'."""

    bytes_are = "counted"

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        super().__init__(module)
        found = _GRAPH.fullmatch(options)
        assert found is not None
        self._gossip = tersor.torch.Gossip(
            module, found[1], codec, step_size=float(found[2] or 0.0)
        )
        self._mark = mark_of(next(module.parameters()).device)
        self._own: list[tuple[Tensor, Tensor]] = []

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        plain.register_step_post_hook(self._mix)
        return plain

    def _mix(self, *_: object) -> None:
        start = self._mark()
        self._gossip.step()
        self._span = (start, self._mark())

    def learn(self, batch: Batch) -> Tensor:
        for one, kept in self._own:
            one.copy_(kept)
        self._own.clear()
        return super().learn(batch)

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        return [self._span]

    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """The mean of all ranks' weights, until the next step."""
        for one in self.model.parameters():
            self._own.append((one.data, one.detach().clone()))
            dist.all_reduce(one.data)
            one.data.div_(dist.get_world_size())

    def total(self, steps: int) -> Traffic:
        return Traffic(self._gossip.statistics().sent_bytes)


def _alike(plain: torch.optim.Optimizer, parts: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer as the trainer's, of a server's parts, whose learning rate it follows."""
    made = type(plain)(parts, lr=plain.defaults["lr"])  # type: ignore[call-arg]
    (group,) = made.param_groups
    group.update({key: plain.defaults[key] for key in plain.defaults.keys() & group.keys()})

    def follow(*_: object) -> None:
        group["lr"] = plain.param_groups[0]["lr"]

    made.register_step_pre_hook(follow)
    return made
