"""The rendezvous of ``tersor.tensorflow``: ranks meet, strangers and attackers do not."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import pickle
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tersor
from tersor import _rendezvous
from tersor._core import TcpTransport
from tersor._rendezvous import Client, Server

SECRET = "correct horse battery staple"
SECONDS = 60.0


@pytest.fixture(autouse=True)
def stretched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rendezvous, "_key_of", functools.cache(_rendezvous._key_of))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("127.0.0.1:0", SECRET)
    yield made
    made.close()


def port_of(server: Server) -> int:
    return int(server._server.sockets[0].getsockname()[1])


def address_of(server: Server) -> str:
    return f"127.0.0.1:{port_of(server)}"


@contextlib.contextmanager
def client_of(server: Server) -> Iterator[Client]:
    made = Client(address_of(server), SECRET, SECONDS)
    yield made
    made.close()


def test_ranks_meet_and_exchange(server: Server) -> None:
    def total(rank: int) -> float:
        with contextlib.ExitStack() as ends:
            store = server if rank == 0 else ends.enter_context(client_of(server))
            transport = TcpTransport(store, rank, 3, "127.0.0.1", SECONDS, SECRET, "encrypt")
            ends.callback(transport.close)
            values = np.full(100, rank + 1, np.float32)
            tersor.allreduce(transport, values, codec="none", timeout=SECONDS)
            return float(values[0])

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(total, range(3))) == [6.0] * 3


def test_a_value_comes_once_it_is_set(server: Server) -> None:
    with client_of(server) as first, client_of(server) as second:
        assert first.get("key", 0.01) is None
        first.set("key", "x" * 10_000)
        assert second.get("key", 0.0) == server.get("key", 0.0) == "x" * 10_000
        threading.Timer(0.1, server.set, ("late", "word")).start()
        assert second.get("late", SECONDS) == "word"


def test_rank_0_listens_at_the_given_address_alone(server: Server) -> None:
    (listener,) = server._server.sockets
    assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(server)))


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(tersor.TransportError, match=r"cannot listen at 192\.0\.2\.77:4711"):
        Server("192.0.2.77:4711", SECRET)
    with pytest.raises(tersor.TransportError, match="not to be reached at"):
        Client("127.0.0.1:9", SECRET, 0.0)


def test_another_secret_is_named(server: Server) -> None:
    with pytest.raises(tersor.InvalidArgument, match="another TERSOR_SECRET"):
        Client(address_of(server), "the secret of yesterday", SECONDS)


def everything(stranger: socket.socket) -> bytes:
    """All bytes until the other end closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while some := stranger.recv(1 << 16):
            received += some
    return received


def test_a_stranger_receives_no_mac(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server))) as stranger:
        stranger.sendall(bytes(32) + b"\0\0\0\2[]" + bytes(32))
        received = everything(stranger)
    assert len(received) == 32 + 4
    assert received[32:] == bytes(4)


def test_silent_strangers_hold_nobody_up(server: Server) -> None:
    strangers = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(300)]
    with client_of(server) as rank:
        rank.set("key", "value")
    assert server.get("key", 0.0) == "value"
    for one in strangers:
        one.close()


class Program:
    """A pickle that runs code where it is loaded."""

    def __init__(self, proof: pathlib.Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.proof), "w"))


Change = Callable[[bytes, list[bytes]], bytes]


def hostile_bytes(proof: pathlib.Path) -> dict[str, Change]:
    """What somebody on the way sends in place of a message, given the messages before it."""
    program = pickle.dumps(Program(proof))
    length = len(program).to_bytes(4, "big")
    return {
        "a pickle": lambda message, before: program,
        "a pickle as a message": lambda message, before: length + program + bytes(32),
        "a pickle with the MAC": lambda message, before: length + program + message[-32:],
        "noise": lambda message, before: os.urandom(200),
        "a huge length": lambda message, before: b"\xff" * 4 + bytes(100),
        "a long length": lambda message, before: (1 << 25).to_bytes(4, "big") + bytes(100),
        "a repeated message": lambda message, before: before[-1],
        "a changed value": lambda message, before: message.replace(b"value", b"wrong"),
        "half of a message": lambda message, before: message[: len(message) // 2],
    }


class Middle:
    """Hands the handshake and the first messages on, then sends other bytes in both directions."""

    def __init__(self, server: Server, change: Change, victim: str) -> None:
        self._change, self._victim = change, victim
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = port_of(server)
        self.answered = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        caller = self._listener.accept()[0]
        with caller, socket.create_connection(("127.0.0.1", self._server)) as rank_0:
            requests, answers = [caller.recv(32)], [rank_0.recv(32)]
            rank_0.sendall(requests[0])
            caller.sendall(answers[0])
            for number in range(2):
                requests.append(caller.recv(1 << 16))
                last = number == 1 and self._victim == "rank 0"
                rank_0.sendall(self._change(requests[-1], requests[:-1]) if last else requests[-1])
                if last:
                    rank_0.shutdown(socket.SHUT_WR)
                    self.answered = everything(rank_0)
                    return
                answers.append(rank_0.recv(1 << 16))
                last = number == 1 and self._victim == "rank 1"
                caller.sendall(self._change(answers[-1], answers[:-1]) if last else answers[-1])

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("victim", ["rank 0", "rank 1"])
@pytest.mark.parametrize("kind", hostile_bytes(pathlib.Path()))
def test_bytes_of_somebody_on_the_way_are_refused(
    server: Server, tmp_path: pathlib.Path, kind: str, victim: str
) -> None:
    server.set("key", "value")
    proof = tmp_path / "ran"
    middle = Middle(server, hostile_bytes(proof)[kind], victim)
    rank = Client(middle.address, SECRET, SECONDS)
    tracemalloc.start()
    with pytest.raises(tersor.TransportError) as caught:
        rank.set("key", "other value") if victim == "rank 0" else rank.get("key", 1.0)
    middle.close()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    rank.close()
    assert middle.address in str(caught.value)
    assert middle.answered == b""
    assert not proof.exists()
    with client_of(server) as honest:
        assert honest.get("key", 0.0) == "value"


def test_the_last_stranger_goes_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rendezvous, "_PROVEN_WITHIN", 0.1)
    with socket.create_connection(("127.0.0.1", port_of(server))) as stranger:
        assert len(everything(stranger)) == 32
    until = time.monotonic() + SECONDS
    while server._strangers and time.monotonic() < until:
        time.sleep(0.01)
    assert not server._strangers
