"""The ranks of scripts for Horovod, by the variables of launchers."""

from __future__ import annotations

import contextlib
import os
import socket
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from test_hvd import started

import ranks
import tersor
import tersor.torch.hvd as hvd
from tersor.torch._src.hvd import launcher as world


def variables(launcher: str, rank: int, count: int, port: int) -> dict[str, str]:
    own, every, local = world._VARIABLES[launcher]
    told = {own: str(rank), every: str(count), "MASTER_PORT": str(port)}
    if launcher == "srun":
        return {**told, "SLURM_STEP_NODELIST": "localhost"}
    return {**told, "MASTER_ADDR": "localhost", local: str(count - 1 - rank)}


def place_under(rank: int, count: int, launcher: str, ports: list[int]) -> tuple[int, ...]:
    """Returns the place of this rank. The rank calls ``init`` and ``shutdown`` for each port."""
    for port in ports:
        with mock.patch.dict(os.environ, variables(launcher, rank, count, port), clear=True):
            assert not hvd.is_initialized()
            with started():
                hvd.init()
                place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
                assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2, 2]
            assert not dist.is_initialized()
    return place


def free_ports() -> list[int]:
    with contextlib.ExitStack() as servers:
        both = [servers.enter_context(socket.create_server(("localhost", 0))) for _ in range(2)]
        return [one.getsockname()[1] for one in both]


@pytest.mark.parametrize("launcher", world._VARIABLES)
def test_launcher_variables_set_ranks_and_sizes(launcher: str) -> None:
    for _ in range(3):
        found = ranks.outcomes(place_under, 2, launcher, free_ports(), group=False)
        if not any("failed to listen" in one.traceback for one in found):
            break  # else somebody else took the port meanwhile
    local = [0, 1] if launcher == "srun" else [1, 0]
    assert [one.value for one in found] == [(0, 2, local[0], 2), (1, 2, local[1], 2)], found


def places_of_two_groups(_: int, __: int) -> list[int]:
    """The trainer makes and destroys a process group several times, without notice to Tersor."""
    sizes = []
    for port in free_ports():
        dist.init_process_group("gloo", f"tcp://localhost:{port}", rank=0, world_size=1)
        assert not hvd.is_initialized()
        hvd.init()
        sizes.append(hvd.size())
        dist.destroy_process_group()
        assert not hvd.is_initialized()
    return sizes


def test_existing_process_group_is_used() -> None:
    (found,) = ranks.outcomes(places_of_two_groups, 1, group=False)
    assert found.value == [1, 1], found.traceback


def refusals(_: int, __: int) -> tuple[int, int]:
    mistakes = {
        "mpirun sets no rendezvous for 2 ranks: set MASTER_ADDR.*MASTER_PORT": {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
        },
        "horovodrun sets no rendezvous": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
        "RANK=2 is not below WORLD_SIZE=2": {"RANK": "2", "WORLD_SIZE": "2"},
        "WORLD_SIZE is '', not a number": {"RANK": "0"},
        "PMI_RANK is 'x'": {"PMI_RANK": "x", "PMI_SIZE": "1"},
        "MASTER_PORT is 'http'": {
            **{"RANK": "0", "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": "http"},
        },
    }
    for words, told in mistakes.items():
        with (
            mock.patch.dict(os.environ, told, clear=True),
            pytest.raises(tersor.InvalidArgumentError, match=words),
        ):
            hvd.init()
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    with mock.patch.dict(os.environ, batch, clear=True), started():
        return hvd.rank(), hvd.size()


def test_invalid_variables_raise_and_slurm_batch_variables_are_ignored() -> None:
    (found,) = ranks.outcomes(refusals, 1, group=False)
    assert found.value == (0, 1), found.traceback


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[03-07,9],login1", "node03"),
        ("a1,b2", "a1"),
        ("r[1-2]-ib,x", "r1-ib"),
        ("rack[1-2]node[3-4],x", "rack1node3"),
        ("", ""),
    ],
)
def test_first_host_of_a_slurm_node_list(nodes: str, first: str) -> None:
    assert world.first_host(nodes) == first
