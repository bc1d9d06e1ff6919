"""The rendezvous of ``tersor.tensorflow``: ranks meet, strangers and attackers do not."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

import tersor
from tersor._core import TcpTransport

PHRASE = "correct horse battery staple"
SECRET = "0123456789abcdef" * 4
SECONDS = 60.0
HELLO, CHALLENGE, PROOF, ANSWER = 64, 40, 32, 40  # bytes
MAGIC = b"TRSTCP2\0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


def meet(
    address: str, rank: int, ranks: int = 2, secret: str = SECRET, timeout: float = SECONDS
) -> float:
    """The sum of all ranks' numbers, from 1."""
    transport = TcpTransport(address, rank, ranks, "127.0.0.1", timeout, secret, "encrypt")
    with contextlib.ExitStack() as ends:
        ends.callback(transport.close)
        values = np.full(100, rank + 1, np.float32)
        tersor.allreduce(transport, values, codec="none", timeout=SECONDS)
        return float(values[0])


def begin(threads: ThreadPoolExecutor, port: int, *arguments: object) -> Future[float]:
    """Starts rank 0, which listens."""
    made = threads.submit(meet, f"127.0.0.1:{port}", 0, *arguments)
    connected(port).close()
    return made


def connected(port: int) -> socket.socket:
    until = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize("secret", [SECRET, PHRASE])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_connect_and_exchange(port: int, ranks: int, secret: str) -> None:
    with ThreadPoolExecutor(ranks) as threads:
        results = threads.map(
            lambda rank: meet(f"127.0.0.1:{port}", rank, ranks, secret), range(ranks)
        )
    assert list(results) == [ranks * (ranks + 1) / 2] * ranks


def test_other_ranks_wait_for_a_late_rank_0(port: int) -> None:
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(meet, f"127.0.0.1:{port}", 1)
        time.sleep(0.5)
        assert begin(threads, port).result() == other.result() == 3.0


def test_rank_0_listens_only_on_the_given_address(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        rank_0 = begin(threads, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        meet(f"127.0.0.1:{port}", 1)
        assert rank_0.result() == 3.0


def test_unreachable_or_invalid_address_raises(port: int) -> None:
    with pytest.raises(tersor.TransportError, match=r"cannot listen at 192\.0\.2\.77:4711"):
        meet("192.0.2.77:4711", 0)
    with pytest.raises(tersor.TransportError, match=f"cannot be reached at 127.0.0.1:{port}"):
        meet(f"127.0.0.1:{port}", 1, timeout=0.1)
    for rank in range(2):
        with pytest.raises(
            tersor.TransportError, match=r'"no-such-host\.invalid", does not resolve'
        ):
            meet("no-such-host.invalid:4711", rank, timeout=0.1)
    with pytest.raises(tersor.InvalidArgumentError, match="not an address"):
        meet("4711", 0)


def test_timeout_error_names_the_missing_rank(port: int) -> None:
    with pytest.raises(tersor.TransportError, match="rank 1 missed the rendezvous"):
        meet(f"127.0.0.1:{port}", 0, timeout=0.1)


def test_secret_mismatch_raises(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        rank_0 = begin(threads, port)
        with pytest.raises(tersor.TransportError, match=r"another secret \(TERSOR_SECRET"):
            meet(f"127.0.0.1:{port}", 1, secret="f" * 64)
        assert meet(f"127.0.0.1:{port}", 1) == rank_0.result() == 3.0


def everything(stranger: socket.socket) -> bytes:
    """All bytes until the other end closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while some := stranger.recv(1 << 16):
            received += some
    return received


def test_unauthenticated_client_receives_no_mac(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        rank_0 = begin(threads, port)
        with connected(port) as stranger:
            stranger.sendall(MAGIC + b"\1" + bytes(HELLO - len(MAGIC) - 1) + bytes(PROOF))
            received = everything(stranger)
        assert len(received) == CHALLENGE + ANSWER
        assert received[CHALLENGE:] == bytes(ANSWER)
        assert meet(f"127.0.0.1:{port}", 1) == rank_0.result() == 3.0


def test_silent_clients_do_not_block_ranks(port: int) -> None:
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as strangers:
        rank_0 = begin(threads, port)
        for _ in range(300):
            strangers.enter_context(connected(port))
        assert meet(f"127.0.0.1:{port}", 1) == rank_0.result() == 3.0


class Program:
    """A pickle that runs code on loading."""

    def __init__(self, proof: pathlib.Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.proof), "w"))


Change = Callable[[bytes, bytes], bytes]


def hostile_bytes(proof: pathlib.Path) -> dict[str, Change]:
    """Returns the messages of an attacker in place of a message, after the handshake."""
    program = pickle.dumps(Program(proof))
    length = len(program).to_bytes(4, "little")
    return {
        "a pickle": lambda message, before: program,
        "a pickle as a message": lambda message, before: length + program + bytes(16),
        "a pickle with the MAC": lambda message, before: length + program + message[-16:],
        "noise": lambda message, before: os.urandom(200),
        "a huge length": lambda message, before: b"\xff" * 4 + bytes(100),
        "a long length": lambda message, before: (1 << 25).to_bytes(4, "little") + bytes(100),
        "a repeated message": lambda message, before: before,
        "a changed byte": lambda message, before: message[:50] + b"\0" + message[51:],
        "half of a message": lambda message, before: message[: len(message) // 2],
    }


class Middle:
    """Hands the handshake on, then changes the first message to the victim."""

    def __init__(self, port: int, change: Change, victim: int) -> None:
        self._change, self._victim = change, victim
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._port = port
        self.answered = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        caller = self._listener.accept()[0]
        with caller, connected(self._port) as rank_0:
            ends = (caller, rank_0)
            for number, count in enumerate((HELLO, CHALLENGE, PROOF, ANSWER)):
                from_end, to_end = ends if number % 2 == 0 else ends[::-1]
                message = from_end.recv(count, socket.MSG_WAITALL)
                assert len(message) == count
                to_end.sendall(message)
            if self._victim == 1:
                rank_0.sendall(caller.recv(1 << 16))
            from_end, to_end = ends if self._victim == 0 else ends[::-1]
            to_end.sendall(self._change(from_end.recv(1 << 16), message))
            to_end.shutdown(socket.SHUT_WR)
            self.answered = everything(to_end)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("kind", hostile_bytes(pathlib.Path()))
def test_man_in_the_middle_bytes_are_rejected(
    port: int, tmp_path: pathlib.Path, kind: str, victim: int
) -> None:
    proof = tmp_path / "ran"
    middle = Middle(port, hostile_bytes(proof)[kind], victim)
    with ThreadPoolExecutor(2) as threads:
        both = [
            begin(threads, port, 2, SECRET, 2.0),
            threads.submit(meet, middle.address, 1),
        ]
        with pytest.raises(tersor.TransportError, match=f"rank {1 - victim} is lost"):
            both[victim].result()
        with pytest.raises(tersor.TransportError):
            both[1 - victim].result()
    middle.close()
    assert middle.answered == b""
    assert not proof.exists()


def test_ctrl_c_interrupts_the_rendezvous(port: int) -> None:
    script = f"""
import signal
import tersor._core
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores SIGINT
tersor._core.TcpTransport("127.0.0.1:{port}", 0, 2, "127.0.0.1", 600.0, "{SECRET}")
"""
    rank_0 = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    connected(port).close()
    rank_0.send_signal(signal.SIGINT)
    errors = rank_0.communicate(timeout=SECONDS)[1]
    assert rank_0.returncode != 0
    assert "KeyboardInterrupt" in errors
