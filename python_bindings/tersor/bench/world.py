"""The processes of a benchmark: who they are, and how they meet."""

import dataclasses
import datetime
import os
import pathlib

import torch
import torch.distributed as dist

from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record

PATIENCE = datetime.timedelta(minutes=10)  # until a rank that does not come is given up


@dataclasses.dataclass(frozen=True)
class World:
    """This process among all that were started."""

    rank: int
    ranks: int
    ranks_here: int  # on this host
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    @property
    def backend(self) -> str:
        """What `torch.distributed` sends by."""
        return dist.get_backend()

    def described(self, link: str) -> Record:
        """For records. ``link``: what the user calls the ranks' network."""
        on_gpu = self.device.type == "cuda"
        return {
            "transport": self.backend,
            "ranks": self.ranks,
            "link": link,
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "torch": torch.__version__,
        }

    def meet(self) -> None:
        """Returns once all ranks, and what they queued on their devices, have come here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier()

    def mean(self, values: list[float]) -> list[float]:
        """Over the ranks, value by value."""
        return [value / self.ranks for value in self.total(values)]

    def mean_of(self, values: torch.Tensor) -> torch.Tensor:
        """Over the ranks, in `values` itself."""
        dist.all_reduce(values)
        return values.div_(self.ranks)

    def total(self, values: list[float]) -> list[float]:
        """Over the ranks, value by value."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def slowest(self, values: list[float]) -> list[float]:
        """The greatest of all ranks, value by value."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def same_everywhere(self, values: torch.Tensor) -> bool:
        """Whether all ranks hold the bits that rank 0 holds."""
        reference = values.detach().clone()
        dist.broadcast(reference, src=0)
        differs = not torch.equal(_bits(reference), _bits(values.detach()))
        return self.total([float(differs)]) == [0.0]

    def _reduced(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(reduced, op=operation)
        return [float(value) for value in reduced]


def _bits(values: torch.Tensor) -> torch.Tensor:
    """A NaN is equal to itself then."""
    return values.contiguous().view(torch.uint8)


def started_by_launcher() -> bool:
    """Whether this process is a rank already: of torchrun, or of our own launcher."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def enter(device_type: str, threads: int | None, backend: str | None = None) -> World:
    """Joins the default group: NCCL where each rank here has a GPU of its own, else gloo, unless
    the caller says."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = _own_device(device_type)
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // ranks_here))
    alone = device.type == "cuda" and torch.cuda.device_count() >= ranks_here
    dist.init_process_group(backend or ("nccl" if alone else "gloo"), timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size(), ranks_here, device)


def shared_gpu_environment(rank: int, ranks_here: int) -> dict[str, str]:
    """What lets NCCL take several ranks on one GPU: each seems to be on a host of its own."""
    if not torch.cuda.is_available() or torch.cuda.device_count() >= ranks_here:
        return {}
    return {
        "NCCL_HOSTID": f"tersor-rank-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": "2",
    }


def _own_device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BenchmarkError("--device cuda: PyTorch finds no GPU here")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


class NetworkInterface:
    """The kernel's count of what went out by the interface that gloo uses, headers included.

    An interface is shared by the ranks of a network namespace: on one host without namespaces it is
    the loopback, by which all ranks send.
    """

    def __init__(self) -> None:
        self.name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")

    def sent_bytes(self) -> int:
        """Since the interface exists."""
        for line in pathlib.Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.name:
                return int(counters.split()[8])  # eight columns of what was received come first
        return 0
