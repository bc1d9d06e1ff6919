"""torchft's ways, for ``goodput``: over our process group, and with a lighthouse of its own."""

import argparse
import subprocess
import sys
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist

from tersor.bench.errors import BenchmarkError
from tersor.bench.goodput_pace import Pace

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


class Lighthouse:
    """By which replicas find each other; a process, since it writes a line at each call."""

    def __init__(self, chosen: argparse.Namespace, log: IO[bytes]) -> None:
        """Raises BenchmarkError where it does not start."""
        told = [str(round(1000 * one)) for one in (chosen.grace, chosen.heartbeat)]
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _LIGHTHOUSE, *told]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        if not self.address:
            raise BenchmarkError("torchft's lighthouse did not start")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def ddp(pace: Pace, chosen: argparse.Namespace) -> None:
    """Its DistributedDataParallel and Optimizer."""
    import torchft

    manager = _managed(pace, chosen, use_async_quorum=True)
    pace.run_by(
        torchft.DistributedDataParallel(manager, pace.model), torchft.Optimizer(manager, pace.inner)
    )
    pace.begin()
    while True:
        before = manager.current_step()
        pace.backward()
        pace.inner.step()
        if manager.current_step() == before + 1:
            pace.count(1)


def diloco(pace: Pace, chosen: argparse.Namespace) -> None:
    """Its DiLoCo, which waits for who is late as long as the lighthouse does."""
    from torchft.local_sgd import DiLoCo

    manager = _managed(pace, chosen, use_async_quorum=False)
    outer = torch.optim.SGD(pace.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    made = DiLoCo(
        manager, [pace.model], pace.inner, outer, sync_every=chosen.every, pin_memory=False
    )
    pace.begin()
    with made:
        while True:
            before = manager.current_step()
            pace.backward()
            pace.inner.step()
            if manager.current_step() == before + 1:  # else it took the others' weights
                pace.count(chosen.every)


def _managed(pace: Pace, chosen: argparse.Namespace, *, use_async_quorum: bool) -> Any:
    import torchft

    from tersor.torch.ft import ProcessGroupTersor

    group = ProcessGroupTersor(
        torchft.ProcessGroupGloo(timeout=_LIMIT), chosen.codec, timeout=_LIMIT.total_seconds()
    )
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    manager = torchft.Manager(
        pg=group,
        min_replica_size=1,
        use_async_quorum=use_async_quorum,
        load_state_dict=pace.model.load_state_dict,
        state_dict=pace.model.state_dict,
        replica_id=f"replica_{pace.rank}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=_LIMIT,
        quorum_timeout=_LIMIT,
        hostname="127.0.0.1",
    )
    manager.store = store  # lives as long
    group.follow(manager)
    return manager
