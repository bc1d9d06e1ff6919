#!/usr/bin/env python3
"""Runs tersor-bench under mpirun and compares the output with a process of as many threads.

usage: check_bench.py SCRIPTS_MPIRUN TERSOR_BENCH [unittest arguments]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

MPIRUN, BENCH = sys.argv[1:3]
RANKS = 3


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **options)


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def records(self, arguments, launcher=()):
        """Returns the records of a successful run."""
        file = pathlib.Path(self.folder.name) / "records.json"
        outcome = run([*launcher, BENCH, *arguments, "--json", str(file)])
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.output = outcome.stdout
        return json.loads(file.read_text())

    def on_processes(self, arguments):
        return self.records([*arguments, "--transport", "mpi"], [MPIRUN, str(RANKS)])

    def on_threads(self, arguments):
        return self.records([*arguments, "--ranks", str(RANKS), "--link", "none"])

    def test_allreduce(self):
        arguments = ["allreduce", "--codec", "int8", "--min", "4K", "--max", "1M", "--iterations", "3"]
        found = self.on_processes(arguments)
        self.assertEqual(self.output.count("codec"), 1, "one rank prints")
        self.assertEqual({record["transport"] for record in found}, {"mpi"})
        self.assertEqual({record["ranks"] for record in found}, {RANKS})
        library = [record for record in found if record["codec"] == "MPI_Allreduce"]
        self.assertEqual({record["algorithm"] for record in library}, {"library"})
        ours = [record for record in found if record not in library]
        for record, threads in zip(ours, self.on_threads(arguments), strict=True):
            for field in ("codec", "algorithm", "count", "relative_error"):
                self.assertEqual(record[field], threads[field])
            self.assertEqual(record["wire_bytes"] == 0, False)
            self.assertEqual(list(record), list(threads), "the same fields")

    def test_collectives_beside_mpis_own(self):
        found = self.on_processes(["collectives", "--codec", "int8", "--min", "256K", "--max", "256K",
                                   "--iterations", "2"])
        self.assertEqual(len(found), 6 * 4)
        for record in found:
            limit = 0.02 if record["codec"] == "int8" else 0.01 if record["codec"] == "bf16" else 1e-6
            self.assertLess(record["relative_error"], limit, record)
        own = {record["codec"] for record in found if record["codec"].startswith("MPI_")}
        named = ("Bcast", "Reduce", "Gather", "Scatter", "Alltoall", "Sendrecv")
        self.assertEqual(own, {f"MPI_{name}" for name in named})

    def test_reducer(self):
        for record in self.on_processes(["allreduce", "--codec", "int4", "--min", "1M", "--max", "1M",
                                         "--parameters", "4", "--iterations", "3"]):
            self.assertGreater(record["wire_bytes"], 0)
            self.assertLess(record["relative_error"], 0.3)

    def test_training_is_that_of_threads(self):
        arguments = ["train", "--codec", "int4+ef", "--epochs", "1", "--link", "none"]
        try:
            threads = self.records([*arguments, "--ranks", str(RANKS)])
        except AssertionError as error:
            if "train-images" in str(error) or "the commands are" in str(error).lower():
                self.skipTest("needs Fashion-MNIST and a build that trains")
            raise
        for record, other in zip(self.on_processes(arguments), threads, strict=True):
            for field in ("accuracy", "loss", "epoch"):
                self.assertEqual(record[field], other[field], field)

    def test_other_ranks_than_mpirun_started(self):
        outcome = run([MPIRUN, "2", BENCH, "allreduce", "--transport", "mpi", "--ranks", "5"])
        self.assertNotEqual(outcome.returncode, 0)
        self.assertIn("tersor-bench: --ranks 5, but mpirun started 2", outcome.stderr)

    def test_every_rank_prints_why_it_failed(self):
        outcome = run([MPIRUN, str(RANKS), BENCH, "allreduce", "--transport", "mpi", "--codec", "int8",
                       "--dims", "4,4", "--max", "4K", "--iterations", "1"])  # fmt: skip
        self.assertNotEqual(outcome.returncode, 0)
        for rank in ("(?!rank)", *(f"rank {rank}: " for rank in range(1, RANKS))):
            self.assertRegex(outcome.stderr, rf"(?m)^tersor-bench: {rank}.*dims are 4 x 4")

    def test_wrong_usage_lists_the_transports_once(self):
        outcome = run([MPIRUN, "3", BENCH, "allreduce", "--transport", "carrier pigeon"])
        self.assertNotEqual(outcome.returncode, 0)
        self.assertEqual(outcome.stderr.count("The options are:"), 1, outcome.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
