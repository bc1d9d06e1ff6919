"""DiLoCo in a training: Tersor's and torchft's. Each rank's own optimizer changes the weights.

``diloco=EVERY[,rate=R][,…]:CODEC`` selects Tersor's DiLoCo, and
``torchft=EVERY[,fragments=P][,delay=T][:CODEC]`` selects torchft's DiLoCo.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.torch
from tersor.bench.errors import BenchmarkError
from tersor.bench.hook_kinds import CountedHook, Hook, PyTorchHook, adamw
from tersor.bench.measures import Mark, Span, mark_of, parameter_count, ring_bytes
from tersor.bench.models import Batch
from tersor.bench.optimizers import MuonBesideAdamW
from tersor.bench.torchft_ways import manager
from tersor.torch._src.diloco.fragments import Timetable

SGD_DEFAULTS = {"rate": 0.7, "momentum": 0.9}  # of the DiLoCo paper's outer optimizer
_LARGE = 4096  # values; CODEC/SMALL compresses vectors and smaller parameters by SMALL
_LIMIT = timedelta(seconds=120)


def _parsed(options: str) -> tuple[Timetable, dict[str, float]]:
    """The schedule of exchanges, and the other options. Raises InvalidArgumentError."""
    every, *given = options.split(",")
    found = {key: float(value) for key, value in (one.split("=") for one in given)}
    parts, delay = (int(found.pop(key, least)) for key, least in (("fragments", 1), ("delay", 0)))
    return Timetable(int(every), parts, delay), found


def check(options: str) -> None:
    """Raises BenchmarkError for conflicting options. The options must match the pattern."""
    try:
        _parsed(options)
    except tersor.InvalidArgumentError as error:
        raise BenchmarkError(f"diloco={options}: {error}") from error


def _rules(module: nn.Module, codec: str) -> dict[str, Any]:
    """``CODEC`` as options. With ``CODEC/SMALL``, SMALL replaces bf16 for small parameters."""
    codec, _, small = codec.partition("/")
    if not small:
        return {"codec": codec}
    named = [n for n, one in module.named_parameters() if one.dim() == 1 or one.numel() < _LARGE]
    return {"rules": [*((name, small) for name in named), ("*", codec)]}


class LocalHook(Hook):
    """Ranks train alone, and exchange every few steps. Between two steps, the model may show the
    common values of all ranks."""

    _span: Span  # the part of the last step after the inner optimizer
    _shown: list[tuple[Tensor, Tensor]]  # parameters, and this rank's own values

    def __init__(self, module: nn.Module, *arguments: Any) -> None:
        super().__init__(module, *arguments)
        self._mark, self._shown = mark_of(next(module.parameters()).device), []

    @abc.abstractmethod
    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter with the common values."""

    def learn(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            for one, own in self._shown:
                one.copy_(own)
        self._shown = []
        return super().learn(batch)

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        """All of DiLoCo, including the step of the outer optimizer."""
        return [self._span]

    @torch.no_grad()
    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        """Shows the common values until the next step. No exchange."""
        for one, common in list(self._common()):
            self._shown.append((one, one.clone()))
            one.copy_(common)


class DiLoCoHook(LocalHook, CountedHook):
    """Tersor's DiLoCo, with AdamW or Muon as the inner optimizer."""

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        table, told = _parsed(options)
        self._muon = told.pop("muon", None)
        sgd = {key: told.pop(key, default) for key, default in SGD_DEFAULTS.items()}
        rate, momentum = sgd["rate"], sgd["momentum"]
        self._outer = tersor.torch.DiLoCo(
            module,
            sync_every=table.sync_every,
            fragments=table.fragments,
            fragment_sync_delay=table.fragment_sync_delay,
            fragment_update_alpha=told.get("mix"),
            outer_optimizer=functools.partial(
                torch.optim.SGD, lr=rate, momentum=momentum, nesterov=momentum > 0
            ),
            error_decay=told.get("residual", 1.0),
            **_rules(module, codec),
        )
        super().__init__(module, self._outer)
        self.period = table.sync_every

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if self._muon is not None:
            plain = MuonBesideAdamW(self.model, adamw(plain, "diloco"), self._muon)
        plain.register_step_post_hook(self._exchange)
        return plain

    def _exchange(self, *_: object) -> None:
        start = self._mark()
        self._outer.step()
        self._span = (start, self._mark())

    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        named = dict(self.model.named_parameters())
        yield from ((named[name], one) for name, one in self._outer.common_parameters().items())


class TorchftHook(LocalHook, PyTorchHook):
    """torchft's DiLoCo with a replica per rank, all alive. The bytes are computed. With a codec,
    only the bytes of the interface are right."""

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        """Without ``codec``, torchft's own gloo sends. Raises BenchmarkError without torchft."""
        first, *given = options.split(",")
        told = {key: int(value) for key, value in (one.split("=") for one in given)}
        self.period, self._delay = int(first), told.get("delay", 0)
        count = parameter_count(module) / self.period
        super().__init__(module, ring_bytes(4 * count, dist.get_world_size()))
        self._parts = _parted(module, told.get("fragments", 1))
        address = _own_address()
        os.environ["TORCHFT_LIGHTHOUSE"] = _lighthouse(address)
        self._manager = manager(
            codec,
            len(self._parts),
            address,
            _LIMIT,
            load_state_dict=lambda _: None,  # no replica comes back
            state_dict=lambda: {},
            min_replica_size=dist.get_world_size(),
            use_async_quorum=False,
            replica_id=f"replica_{dist.get_rank()}",
            init_sync=False,
        )

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        from torchft.local_sgd import DiLoCo

        starts: list[Mark] = []
        plain.register_step_post_hook(lambda *_: starts.append(self._mark()))
        self._around = DiLoCo(
            self._manager,
            self._parts,
            plain,
            outer_optimizer=[_outer(part.parameters()) for part in self._parts],
            sync_every=self.period,
            pin_memory=False,
            fragment_sync_delay=self._delay,
            fragment_update_alpha=0.5 if self._delay else 0.0,  # as in Tersor
        )
        self._around.__enter__()

        def end(*_: object) -> None:
            self._span = (starts.pop(), self._mark())

        plain.register_step_post_hook(end)
        return plain

    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        for fragment, part in zip(self._around._fragments, self._parts, strict=True):
            for name, one in part.named_parameters():
                yield one, fragment.original_parameters[name]


def _outer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    rate, momentum = SGD_DEFAULTS["rate"], SGD_DEFAULTS["momentum"]
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=True)


def _parted(module: nn.Module, count: int) -> list[nn.Module]:
    """Modules of similar numbers of values. Raises BenchmarkError if there are too few layers."""
    leaves = [
        one for one in module.modules() if next(one.parameters(recurse=False), None) is not None
    ]
    sizes = [sum(one.numel() for one in leaf.parameters()) for leaf in leaves]
    parts: list[list[nn.Module]] = [[] for _ in range(count)]
    before = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        parts[min((2 * before + size) * count // (2 * sum(sizes)), count - 1)].append(leaf)
        before += size
    if not all(parts):
        raise BenchmarkError(f"torchft=…,fragments={count}: the model has too few layers")
    return [nn.ModuleList(part) for part in parts]


_server: list[Any] = []  # rank 0's lighthouse lives as long as the process


def _lighthouse(address: str) -> str:
    """The address of torchft's lighthouse on rank 0. A collective call."""
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        from torchft.coordination import LighthouseServer

        _server[:] = [LighthouseServer(bind="0.0.0.0:0", min_replicas=dist.get_world_size())]
        told = [f"http://{address}:{_server[0].address().rsplit(':', 1)[1]}"]
    dist.broadcast_object_list(told)
    return str(told[0])


def _own_address() -> str:
    """The address of this host for other hosts."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])
