"""``goodput``: the useful steps of a training whose ranks stall and die, by several ways.

Ranks of this host train a tiny model, and sleep in each step. Stalls of a given length, and deaths,
are drawn from a seed with exponential distances, equal for all ways. A death is kill -9 for good;
under torchft, the replica is started again. Goodput is the number of steps in the common weights,
divided by the number without failures. ``alone`` is the same for ranks that wait for nobody. The
pause is the longest time between two such steps of a living rank after a death: the median over
deaths. With ``server``, rank 0 serves and works, and does not die.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tersor.bench import goodput, world
from tersor.bench.errors import BenchmarkError, fail_if
from tersor.bench.goodput import failures, read_counts
from tersor.bench.records import Record, add, columns, not_negative, pick, report
from tersor.bench.torchft_ways import Lighthouse

START_SECONDS = 600.0  # for imports on a busy machine
POLL_SECONDS = 0.02
COLUMNS = columns(
    "way=way, goodput=goodput:.2f, alone=alone:.2f, steps=steps, "
    "without failures=most_steps, deaths=deaths, stalls=stalls, pause=pause_seconds:s, "
    "longest=longest_pause_seconds:s"
)


def _ways() -> list[str]:
    """The ways that can run here."""
    has_torchft = importlib.util.find_spec("torchft") is not None
    return [way for way in goodput.WAYS if has_torchft or not _is_torchft(way)]


def _is_torchft(way: str) -> bool:
    return way.startswith("torchft")


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "ways", _ways(), "ways to exchange", choices=goodput.WAYS)
    add(parser, "ranks", 4, "number of ranks")
    add(parser, "seed", [1], "seeds of the failures, with a run for each", int)
    add(parser, "seconds", 60.0, "seconds of training for each way")
    add(parser, "step", 0.1, "seconds of an inner step")
    add(parser, "stall", 5.0, "seconds of a stall")
    add(parser, "heartbeat", 5.0, "seconds without a heartbeat after which torchft drops a replica")
    add(parser, "restart", 5.0, "seconds from a death to the new process, under torchft")
    zero = not_negative
    add(parser, "stall-every", 20.0, "mean seconds between two stalls of a rank; 0: none", zero)
    add(parser, "death-every", 240.0, "mean seconds to the death of a rank; 0: none", zero)
    text = "seconds for which diloco+grace and torchft's lighthouse wait for late ranks"
    add(parser, "grace", 0.2, text, zero)
    add(parser, "every", 20, "steps between two exchanges of DiLoCo")
    add(parser, "staleness", 0, "clocks that a worker of server may be ahead", int)
    add(parser, "codec", "int8+ef", "codec of all ways")
    add(parser, "folder", None, argparse.SUPPRESS)  # of the ranks' records


def run(chosen: argparse.Namespace) -> None:
    """Measures each way or, as a rank, trains."""
    if chosen.folder is not None:
        if not _is_torchft(chosen.ways[0]):
            world.join("cpu", 1, "gloo")
        chosen.seed = chosen.seed[0]
        goodput.train(chosen, int(os.environ["RANK"]))
    for way in chosen.ways:
        fail_if(way not in _ways(), f"{way}: pip install torchft")
    cases = [
        argparse.Namespace(**{**vars(chosen), "ways": [way], "seed": seed})
        for way, seed in itertools.product(chosen.ways, chosen.seed)
    ]
    report(chosen, map(_measure, cases), COLUMNS)


class _Ranks:
    """The processes of a way."""

    def __init__(self, chosen: argparse.Namespace, folder: pathlib.Path) -> None:
        (way,), self.folder, self._ranks = chosen.ways, folder, chosen.ranks
        own = ["--ways", way, "--seed", str(chosen.seed), "--folder", str(folder)]
        self._command = [sys.executable, "-m", "tersor.bench", *sys.argv[1:], *own]
        self._store, self._log = world.local_store(), (folder / "log").open("wb")
        self.lighthouse = Lighthouse(chosen, self._log) if _is_torchft(way) else None
        self.processes = {rank: self.start(rank) for rank in range(chosen.ranks)}

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **world.environment(rank, self._ranks, self._store.port)}
        environment |= {"TERSOR_TCP_ADDRESS": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        if self.lighthouse is not None:
            environment["TORCHFT_LIGHTHOUSE"] = self.lighthouse.address
        return subprocess.Popen(self._command, env=environment, stdout=self._log, stderr=self._log)

    def close(self) -> None:
        for one in self.processes.values():
            one.kill()  # without a message to the other ranks
            one.wait()
        if self.lighthouse is not None:
            self.lighthouse.end()
        self._log.close()


def _measure(chosen: argparse.Namespace) -> Record:
    (way,) = chosen.ways
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with contextlib.closing(_Ranks(chosen, folder)) as ranks:
            deaths = _train(ranks, chosen)
        counts = [read_counts(folder, rank) for rank in range(chosen.ranks)]
    steps = sum(steps for rank in counts for at, steps in rank if at <= chosen.seconds)
    pauses = _pauses(counts, deaths, chosen.step)
    available = chosen.ranks * chosen.seconds
    max_steps = round(available / chosen.step)
    return {
        "benchmark": "goodput",
        "way": way,
        **_setting(way, chosen),
        "stalls": sum(len(failures(chosen, "stall", one)) for one in range(chosen.ranks)),
        "deaths": len(deaths),
        "steps": steps,
        "most_steps": max_steps,
        "goodput": steps / max_steps,
        "alone": sum(_uptime(one, way, chosen) for one in range(chosen.ranks)) / available,
        "pause_seconds": statistics.median(pauses) if pauses else None,
        "longest_pause_seconds": max(pauses, default=None),
    }


def _setting(way: str, chosen: argparse.Namespace) -> Record:
    fields = "ranks seed seconds step stall stall_every death_every codec"
    fields += " every" if "diloco" in way else ""
    fields += " grace" if way == "diloco+grace" or _is_torchft(way) else ""
    fields += " staleness" if way == "server" else ""
    fields += " heartbeat restart" if _is_torchft(way) else ""
    return pick(chosen, fields)


def _uptime(rank: int, way: str, chosen: argparse.Namespace) -> float:
    """The seconds in which this rank neither stalls nor is dead."""
    downtime: float = chosen.restart if _is_torchft(way) else chosen.seconds
    lost = [(at, at + chosen.stall) for at in failures(chosen, "stall", rank)]
    lost += [(at, at + downtime) for at in failures(chosen, "death", rank)]
    alive, now = 0.0, 0.0
    for start, end in sorted(lost):
        alive += max(0.0, start - now)
        now = max(now, end)
    return alive + max(0.0, float(chosen.seconds) - now)


def _pauses(
    counts: list[list[tuple[float, int]]], deaths: list[tuple[float, int]], step: float
) -> list[float]:
    """For each death the longest pause of a living rank that includes the death, or that begins
    within two steps after the death."""
    found = []
    for died, rank in deaths:
        pauses = [
            after - before
            for one in counts[:rank] + counts[rank + 1 :]
            for (before, _), (after, _) in itertools.pairwise(one)
            if before <= died + 2 * step and died <= after
        ]
        found += [max(pauses)] if pauses else []
    return found


def _train(ranks: _Ranks, chosen: argparse.Namespace) -> list[tuple[float, int]]:
    """Trains from the start of all ranks to the end. Returns the times and ranks of deaths."""
    _wait_for_all(ranks)
    start = time.time() + POLL_SECONDS
    (ranks.folder / "go.new").write_text(str(start))
    (ranks.folder / "go.new").rename(ranks.folder / "go")
    due = sorted((at, rank) for rank in ranks.processes for at in failures(chosen, "death", rank))
    restarts: list[tuple[float, int]] = []
    deaths = []
    while (now := time.time() - start) < chosen.seconds:
        if due and due[0][0] <= now:
            _, rank = due.pop(0)
            if ranks.processes[rank].poll() is None:
                ranks.processes[rank].kill()
                deaths.append((now, rank))
                restarts.append((now + chosen.restart, rank))
        elif ranks.lighthouse and restarts and restarts[0][0] <= now:
            rank = restarts.pop(0)[1]
            ranks.processes[rank].wait()
            ranks.processes[rank] = ranks.start(rank)
        else:
            time.sleep(POLL_SECONDS)
    return deaths


def _wait_for_all(ranks: _Ranks) -> None:
    until = time.monotonic() + START_SECONDS
    while len(list(ranks.folder.glob("ready.*"))) < len(ranks.processes):
        if any(one.poll() is not None for one in ranks.processes.values()):
            lines = (ranks.folder / "log").read_text(errors="replace").splitlines()
            raise BenchmarkError(f"a rank ended: {lines[-1] if lines else 'without output'}")
        text = f"the ranks did not start within {START_SECONDS:g} s"
        fail_if(time.monotonic() > until, text)
        time.sleep(POLL_SECONDS)
