"""The trainer's process group as a transport: the same ranks, connections of our own.

Host memory goes over gloo groups that are made for it, whatever backend the trainer's has, so that
no message of ours meets one of the trainer's. Its messages are moved by ``tersor._core``, whose
threads call ``Messenger`` here for each. Deadlines are Tersor's own: gloo is told to wait for ever.

Device memory goes over a communicator of our own of PyTorch's NCCL, where the trainer's group uses
NCCL and this build of Tersor knows it; else by way of the host.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tersor import _core
from tersor._core import InvalidArgument, TorchTransport, Transport
from tersor.reducer import ReducerOptions

__all__ = ["close", "close_all", "transport", "with_message_sizes"]

_FOREVER = datetime.timedelta(days=365)
_AT_ONCE = datetime.timedelta(milliseconds=1)
_NCCL_SECONDS = 300.0  # for all ranks to come to a new communicator

# Values of a chunk that each rank gets: in shorter messages, what a message costs the processor (a
# call of Python among it) outweighs the overlap that more of them give.
_PART_COUNT = 1 << 19
_CHUNK_COUNTS = (1 << 20, 1 << 22)  # at least and at most
_LEAST_BUCKET_BYTES = 1 << 20
_LEAST_BUCKETS = 8  # of a model: with fewer, nothing is left to send while the pass computes

_GROUPS = 3  # of tersor._core: heads, payloads to higher ranks, payloads to lower ranks

_TAG = 0
# Gloo keeps a set of connections for each network device, and a tag chooses one by its remainder.
# This multiple of all small numbers meets no message, on the connections that 0 uses.
_ABORT_TAG = 720720


class Messenger:
    """Messages between this rank and others; called by the threads of the transport.

    Each group has connections of its own, and keeps messages of two ranks in their order. Memory is
    sent from and received into where it lies.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups = groups

    def send(self, memory: memoryview, peer: int, group: int) -> dist.Work:
        """Starts to send all of ``memory``, which stays until the work was waited for."""
        return self._groups[group].send([torch.frombuffer(memory, dtype=torch.uint8)], peer, _TAG)

    def receive(self, memory: memoryview, peer: int, group: int) -> dist.Work:
        """Starts to receive a message that fills ``memory``, which stays likewise."""
        return self._groups[group].recv([torch.frombuffer(memory, dtype=torch.uint8)], peer, _TAG)

    def wait(self, work: dist.Work) -> None:
        """Blocks until the message has left or come. Raises RuntimeError where its peer is gone."""
        work.wait(_FOREVER)

    def abort(self) -> None:
        """Ends all that is under way with errors, here and at the peers, which closes the groups.

        Gloo closes all connections when the time for any message has run out; it offers no other
        way. A peer whose connection is closed already says so at once, then the next one is tried.
        """
        for group in self._groups:
            for peer in set(range(group.size())) - {group.rank()}:
                with contextlib.suppress(RuntimeError):
                    group.recv([torch.empty(1)], peer, _ABORT_TAG).wait(_AT_ONCE)


class _Connection:
    """What was made for one group of the trainer's."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.process = os.getpid()
        groups = [_gloo_group(group) for _ in range(_GROUPS)]
        hosts: list[Any] = [None] * group.size()
        dist.all_gather_object(hosts, _host_name(), group=groups[0])
        numbers = [hosts.index(host) for host in hosts]
        self._devices: dict[int, Transport] = {}
        self.host = TorchTransport(Messenger(groups), rank=group.rank(), hosts=numbers)

    def of(self, device: torch.device) -> Transport:
        """The transport for memory on a device, which is made by the first call; collective."""
        if device.type != "cuda" or not _uses_nccl(self.group):
            return self.host
        number = torch.cuda.current_device() if device.index is None else device.index
        if number not in self._devices:
            with torch.cuda.device(number):
                self._devices[number] = _core.nccl_transport(self.host, _NCCL_SECONDS)
        return self._devices[number]

    def close(self) -> None:
        if self.process != os.getpid():
            return  # a fork has none of the threads
        for transport in self._devices.values():
            transport.poison("this rank closed the transport")
        self._devices.clear()
        self.host.close()


_connections: list[_Connection] = []


def transport(
    process_group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> Transport:
    """The transport of a process group (default: all ranks), made at the first call, then kept.

    The first call for a group is collective: all its ranks make it in the same order, as with
    ``torch.distributed.new_group``. It also ends those of groups that were destroyed. ``device``:
    where the memory lies that will be sent.
    Raises InvalidArgument where this process is not a member, or there is no group.
    """
    return _connection(_checked(process_group)).of(torch.device(device or "cpu"))


def with_message_sizes(
    options: ReducerOptions, ranks: Transport, parameters: Iterable[torch.Tensor]
) -> ReducerOptions:
    """Options for a reducer with messages as long as pay on this transport, unless they say."""
    if not isinstance(ranks, TorchTransport):
        return options
    least, most = _CHUNK_COUNTS
    count = min(max(least, _PART_COUNT * ranks.ranks), most)
    model_bytes = sum(one.numel() * one.element_size() for one in parameters)
    bucket_bytes = min(max(_LEAST_BUCKET_BYTES, model_bytes // _LEAST_BUCKETS), 4 * count)
    return {"chunk_count": count, "bucket_bytes": bucket_bytes, **options}


def close(process_group: dist.ProcessGroup | None = None) -> None:
    """Ends the transport of a group, where there is one; what still uses it gets TransportError.

    The next ``transport`` of the group makes another one. What is not closed ends with the
    interpreter.
    """
    for connection in [one for one in _connections if one.group is _checked(process_group)]:
        _connections.remove(connection)
        connection.close()


def _connection(group: dist.ProcessGroup) -> _Connection:
    for connection in _connections:
        if connection.group is group:
            return connection
    _close_orphans()
    _connections.append(_Connection(group))
    return _connections[-1]


def _close_orphans() -> None:
    """Ends what was made for groups that the trainer has destroyed since."""
    for connection in [one for one in _connections if not _is_alive(one.group)]:
        _connections.remove(connection)
        connection.close()


def _is_alive(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_backend(group)
    except ValueError:  # PyTorch does not know it any more
        return False
    return True


@atexit.register
def close_all() -> None:
    """Ends the transports of all groups, even where the end of one raises."""
    with contextlib.ExitStack() as ends:
        for connection in _connections:
            ends.callback(connection.close)
        _connections.clear()


def _checked(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if not dist.is_initialized():
        raise InvalidArgument(
            "there is no process group: call torch.distributed.init_process_group first"
        )
    group = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument("this process is not a member of the process group")
    return group


def _gloo_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new group of the same ranks; of a part of the world made by its members alone."""
    members = dist.get_process_group_ranks(group)
    own = dist.new_group(
        members,
        backend="gloo",
        use_local_synchronization=len(members) != dist.get_world_size(),
        group_desc="tersor",
    )
    assert isinstance(own, dist.ProcessGroup)  # this rank is a member
    return own


def _uses_nccl(group: dist.ProcessGroup) -> bool:
    return _core.has_nccl() and "nccl" in str(dist.get_backend_config(group))


def _host_name() -> tuple[str, str]:
    """Equal where ranks share a machine, or a container on one."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return socket.gethostname(), file.read()
    return socket.gethostname(), ""
