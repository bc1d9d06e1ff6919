"""Cuts the link of one host in the middle of a transfer. Hosts are network namespaces.

Every rank raises an error before the deadline, and the ranks still connected name the rank behind
the cut link. The transfers run over MPI and over TCP. TCP survives a cut shorter than the deadline.
Skipped without MPI, without root, or if the kernel forbids network namespaces.

TERSOR_MPI_STREAM is the transfer program.
"""
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

CLUSTER = pathlib.Path(__file__).resolve().parents[2] / "scripts/cluster"
PROGRAM = os.environ.get("TERSOR_MPI_STREAM", "")
PREFIX = f"tersorcut{os.getpid()}"
HOSTS = 3
CUT = 1
TIMEOUT_MS = 4000  # a step takes a tenth of this time on an idle machine
LONG_TIMEOUT_MS = 60_000
TOLERANCE_SECONDS = 10
STEPS_BEFORE = 2
PATIENCE_SECONDS = 90


def cluster(*words):
    return subprocess.run(
        [CLUSTER, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "TERSOR_CLUSTER": PREFIX},
    )  # fmt: skip


@unittest.skipUnless(PROGRAM, "built without MPI")
@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun: install openmpi-bin")
@unittest.skipUnless(os.geteuid() == 0, "only root may make hosts of network namespaces")
@unittest.skipUnless(shutil.which("ip") and shutil.which("tc"), "there is no iproute2")
class LinkCut(unittest.TestCase):
    def setUp(self):
        done = cluster("up", HOSTS, "--rate", "100mbit")
        self.addCleanup(cluster, "down")
        if done.returncode == 2:
            self.skipTest("no cluster on this machine: " + done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)

    def start(self, timeout_ms, *meeting):
        """Starts the transfers and queues the output of the ranks."""
        process = subprocess.Popen(
            [CLUSTER, "run", "--recover", PROGRAM, str(timeout_ms), *map(str, meeting)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "TERSOR_CLUSTER": PREFIX},
        )  # fmt: skip
        self.addCleanup(self.end, process)
        self.lines = queue.Queue()
        self.last_step = 0
        self.noise = []
        threading.Thread(target=self.listen, args=[process.stdout], daemon=True).start()

    def end(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def listen(self, output):
        with output:
            for line in output:
                try:
                    self.lines.put(json.loads(line))
                except ValueError:
                    self.noise.append(line)

    def next_line(self):
        try:
            return self.lines.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            self.fail("the ranks say nothing any more:\n" + "".join(self.noise))

    def wait_for_steps(self, wanted=STEPS_BEFORE):
        """Waits until all ranks have started that step."""
        begun = set()
        while len(begun) < HOSTS:
            line = self.next_line()
            self.assertEqual(line["event"], "step", line)
            self.last_step = max(self.last_step, line["step"])
            if line["step"] >= wanted:
                begun.add(line["rank"])

    def ends(self):
        found = {}
        while len(found) < HOSTS:
            line = self.next_line()
            if line["event"] == "end":
                found[line["rank"]] = line
        return found

    def meeting(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name) / "meeting"

    def cut_in_a_transfer(self):
        self.wait_for_steps()
        time.sleep(0.1)  # a transfer takes 0.45 s
        self.assertEqual(cluster("cut", CUT).returncode, 0)

    def check_ends(self):
        for rank, end in self.ends().items():
            with self.subTest(rank=rank, end=end):
                self.check(rank, end)

    def test_all_ranks_raise_within_the_deadline(self):
        self.start(TIMEOUT_MS)
        self.cut_in_a_transfer()
        self.check_ends()

    def test_all_ranks_raise_within_the_deadline_over_tcp(self):
        self.start(TIMEOUT_MS, self.meeting())
        self.cut_in_a_transfer()
        self.check_ends()

    def test_tcp_survives_a_short_cut(self):
        self.start(LONG_TIMEOUT_MS, self.meeting())
        self.cut_in_a_transfer()
        time.sleep(1)
        self.assertEqual(cluster("join", CUT).returncode, 0)
        self.wait_for_steps(self.last_step + 3)

    def check(self, rank, end):
        self.assertIn("allreduce", end["message"])
        self.assertIn(f"within {TIMEOUT_MS} ms", end["message"])
        self.assertLess(end["seconds"], TIMEOUT_MS / 1000 + TOLERANCE_SECONDS)
        self.assertIn("the transport was aborted", end["later"])
        self.assertLess(end["later_seconds"], TOLERANCE_SECONDS)
        if rank != CUT:  # the isolated rank cannot tell which link was cut
            self.assertIn(f"no message from rank {CUT} within", end["message"])


if __name__ == "__main__":
    unittest.main()
