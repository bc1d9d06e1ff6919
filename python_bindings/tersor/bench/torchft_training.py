"""torchft's DiLoCo in a training, beside ours: ``EVERY[,fragments=P][,delay=T]``."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tersor.bench.errors import BenchmarkError
from tersor.bench.local_training import SGD_DEFAULTS
from tersor.bench.timing import Mark, Span, mark_of

PATTERN = r"0*[1-9]\d*(?:,(?:fragments|delay)=\d+)*"
_LIMIT = timedelta(seconds=120)
_MIX = 0.5  # as ours where there is a delay


class TorchftTraining:
    """One replica a rank, all of which live.

    Attributes:
        every: steps after which all fragments were exchanged.
        span: of the last step what was not the inner optimizer's.
    """

    span: Span

    def __init__(self, module: nn.Module, options: str, codec: str) -> None:
        """``options``: they match `PATTERN`; without ``codec`` torchft's own gloo. Raises
        BenchmarkError where there is no torchft."""
        try:
            import torchft
            from torchft.local_sgd import DiLoCo
        except ModuleNotFoundError as error:
            raise BenchmarkError("torchft=…: pip install torchft") from error
        first, *given = options.split(",")
        told = {key: int(value) for key, value in (one.split("=") for one in given)}
        self.every, delay = int(first), told.get("delay", 0)
        self._parts = _parted(module, told.get("fragments", 1))
        self._manager = _manager(torchft, codec, len(self._parts))
        self._made = (
            DiLoCo,
            {
                "outer_optimizer": [_outer(part) for part in self._parts],
                "sync_every": self.every,
                "pin_memory": False,
                "fragment_sync_delay": delay,
                "fragment_update_alpha": _MIX if delay else 0.0,
            },
        )
        self._mark = mark_of(next(module.parameters()).device)
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []

    def around(self, inner: torch.optim.Optimizer) -> None:
        """From now on it exchanges behind this optimizer's steps."""
        made, options = self._made
        starts: list[Mark] = []
        inner.register_step_post_hook(lambda *_: starts.append(self._mark()))
        self._around = made(self._manager, self._parts, inner, **options)
        self._around.__enter__()

        def end(*_: object) -> None:
            self.span = (starts.pop(), self._mark())

        inner.register_step_post_hook(end)

    def show_common(self) -> None:
        """Until `go_on` the model has what all replicas have in common."""
        for fragment, part in zip(self._around._fragments, self._parts, strict=True):
            for name, one in part.named_parameters():
                self._own.append((one.data, one.detach().clone()))
                one.data.copy_(fragment.original_parameters[name])

    def go_on(self) -> None:
        """Training continues, from where this replica was."""
        for one, kept in self._own:
            one.copy_(kept)
        self._own.clear()


def _outer(part: nn.Module) -> torch.optim.Optimizer:
    rate, momentum = SGD_DEFAULTS["rate"], SGD_DEFAULTS["momentum"]
    return torch.optim.SGD(part.parameters(), lr=rate, momentum=momentum, nesterov=True)


def _parted(module: nn.Module, count: int) -> list[nn.Module]:
    """So many modules of about as many values. Raises BenchmarkError where there are fewer."""
    leaves = list(_layers(module))
    sizes = [sum(one.numel() for one in leaf.parameters()) for leaf in leaves]
    parts: list[list[nn.Module]] = [[] for _ in range(count)]
    before = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        parts[min((2 * before + size) * count // (2 * sum(sizes)), count - 1)].append(leaf)
        before += size
    if not all(parts):
        raise BenchmarkError(f"torchft=…,fragments={count}: the model has too few layers")
    return [nn.ModuleList(part) for part in parts]


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """What holds parameters of its own."""
    if next(module.parameters(recurse=False), None) is not None:
        yield module
        return
    for child in module.children():
        yield from _layers(child)


def _manager(torchft: Any, codec: str, fragments: int) -> Any:
    """Of this rank. A collective call."""
    group = torchft.ProcessGroupGloo(timeout=_LIMIT)
    if codec:
        from tersor.torch.ft import ProcessGroupTersor

        group = ProcessGroupTersor(group, codec, timeout=_LIMIT.total_seconds())
    address = _own_address()
    os.environ["TORCHFT_LIGHTHOUSE"] = _lighthouse()
    store = torch._C._distributed_c10d.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=group,
        load_state_dict=lambda _: None,  # nobody comes back
        state_dict=lambda: {},
        min_replica_size=dist.get_world_size(),
        use_async_quorum=False,
        timeout=_LIMIT,
        quorum_timeout=_LIMIT,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        replica_id=f"replica_{dist.get_rank()}",
        hostname=address,
        init_sync=False,
    )
    manager.store = store  # lives as long
    if codec:
        group.follow(manager, fragments)
    return manager


_server: list[Any] = []  # rank 0's, as long as the process


def _lighthouse() -> str:
    """Where torchft's server listens, which rank 0 has."""
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        from torchft.coordination import LighthouseServer

        _server[:] = [LighthouseServer(bind="0.0.0.0:0", min_replicas=dist.get_world_size())]
        port = _server[0].address().rsplit(":", 1)[1]
        told = [f"http://{_own_address()}:{port}"]
    dist.broadcast_object_list(told)
    return str(told[0])


def _own_address() -> str:
    """By which rank 0's host is reached, or others from there."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])
