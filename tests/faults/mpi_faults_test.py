"""Faults of processes under mpirun: a rank fails, is killed or is suspended.

Every other rank must raise an error in time, with the number of the faulty rank. Skipped without
MPI.

TERSOR_MPI_FAULTS is the program. TERSOR_FAULT_SEEDS ("17" or "1-1000") are the seeds; the default
is 1-50.
"""
import collections
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TERSOR_MPI_FAULTS", "")
MOST_SEEDS = 12  # per mpirun without a dying process
START_SECONDS = 60
SCENARIO_SECONDS = 60


def wanted_seeds():
    first, _, last = os.environ.get("TERSOR_FAULT_SEEDS", "1-50").partition("-")
    return range(int(first), int(last or first) + 1)


def describe(seeds):
    """Returns the program's description of each seed."""
    command = [PROGRAM, "describe", *map(str, seeds)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def thread_level(seed):
    return "single" if seed % 2 else "multiple"


def batches(scenarios):
    """Groups scenarios for a single mpirun each. Only the last scenario of a batch kills a process.
    """
    groups = collections.defaultdict(list)
    for scenario in scenarios:
        if scenario["fatal"]:
            yield [scenario]
        else:
            groups[scenario["ranks"], thread_level(scenario["seed"])].append(scenario)
    for group in groups.values():
        for first in range(0, len(group), MOST_SEEDS):
            yield group[first : first + MOST_SEEDS]


class Launch:
    """One mpirun of a batch. All processes are killed at the end."""

    def __init__(self, batch):
        self.batch = batch
        self.ranks = batch[0]["ranks"]
        seeds = [str(scenario["seed"]) for scenario in batch]
        self.command = [str(ROOT / "scripts/mpirun"), "--recover", str(self.ranks), PROGRAM, "run"]
        self.command += [thread_level(batch[0]["seed"]), *seeds]
        self.pids = set()
        self.ends = {}  # (seed, rank) -> report
        self.noise = []  # lines without a report

    def expected(self):
        """The ranks with reports: all except dead and suspended ranks."""
        return {
            (scenario["seed"], rank)
            for scenario in self.batch
            for rank in range(self.ranks)
            if not (scenario["fatal"] and rank == scenario["rank"])
        }

    def run(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            self.listen(time.monotonic() + START_SECONDS + SCENARIO_SECONDS * len(self.batch))
            self.let_end()
        finally:
            self.end_all()

    def listen(self, until):
        """Reads until every rank has reported, or all processes have ended."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while self.expected() - self.ends.keys() and time.monotonic() < until:
                if not selector.select(timeout=1):
                    continue
                received = os.read(self.process.stdout.fileno(), 1 << 16)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self.take(line.decode(errors="replace"))

    def take(self, line):
        try:
            report = json.loads(line)
        except ValueError:
            self.noise.append(line)
            return
        if report["event"] == "start":
            self.pids.add(report["pid"])
        else:
            self.ends[report["seed"], report["rank"]] = report

    def let_end(self):
        """Waits for a healthy mpirun to exit."""
        if not any(scenario["fatal"] for scenario in self.batch):
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.noise.append("mpirun did not end by itself")

    def end_all(self):
        for pid in self.pids:  # each pid is a separate process group, not a child of this process
            if is_rank(pid):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stdout.close()
        self.process.wait()

    def complaints(self):
        """Complaints as sentences."""
        for seed, rank in sorted(self.expected()):
            report = self.ends.get((seed, rank))
            if report is None:
                yield seed, f"rank {rank} never reported"
                continue
            for complaint in report["complaints"]:
                yield seed, complaint


def is_rank(pid):
    """True if the process is still a rank of this test; the system may have reused the number."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].decode() == PROGRAM


@unittest.skipUnless(PROGRAM, "built without MPI")
@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun: install openmpi-bin")
class MpiFaults(unittest.TestCase):
    def test_faults_raise_in_time_on_other_ranks(self):
        scenarios = describe(wanted_seeds())
        texts = {scenario["seed"]: scenario["text"] for scenario in scenarios}
        for batch in batches(scenarios):
            launch = Launch(batch)
            launch.run()
            for seed, complaint in launch.complaints():
                with self.subTest(seed=seed):
                    self.fail(
                        f"{complaint}\n{texts[seed]}\nrepeat with: TERSOR_FAULT_SEEDS={seed} "
                        f"TERSOR_MPI_FAULTS={PROGRAM} python3 {__file__}\n" + "\n".join(launch.noise)
                    )


if __name__ == "__main__":
    unittest.main()
