"""Kills processes that publish or receive weights, at random times. No kill damages a version.

The memory of a receiver's weights outlives the process, so a kill during the writes leaves mixed
versions. Checksums show the mixture to a new process, and the process takes a full copy.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import test_delta_files
from delta_models import same, weights

import tersor
from tersor import delta
from tersor.delta import _files

pytest.importorskip("safetensors")
TENSORS, VALUES, VERSIONS = 24, 1 << 16, 4


def versions() -> list[dict[str, Any]]:
    """Versions of 6 MiB. Each version changes 3 % of the values."""
    rng = numpy.random.default_rng(0)
    found = [{f"layer.{i}": rng.random(VALUES, numpy.float32) for i in range(TENSORS)}]
    for _ in range(VERSIONS - 1):
        new = {name: value.copy() for name, value in found[-1].items()}
        for value in new.values():
            value.view(numpy.int32)[rng.random(VALUES) < 0.03] += 1
        found.append(new)
    return found


def shared(like: dict[str, Any]) -> dict[str, Any]:
    """Zeros in memory shared with forked processes."""
    return {
        name: numpy.frombuffer(mmap.mmap(-1, value.nbytes), value.dtype)
        for name, value in like.items()
    }


def write(to: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        to[name][...] = value


class Child:
    """A forked process. The called function gets a function that sends values to the parent."""

    def __init__(self, call: Callable[[Callable[[Any], None]], object]) -> None:
        self._parent, child = multiprocessing.Pipe()
        self._number = os.fork()
        if self._number == 0:
            try:
                call(child.send)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        child.close()

    def receive(self) -> Any:
        """Raises EOFError if the process ended."""
        assert self._parent.poll(60), "the process sends nothing"
        return self._parent.recv()

    def end(self) -> int:
        """Returns the exit status, or a negative signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self._number, 0)[1])

    def kill(self) -> None:
        os.kill(self._number, signal.SIGKILL)
        assert self.end() in (0, -signal.SIGKILL)


def state_of(ours: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> str:
    return "old" if same(ours, old) else "new" if same(ours, new) else "mixed"


def kill_receivers(folder: pathlib.Path, least: int) -> Counter[str]:
    """Kills receivers during updates. Returns the number of kills per state of the weights.

    Continues until there are ``least`` kills, and a kill has left mixed weights.
    """
    found, rng, states = versions(), random.Random(0), Counter[str]()
    publisher, ours = delta.Publisher(folder), shared(found[0])
    for number, values in enumerate(found):
        publisher.publish(number, values)
    delta.Receiver(folder).update(ours)  # imports PyTorch if there is one
    begin = time.monotonic()
    delta.Receiver(folder).update(ours)
    seconds = time.monotonic() - begin
    files = {path: path.read_bytes() for path in folder.iterdir()}
    while states.total() < least or not states["mixed"]:
        assert states.total() < 20 * least, states
        old, new = rng.sample(range(VERSIONS), 2)  # forward by deltas, back by a full copy
        write(ours, found[old])

        def update(send: Callable[[Any], None], old: int = old, new: int = new) -> None:
            receiver = delta.Receiver(folder, version=old)
            send("begin")
            try:
                send(receiver.update(ours, new))
            except delta.BaseMismatchError:  # the weights of a killed process
                send(receiver.update(ours, new))

        killed = Child(update)
        assert killed.receive() == "begin"
        time.sleep(rng.uniform(0, seconds))
        killed.kill()
        states[state_of(ours, found[old], found[new])] += 1
        follower = Child(update)
        assert [follower.receive(), follower.receive(), follower.end()] == ["begin", new, 0]
        assert same(ours, found[new])
    assert files == {path: path.read_bytes() for path in folder.iterdir()}
    return states


def test_a_new_process_catches_up_after_a_killed_receiver(tmp_path: pathlib.Path) -> None:
    kill_receivers(tmp_path, 10)


@pytest.mark.long
def test_new_processes_catch_up_after_200_killed_receivers(tmp_path: pathlib.Path) -> None:
    states = kill_receivers(tmp_path, 200)
    assert states["mixed"] > 10
    assert states["old"] > 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_ranks(least: int) -> Counter[str]:
    """Kills a rank during ``broadcast_delta`` over TCP: a receiver or the root.

    Each other rank has the new version, or raises TransportError and has its old version. Continues
    until there are ``least`` kills, and a kill has caused an error. Returns the number of ranks per
    result.
    """
    found, rng, results = versions(), random.Random(0), Counter[str]()
    publisher, newest = delta.Publisher(None), VERSIONS - 1
    for number, values in enumerate(found):
        publisher.publish(number, values)
    ours, seconds = [shared(found[0]) for _ in range(3)], 0.0
    for count in itertools.count(-1):  # the first broadcast ends before a kill
        if count >= least and results["error"]:
            return results
        assert count < 20 * least, results
        known: list[int | None] = [newest, rng.randrange(newest), rng.choice([None, 0, 1])]
        for rank in (1, 2):
            write(ours[rank], found[known[rank] or 0])

        def follow(
            send: Callable[[Any], None], address: str, rank: int, known: list[int | None]
        ) -> None:
            transport = tersor.TcpTransport(address, rank, 3, "127.0.0.1", 60.0, 32 * "5e")
            send("begin")
            source = ours[rank] if rank else publisher
            try:
                send(delta.broadcast_delta(transport, source, known[rank], timeout=60.0))
            except tersor.TransportError:
                send("error")
            transport.close()

        def start(known: list[int | None], follow: Any = follow) -> list[Child]:
            address = f"127.0.0.1:{free_port()}"
            return [Child(lambda send, r=r: follow(send, address, r, known)) for r in range(3)]

        children, victim = start(known), rng.randrange(3)
        assert [child.receive() for child in children] == ["begin"] * 3
        begin = time.monotonic()
        if count >= 0:
            time.sleep(rng.uniform(0, seconds))
            children[victim].kill()
        for rank, child in enumerate(children):
            if rank != victim or count < 0:
                result = child.receive()
                results[result] += 1
                known[rank] = known[rank] if result == "error" else result
                assert child.end() == 0
                assert rank == 0 or same(ours[rank], found[known[rank] or 0])
        if count < 0:
            seconds = time.monotonic() - begin
            continue
        known[victim] = newest if victim == 0 else None  # unknown: a new process
        children = start(known)
        assert [child.receive() for child in children] == ["begin"] * 3
        assert [child.receive() for child in children] == [newest] * 3
        assert [child.end() for child in children] == [0] * 3
        assert same(ours[1], found[newest])
        assert same(ours[2], found[newest])
    raise AssertionError


def test_killed_rank_leaves_complete_versions_on_other_ranks() -> None:
    kill_ranks(6)


@pytest.mark.long
def test_60_killed_ranks_leave_complete_versions_on_other_ranks() -> None:
    assert kill_ranks(60)["error"] > 10


def kill_publishers(folder: pathlib.Path, least: int) -> None:
    """Kills publishers, later and later, until there are ``least`` kills and a tenth as many
    versions."""
    version, receiver, ours = test_delta_files.version, delta.Receiver(folder), weights()
    newest = 0
    for seed in itertools.count():
        if seed >= least and newest > least // 10:
            break

        def publish(_: object) -> None:
            publisher = delta.Publisher(folder, keep=3)
            for number in itertools.count(max(_files.versions_in(folder), default=0) + 1):
                publisher.publish(number, version(number))

        child = Child(publish)
        time.sleep(random.Random(seed).uniform(0, 0.08 * (1 + seed // least)))
        child.kill()
        found = _files.versions_in(folder)
        if found:
            newest = found[-1]
            assert receiver.update(ours) == newest
            assert same(ours, version(newest))
        for number in found[-3:]:  # the kept versions
            late = version(number)
            assert delta.Receiver(folder, version=number).update(late) == newest
            assert same(late, version(newest))
    publisher = delta.Publisher(folder, keep=1)
    (folder / ".tmpA1b2C3").touch()  # as safetensors leaves one
    publisher.publish(newest + 1, version(newest + 1))
    publisher.publish(newest + 2, version(newest + 2))
    found = _files.versions_in(folder)  # the rest was deleted, also what the kills left
    assert all(int(one.name[1:13]) in found for one in folder.iterdir())


def test_killed_publishers_leave_complete_versions(tmp_path: pathlib.Path) -> None:
    kill_publishers(tmp_path / "versions", 20)


@pytest.mark.long
def test_200_killed_publishers_leave_complete_versions(tmp_path: pathlib.Path) -> None:
    kill_publishers(tmp_path / "versions", 200)
