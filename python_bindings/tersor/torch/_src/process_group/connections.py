"""Transports of a process group of torch.distributed: the same ranks, separate connections.

Host memory is sent over TCP, whatever the backend of the process group is, so messages of Tersor
and of the training script never mix. Ranks exchange addresses in the group's store, and do not need
the store afterwards.

Device memory is sent over a separate communicator of PyTorch's NCCL if the process group uses NCCL
and this build of Tersor supports NCCL. Otherwise device memory is copied through the host.
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
from tersor.torch._src.process_group.rendezvous import Rendezvous

# Variables with this rank's address, the first one wins: TcpOptions::address; gloo's may be a list.
_ADDRESS_VARIABLES = ("TERSOR_TCP_ADDRESS", "GLOO_SOCKET_IFNAME")
_VARIABLES = {"secret": "TERSOR_SECRET", "protect": "TERSOR_TCP_PROTECT"}  # other options

# Values of a chunk per rank. With fewer values, the CPU time of more messages outweighs the overlap
# of more messages. Measured on four hosts that share a CPU.
_CHUNK_COUNT_PER_RANK = 1 << 19
_CHUNK_COUNTS = (1 << 20, 1 << 22)  # at least and at most
_MIN_BUCKET_BYTES = 1 << 20
_MIN_BUCKETS = 8  # of a model; fewer buckets leave nothing to send during the backward pass

Options = TypeVar("Options", ReducerOptions, CollectiveOptions, dict[str, Any])


@dataclass(frozen=True)
class Members:
    """The arguments of a rendezvous."""

    store: Any  # torch.distributed's
    rank: int
    ranks: int
    seconds: float  #: the group's time limit
    nccl: bool  #: True if device memory is sent over NCCL


class Connection:
    """The transports of one process group. Making a connection is a collective call, which raises
    TransportError with the rank if a rank is late."""

    def __init__(self, members: Members) -> None:
        self.process = os.getpid()
        self._members = members
        self._devices: dict[int, Transport] = {}
        self.host = _connect(members)

    def transport(self, device: torch.device) -> Transport:
        """Returns the transport for memory on a device. The first call is collective."""
        if device.type != "cuda" or not self._members.nccl:
            return self.host
        number = torch.cuda.current_device() if device.index is None else device.index
        if number not in self._devices:
            with torch.cuda.device(number):
                self._devices[number] = _core.nccl_transport(self.host, self._members.seconds)
        return self._devices[number]

    def abort(self, cause: str) -> None:
        """Ends the calls in progress on all ranks with a TransportError; for any thread."""
        for transport in (*self._devices.values(), self.host):
            transport.abort(cause)

    def close(self) -> None:
        if self.process != os.getpid():
            return  # a forked process has no threads
        for transport in self._devices.values():
            transport.abort("this rank closed the transport")
        self._devices.clear()
        self.host.close()


_connections: dict[dist.ProcessGroup, Connection] = {}


def transport(
    process_group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> Transport:
    """Returns the transport of a process group. The first call makes the transport.

    The first call per process group is collective: all its ranks call in the same order, as with
    ``torch.distributed.new_group``. The call also closes the transports of destroyed process
    groups.

    Args:
        process_group: The ranks. Default: all ranks.
        device: The device of the memory to send. Default: the host.

    Returns:
        A transport for the functions of :mod:`tersor`.

    Raises:
        InvalidArgumentError: This process is not a member, or there is no process group.
        TransportError: A rank is late; the message has the rank.

    Example:
        >>> reducer = tersor.GradientReducer(tersor.torch.transport(), codec="int8")
    """
    group = as_group(process_group)
    if group not in _connections:
        for destroyed in [one for one in _connections if not _is_alive(one)]:
            _connections.pop(destroyed).close()
        made, seconds = str(dist.get_backend_config(group)), seconds_of(group)
        nccl = _core.has_nccl() and ("nccl" in made or ("cuda:tersor" in made and nccl_usable()))
        members = Members(_store_of(group), group.rank(), group.size(), seconds, nccl)
        _connections[group] = Connection(members)
    return _connections[group].transport(torch.device(device or "cpu"))


def transport_of(process_group: dist.ProcessGroup | None, tensor: torch.Tensor) -> Transport:
    expect(tensor, torch.Tensor, "tensor must be a torch.Tensor")
    return transport(process_group, tensor.device)


def hosts_of(group: dist.ProcessGroup, hosts: Sequence[int]) -> list[int]:
    """Returns the host of each rank of the group, from the hosts of all ranks."""
    return [hosts[dist.get_global_rank(group, rank)] for rank in range(group.size())]


def with_message_sizes(
    options: ReducerOptions, ranks: Transport, parameters: Iterable[torch.Tensor]
) -> ReducerOptions:
    """Returns the options with the transport's message sizes as defaults."""
    if not isinstance(ranks, TcpTransport):
        return options
    count = chunk_count(ranks.ranks)
    model_bytes = sum(one.numel() * one.element_size() for one in parameters)
    bucket_bytes = min(max(_MIN_BUCKET_BYTES, model_bytes // _MIN_BUCKETS), 4 * count)
    return {"chunk_count": count, "bucket_bytes": bucket_bytes, **options}


def chunk_count(ranks: int) -> int:
    """Returns the values per chunk for a number of ranks over TCP."""
    least, most = _CHUNK_COUNTS
    return min(max(least, _CHUNK_COUNT_PER_RANK * ranks), most)


def seconds_of(process_group: dist.ProcessGroup | None = None) -> float:
    """Returns the time limit that ``init_process_group`` or ``new_group`` got, in seconds."""
    group = as_group(process_group)
    limits = [one.total_seconds() for one in _compat.timeouts_of(group)]
    # In PyTorch, 0 means no limit.
    return max(limits, default=_store_of(group).timeout.total_seconds()) or math.inf


def with_timeout(options: Options, process_group: dist.ProcessGroup | None) -> Options:
    """Returns the options with the group's time limit as the default ``timeout``."""
    return cast(Options, {"timeout": seconds_of(process_group), **options})


def close(process_group: dist.ProcessGroup | None = None) -> None:
    """Closes the transport of a process group. Objects that use it raise TransportError.

    The next call of :func:`transport` makes a new transport. At exit, Python closes all transports.

    Args:
        process_group: The ranks. Default: all ranks.

    Raises:
        InvalidArgumentError: This process is not a member, or there is no process group.

    Example:
        >>> tersor.torch.close()
    """
    if (group := as_group(process_group)) in _connections:
        _connections.pop(group).close()


def _is_alive(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_backend(group)
    except ValueError:  # the group was destroyed
        return False
    return True


@atexit.register
def close_all() -> None:
    """Closes the transports of all groups, also if a close raises."""
    with contextlib.ExitStack() as ends:
        for connection in _connections.values():
            ends.callback(connection.close)
        _connections.clear()


def as_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns the group, by default of all ranks. Raises InvalidArgumentError if this process is
    not a member or there is no process group, and TypeError for an argument of another type."""
    if not dist.is_initialized():
        raise InvalidArgumentError(
            "there is no process group: call torch.distributed.init_process_group first"
        )
    group = dist.group.WORLD if process_group is None else process_group
    wanted = "process_group must be one of torch.distributed.new_group or mesh.get_group()"
    expect(group, (dist.ProcessGroup, int), wanted)  # int: a process outside of the group
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgumentError("this process is not a member of the process group")
    return group


def _connect(members: Members) -> TcpTransport:
    rank, ranks, seconds = members.rank, members.ranks, members.seconds
    variable, address = _own_address()
    rendezvous = Rendezvous(members.store, rank, ranks)
    try:
        rendezvous.join(seconds)
        own = {key: os.environ[name] for key, name in _VARIABLES.items() if name in os.environ}
        return TcpTransport(rendezvous, rank, ranks, address, seconds, **own)
    except Exception as error:
        rendezvous.report_failure(str(error))
        if not isinstance(error, AddressError):
            raise
        if not address:
            raise AddressError(f"{error} ({_ADDRESS_VARIABLES[0]})") from None
        raise AddressError(
            f"{error}. {variable} is {address}: give an active interface (eth0), an address or a "
            "name of this host, or nothing"
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
    """Returns the variable with this rank's address, and the address; empty without one."""
    for variable in _ADDRESS_VARIABLES:
        if address := os.environ.get(variable, "").split(",")[0].strip():
            return variable, address
    return "", ""


def nccl_usable() -> bool:
    """True if the backend ``tersor`` passes device memory on to NCCL."""
    return dist.is_nccl_available() and torch.cuda.is_available()
