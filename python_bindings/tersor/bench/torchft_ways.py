"""torchft's ways, over Tersor's process group. ``goodput`` has a lighthouse of its own."""

import argparse
import subprocess
import sys
from datetime import timedelta
from typing import IO, Any

import torch

from tersor.bench.errors import BenchmarkError
from tersor.bench.world import local_store

_LIMIT = timedelta(seconds=60)
_LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0",
    min_replicas=1,
    join_timeout_ms=int(sys.argv[1]),
    heartbeat_timeout_ms=int(sys.argv[2]),
)
print(server.address(), flush=True)
sys.stdin.read()
"""


def manager(
    codec: str | None, fragments: int, address: str, limit: timedelta, **options: Any
) -> Any:
    """torchft's manager of this rank. Without ``codec``, gloo sends. Raises BenchmarkError without
    torchft."""
    try:
        import torchft
    except ModuleNotFoundError as error:
        raise BenchmarkError("torchft=…: pip install torchft") from error
    group = torchft.ProcessGroupGloo(timeout=limit)
    if codec:
        from tersor.torch.ft import ProcessGroupTersor

        group = ProcessGroupTersor(group, codec, timeout=limit.total_seconds())
    store = local_store(address)
    options |= {"store_addr": address, "store_port": store.port, "hostname": address}
    options |= {"timeout": limit, "quorum_timeout": limit, "rank": 0, "world_size": 1}
    made = torchft.Manager(pg=group, **options)
    made.store = store  # lives as long as the manager
    if codec:
        group.follow(made, fragments)
    return made


class Lighthouse:
    """torchft's lighthouse, where replicas find each other: a process that writes a log line at
    each call."""

    def __init__(self, chosen: argparse.Namespace, log: IO[bytes]) -> None:
        """Raises BenchmarkError if the process does not start."""
        limits = [str(round(1000 * one)) for one in (chosen.grace, chosen.heartbeat)]
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _LIGHTHOUSE, *limits]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        if not self.address:
            raise BenchmarkError("torchft's lighthouse did not start")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def ddp(pace: Any, chosen: argparse.Namespace) -> None:
    """torchft's DistributedDataParallel and Optimizer."""
    import torchft

    own = _managed(pace, chosen, use_async_quorum=True)
    pace.model = torchft.DistributedDataParallel(own, pace.model)
    pace.inner = torchft.Optimizer(own, pace.inner)
    _train(pace, own, 1)


def diloco(pace: Any, chosen: argparse.Namespace) -> None:
    """torchft's DiLoCo, which waits for late replicas as long as the lighthouse does."""
    from torchft.local_sgd import DiLoCo

    own = _managed(pace, chosen, use_async_quorum=False)
    outer = torch.optim.SGD(pace.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    every = chosen.every
    with DiLoCo(own, [pace.model], pace.inner, outer, sync_every=every, pin_memory=False):
        _train(pace, own, every)


def _train(pace: Any, own: Any, steps: int) -> None:
    """Each step of the manager counts as ``steps``."""
    pace.begin()
    while True:
        before = own.current_step()
        pace.backward()
        pace.inner.step()
        if own.current_step() == before + 1:  # otherwise it took the others' weights
            pace.count(steps)


def _managed(pace: Any, chosen: argparse.Namespace, **options: Any) -> Any:
    options |= {"min_replica_size": 1, "replica_id": f"replica_{pace.rank}"}
    model = pace.model
    options |= {"load_state_dict": model.load_state_dict, "state_dict": model.state_dict}
    return manager(chosen.codec, 1, "127.0.0.1", _LIMIT, **options)
