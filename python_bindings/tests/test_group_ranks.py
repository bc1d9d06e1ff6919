"""The helper for functions on several processes."""

import os
import signal
import time

import pytest

import ranks


def total(rank: int, count: int, start: float) -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor([start + rank])
    dist.all_reduce(value)
    return float(value)


def first_raises(rank: int, count: int) -> int:
    if rank == 0:
        raise ValueError("rank 0 objects")
    return os.getpid()


def last_kills_itself(rank: int, count: int) -> int:
    if rank == count - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def last_sleeps(rank: int, count: int) -> None:
    if rank == count - 1:
        time.sleep(600)


def writes(rank: int, count: int) -> None:
    print(f"this is rank {rank}", flush=True)


def test_run_returns_the_result_of_each_rank() -> None:
    assert ranks.run(total, 3, 10.0) == [33.0, 33.0, 33.0]


def test_error_keeps_its_type_and_rank() -> None:
    found = ranks.outcomes(first_raises, 2)
    assert isinstance(found[0].error, ValueError)
    assert "objects" in found[0].traceback
    assert found[1].error is None
    with pytest.raises(AssertionError, match="rank 0 raised"):
        ranks.run(first_raises, 2)


def test_killed_process_is_reported_and_replaced() -> None:
    found = ranks.outcomes(last_kills_itself, 2)
    assert [one.finished for one in found] == [True, False]
    assert found[1].exit_code == -signal.SIGKILL
    assert ranks.run(total, 2, 0.0) == [1.0, 1.0]


def test_a_late_process_is_killed_at_the_deadline() -> None:
    ranks.run(total, 2, 0.0)  # so that there are processes, which take seconds to start
    found = ranks.outcomes(last_sleeps, 2, deadline=2.0, group=False)
    assert [one.finished for one in found] == [True, False]


def test_process_output_is_captured() -> None:
    found = ranks.outcomes(writes, 2, fresh=True)
    assert [
        "this is rank 0" in found[0].output,
        "this is rank 1" in found[1].output,
    ] == [True] * 2
    assert [outcome.exit_code for outcome in found] == [0, 0]
