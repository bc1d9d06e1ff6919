"""``soak``: a long training of a linear model whose ranks are lost and replaced again and again.

Over ``tcp``, ranks are processes, and a loss is kill -9. Over ``threads``, ranks are threads of one
process, and a loss is the end of a thread. In the middle of each ``--replace`` steps, one rank is
lost, and the other ranks repeat the step. After these steps, a new rank takes the place, all ranks
connect again, and the new rank gets the weights. Rank 0 is never lost. Every ``--every`` steps, all
ranks record memory, threads, open descriptors and a hash of the weights. Hashes must be equal.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tersor
import tersor.local
from tersor.bench.errors import BenchmarkError, fail_if
from tersor.bench.records import Record, add, columns, pick, report

WIDTH, BATCH, RATE, NOISE = 64, 16, 0.05, 0.1
POLL_SECONDS = 0.01
COLUMNS = columns(
    "transport=transport, steps=step, losses=losses, loss=loss:.2g, memory=rss_bytes:B, "
    "descriptors=descriptors, threads=threads, weights=weights"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kinds = ["tcp", "threads"]
    add(parser, "transport", kinds, "transports", choices=kinds)
    add(parser, "ranks", 4, "number of ranks")
    add(parser, "steps", 200_000, "steps of each transport")
    add(parser, "replace", 2000, "steps from one connection of all ranks to the next")
    add(parser, "every", 1000, "steps between two records")
    add(parser, "codec", "int8+ef", "codec of the gradients")
    add(parser, "seed", 1, "seed of the data and of the losses")


def run(chosen: argparse.Namespace) -> None:
    fail_if(chosen.ranks < 2, "soak: give at least 2 ranks, so that a rank may be lost")
    fail_if(chosen.replace < 2, "soak: give at least 2 steps from one connection to the next")
    report(chosen, _records(chosen), COLUMNS)


def _records(chosen: argparse.Namespace) -> Iterator[Record]:
    for kind in chosen.transport:
        with tempfile.TemporaryDirectory() as folder:
            chosen.folder = folder
            {"tcp": _run_processes, "threads": _run_threads}[kind](chosen)
            rows = [_rows(folder, rank) for rank in range(chosen.ranks)]
        fields = {
            "benchmark": "soak",
            "transport": kind,
            **pick(chosen, "ranks replace codec seed"),
        }
        for step, row in rows[0].items():
            hashes = {one[step]["weights"] for one in rows if step in one}
            fail_if(len(hashes) > 1, f"soak: the ranks have different weights at step {step}")
            yield {**fields, **row}


def _rows(folder: str, rank: int) -> dict[int, Record]:
    text = pathlib.Path(folder, f"records.{rank}").read_text(encoding="utf-8")
    return {row["step"]: row for row in map(json.loads, text.splitlines())}


def _drawn_loss(chosen: argparse.Namespace, period: int) -> tuple[int, int, str]:
    """The lost rank of a period, the step of the loss, and "before" or "after" the gradient."""
    drawn, step = random.Random(f"{chosen.seed} {period}"), period * chosen.replace
    lost = drawn.randrange(1, chosen.ranks)
    return lost, step + chosen.replace // 2, drawn.choice(["before", "after"])


class _LostError(Exception):
    """Ends the thread of a lost rank."""


def _end_thread() -> None:
    raise _LostError


class _Rank:
    """A rank from the start of a period until its loss or the last step."""

    def __init__(
        self, chosen: argparse.Namespace, rank: int, period: int, fail: Callable[[], None]
    ) -> None:
        self._chosen, self.rank, self._fail = chosen, rank, fail
        self._step = period * chosen.replace
        truth = np.random.default_rng(chosen.seed).standard_normal((WIDTH, WIDTH), np.float32)
        self._truth, self._weights = truth, np.zeros_like(truth)
        self._start = time.monotonic()

    def train(self, connect: Callable[[argparse.Namespace, int, int], Any]) -> None:
        """Trains. ``connect``: makes the transport of a rank in a period."""
        while self._step < self._chosen.steps:
            period = self._step // self._chosen.replace
            transport = connect(self._chosen, self.rank, period)
            try:
                self._train_period(transport, period)
            except _LostError:
                raise
            except BaseException as error:
                transport.abort(f"rank {self.rank}: {error}")
                raise
            finally:
                if isinstance(transport, tersor.TcpTransport):
                    transport.close()

    def _train_period(self, transport: Any, period: int) -> None:
        tersor.broadcast(transport, self._weights, root=0)
        options: Any = {"codec": self._chosen.codec, "reduction": "mean", "elastic": True}
        reducer = tersor.GradientReducer(transport, min_ranks=1, **options)
        reducer.add("weights", self._weights)
        end = min((period + 1) * self._chosen.replace, self._chosen.steps)
        lost, lost_at, when = _drawn_loss(self._chosen, period)
        while self._step < end:
            due = self.rank == lost and self._step == lost_at
            if due and when == "before":
                self._fail()
            gradient, loss = self._gradient()
            try:
                reducer.ready("weights", gradient)
                if due:
                    self._fail()
                reducer.wait()
            except tersor.RanksLostError:
                reducer.resume()
                continue
            self._weights -= np.float32(RATE) * gradient
            self._step += 1
            if self._step % self._chosen.every == 0:
                self._record(loss, period + (self._step > lost_at))
        with contextlib.suppress(tersor.TransportError):  # a rank that leaves first looks lost
            reducer.channel().barrier()

    def _gradient(self) -> tuple[Any, float]:
        """The gradient of this rank's batch with noisy targets, and the mean square error."""
        drawn = np.random.default_rng((self._chosen.seed, self.rank, self._step))
        inputs = drawn.standard_normal((BATCH, WIDTH), np.float32)
        errors = inputs @ (self._weights - self._truth)
        errors += np.float32(NOISE) * drawn.standard_normal(errors.shape, np.float32)
        return inputs.T @ errors / np.float32(BATCH), float(np.square(errors).mean())

    def _record(self, loss: float, losses: int) -> None:
        status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
        found = dict(line.split(":", 1) for line in status.splitlines())
        row = {
            "step": self._step,
            "losses": losses,
            "seconds": round(time.monotonic() - self._start, 1),
            "loss": loss,
            "rss_bytes": 1024 * int(found["VmRSS"].split()[0]),
            "threads": int(found["Threads"]),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "weights": hashlib.sha256(self._weights.tobytes()).hexdigest()[:16],
        }
        path = pathlib.Path(self._chosen.folder, f"records.{self.rank}")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class _FolderStore:
    """The store of a rendezvous: a file per key."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def set(self, key: str, value: str) -> None:
        path = self._folder / key.replace("/", "_")
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(value, encoding="utf-8")
        new.rename(path)

    def get(self, key: str, seconds: float) -> str:
        path, end = self._folder / key.replace("/", "_"), time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {key} within {seconds:g} s")
            time.sleep(POLL_SECONDS)
        return path.read_text(encoding="utf-8")


def _connect_tcp(chosen: argparse.Namespace, rank: int, period: int) -> Any:
    store = _FolderStore(pathlib.Path(chosen.folder, f"period.{period}"))
    return tersor.TcpTransport(store, rank, chosen.ranks, "127.0.0.1", 300.0)


def _run_processes(chosen: argparse.Namespace) -> None:
    """Starts the ranks, and starts each killed rank again for the next period."""
    periods, file = -(-chosen.steps // chosen.replace), pathlib.Path(chosen.folder, "log")

    def start(rank: int, period: int) -> tuple[int, subprocess.Popen[bytes]]:
        own = {**vars(chosen), "rank": rank, "period": period, "json": None, "run": None}
        command = [sys.executable, "-m", "tersor.bench.soak_command", json.dumps(own)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with file.open("ab") as log:
            return period, subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    ranks = {rank: start(rank, 0) for rank in range(chosen.ranks)}
    try:
        while ranks:
            time.sleep(POLL_SECONDS)
            for rank, (period, process) in list(ranks.items()):
                status = process.poll()
                if status == -signal.SIGKILL and rank != 0:
                    period = _next_period(chosen, rank, period)
                    del ranks[rank]
                    if period < periods:
                        ranks[rank] = start(rank, period)
                elif status is not None:
                    text = file.read_text(errors="replace").splitlines()
                    fail_if(status != 0, f"soak: rank {rank} ended: {' '.join(text[-1:])}")
                    del ranks[rank]
    finally:
        for _, process in ranks.values():
            process.kill()
            process.wait()


def _next_period(chosen: argparse.Namespace, rank: int, first: int) -> int:
    """The period after the loss of a rank that began with period ``first``."""
    return next(one for one in itertools.count(first) if _drawn_loss(chosen, one)[0] == rank) + 1


def _run_threads(chosen: argparse.Namespace) -> None:
    """Trains with a thread per rank. The place of an ended thread goes to a new thread."""
    worlds: dict[int, tersor.local.InProcessWorld] = {}
    lock = threading.Lock()

    def connect(_: argparse.Namespace, rank: int, period: int) -> Any:
        with lock:
            for done in [one for one in worlds if one < period - 1]:
                del worlds[done]
            world = worlds.setdefault(period, tersor.local.InProcessWorld(chosen.ranks))
        return world.transport(rank)

    def rank_thread(rank: int) -> None:
        period = 0
        while period * chosen.replace < chosen.steps:
            try:
                _Rank(chosen, rank, period, _end_thread).train(connect)
                return
            except _LostError:
                period = _next_period(chosen, rank, period)

    with concurrent.futures.ThreadPoolExecutor(chosen.ranks) as pool:
        ranks = [pool.submit(rank_thread, one) for one in range(chosen.ranks)]
        for ended in concurrent.futures.as_completed(ranks):
            if error := ended.exception():
                raise BenchmarkError(f"soak: a rank ended: {error}") from error


if __name__ == "__main__":  # a process of _run_processes, without the imports of other commands
    _options = argparse.Namespace(**json.loads(sys.argv[1]))
    _kill = functools.partial(signal.raise_signal, signal.SIGKILL)
    _Rank(_options, _options.rank, _options.period, _kill).train(_connect_tcp)
