"""One rank of test_mpi.py, started by mpirun. The exit status is 0 for correct results."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest
from mpi4py import MPI

import tersor
import tersor.mpi

COUNT = 12_000
WORLD = MPI.COMM_WORLD


def gradient_of(rank: int) -> Any:
    return numpy.random.default_rng(rank).standard_normal(COUNT).astype(numpy.float32)


def total() -> Any:
    return sum(gradient_of(rank).astype(numpy.float64) for rank in range(WORLD.size))


def check_close(found: Any, expected: Any, tolerance: float) -> None:
    error = numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)
    assert error < tolerance, error


def allreduce_adds_and_ends_alike() -> None:
    for codec, tolerance in (("none", 1e-6), ("bf16", 1e-2), ("int8", 3e-2)):
        gradient = gradient_of(WORLD.rank)
        statistics = tersor.mpi.allreduce(WORLD, gradient, codec=codec)
        check_close(gradient, total(), tolerance)
        assert statistics.sent_bytes > 0
        assert len(set(WORLD.allgather(gradient.tobytes()))) == 1


def means_and_shards_are_right() -> None:
    shard = numpy.empty(COUNT // WORLD.size, numpy.float32)
    tersor.mpi.reduce_scatter(WORLD, gradient_of(WORLD.rank), shard, codec="none", reduction="mean")
    first = WORLD.rank * shard.size
    check_close(shard, total()[first : first + shard.size] / WORLD.size, 1e-6)
    gathered = numpy.empty(COUNT, numpy.float32)
    tersor.mpi.allgather(WORLD, shard, gathered, codec="none")
    check_close(gathered, total() / WORLD.size, 1e-6)


def a_transport_is_kept_for_its_communicator() -> None:
    assert tersor.mpi.transport(WORLD) is tersor.mpi.transport(WORLD)
    assert tersor.mpi.transport(WORLD).ranks == WORLD.size
    for _ in range(3):
        other = WORLD.Split(WORLD.rank % 2)
        assert tersor.mpi.transport(other).ranks == other.size
        tersor.mpi.allreduce(other, gradient_of(0), codec="int8")
        other.Free()


def the_callers_messages_meet_none_of_ours() -> None:
    peer = (WORLD.rank + 1) % WORLD.size
    request = WORLD.isend(WORLD.rank, peer)
    tersor.mpi.allreduce(WORLD, gradient_of(WORLD.rank), codec="int8")
    assert WORLD.recv(source=(WORLD.rank - 1) % WORLD.size) == (WORLD.rank - 1) % WORLD.size
    request.wait()


def a_reducer_takes_the_transport() -> None:
    reducer = tersor.GradientReducer(tersor.mpi.transport(WORLD), codec="int8")
    gradient = gradient_of(WORLD.rank)
    reducer.add("weight", gradient)
    reducer.ready("weight", gradient)
    reducer.wait()
    check_close(gradient, total() / WORLD.size, 3e-2)


def errors_keep_their_type() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="int8"):
        tersor.mpi.allreduce(WORLD, gradient_of(0), codec="int9")
    with pytest.raises(tersor.InvalidArgumentError):
        tersor.mpi.transport(MPI.COMM_NULL)
    apart = WORLD.Dup()
    count = COUNT if WORLD.rank == 0 else COUNT // 2
    with pytest.raises(tersor.TransportError):
        tersor.mpi.allreduce(apart, gradient_of(0)[:count], codec="int8", timeout=20.0)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        globals()[check]()
        print(f"{check} is done", flush=True)
