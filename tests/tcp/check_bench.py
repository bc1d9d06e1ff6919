#!/usr/bin/env python3
"""Runs tersor-bench over TCP and compares the output with a process of as many threads.

usage: check_bench.py TERSOR_BENCH [unittest arguments]
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = sys.argv[1]
RANKS = 3
ALLREDUCE = ["allreduce", "--codec", "int8", "--min", "4K", "--max", "1M", "--iterations", "3"]


def environment(**variables):
    return {**os.environ, **variables}


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, arguments, **variables):
        process = subprocess.Popen(
            [BENCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(**variables),
        )  # fmt: skip
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        output, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, errors)
        return output

    def records(self, arguments):
        file = self.folder / "records.json"
        output = self.end(self.start([*arguments, "--ranks", str(RANKS), "--json", str(file)]))
        self.assertEqual(output.count("codec"), 1, "one rank prints")
        return json.loads(file.read_text())

    def test_sums_are_those_of_threads(self):
        threads = self.records([*ALLREDUCE, "--link", "none"])
        for connections in ("1", "2"):
            found = self.records([*ALLREDUCE, "--transport", "tcp", "--connections", connections])
            for record, other in zip(found, threads, strict=True):
                self.assertEqual(record["transport"], "tcp")
                self.assertGreater(record["wire_bytes"], 0)
                for field in ("codec", "algorithm", "count", "ranks", "relative_error"):
                    self.assertEqual(record[field], other[field])

    def test_a_rank_is_killed_and_the_others_go_on(self):
        file = self.folder / "records.json"
        output = self.end(self.start([
            "allreduce", "--transport", "tcp", "--codec", "int8+ef", "--min", "64K", "--ranks", str(RANKS),
            "--kill", "1@3", "--json", str(file),
        ]))  # fmt: skip
        self.assertIn("2 of 3 ranks are left", output)
        [record] = json.loads(file.read_text())
        self.assertEqual((record["benchmark"], record["ranks"], record["ranks_left"]), ("loss", 3, 2))
        self.assertLess(record["told_seconds"], record["resumed_seconds"])
        self.assertLess(record["resumed_seconds"], record["next_step_seconds"])
        for field in ("step_seconds", "elastic_step_seconds", "told_seconds", "later_step_seconds"):
            self.assertGreater(record[field], 0)

    def test_every_rank_prints_why_it_failed(self):
        arguments = [*ALLREDUCE, "--transport", "tcp", "--address", "127.0.0.1"]
        for rank, reason in (("5", "5"), ("x", "x"), ("1", "missing")):
            folder = self.folder / ("missing" if rank == "1" else ".")
            process = self.start(arguments, TERSOR_TCP_FILE=str(folder / "world"), TERSOR_RANK=rank,
                                 TERSOR_RANKS="2")  # fmt: skip
            output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output), (2, ""), errors)
            self.assertRegex(errors, rf"^tersor-bench: rank {rank}: .*{reason}")

    def test_every_started_rank_prints_why_it_failed(self):
        process = self.start(["allreduce", "--transport", "tcp", "--ranks", str(RANKS), "--codec", "int8",
                              "--dims", "4,4", "--max", "4K", "--iterations", "1"])  # fmt: skip
        _, errors = process.communicate(timeout=120)
        self.assertNotEqual(process.returncode, 0, errors)
        for rank in ("(?!rank)", *(f"rank {rank}: " for rank in range(1, RANKS))):
            self.assertRegex(errors, rf"(?m)^tersor-bench: {rank}.*dims are 4 x 4")

    def test_ranks_that_a_launcher_started(self):
        for rank_name, ranks_name in (
            ("TERSOR_RANK", "TERSOR_RANKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS"),
        ):  # fmt: skip
            meeting = {"TERSOR_TCP_FILE": str(self.folder / rank_name), ranks_name: str(RANKS)}
            arguments = [*ALLREDUCE, "--transport", "tcp", "--address", "127.0.0.1"]
            ranks = [self.start(arguments, **meeting, **{rank_name: str(rank)}) for rank in range(RANKS)]
            outputs = [self.end(rank) for rank in ranks]
            self.assertIn(f"{RANKS} processes over TCP", outputs[0])
            self.assertEqual(outputs[1:], [""] * (RANKS - 1))

    def test_no_rank_is_said(self):
        process = self.start([*ALLREDUCE, "--transport", "tcp"], TERSOR_TCP_FILE=str(self.folder / "meeting"))
        _, errors = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("which rank is this process?", errors)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
