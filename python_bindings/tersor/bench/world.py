"""The processes of a benchmark: start, ranks, and common options."""

import argparse
import contextlib
import dataclasses
import datetime
import logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, add, positive

RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=10)
POLL_SECONDS = 0.05


def add_world(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    add(parser, "ranks", 2, "processes to start here; under torchrun, torchrun's processes")
    kinds = ["cpu", "cuda"]
    add(parser, "device", kinds[cuda], "device of the models", choices=kinds)
    text = "of torch.distributed; default: nccl if each rank here has a GPU of its own, else gloo"
    add(parser, "backend", None, text, choices=["gloo", "nccl"])
    add(parser, "threads", None, "threads of each rank; default: cores / ranks here", positive)
    text = "seconds until the ranks are ended"
    add(parser, "timeout", 3600.0, text, float, metavar="SECONDS")
    add(parser, "link", "none", "name of the network, for the records", metavar="NAME")


# Until the process ends. Callbacks of futures hold the group, as in PyTorch's PowerSGD. If a thread
# of gloo frees the last reference, PyTorch 2.15 joins this thread and aborts.
_groups: list[Any] = []


@contextlib.contextmanager
def single_rank_group() -> Iterator[None]:
    """A process group of one rank."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclasses.dataclass(frozen=True)
class World:
    """This process among all processes of the benchmark."""

    rank: int
    ranks: int
    ranks_here: int  # on this host
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True if this rank prints and writes."""
        return self.rank == 0

    def fields(self, link: str) -> Record:
        """The fields of a record. ``link`` is the user's name of the network."""
        on_gpu = self.device.type == "cuda"
        return {
            "transport": dist.get_backend(),
            "ranks": self.ranks,
            "link": link,
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "torch": torch.__version__,
        }

    def synchronize(self) -> None:
        """Waits for all ranks, and for the work on each rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier()

    def mean(self, values: list[float]) -> list[float]:
        return [value / self.ranks for value in self.total(values)]

    def total(
        self, values: list[float], operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> list[float]:
        """The sums over the ranks."""
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(reduced, op=operation)
        return [float(value) for value in reduced]

    def slowest(self, values: list[float]) -> list[float]:
        """The maxima over the ranks."""
        return self.total(values, dist.ReduceOp.MAX)

    def same_on_all_ranks(self, values: torch.Tensor) -> bool:
        """True if all ranks hold the same bits; equal NaNs count as equal."""
        own, reference = values.detach().contiguous(), values.detach().clone().contiguous()
        dist.broadcast(reference, src=0)
        differs = not torch.equal(reference.view(torch.uint8), own.view(torch.uint8))
        return self.total([float(differs)]) == [0.0]


def run_on_ranks(
    body: Callable[[argparse.Namespace, World], None], chosen: argparse.Namespace
) -> int:
    """Starts the ranks or, in a rank, calls ``body``. Returns the exit status."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # of torchrun and of _run_ranks
        return _run_ranks(chosen.ranks, sys.argv[1:], chosen.timeout)
    world = join(chosen.device, chosen.threads, chosen.backend)
    try:
        body(chosen, world)
    finally:
        _groups.append(dist.group.WORLD)
        dist.destroy_process_group()
    return 0


def join(device_type: str, threads: int | None, backend: str | None = None) -> World:
    """Joins the default group: by default, NCCL if each rank here has a GPU, otherwise gloo."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if device_type == "cuda":
        if not torch.cuda.is_available():
            raise BenchmarkError("--device cuda: PyTorch finds no GPU here")
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // ranks_here))
    own_gpu = device.type == "cuda" and torch.cuda.device_count() >= ranks_here
    dist.init_process_group(backend or ("nccl" if own_gpu else "gloo"), timeout=RENDEZVOUS_TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size(), ranks_here, device)


def local_store(address: str = "127.0.0.1") -> Any:
    """A store of torch.distributed in this process, at a free port."""
    kind: Any = dist.TCPStore  # type: ignore[attr-defined]
    return kind(address, 0, is_master=True, wait_for_workers=False)


def _run_ranks(ranks: int, arguments: list[str], timeout_seconds: float) -> int:
    """Runs ``python -m tersor.bench ARGUMENTS`` as processes of this host. Returns the first
    nonzero exit status, after ending the other processes, or 0. Returns 124 after the timeout."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # ranks report
    store, command = local_store(), ("-m", "tersor.bench", *arguments)
    environments = {rank: environment(rank, ranks, store.port) for rank in range(ranks)}
    no_logs, commands = DefaultLogsSpecs(os.devnull), dict.fromkeys(environments, command)
    run = start_processes("tersor.bench", sys.executable, commands, environments, no_logs)
    try:
        done = run.wait(timeout_seconds, POLL_SECONDS)
    finally:
        run.close()
    if done is None:
        print("tersor.bench: out of time; raise --timeout SECONDS", file=sys.stderr)
        return 124
    return next((one.exitcode for one in done.failures.values()), 0)


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables of torchrun for torch.distributed. The launcher has the store. If ranks share a
    GPU, each rank claims a separate host. Otherwise, NCCL refuses the ranks."""
    variables = {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    if torch.cuda.is_available() and torch.cuda.device_count() < ranks:
        variables |= {
            "NCCL_HOSTID": f"tersor-rank-{rank}",
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MAX_CTAS": "2",
        }
    return variables


def interface_bytes() -> int:
    """The bytes sent by the kernel through gloo's interface, including headers.

    The ranks of a network namespace share an interface. Without namespaces, all ranks send through
    the loopback.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    text = pathlib.Path("/proc/self/net/dev").read_text(encoding="utf-8")
    found = re.search(rf"^ *{re.escape(interface)}:(.*)", text, re.MULTILINE)
    return int(found[1].split()[8]) if found else 0  # eight columns of received data come first
