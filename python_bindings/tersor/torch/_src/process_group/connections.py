"""The trainer's process group as a transport: the same ranks, connections of our own.

Host memory goes over TCP, whatever backend the trainer's group has, so that no message of ours
meets one of the trainer's. Ranks find each other by the group's store, and need it no more.

Device memory goes over a communicator of our own of PyTorch's NCCL, where the trainer's group uses
NCCL and this build of Tersor knows it; else by way of the host.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from tersor import _core
from tersor._core import AddressError, InvalidArgumentError, TcpTransport, Transport
from tersor._options import expect
from tersor.collectives import CollectiveOptions
from tersor.reducer import ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.process_group.rendezvous import Meeting

# What says where this rank listens, best first: TcpOptions::address, but gloo's may be a list.
_ADDRESS_VARIABLES = ("TERSOR_TCP_ADDRESS", "GLOO_SOCKET_IFNAME")
_VARIABLES = {"secret": "TERSOR_SECRET", "protect": "TERSOR_TCP_PROTECT"}  # other options

# Values of a chunk that each rank gets: in shorter messages, what a message costs the processor
# outweighs the overlap that more of them give. Measured on four hosts that share a processor.
_PART_COUNT = 1 << 19
_CHUNK_COUNTS = (1 << 20, 1 << 22)  # at least and at most
_LEAST_BUCKET_BYTES = 1 << 20
_LEAST_BUCKETS = 8  # of a model: with fewer, nothing is left to send while the pass computes

Options = TypeVar("Options", ReducerOptions, CollectiveOptions, dict[str, Any])


@dataclass(frozen=True)
class Members:
    """The ranks of a group, as far as they need to know each other to meet."""

    store: Any  # torch.distributed's
    rank: int
    ranks: int
    seconds: float  #: the group's time limit
    nccl: bool  #: whether device memory goes over NCCL


class Connection:
    """What was made for one group of the trainer's. Making it is a collective call.

    Raises TransportError that names a rank which does not come in the group's time.
    """

    def __init__(self, members: Members) -> None:
        self.process = os.getpid()
        self._members = members
        self._devices: dict[int, Transport] = {}
        self.host = _meet(members)

    def of(self, device: torch.device) -> Transport:
        """The transport for memory on a device, which is made by the first call; collective."""
        if device.type != "cuda" or not self._members.nccl:
            return self.host
        number = torch.cuda.current_device() if device.index is None else device.index
        if number not in self._devices:
            with torch.cuda.device(number):
                self._devices[number] = _core.nccl_transport(self.host, self._members.seconds)
        return self._devices[number]

    def poison(self, cause: str) -> None:
        """Ends what is under way, on all ranks, with this as its TransportError; any thread."""
        for transport in (*self._devices.values(), self.host):
            transport.poison(cause)

    def close(self) -> None:
        if self.process != os.getpid():
            return  # a fork has none of the threads
        for transport in self._devices.values():
            transport.poison("this rank closed the transport")
        self._devices.clear()
        self.host.close()


_connections: dict[dist.ProcessGroup, Connection] = {}


def transport(
    process_group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> Transport:
    """The transport of a process group (default: all ranks), made at the first call, then kept.

    The first call for a group is collective: all its ranks make it in the same order, as with
    ``torch.distributed.new_group``. It also ends those of groups that were destroyed. ``device``:
    where the memory lies that will be sent.
    Raises InvalidArgumentError where this process is not a member, or there is no group.
    """
    group = checked(process_group)
    if group not in _connections:
        for gone in [one for one in _connections if not _is_alive(one)]:  # the trainer's doing
            _connections.pop(gone).close()
        members = Members(
            _store_of(group), group.rank(), group.size(), seconds_of(group), _uses_nccl(group)
        )
        _connections[group] = Connection(members)
    return _connections[group].of(torch.device(device or "cpu"))


def ranks_of(process_group: dist.ProcessGroup | None, tensor: torch.Tensor) -> Transport:
    """The transport for a tensor."""
    expect(tensor, torch.Tensor, "tensor must be a torch.Tensor")
    return transport(process_group, tensor.device)


def hosts_of(group: dist.ProcessGroup, hosts: Sequence[int]) -> list[int]:
    """Of the ranks of a group, of the hosts of all ranks."""
    return [hosts[dist.get_global_rank(group, rank)] for rank in range(group.size())]


def with_message_sizes(
    options: ReducerOptions, ranks: Transport, parameters: Iterable[torch.Tensor]
) -> ReducerOptions:
    """Options for a reducer with messages as long as pay on this transport, unless they say."""
    if not isinstance(ranks, TcpTransport):
        return options
    count = chunk_count(ranks.ranks)
    model_bytes = sum(one.numel() * one.element_size() for one in parameters)
    bucket_bytes = min(max(_LEAST_BUCKET_BYTES, model_bytes // _LEAST_BUCKETS), 4 * count)
    return {"chunk_count": count, "bucket_bytes": bucket_bytes, **options}


def chunk_count(ranks: int) -> int:
    """Values of a chunk that pay among so many ranks over TCP."""
    least, most = _CHUNK_COUNTS
    return min(max(least, _PART_COUNT * ranks), most)


def seconds_of(process_group: dist.ProcessGroup | None = None) -> float:
    """The group's time limit, as ``init_process_group`` or ``new_group`` was told."""
    group = checked(process_group)
    told = [one.total_seconds() for one in _compat.timeouts_of(group)]
    # PyTorch's word for no limit is 0.
    return max(told, default=_store_of(group).timeout.total_seconds()) or math.inf


def with_timeout(options: Options, process_group: dist.ProcessGroup | None) -> Options:
    """Options with the group's time limit, unless they say one."""
    return cast(Options, {"timeout": seconds_of(process_group), **options})


def close(process_group: dist.ProcessGroup | None = None) -> None:
    """Ends the transport of a group, where there is one; what still uses it gets TransportError.

    The next ``transport`` of the group makes another one. What is not closed ends with the
    interpreter.
    """
    if (group := checked(process_group)) in _connections:
        _connections.pop(group).close()


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
        for connection in _connections.values():
            ends.callback(connection.close)
        _connections.clear()


def checked(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group itself; default: of all ranks. Raises what says that it is none."""
    if not dist.is_initialized():
        raise InvalidArgumentError(
            "there is no process group: call torch.distributed.init_process_group first"
        )
    group = dist.group.WORLD if process_group is None else process_group
    expect(
        group,
        (dist.ProcessGroup, int),  # PyTorch's word for no member is a number
        "process_group must be one of torch.distributed.new_group or mesh.get_group()",
    )
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgumentError("this process is not a member of the process group")
    return group


def _meet(members: Members) -> TcpTransport:
    rank, ranks, seconds = members.rank, members.ranks, members.seconds
    variable, address = _own_address()
    meeting = Meeting(members.store, rank, ranks)
    try:
        meeting.join(seconds)
        told = {key: os.environ[name] for key, name in _VARIABLES.items() if name in os.environ}
        return TcpTransport(meeting, rank, ranks, address, seconds, **told)
    except Exception as error:
        meeting.give_up(str(error))
        if not isinstance(error, AddressError):
            raise
        if not address:
            raise AddressError(f"{error} ({_ADDRESS_VARIABLES[0]})") from None
        raise AddressError(
            f"{error}. {variable} says {address}: give an interface that is up (eth0), an address "
            "or a name of this host, or nothing"
        ) from None


def _store_of(group: dist.ProcessGroup) -> Any:
    store: Any = cast(Any, group).get_group_store()
    if store is None:
        raise InvalidArgumentError(
            "the process group has no store for the rendezvous of its ranks: initialise "
            "torch.distributed with another backend than MPI"
        )
    return store


def _own_address() -> tuple[str, str]:
    """Where this rank is to listen, and which variable says so; empty where none does."""
    for variable in _ADDRESS_VARIABLES:
        if address := os.environ.get(variable, "").split(",")[0].strip():
            return variable, address
    return "", ""


def _uses_nccl(group: dist.ProcessGroup) -> bool:
    made = str(dist.get_backend_config(group))
    return _core.has_nccl() and ("nccl" in made or ("cuda:tersor" in made and nccl_is_there()))


def nccl_is_there() -> bool:
    """Whether the back end ``tersor`` hands what lies on devices on to NCCL."""
    return dist.is_nccl_available() and torch.cuda.is_available()
