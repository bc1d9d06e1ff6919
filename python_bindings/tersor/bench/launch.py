"""Starts this program once more for each rank, and looks after them until they end."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection

import torch.distributed as dist

from tersor.bench import world as worlds
from tersor.bench.world import World

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0  # between asking a process to end and ending it


def run_on_ranks(
    body: Callable[[argparse.Namespace, World], None], chosen: argparse.Namespace
) -> int:
    """Starts the ranks, or is one of them, which calls ``body``. Returns the exit status."""
    if not worlds.started_by_launcher():
        return run_ranks(chosen.ranks, sys.argv[1:], chosen.timeout)
    world = worlds.enter(chosen.device, chosen.threads, chosen.backend)
    try:
        body(chosen, world)
    finally:
        dist.destroy_process_group()
    return 0


def run_ranks(ranks: int, arguments: list[str], timeout_seconds: float) -> int:
    """Runs ``python -m tersor.bench ARGUMENTS`` as so many processes of this host.

    Returns the first exit status that is not 0, after ending the others; 124 after the timeout.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    command = [sys.executable, "-m", "tersor.bench", *arguments]
    processes = [
        subprocess.Popen(command, env={**os.environ, **environment(rank, ranks, store.port)})
        for rank in range(ranks)
    ]
    try:
        return _wait(processes, time.monotonic() + timeout_seconds)
    finally:
        end(processes)


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets: torch.distributed reads it. The store is the launcher's."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **worlds.shared_gpu_environment(rank, ranks),
    }


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> int:
    while time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        failures = [status for status in states if status]
        if failures or None not in states:
            return failures[0] if failures else 0
        time.sleep(POLL_SECONDS)
    print("tersor.bench: out of time; raise --timeout SECONDS", file=sys.stderr)
    return 124


def end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """None is left behind."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
