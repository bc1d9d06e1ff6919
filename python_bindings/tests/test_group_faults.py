"""Failing ranks over a process group of PyTorch, and the ends of processes."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import ranks
import tersor


def allreduce(transport: tersor.Transport, codec: str = "int8", count: int = 300_000) -> None:
    tersor.allreduce(transport, np.ones(count, dtype=np.float32), codec=codec, timeout=300.0)


def allreduce_until_it_raises(transport: tersor.Transport) -> None:
    while True:
        allreduce(transport)


def until_one_is_killed(rank: int, count: int) -> str:
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    allreduce(transport)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tersor.TransportError) as caught:
        allreduce(transport)
    return str(caught.value)


@pytest.mark.parametrize("count", [2, 3])
def test_error_names_the_killed_rank(count: int) -> None:
    found = ranks.outcomes(until_one_is_killed, count)  # with a deadline below the timeout
    for rank in set(range(count)) - {1}:
        assert found[rank].error is None, found[rank].traceback
        assert "rank 1" in found[rank].value


def with_another_codec(rank: int, count: int, other: str) -> str:
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    with pytest.raises(tersor.TransportError) as caught:
        allreduce(transport, codec="int8" if rank else other)
    return str(caught.value)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("int4", "other arguments (codec, count, dtype, root or options)"),
        ("bf16", " where this rank calls "),  # it is summed on the way
    ],
)
def test_codec_mismatch_raises_on_all_ranks(other: str, difference: str) -> None:
    for message in ranks.run(with_another_codec, 3, other):
        assert difference in message


def while_one_is_late(rank: int, count: int) -> str:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    if rank == 1:
        dist.barrier()  # not before rank 0 has given up
    with pytest.raises(tersor.TransportError) as caught:
        tersor.allreduce(transport, np.ones(1000, dtype=np.float32), codec="int8", timeout=1.0)
    if rank == 0:
        dist.barrier()
    return str(caught.value)


def test_timeout_error_names_the_late_rank() -> None:
    for message in ranks.run(while_one_is_late, 2):
        assert "no message from rank 1 within 1000 ms" in message


def aborted_by_one(rank: int, count: int) -> str:
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    if rank == 0:
        transport.abort("rank 0 has had enough")
    with pytest.raises(tersor.TransportError) as caught:
        allreduce_until_it_raises(transport)
    return str(caught.value)


def test_abort_reason_reaches_all_ranks() -> None:
    for message in ranks.run(aborted_by_one, 3):
        assert "rank 0 has had enough" in message


# The ends of processes: each process is a new interpreter.
NOISE = ("terminate", "Fatal", "Traceback", "Exception", "nanobind")


def leaves_it_to_the_interpreter(rank: int, count: int) -> None:
    import tersor.torch._src.process_group.connections as group

    allreduce(group.transport())


def destroys_first(rank: int, count: int) -> None:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    allreduce(transport)
    dist.destroy_process_group()
    allreduce(transport)
    group.close_all()


def destroys_and_forgets(rank: int, count: int) -> None:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    allreduce(group.transport())
    dist.destroy_process_group()


def closes_alone(rank: int, count: int) -> None:
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()
    if rank == 0:
        allreduce(transport)
        group.close()
    else:
        with pytest.raises(tersor.TransportError, match="rank 0"):
            allreduce_until_it_raises(transport)


def holds_a_reducer_to_the_end(rank: int, count: int) -> None:
    import builtins

    import tersor.torch._src.process_group.connections as group

    reducer = tersor.GradientReducer(group.transport(), codec="int8")
    gradient = np.ones(100_000, dtype=np.float32)
    reducer.add("weight", gradient)
    reducer.ready("weight", gradient)
    reducer.wait()
    builtins.reducer_of_the_test = reducer  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function",
    [
        leaves_it_to_the_interpreter,
        *(
            pytest.param(function, marks=pytest.mark.long)
            for function in (
                destroys_first,
                destroys_and_forgets,
                closes_alone,
                holds_a_reducer_to_the_end,
            )
        ),
    ],
)
def test_process_exits_silently(function: object) -> None:
    found = ranks.outcomes(function, 3, fresh=True, close=False)
    for outcome in found:
        assert outcome.error is None, outcome.traceback
        assert outcome.exit_code == 0, outcome.output
        assert not any(word in outcome.output for word in NOISE), outcome.output
