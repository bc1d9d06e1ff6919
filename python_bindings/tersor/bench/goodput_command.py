"""``goodput``: what is left of a training whose ranks stall and die, by several ways of exchanging.

Ranks of this host train a tiny model, each step of which sleeps. Stalls of a given length and
deaths are drawn from a seed, exponentially, the same for all ways; a death is kill -9, and for
good. Goodput: the steps of all ranks that went into the weights they have in common, of those that
as many would make without a failure.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch.distributed as dist

from tersor import _text
from tersor.bench import goodput, launch, options, world
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile, add_option

START_SECONDS = 600.0  # for importing, on a machine that is busy
POLL_SECONDS = 0.02


def _not_below_0(text: str) -> float:
    if not 0 <= (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: give seconds, 0 or more")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--ways", nargs="+", choices=goodput.WAYS, default=list(goodput.WAYS))
    parser.add_argument("--ranks", type=options.positive, default=4, help="(4)")
    parser.add_argument("--seed", type=int, default=1, help="of the failures (1)")
    for name, default, text in (
        ("seconds", 60.0, "that each way trains"),
        ("step", 0.1, "seconds of an inner step"),
        ("stall", 5.0, "seconds of a stall"),
    ):
        parser.add_argument(
            f"--{name}", type=options.positive_number, default=default, help=f"{text} ({default:g})"
        )
    for name, default, text in (
        ("stall-every", 20.0, "mean seconds between two stalls of a rank; 0: it has none"),
        ("death-every", 240.0, "mean seconds to the death of a rank; 0: it does not die"),
        ("grace", 0.5, "seconds for which diloco+grace waits for who is late"),
    ):
        parser.add_argument(
            f"--{name}", type=_not_below_0, default=default, help=f"{text} ({default:g})"
        )
    parser.add_argument("--every", type=options.positive, default=20, help="steps, of DiLoCo (20)")
    parser.add_argument("--codec", default="int8+ef", help="(int8+ef)")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # where ranks tell what they did
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Measures each way, or is a rank of one. Returns the exit status."""
    if chosen.folder is not None:
        world.enter("cpu", 1, "gloo")
        goodput.train(chosen, int(os.environ["RANK"]))
    records, found = RecordFile(chosen.json), []
    for way in chosen.ways:
        found.append(_measure(way, chosen))
        records.add(found[-1])
    head = ["way", "goodput", "steps", "without failures", "deaths", "stalls"]
    print(_text.table(head, [_row(record) for record in found]))
    return 0


def _row(record: Record) -> list[str]:
    rest = [str(record[field]) for field in ("steps", "most_steps", "deaths", "stalls")]
    return [str(record["way"]), f"{record['goodput']:.2f}", *rest]


class _Ranks:
    """The processes of a way."""

    def __init__(self, way: str, chosen: argparse.Namespace, folder: str) -> None:
        own = ["--ways", way, "--folder", folder]
        self._command = [sys.executable, "-m", "tersor.bench", *sys.argv[1:], *own]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self._log = pathlib.Path(folder, "log").open("wb")  # noqa: SIM115
        self._ranks = chosen.ranks
        self.processes = {rank: self.start(rank) for rank in range(chosen.ranks)}

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **launch.environment(rank, self._ranks, self._store.port)}
        environment |= {"TERSOR_TCP_ADDRESS": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(self._command, env=environment, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        launch.end(self.processes.values())
        self._log.close()


def _measure(way: str, chosen: argparse.Namespace) -> Record:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ranks = _Ranks(way, chosen, name)
        try:
            deaths = _train(ranks, chosen, folder)
        finally:
            for one in ranks.processes.values():
                one.kill()  # none is to say goodbye to the others
            ranks.end()
        steps = sum(int(one.read_text()) for one in folder.glob("counted.*[0-9]"))
    most = round(chosen.ranks * chosen.seconds / chosen.step)
    told = ("ranks", "seed", "seconds", "step", "stall", "stall_every", "death_every", "codec")
    ours: Record = {} if way == "ddp" else {"every": chosen.every}
    ours |= {"grace": chosen.grace} if way == "diloco+grace" else {}
    return {
        "benchmark": "goodput",
        "way": way,
        **{field: getattr(chosen, field) for field in told},
        **ours,
        "stalls": sum(len(goodput.times(chosen, "stall", one)) for one in range(chosen.ranks)),
        "deaths": deaths,
        "steps": steps,
        "most_steps": most,
        "goodput": steps / most,
    }


def _train(ranks: _Ranks, chosen: argparse.Namespace, folder: pathlib.Path) -> int:
    """From when all ranks are there until the time is over. Returns how many died."""
    _wait_for_all(ranks, folder)
    start = time.time() + POLL_SECONDS
    (folder / "go.new").write_text(str(start))
    (folder / "go.new").rename(folder / "go")
    drawn = {rank: goodput.times(chosen, "death", rank) for rank in ranks.processes}
    due = sorted((at, rank) for rank, every in drawn.items() for at in every)
    deaths = 0
    while (now := time.time() - start) < chosen.seconds:
        while due and due[0][0] <= now:
            _, rank = due.pop(0)
            if ranks.processes[rank].poll() is None:
                ranks.processes[rank].kill()
                deaths += 1
        time.sleep(POLL_SECONDS)
    return deaths


def _wait_for_all(ranks: _Ranks, folder: pathlib.Path) -> None:
    until = time.monotonic() + START_SECONDS
    while len(list(folder.glob("ready.*"))) < len(ranks.processes):
        if any(one.poll() is not None for one in ranks.processes.values()):
            told = (folder / "log").read_text(errors="replace").splitlines()
            raise BenchmarkError(f"a rank ended: {told[-1] if told else 'without a word'}")
        if time.monotonic() > until:
            raise BenchmarkError(f"the ranks did not come within {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
