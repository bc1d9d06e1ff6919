"""The process group of all ranks of a launcher, for scripts without a process group."""

from __future__ import annotations

import atexit
import os
import re

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError, TransportError
from tersor.torch._src.process_group.connections import close, transport

# Variables of the rank, the number of ranks, and the rank on the host. A launcher that may start
# other launchers comes later. SLURM_NTASKS does not identify srun, because batch scripts have it.
_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
SOME_RANKS = "torch.distributed.new_group, and process_group= of the functions of tersor.torch"
_PORTS = range(15000, 30000)  # for Slurm jobs: below the ephemeral ports


class _State:
    group: dist.ProcessGroup | None = None
    owns_group = False
    local = (0, 1)  # on this host


def init(comm: None = None, process_sets: None = None) -> None:
    """Makes the process group of all ranks, or uses the existing one.

    torchrun, mpirun or srun start the ranks; without a launcher, there is one rank. The backend is
    gloo, and NCCL for CUDA devices. A second call does nothing.

    Args:
        comm: Horovod's argument; None.
        process_sets: Horovod's argument; None.

    Raises:
        InvalidArgumentError: An environment variable is missing, or an argument is not None.
        TransportError: A rank is late.

    Example:
        >>> hvd.init()
    """
    if comm is not None or process_sets is not None:
        raise InvalidArgumentError(f"hvd.init() takes all ranks: for some of them use {SOME_RANKS}")
    if is_initialized():
        return
    _State.owns_group = not dist.is_initialized()
    if _State.owns_group:
        _make_group()
        atexit.register(shutdown)
    _State.local = _find_local_rank_and_size()
    _State.group = dist.group.WORLD


def shutdown() -> None:
    """Closes the connections, and the process group if ``init`` made the group.

    Example:
        >>> hvd.shutdown()
    """
    if is_initialized():
        close()
        if _State.owns_group:
            dist.destroy_process_group()
    _State.group = None
    atexit.unregister(shutdown)


def is_initialized() -> bool:
    """Returns True between ``init`` and ``shutdown``.

    Example:
        >>> hvd.is_initialized()
        True
    """
    return _State.group is not None and _State.group is dist.group.WORLD


def rank() -> int:
    """Returns the rank of this process, from 0.

    Raises:
        InvalidArgumentError: ``init`` was not called.

    Example:
        >>> is_first = hvd.rank() == 0
    """
    local_rank_and_size()
    return dist.get_rank()


def size() -> int:
    """Returns the number of ranks.

    Raises:
        InvalidArgumentError: ``init`` was not called.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    """
    local_rank_and_size()
    return dist.get_world_size()


def local_rank() -> int:
    """Returns the rank of this process on this host, from 0.

    Raises:
        InvalidArgumentError: ``init`` was not called.

    Example:
        >>> torch.cuda.set_device(hvd.local_rank())
    """
    return local_rank_and_size()[0]


def local_size() -> int:
    """Returns the number of ranks on this host.

    Raises:
        InvalidArgumentError: ``init`` was not called.

    Example:
        >>> threads = os.cpu_count() // hvd.local_size()
    """
    return local_rank_and_size()[1]


def local_rank_and_size() -> tuple[int, int]:
    """Returns the rank on this host and the number of ranks on this host. Raises
    InvalidArgumentError before ``init``."""
    if not is_initialized():
        raise InvalidArgumentError("call hvd.init() first")
    return _State.local


def _make_group() -> None:
    """Makes the group of all ranks of the launcher, or of this process only."""
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    launcher, (rank, ranks, _) = _launched_ranks()
    if ranks == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        return dist.init_process_group(backend, store=store, rank=0, world_size=1)
    where = _rendezvous_address(launcher, ranks)
    try:
        dist.init_process_group(backend, rank=rank, world_size=ranks)
    except RuntimeError as error:
        raise TransportError(f"{ranks} ranks did not connect at {where}: {error}") from error


def _find_local_rank_and_size() -> tuple[int, int]:
    """Returns the rank on this host and the number of ranks on this host. A collective call."""
    ranks = transport()
    hosts, own = ranks.hosts(), ranks.hosts()[ranks.rank]
    _, (rank, count, local_rank) = _launched_ranks()
    if local_rank is None or (rank, count) != (ranks.rank, ranks.ranks):  # not of this group
        local_rank = hosts[: ranks.rank].count(own)
    return local_rank, hosts.count(own)


def _launched_ranks() -> tuple[str, tuple[int, int, int | None]]:
    """Returns the first launcher with variables, and rank, number of ranks, rank on this host."""
    for launcher, (rank, ranks, local) in _VARIABLES.items():
        if ranks in os.environ or (rank in os.environ and launcher != "srun"):
            local_rank = _number(local) if local in os.environ else None
            numbers = _number(rank), _number(ranks), local_rank
            if numbers[0] >= numbers[1]:
                raise InvalidArgumentError(f"{rank}={numbers[0]} is not below {ranks}={numbers[1]}")
            return launcher, numbers
    return "", (0, 1, None)


def _number(variable: str, default: str = "") -> int:
    text = os.environ.get(variable, default)
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"{variable} is {text!r}, not a number: start the script by torchrun, mpirun "
            "or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    return int(text)


def _rendezvous_address(launcher: str, ranks: int) -> str:
    """Sets the missing variables that PyTorch reads, and returns the address."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
    port = "29500"
    if nodes:
        job = _number("SLURM_JOB_ID", "0") + 97 * _number("SLURM_STEP_ID", "0")
        port = str(_PORTS[job % len(_PORTS)])
    address = os.environ.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise InvalidArgumentError(
            f"{launcher} sets no rendezvous for {ranks} ranks: set MASTER_ADDR to the name of rank "
            "0's host and MASTER_PORT to a free port there, the same on all ranks "
            "(mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500 …), or start the script by torchrun"
        )
    os.environ["MASTER_ADDR"] = address
    os.environ.setdefault("MASTER_PORT", port)
    return f"{address}:{_number('MASTER_PORT')}"


def first_host(nodes: str) -> str:
    """Returns the first host of Slurm's list: ``"node[03-07,9]-ib,login1"`` gives node03-ib."""
    first = re.split(r",(?![^\[]*\])", nodes, maxsplit=1)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)
