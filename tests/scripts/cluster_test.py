"""scripts/cluster: refused calls, traffic shaping, counters, link cuts and joins, and cleanup.

Host names are unique to avoid conflicts with other clusters.
"""

import collections
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PREFIX = f"tersortest{os.getpid()}"
ROOT = os.geteuid() == 0
HAS_IPROUTE = bool(shutil.which("ip") and shutil.which("tc"))
MEGABYTE = 10**6

# Accepts a connection, reads until the end, and answers with a byte.
SERVER = """
import socket
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20): pass
    connection.sendall(b"!")
"""

# Sends a given number of bytes. Prints the seconds until the answer and TCP's congestion control.
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000), timeout=10) as connection:
    start = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b"!"
    print(time.monotonic() - start)
    print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).decode())
"""


def cluster(*words, folder=SCRIPTS, **environment):
    return subprocess.run(
        [folder / "cluster", *map(str, words)], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "TERSOR_CLUSTER": PREFIX, **environment},
    )  # fmt: skip


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()]


class Case(unittest.TestCase):
    def refused(self, *sentences, done) -> None:
        self.assertEqual(done.returncode, 2, done.stderr)
        for sentence in sentences:
            self.assertIn(sentence, done.stderr)

    def nothing_left(self) -> None:
        self.assertFalse([name for name in namespaces() if name.startswith(PREFIX)])
        self.assertFalse(pathlib.Path("/run/tersor-cluster", PREFIX).exists())


    def send(self, count) -> tuple[float, str]:
        """Sends bytes from host 1 to host 0. Returns the seconds and TCP's congestion control."""
        server = subprocess.Popen(
            ["ip", "netns", "exec", f"{PREFIX}0", "python3", "-c", SERVER],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.assertEqual(server.stdout.readline(), "listening\n")
            client = subprocess.run(
                ["ip", "netns", "exec", f"{PREFIX}1", "python3", "-c", CLIENT, "10.77.0.1",
                 str(count)], capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
        finally:
            server.kill()
            server.communicate()
        self.assertEqual(client.returncode, 0, client.stderr)
        seconds, congestion = client.stdout.split()
        return float(seconds), congestion.rstrip("\0")


class Usage(Case):
    def test_invalid_commands_print_the_usage(self) -> None:
        for words in ([], ["start"], ["up"], ["up", "0"], ["up", "65"], ["up", "two"],
                      ["up", "2", "--speed", "1gbit"], ["up", "2", "--rate"]):  # fmt: skip
            self.refused("usage: scripts/cluster", done=cluster(*words))

    def test_invalid_link_options_are_rejected_by_name(self) -> None:
        nonsense = {
            "rate": ("fast", "0mbit", "-1gbit", "1gb", "10bit", "1e9gbit", "999999gbit", ""),
            "delay": ("50", "0us", "0.0ms", "-5ms", "5min", "99999ms", ""),
            "loss": ("0.1", "0%", "0.00%", "100%", "-1%", "all", ""),
            "burst": ("0", "100", "1ms", ""),
            "congestion": ("none", "fast", ""),
        }
        for option, values in nonsense.items():
            for value in values:
                self.refused(f"--{option} {value}:", done=cluster("up", 2, f"--{option}", value))

    def test_invalid_cluster_names_are_rejected(self) -> None:
        for name in ("../x", "two words", "9", "x" * 40):
            self.refused("TERSOR_CLUSTER", done=cluster("down", TERSOR_CLUSTER=name))


@unittest.skipUnless(ROOT and shutil.which("setpriv"), "needs root, to give it up")
class WithoutRoot(Case):
    def test_every_command_requires_root(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(shutil.copytree(SCRIPTS, f"{folder}/scripts"))
            os.chmod(folder, 0o755)
            for words in ("up 2", "run true", "counters", "cut 0", "status", "down"):
                done = subprocess.run(
                    ["setpriv", "--reuid=65534", "--clear-groups",
                     copy / "cluster", *words.split()],
                    capture_output=True, text=True, timeout=60, check=False,
                )  # fmt: skip
                self.refused("needs root", done=done)


@unittest.skipUnless(ROOT and HAS_IPROUTE, "needs root and iproute2")
class NoCluster(Case):
    def test_commands_without_a_cluster_suggest_up(self) -> None:
        for words in ("run true", "enter 0 true", "counters", "cut 0", "join 0"):
            self.refused("scripts/cluster up", done=cluster(*words.split()))

    def test_down_without_a_cluster_succeeds_and_status_reports_none(self) -> None:
        self.assertEqual(cluster("down").returncode, 0)
        done = cluster("status")
        self.assertEqual((done.returncode, done.stdout), (1, "no cluster is up\n"))


def up_or_skip(*words):
    """Skips if the machine forbids namespaces or the kernel lacks traffic shaping."""
    done = cluster("up", *words)
    if re.search("no namespace could be made|kernel has no", done.stderr):
        raise unittest.SkipTest(done.stderr.splitlines()[-2])
    return done


@unittest.skipUnless(ROOT and HAS_IPROUTE, "needs root and iproute2")
class HalfWay(Case):
    """An `up` with a failure after the first steps."""

    def setUp(self) -> None:
        up_or_skip(1, "--rate", "100mbit")
        cluster("down")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = f"{folder.name}:{os.environ['PATH']}"
        self.folder = pathlib.Path(folder.name)

    def refuse(self, program, pattern) -> None:
        """A program that fails for matching arguments and otherwise runs the real program."""
        file = self.folder / program
        file.write_text(
            f'#!/bin/sh\ncase "$*" in {pattern}) echo "unknown kind" >&2; exit 2 ;; esac\n'
            f'exec {shutil.which(program)} "$@"\n'
        )
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def test_missing_kernel_traffic_shaping_is_reported(self) -> None:
        for kind, option, value in (("tbf", "--rate", "1gbit"), ("netem", "--delay", "1ms")):
            self.refuse("tc", f"*{kind}*")
            done = cluster("up", 2, option, value, PATH=self.path)
            self.refused(f"no {kind}", "modprobe", "the cluster was not made", done=done)
            self.nothing_left()

    def test_failure_of_the_last_host_cleans_up(self) -> None:
        self.refuse("ip", f"*'peer name eth1 netns {PREFIX}1'*")
        done = cluster("up", 2, PATH=self.path)
        self.refused("unknown kind", "the cluster was not made", done=done)
        self.nothing_left()

    def test_foreign_namespaces_are_kept(self) -> None:
        subprocess.run(["ip", "netns", "add", f"{PREFIX}1"], check=True)
        self.addCleanup(subprocess.run, ["ip", "netns", "del", f"{PREFIX}1"], check=True)
        self.refused(f"another program has the namespace {PREFIX}1", done=cluster("up", 2))
        self.assertEqual(cluster("up", 1).returncode, 0)
        self.assertEqual(cluster("down").returncode, 0)
        self.assertIn(f"{PREFIX}1", namespaces())


Count = collections.namedtuple("Count", "sent received")


class Hosts(Case):
    RATE = 100e6  # bits per second

    @classmethod
    def setUpClass(cls) -> None:
        if not (ROOT and HAS_IPROUTE):
            raise unittest.SkipTest("needs root and iproute2")
        cls.addClassCleanup(cluster, "down")
        done = up_or_skip(2, "--rate", "100mbit", "--congestion", "reno")
        assert done.returncode == 0, done.stderr

    def succeeds(self, *words) -> str:
        done = cluster(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def counts(self) -> list[Count]:
        found = re.findall(r"tx=(\d+) rx=(\d+) dropped=\d+$", self.succeeds("counters"), re.M)
        self.assertEqual(len(found), 2)
        return [Count(int(sent), int(received)) for sent, received in found]

    def test_second_up_is_rejected_and_harmless(self) -> None:
        self.refused("up already", done=cluster("up", 2))
        self.assertRegex(self.succeeds("status"), f"{PREFIX}1 10.77.0.2 joined")

    def test_rate_limit_and_counters(self) -> None:
        before = self.counts()
        count = 2 * MEGABYTE
        (seconds, congestion), (again, _) = self.send(count), self.send(count)
        after = self.counts()
        least = count * 8 / self.RATE
        self.assertEqual(congestion, "reno")
        self.assertGreater(min(seconds, again), 0.95 * least)
        self.assertLess(min(seconds, again), 3 * least)  # a busy machine may be late
        sent = after[1].sent - before[1].sent
        self.assertGreater(sent, 2 * count * 1514 / 1460)
        self.assertLess(sent, 2 * count * 1.15)
        self.assertLess(abs(after[0].received - before[0].received - sent), 0.02 * count)

    def test_hosts_have_resolvable_names(self) -> None:
        self.assertEqual(self.succeeds("enter", 1, "hostname; exit").strip(), f"{PREFIX}1")
        self.assertIn("10.77.0.2", self.succeeds("enter", 0, f"getent hosts {PREFIX}1"))
        self.assertEqual(cluster("enter", 0, "exit 7").returncode, 7)
        self.refused("no host '2'", done=cluster("enter", 2, "true"))

    @unittest.skipUnless(shutil.which("mpirun"), "needs Open MPI")
    def test_ranks_are_spread_over_the_hosts(self) -> None:
        expected = {("run",): [0, 1], ("run", "-n", 1): [0],
                    ("run", "--ranks-per-host", 2): [0, 0, 1, 1]}  # fmt: skip
        for words, hosts in expected.items():
            names = self.succeeds(*words, "hostname").split()
            self.assertEqual(sorted(names), [f"{PREFIX}{host}" for host in hosts])
        self.assertEqual(cluster("run", "sh", "-c", "exit 3").returncode, 3)
        for words in (["run"], ["run", "--ranks-per-host", "0", "true"], ["run", "--fast", "true"]):
            self.refused("usage", done=cluster(*words))

    def test_cut_host_is_disconnected_until_it_joins(self) -> None:
        def carrier():
            return self.succeeds("enter", 1, "cat /sys/class/net/eth0/carrier").strip()

        self.assertEqual(carrier(), "1")
        self.succeeds("cut", 1)
        self.assertEqual(carrier(), "0")
        self.assertRegex(self.succeeds("status"), f"{PREFIX}0 .* joined\n{PREFIX}1 .* cut")
        self.succeeds("join", f"{PREFIX}1")
        self.assertEqual(carrier(), "1")
        self.send(1000)

    def test_down_kills_processes_inside_the_cluster(self) -> None:
        name = PREFIX + "ends"
        self.addCleanup(cluster, "down", TERSOR_CLUSTER=name)
        self.assertEqual(cluster("up", 1, TERSOR_CLUSTER=name).returncode, 0)
        sleeper = subprocess.Popen(["ip", "netns", "exec", f"{name}0", "sleep", "1000"])
        self.addCleanup(sleeper.kill)
        while "sleep" not in pathlib.Path(f"/proc/{sleeper.pid}/cmdline").read_text().split("\0"):
            time.sleep(0.01)  # until the process has entered the namespace
        trace = pathlib.Path(tempfile.gettempdir(), f"ompi.{name}0.0")  # like the remains of a killed mpirun
        trace.mkdir()
        self.assertEqual(cluster("down", TERSOR_CLUSTER=name).returncode, 0)
        self.assertFalse(trace.exists())
        self.assertEqual(sleeper.wait(timeout=10), -9)
        self.assertFalse([found for found in namespaces() if found.startswith(name)])
        self.assertTrue(self.succeeds("status"))  # the other cluster's hosts still exist


if __name__ == "__main__":
    unittest.main()
