"""``goodput``: what is left of a training whose ranks stall and die, by several ways of exchanging.

Ranks of this host train a tiny model, each step of which sleeps. Stalls of a given length and
deaths are drawn from a seed, exponentially, the same for all ways; a death is kill -9, and for
good, but under torchft, where a replica is started again. Goodput: the steps of all ranks that went
into the weights they have in common, of those that as many would make without a failure; alone:
what ranks would make that wait for nobody. Pause: the median, over deaths, of the longest time
between two such steps of a rank that lives. With ``server`` rank 0 serves and works, and does not
die.
"""

import argparse
import importlib.util
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch.distributed as dist

from tersor import _text
from tersor.bench import goodput, launch, options, world
from tersor.bench.errors import BenchmarkError
from tersor.bench.goodput_pace import counted, times
from tersor.bench.goodput_torchft import Lighthouse
from tersor.bench.records import Record, RecordFile, add_option

START_SECONDS = 600.0  # for importing, on a machine that is busy
POLL_SECONDS = 0.02


def _ways() -> list[str]:
    """Those that can run here."""
    here = importlib.util.find_spec("torchft") is not None
    return [way for way in goodput.WAYS if here or not _is_torchft(way)]


def _is_torchft(way: str) -> bool:
    return way.startswith("torchft")


def _not_below_0(text: str) -> float:
    if not 0 <= (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: give seconds, 0 or more")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--ways", nargs="+", choices=goodput.WAYS, default=_ways())
    parser.add_argument("--ranks", type=options.positive, default=4, help="(4)")
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], help="of the failures; each is a run (1)"
    )
    for name, default, text in (
        ("seconds", 60.0, "that each way trains"),
        ("step", 0.1, "seconds of an inner step"),
        ("stall", 5.0, "seconds of a stall"),
        ("heartbeat", 5.0, "seconds without one after which torchft holds a replica for dead"),
        ("restart", 5.0, "seconds from a death to the replica's new process, under torchft"),
    ):
        parser.add_argument(
            f"--{name}", type=options.positive_number, default=default, help=f"{text} ({default:g})"
        )
    for name, default, text in (
        ("stall-every", 20.0, "mean seconds between two stalls of a rank; 0: it has none"),
        ("death-every", 240.0, "mean seconds to the death of a rank; 0: it does not die"),
        ("grace", 0.2, "seconds for which diloco+grace and torchft's lighthouse wait for the late"),
    ):
        parser.add_argument(
            f"--{name}", type=_not_below_0, default=default, help=f"{text} ({default:g})"
        )
    parser.add_argument("--every", type=options.positive, default=20, help="steps, of DiLoCo (20)")
    parser.add_argument(
        "--staleness", type=int, default=0, help="clocks that a worker of server may be ahead (0)"
    )
    parser.add_argument("--codec", default="int8+ef", help="(int8+ef)")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # where ranks tell what they did
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Measures each way, or is a rank of one. Returns the exit status."""
    if chosen.folder is not None:
        if not _is_torchft(chosen.ways[0]):
            world.enter("cpu", 1, "gloo")
        chosen.seed = chosen.seed[0]
        goodput.train(chosen, int(os.environ["RANK"]))
    for way in chosen.ways:
        if way not in _ways():
            raise BenchmarkError(f"{way}: pip install torchft")
    records, found = RecordFile(chosen.json), []
    for way, seed in itertools.product(chosen.ways, chosen.seed):
        one = argparse.Namespace(**{**vars(chosen), "ways": [way], "seed": seed})
        found.append(_measure(way, one))
        records.add(found[-1])
    head = ["way", "goodput", "alone", "steps", "without failures", "deaths", "stalls"]
    print(_text.table([*head, "pause", "longest"], [_row(record) for record in found]))
    return 0


def _row(record: Record) -> list[str]:
    shares = [f"{record[field]:.2f}" for field in ("goodput", "alone")]
    rest = [str(record[field]) for field in ("steps", "most_steps", "deaths", "stalls")]
    for pause in (record["pause_seconds"], record["longest_pause_seconds"]):
        rest += [_text.seconds(pause) if isinstance(pause, float) else "—"]
    return [str(record["way"]), *shares, *rest]


class _Ranks:
    """The processes of a way."""

    def __init__(self, way: str, chosen: argparse.Namespace, folder: str) -> None:
        own = ["--ways", way, "--seed", str(chosen.seed), "--folder", folder]
        self._command = [sys.executable, "-m", "tersor.bench", *sys.argv[1:], *own]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self._log = pathlib.Path(folder, "log").open("wb")  # noqa: SIM115
        self._lighthouse = Lighthouse(chosen, self._log) if _is_torchft(way) else None
        self._ranks = chosen.ranks
        self.processes = {rank: self.start(rank) for rank in range(chosen.ranks)}

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **launch.environment(rank, self._ranks, self._store.port)}
        environment |= {"TERSOR_TCP_ADDRESS": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        if self._lighthouse is not None:
            environment["TORCHFT_LIGHTHOUSE"] = self._lighthouse.address
        return subprocess.Popen(self._command, env=environment, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        for one in self.processes.values():
            one.kill()  # none is to say goodbye to the others
            one.wait()
        if self._lighthouse is not None:
            self._lighthouse.end()
        self._log.close()


def _measure(way: str, chosen: argparse.Namespace) -> Record:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ranks = _Ranks(way, chosen, name)
        try:
            deaths = _train(ranks, chosen, folder, restarts=_is_torchft(way))
        finally:
            ranks.end()
        made = [counted(folder, rank) for rank in range(chosen.ranks)]
    steps = sum(steps for rank in made for at, steps in rank if at <= chosen.seconds)
    pauses = _pauses(made, deaths, chosen.step)
    available = chosen.ranks * chosen.seconds
    most = round(available / chosen.step)
    return {
        "benchmark": "goodput",
        "way": way,
        **_setting(way, chosen),
        "stalls": sum(len(times(chosen, "stall", one)) for one in range(chosen.ranks)),
        "deaths": len(deaths),
        "steps": steps,
        "most_steps": most,
        "goodput": steps / most,
        "alone": sum(_alive(one, way, chosen) for one in range(chosen.ranks)) / available,
        "pause_seconds": statistics.median(pauses) if pauses else None,
        "longest_pause_seconds": max(pauses, default=None),
    }


def _setting(way: str, chosen: argparse.Namespace) -> Record:
    told = ["ranks", "seed", "seconds", "step", "stall", "stall_every", "death_every", "codec"]
    told += ["every"] if "diloco" in way else []
    told += ["grace"] if way in ("diloco+grace", "torchft-diloco", "torchft-ddp") else []
    told += ["staleness"] if way == "server" else []
    told += ["heartbeat", "restart"] if _is_torchft(way) else []
    return {field: getattr(chosen, field) for field in told}


def _alive(rank: int, way: str, chosen: argparse.Namespace) -> float:
    """Seconds for which this rank neither stalls nor is dead."""
    gone: float = chosen.restart if _is_torchft(way) else chosen.seconds
    lost = [(at, at + chosen.stall) for at in times(chosen, "stall", rank)]
    lost += [(at, at + gone) for at in times(chosen, "death", rank)]
    alive, now = 0.0, 0.0
    for start, end in sorted(lost):
        alive += max(0.0, start - now)
        now = max(now, end)
    return alive + max(0.0, float(chosen.seconds) - now)


def _pauses(
    made: list[list[tuple[float, int]]], deaths: list[tuple[float, int]], step: float
) -> list[float]:
    """After each death the longest pause of a rank that lives, of those that hold the death or
    begin with the two steps after it."""
    found = []
    for died, rank in deaths:
        pauses = [
            after - before
            for other, told in enumerate(made)
            if other != rank
            for (before, _), (after, _) in itertools.pairwise(told)
            if before <= died + 2 * step and died <= after
        ]
        found += [max(pauses)] if pauses else []
    return found


def _train(
    ranks: _Ranks, chosen: argparse.Namespace, folder: pathlib.Path, *, restarts: bool
) -> list[tuple[float, int]]:
    """From when all ranks are there until the time is over. Returns who died, and when."""
    _wait_for_all(ranks, folder)
    start = time.time() + POLL_SECONDS
    (folder / "go.new").write_text(str(start))
    (folder / "go.new").rename(folder / "go")
    due = [(at, rank) for rank in ranks.processes for at in times(chosen, "death", rank)]
    back: list[tuple[float, int]] = []
    deaths = []
    due.sort()
    while (now := time.time() - start) < chosen.seconds:
        if due and due[0][0] <= now:
            _, rank = due.pop(0)
            if ranks.processes[rank].poll() is None:
                ranks.processes[rank].kill()
                deaths.append((now, rank))
                back.append((now + chosen.restart, rank))
        elif restarts and back and back[0][0] <= now:
            rank = back.pop(0)[1]
            ranks.processes[rank].wait()
            ranks.processes[rank] = ranks.start(rank)
        else:
            time.sleep(POLL_SECONDS)
    return deaths


def _wait_for_all(ranks: _Ranks, folder: pathlib.Path) -> None:
    until = time.monotonic() + START_SECONDS
    while len(list(folder.glob("ready.*"))) < len(ranks.processes):
        if any(one.poll() is not None for one in ranks.processes.values()):
            told = (folder / "log").read_text(errors="replace").splitlines()
            raise BenchmarkError(f"a rank ended: {told[-1] if told else 'without output'}")
        if time.monotonic() > until:
            raise BenchmarkError(f"the ranks did not start within {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
