"""DiLoCo in a training: Tersor's and torchft's. Each rank's own optimizer changes the weights.

``diloco=EVERY[,rate=R][,…]:CODEC`` selects Tersor's DiLoCo, and
``torchft=EVERY[,fragments=P][,delay=T][:CODEC]`` selects torchft's DiLoCo.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.torch
from tersor.bench.errors import BenchmarkError, fail_if
from tersor.bench.hook_kinds import ComputedHook, CountedHook, LocalHook, expected
from tersor.bench.measures import parameter_count, ring_bytes
from tersor.bench.optimizers import MuonWithAdamW
from tersor.bench.torchft_ways import manager
from tersor.torch._src.diloco.fragments import SyncSchedule

_LARGE = 4096  # values; CODEC/SMALL compresses vectors and smaller parameters by SMALL
_LIMIT = timedelta(seconds=120)


def parse(every: str, options: str) -> tuple[SyncSchedule, dict[str, float]]:
    """The schedule of exchanges, and the other options, which match the pattern of the name.
    Raises BenchmarkError for a conflict."""
    given = (one.split("=") for one in options.split(",") if one)
    found = {key: float(value) for key, value in given}
    parts, delay = int(found.pop("fragments", 1)), int(found.pop("delay", 0))
    try:
        return SyncSchedule(int(every), parts, delay), found
    except tersor.InvalidArgumentError as error:
        raise BenchmarkError(f"{every}{options}: {error}") from error


def _rules(module: nn.Module, codec: str) -> dict[str, Any]:
    """``CODEC`` as options. With ``CODEC/SMALL``, SMALL replaces bf16 for small parameters."""
    codec, _, small = codec.partition("/")
    if not small:
        return {"codec": codec}
    named = [n for n, one in module.named_parameters() if one.dim() == 1 or one.numel() < _LARGE]
    return {"rules": [*((name, small) for name in named), ("*", codec)]}


def _outer(rate: float = 0.7, momentum: float = 0.9, **_: float) -> Any:
    """Makes outer optimizers, by default the DiLoCo paper's."""
    return functools.partial(torch.optim.SGD, lr=rate, momentum=momentum, nesterov=momentum > 0)


class DiLoCoHook(LocalHook, CountedHook):
    """Tersor's DiLoCo, with AdamW or Muon as the inner optimizer."""

    def __init__(
        self, module: nn.Module, every: str, options: str, codec: str, **advanced: Any
    ) -> None:
        schedule, settings = parse(every, options)
        self.period, self._muon = schedule.sync_every, settings.get("muon")
        self._outer = tersor.torch.DiLoCo(
            module,
            **vars(schedule),
            fragment_update_alpha=settings.get("mix"),
            outer_optimizer=_outer(**settings),
            error_decay=settings.get("residual", 1.0),
            **_rules(module, codec),
            **advanced,
        )
        super().__init__(module, self._outer)

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if self._muon is not None:
            adamw = expected(plain, torch.optim.AdamW, "diloco")
            plain = MuonWithAdamW(self.model, adamw, self._muon)
        plain.register_step_post_hook(lambda *_: self.waits.during(self._outer.step))
        return plain

    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        named = dict(self.model.named_parameters())
        yield from ((named[name], one) for name, one in self._outer.common_parameters().items())


class TorchftHook(LocalHook, ComputedHook):
    """torchft's DiLoCo with a replica per rank, all alive. Each call counts its bytes. With a
    codec, only the bytes of the interface are right."""

    def __init__(self, module: nn.Module, every: str, options: str, codec: str | None) -> None:
        """Without ``codec``, torchft's own gloo sends. Raises BenchmarkError without torchft."""
        self._schedule, _ = parse(every, options)
        self._sent = 0.0
        self.period, ranks = self._schedule.sync_every, dist.get_world_size()
        super().__init__(module, lambda _: self._sent)
        self.bytes_are = "computed" if codec else "counted"
        self._parts = _partition(module, self._schedule.fragments)
        address = _own_address()
        os.environ["TORCHFT_LIGHTHOUSE"] = _lighthouse(address)
        given: dict[str, Any] = {"load_state_dict": lambda _: None, "state_dict": dict}
        given |= {"init_sync": False, "use_async_quorum": False}  # no replica comes back
        given |= {"min_replica_size": ranks, "replica_id": f"replica_{dist.get_rank()}"}
        self._manager = manager(codec, len(self._parts), address, _LIMIT, **given)
        group, reduce = self._manager._pg, self._manager._pg.allreduce

        def counted(tensors: list[Tensor], options: object) -> Any:
            self._sent += ring_bytes(sum(one.nbytes for one in tensors), ranks)
            return reduce(tensors, options)

        group.allreduce = counted

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        from torchft.local_sgd import DiLoCo

        delay = self._schedule.fragment_sync_delay
        options: dict[str, Any] = {"sync_every": self.period, "pin_memory": False}
        options |= {"fragment_sync_delay": delay}
        options |= {"fragment_update_alpha": 0.5 if delay else 0.0}  # as in Tersor
        outer = [_outer()(part.parameters()) for part in self._parts]
        plain.register_step_post_hook(self.waits.begin)
        self._context = DiLoCo(self._manager, self._parts, plain, outer, **options)
        self._context.__enter__()
        plain.register_step_post_hook(self.waits.end)
        return plain

    def _common(self) -> Iterator[tuple[Tensor, Tensor]]:
        for fragment, part in zip(self._context._fragments, self._parts, strict=True):
            for name, one in part.named_parameters():
                yield one, fragment.original_parameters[name]


def _partition(module: nn.Module, count: int) -> list[nn.Module]:
    """Modules of similar numbers of values. Raises BenchmarkError if there are too few layers."""
    parts: list[list[nn.Module]] = [[] for _ in range(count)]
    before, total = 0, parameter_count(module)
    for leaf in module.modules():
        if size := sum(one.numel() for one in leaf.parameters(recurse=False)):
            parts[min((2 * before + size) * count // (2 * total), count - 1)].append(leaf)
            before += size
    fail_if(not all(parts), f"torchft=…,fragments={count}: the model has too few layers")
    return [nn.ModuleList(part) for part in parts]


_server: list[Any] = []  # rank 0's lighthouse lives as long as the process


def _lighthouse(address: str) -> str:
    """The address of torchft's lighthouse on rank 0. A collective call."""
    addresses: list[Any] = [None]
    if dist.get_rank() == 0:
        from torchft.coordination import LighthouseServer

        _server[:] = [LighthouseServer(bind="0.0.0.0:0", min_replicas=dist.get_world_size())]
        addresses = [f"http://{address}:{_server[0].address().rsplit(':', 1)[1]}"]
    dist.broadcast_object_list(addresses)
    return str(addresses[0])


def _own_address() -> str:
    """The address of this host for other hosts."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])
