"""The process group of all ranks that a launcher started, for scripts that make none."""

from __future__ import annotations

import atexit
import os
import re

import torch
import torch.distributed as dist

from tersor._core import InvalidArgumentError, TransportError
from tersor.torch._src.process_group.connections import close, transport

# Of a rank, of all ranks, and of a rank on its host. Who may start others comes later. srun's is
# not SLURM_NTASKS, which a batch script has, too: that is one process.
_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
SOME_RANKS = "torch.distributed.new_group, and process_group= of the functions of tersor.torch"
_PORTS = range(15000, 30000)  # of jobs of Slurm: below those that systems give away


class _World:
    group: dist.ProcessGroup | None = None
    made_here = False
    place = (0, 1)  # on this host


def init(comm: None = None, process_sets: None = None) -> None:
    """Makes the process group of all ranks that torchrun, mpirun or srun started (else of one), or
    takes the one that is there. A second call does nothing.

    gloo's, and on CUDA devices NCCL's. Raises InvalidArgumentError where a variable is missing,
    which it names, and for ``comm`` or ``process_sets``; TransportError where ranks do not come.
    """
    if comm is not None or process_sets is not None:
        raise InvalidArgumentError(f"hvd.init() takes all ranks: for some of them use {SOME_RANKS}")
    if is_initialized():
        return
    _World.made_here = not dist.is_initialized()
    if _World.made_here:
        _make_group()
        atexit.register(shutdown)
    _World.place = _local_place()
    _World.group = dist.group.WORLD


def shutdown() -> None:
    """Ends connections, and the process group where ``init`` made it."""
    if is_initialized():
        close()
        if _World.made_here:
            dist.destroy_process_group()
    _World.group = None
    atexit.unregister(shutdown)


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` not since."""
    return _World.group is not None and _World.group is dist.group.WORLD


def rank() -> int:
    """This process's number, from 0."""
    place()
    return dist.get_rank()


def size() -> int:
    """How many ranks there are."""
    place()
    return dist.get_world_size()


def local_rank() -> int:
    """This process's number among those of its host."""
    return place()[0]


def local_size() -> int:
    """How many ranks this host has."""
    return place()[1]


def place() -> tuple[int, int]:
    """On this host: this process's number, and how many ranks. Raises InvalidArgumentError before
    ``init``."""
    if not is_initialized():
        raise InvalidArgumentError("call hvd.init() first")
    return _World.place


def _make_group() -> None:
    """Of all ranks that a launcher started, else of this process alone."""
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    launcher, (rank, ranks, _) = _told_place()
    if ranks == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        return dist.init_process_group(backend, store=store, rank=0, world_size=1)
    where = _meeting_point(launcher, ranks)
    try:
        dist.init_process_group(backend, rank=rank, world_size=ranks)
    except RuntimeError as error:
        raise TransportError(f"{ranks} ranks did not connect at {where}: {error}") from error


def _local_place() -> tuple[int, int]:
    """This rank's number among those of its host, and how many there are. A collective call."""
    ranks = transport()
    hosts, own = ranks.hosts(), ranks.hosts()[ranks.rank]
    _, (rank, count, local_rank) = _told_place()
    if local_rank is None or (rank, count) != (ranks.rank, ranks.ranks):  # not of this group
        local_rank = hosts[: ranks.rank].count(own)
    return local_rank, hosts.count(own)


def _told_place() -> tuple[str, tuple[int, int, int | None]]:
    """The first launcher that said something, and what: rank, ranks, rank on this host."""
    for launcher, (rank, ranks, local) in _VARIABLES.items():
        if ranks in os.environ or (rank in os.environ and launcher != "srun"):
            local_rank = _number(local) if local in os.environ else None
            place = _number(rank), _number(ranks), local_rank
            if place[0] >= place[1]:
                raise InvalidArgumentError(f"{rank}={place[0]} is not below {ranks}={place[1]}")
            return launcher, place
    return "", (0, 1, None)


def _number(variable: str, default: str = "") -> int:
    text = os.environ.get(variable, default)
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"{variable} is {text!r}, not a number: start the script by torchrun, mpirun "
            "or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    return int(text)


def _meeting_point(launcher: str, ranks: int) -> str:
    """Fills in what is missing of the variables that PyTorch reads."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
    port = "29500"
    if nodes:
        job = _number("SLURM_JOB_ID", "0") + 97 * _number("SLURM_STEP_ID", "0")
        port = str(_PORTS[job % len(_PORTS)])
    address = os.environ.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise InvalidArgumentError(
            f"{launcher} does not say where {ranks} ranks meet: set MASTER_ADDR to a name of rank "
            "0's host and MASTER_PORT to a free port there, the same on all ranks "
            "(mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500 …), or start the script by torchrun"
        )
    os.environ["MASTER_ADDR"] = address
    os.environ.setdefault("MASTER_PORT", port)
    return f"{address}:{_number('MASTER_PORT')}"


def first_host(nodes: str) -> str:
    """Of a list in Slurm's words: ``"node[03-07,9]-ib,login1"`` begins with node03-ib."""
    found = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\])?([^\[,]*)", nodes)
    return "".join(found.groups("")) if found else nodes
