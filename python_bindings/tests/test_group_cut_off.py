"""Ranks over a process group of PyTorch with interrupted messages, threads or ends."""

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
MORE_THAN_SOCKETS_KEEP = 8_000_000


def allreduce(transport: tersor.Transport, count: int = COUNT) -> None:
    values = np.ones(count, dtype=np.float32)
    tersor.allreduce(
        transport, values, codec="none", algorithm="one-shot", chunk_count=count, timeout=30
    )


def allreduce_until_it_raises(transport: tersor.Transport, count: int = COUNT) -> None:
    while True:
        allreduce(transport, count)


def allreduce_that_sticks() -> tuple[tersor.Transport, threading.Thread]:
    """Returns the transport after a part of a payload was sent, and the thread that waits for the
    peer."""
    import tersor.torch._src.process_group.connections as group

    transport = group.transport()

    def stick() -> None:
        with contextlib.suppress(tersor.TransportError):
            allreduce(transport, MORE_THAN_SOCKETS_KEEP)

    stuck = threading.Thread(target=stick)
    stuck.start()
    while transport.counters().sent_bytes < 4 * MORE_THAN_SOCKETS_KEEP:
        time.sleep(0.01)
    time.sleep(0.5)  # the connection is made, and full
    return transport, stuck


def said_by_the_allreduce(transport: tersor.Transport) -> str:
    """Returns the error on the other ranks."""
    with pytest.raises(tersor.TransportError) as caught:
        allreduce_until_it_raises(transport, MORE_THAN_SOCKETS_KEEP)
    return str(caught.value)


def gives_up_while_it_sends(rank: int, count: int) -> str:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    if rank == 0:
        transport, stuck = allreduce_that_sticks()
        transport.abort("the disk is full")
        stuck.join()
        dist.barrier()
        heard = dist.barrier(async_op=True)
        while not heard.is_completed():  # what was sent moves while anybody calls
            with pytest.raises(tersor.TransportError):
                allreduce(transport)
            time.sleep(0.01)
        return ""
    transport = group.transport()
    dist.barrier()
    said = said_by_the_allreduce(transport)
    dist.barrier()
    return said


def test_fault_arrives_after_a_partially_sent_payload() -> None:
    assert "the disk is full" in ranks.run(gives_up_while_it_sends, 2)[1]


def leaves_while_it_sends(rank: int, count: int) -> str:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    if rank == 0:
        _, stuck = allreduce_that_sticks()
        dist.barrier()
        group.close()
        stuck.join()
        return ""
    transport = group.transport()
    dist.barrier()
    return said_by_the_allreduce(transport)


def test_departure_notice_arrives_after_a_partially_sent_payload() -> None:
    assert "rank 0 left" in ranks.run(leaves_while_it_sends, 2)[1]


def closed_by_another_thread(rank: int, count: int) -> list[str]:
    import tersor.torch._src.process_group.connections as group

    transport, said = group.transport(), []
    channels = [transport, transport.channel(), transport.split([0, 1])]

    def use(channel: tersor.Transport) -> None:
        with pytest.raises(tersor.TransportError) as caught:
            allreduce_until_it_raises(channel)
        said.append(str(caught.value))

    threads = [threading.Thread(target=use, args=(channel,)) for channel in channels]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    if rank == 0:
        group.close()
    for thread in threads:
        thread.join()
    return said


def test_close_fails_waiting_calls_of_other_threads() -> None:
    ours, theirs = ranks.run(closed_by_another_thread, 2)
    assert len(ours) == len(theirs) == 3
    assert all("rank 0 closed" in one or "rank 0 left" in one for one in ours), ours
    assert all("rank 0 left" in one for one in theirs), theirs


def address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def has_no_room_for_more_threads(rank: int, count: int) -> str:
    import tersor.torch._src.process_group.connections as group

    usual = resource.getrlimit(resource.RLIMIT_AS)
    if rank == 0:
        half_a_stack = resource.getrlimit(resource.RLIMIT_STACK)[0] // 2
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + half_a_stack, usual[1]))
    try:
        with pytest.raises(tersor.TransportError) as caught:
            allreduce(group.transport())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, usual)
    group.close()
    allreduce(group.transport())
    return str(caught.value)


def test_transport_without_a_connection_thread_raises() -> None:
    found = ranks.run(has_no_room_for_more_threads, 2, fresh=True)
    assert "cannot start the thread that makes connections" in found[0]


def is_interrupted_when_it_ends(rank: int, count: int) -> None:
    import torch.distributed as dist

    import tersor.torch._src.process_group.connections as group

    def end() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        group.close_all()
        time.sleep(SOON_SECONDS)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    transport = group.transport()
    allreduce(transport)
    if rank == 0:  # the other one does not say goodbye as long as this one waits for it
        with pytest.raises(KeyboardInterrupt):
            end()
        with pytest.raises(tersor.TransportError, match="closed the transport"):
            allreduce(transport)
    dist.barrier()


def test_ctrl_c_during_shutdown_raises_keyboard_interrupt() -> None:
    for outcome in ranks.outcomes(is_interrupted_when_it_ends, 2, fresh=True):
        assert outcome.error is None, outcome.traceback
        assert outcome.exit_code == 0, outcome.output


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

    import tersor.torch._src.process_group.connections as group

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


def test_forked_child_exits_without_closing_parent_connections() -> None:
    assert ranks.run(forks_a_process_that_ends, 2, fresh=True) == [True, True]
