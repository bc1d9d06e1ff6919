"""Ranks over a process group of PyTorch whose messages, threads or ends are cut off."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest

import ranks
import tersor

SOON_SECONDS = 10.0
COUNT = 300_000


def allreduce(transport: tersor.Transport) -> None:
    tersor.allreduce(
        transport, np.ones(COUNT, dtype=np.float32), codec="none", algorithm="one-shot", timeout=30
    )


def hold_payloads_back() -> None:
    """From now on the transports of this rank announce payloads that never leave."""
    import tersor.torch.group as group

    class Holding(group.Messenger):
        def send(self, memory, peer, group):  # type: ignore[no-untyped-def]
            return super().send(memory, peer, group) if group == 0 else None

        def wait(self, work):  # type: ignore[no-untyped-def]
            if work is None:
                threading.Event().wait()
            super().wait(work)

    group.Messenger = Holding  # type: ignore[misc]


def allreduce_that_sticks() -> tersor.Transport:
    """The transport, once its peers were told of a payload that they will never get."""
    import tersor.torch.group as group

    hold_payloads_back()
    transport = group.transport()

    def stick() -> None:
        with contextlib.suppress(tersor.TransportError):
            allreduce(transport)

    threading.Thread(target=stick, daemon=True).start()
    while transport.counters().sent_bytes < 4 * COUNT:
        time.sleep(0.01)
    return transport


def said_by_the_allreduce() -> tuple[str, float]:
    """What the other ranks are told, and after how many seconds."""
    import tersor.torch.group as group

    transport = group.transport()
    start = time.monotonic()
    with pytest.raises(tersor.TransportError) as caught:
        allreduce(transport)
    return str(caught.value), time.monotonic() - start


def gives_up_while_it_sends(rank: int, count: int) -> tuple[str, float]:
    import torch.distributed as dist

    if rank == 0:
        allreduce_that_sticks().poison("the disk is full")
        dist.barrier()
        os._exit(0)
    told = said_by_the_allreduce()
    dist.barrier()
    return told


def test_a_fault_does_not_wait_for_what_was_sent_before() -> None:
    message, seconds = ranks.outcomes(gives_up_while_it_sends, 2, fresh=True)[1].value
    assert "the disk is full" in message
    assert seconds < SOON_SECONDS


def leaves_while_it_sends(rank: int, count: int) -> tuple[str, float]:
    import tersor.torch.group as group

    if rank == 0:
        allreduce_that_sticks()
        threading.Thread(target=group.close, daemon=True).start()
        time.sleep(1)  # its goodbye goes out meanwhile
        os._exit(0)
    return said_by_the_allreduce()


def test_a_goodbye_behind_a_payload_that_never_comes_is_heard() -> None:
    message, seconds = ranks.outcomes(leaves_while_it_sends, 2, fresh=True)[1].value
    assert "rank 0 left" in message
    assert seconds < SOON_SECONDS


def address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def has_no_room_for_more_threads(rank: int, count: int) -> None:
    import torch.distributed as dist

    import tersor.torch.group as group

    groups = [dist.new_group(backend="gloo") for _ in range(3)]
    if rank == 0:
        before = len(os.listdir("/proc/self/task"))
        usual = resource.getrlimit(resource.RLIMIT_AS)
        stacks_of_some = 3 * resource.getrlimit(resource.RLIMIT_STACK)[0]
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + stacks_of_some, usual[1]))
        try:
            with pytest.raises(RuntimeError, match="temporarily unavailable"):
                tersor._core.TorchTransport(group.Messenger(groups), rank=rank, hosts=[0] * count)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, usual)
        assert len(os.listdir("/proc/self/task")) == before
    dist.barrier()


def test_a_transport_that_gets_no_threads_is_not_made() -> None:
    found = ranks.outcomes(has_no_room_for_more_threads, 4, fresh=True)
    assert found[0].error is None, found[0].traceback
    assert found[0].finished


def abort_raises(error: type[BaseException], times: int) -> None:
    """From now on the transports of this rank meet the error where they end."""
    import tersor.torch.group as group

    errors = [error()] * times

    class Raising(group.Messenger):
        def abort(self):  # type: ignore[no-untyped-def]
            if errors:
                raise errors.pop()
            super().abort()

    group.Messenger = Raising  # type: ignore[misc]


def is_interrupted_when_it_ends(rank: int, count: int) -> None:
    import tersor.torch.group as group

    def end() -> None:
        group.close_all()
        time.sleep(1)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    abort_raises(KeyboardInterrupt, times=1)
    allreduce(group.transport())
    with_threads_of_the_transport = len(os.listdir("/proc/self/task"))
    with pytest.raises(KeyboardInterrupt):
        end()
    assert len(os.listdir("/proc/self/task")) < with_threads_of_the_transport


def test_ctrl_c_at_the_end_is_not_lost_and_leaves_no_threads() -> None:
    for outcome in ranks.outcomes(is_interrupted_when_it_ends, 2, fresh=True):
        assert outcome.error is None, outcome.traceback
        assert outcome.finished


def cannot_end(rank: int, count: int) -> None:
    import tersor.torch.group as group

    abort_raises(RuntimeError, times=100)
    allreduce(group.transport())


def test_a_process_ends_though_python_ends_no_connection() -> None:
    for outcome in ranks.outcomes(cannot_end, 2, fresh=True, close=False, deadline=60):
        assert outcome.error is None, outcome.traceback
        assert outcome.exit_code == 0, outcome.output
        assert "terminate" not in outcome.output


def ended_within(process: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(process, os.WNOHANG)[0] == process:
            return True
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def forks_a_process_that_ends(rank: int, count: int) -> bool:
    import torch.distributed as dist

    import tersor.torch.group as group

    transport = group.transport()
    reducer = tersor.GradientReducer(transport, codec="int8")
    gradient = np.ones(1000, dtype=np.float32)
    reducer.add("weight", gradient)
    reducer.ready("weight", gradient)
    reducer.wait()
    child = os.fork()
    if child == 0:
        group.close_all()
        del reducer, transport
        gc.collect()
        os._exit(0)
    ended = ended_within(child, SOON_SECONDS)
    dist.barrier()
    reducer.ready("weight", gradient)
    reducer.wait()
    allreduce(transport)
    return ended


def test_a_fork_ends_without_the_connections_of_its_parent() -> None:
    assert ranks.run(forks_a_process_that_ends, 2, fresh=True) == [True, True]
