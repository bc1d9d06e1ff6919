#!/usr/bin/env python3
"""Runs every benchmark of tersor-microbench once, and reads the JSON as the report does.

usage: microbench_test.py TERSOR_MICROBENCH [SCRIPTS_MPIRUN]
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "report"))
sys.dont_write_bytecode = True

import records  # noqa: E402

PROGRAM, *LAUNCHER = sys.argv[1:3]
ONCE = "--benchmark_min_time=0.000001"
OF_TOPK = {"encode_feedback_far_miss", "encode_nth_element"}


def run(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*launcher, PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def names(*arguments: str) -> list[str]:
    return run("--benchmark_list_tests=true", *arguments).stdout.split()


def codecs() -> set[str]:
    """The names that an error about an unknown codec lists."""
    listed = re.search(r"the codecs are ([\w, ]+)", run("--codec", "int9").stderr)
    assert listed is not None
    return set(listed[1].split(", "))


class Microbench(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "out.json"

    def benchmarks(self, *arguments: str, launcher: tuple[str, ...] = ()) -> list[dict]:
        """Returns the benchmarks of a successful run."""
        out = [f"--benchmark_out={self.file}", "--benchmark_out_format=json"]
        done = run(*arguments, ONCE, *out, launcher=launcher)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
        return json.loads(self.file.read_text())["benchmarks"]

    def test_list_contains_every_codec(self) -> None:
        listed = names()
        for codec in ("none", "bf16", "f16", "int8", "int4", "topk", "blocktopk", "hadamard"):
            for operation in ("encode", "encode_feedback", "decode", "decode_add"):
                start = f"cpu/{operation}/{codec}"
                self.assertTrue(any(name.startswith(start) for name in listed), start)
        found = {name.split("/")[2].split(":")[0] for name in listed if name.startswith("cpu/")}
        self.assertLessEqual(codecs(), found)
        self.assertLessEqual({"intsum", "lowrank"}, found)

    def test_each_benchmark_reports_its_counters(self) -> None:
        few = ("--count", "64K")
        found = self.benchmarks(*few)
        self.assertEqual([one["name"] for one in found], names(*few))
        for one in found:
            self.assertNotIn("error_occurred", one, one)
            if one["name"].startswith("cpu/") and "/memory/" not in one["name"]:
                self.assertGreater(one["ratio"], 0, one)
                self.assertGreater(one["payload_bytes"], 0, one)
                self.assertGreaterEqual(one["relative_error"], 0, one)
            wanted = "latency" if "/ping_pong/" in one["name"] else "bytes_per_second"
            self.assertGreater(one[wanted], 0, one)

    def test_topk_times_far_misses_and_nth_element(self) -> None:
        arguments = ("--codec", "topk:density=0.01", "--count", "1M")
        found = self.benchmarks(*arguments, f"--benchmark_filter=^cpu/({'|'.join(OF_TOPK)})/")
        timed = {one["name"].split("/")[1] for one in found if "error_occurred" not in one}
        self.assertEqual(timed, OF_TOPK)

    def test_report_reads_one_record_per_repeated_benchmark(self) -> None:
        chosen = "--benchmark_filter=/(encode|reduce|raw_rounds)/.*threads:1/(checksum:on/)?real"
        self.benchmarks("--codec", "int8", "intsum", "--count", "64K", chosen,
                        "--benchmark_repetitions=3")  # fmt: skip
        found = records.load([self.file])
        self.assertEqual([(r.codec, r.operation) for r in found],
                         [("int8", "encode"), ("int8+ef", "reduce"), ("intsum", "raw rounds")])  # fmt: skip
        encode = found[0]
        self.assertEqual((encode.count, encode.threads, encode.dtype), (65536, 1, "f32"))
        self.assertTrue(encode.checksum)
        self.assertEqual(encode.payload_bytes, 65536 + 1024)
        self.assertAlmostEqual(encode.relative_error, 7e-3, delta=5e-4)  # Gaussian, blocks of 256
        self.assertAlmostEqual(encode.ratio, encode.baseline_seconds / encode.seconds, places=9)
        self.assertEqual(encode.baseline, "read")

    def test_dtype_and_isa_options(self) -> None:
        for dtype in ("bf16", "f16"):
            arguments = ("--codec", "int8", "topk", "--count", "5000", "--dtype", dtype)
            found = self.benchmarks(*arguments, "--isa", "portable", "--benchmark_filter=^cpu/")
            self.assertEqual({one["name"].split("/")[3] for one in found}, {dtype})
            context = json.loads(self.file.read_text())["context"]
            self.assertEqual(context["isa"], "portable")

    def test_invalid_arguments_are_reported(self) -> None:
        mistakes = {
            (
                "--benchmark_filter=^cpu/squeeze/",
            ): "no benchmark matches --benchmark_filter=^cpu/sq",
            ("--benchmark_filter=(",): "no benchmark matches",
            ("--codec", "int9"): "int9",
            ("--codec", "topk:density=2"): "at most 1",
            ("--count", "0"): "0 is no number above 0",
            ("--dtype", "f64"): "the dtypes are f32, bf16 and f16",
            ("--data", "cauchy"): "give normal, laplace, student",
            ("--isa", "mmx"): "portable",
            ("--wrong",): "not known here: --wrong",
        }
        for arguments, message in mistakes.items():
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(message, done.stderr)

    def test_a_failed_benchmark_fails_the_program_after_the_others(self) -> None:
        arguments = ("--codec", "lowrank:rank=32", "int8", "--count", "4096", "--threads", "1")
        done = run(*arguments, "--benchmark_filter=^cpu/(raw_rounds|encode)/", ONCE)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("64 rows and 64 columns is too small", done.stdout)
        self.assertIn("tersor-microbench: a benchmark failed, see above", done.stderr)
        self.assertIn("cpu/encode/int8/f32/4096/threads:1/checksum:on/real_time", done.stdout)

    @unittest.skipIf(not LAUNCHER, "needs MPI")
    def test_two_ranks_over_mpi(self) -> None:
        found = self.benchmarks("--benchmark_filter=^mpi/", launcher=(*LAUNCHER, "2"))
        self.assertEqual({one["name"].split("/")[1] for one in found}, {"ping_pong", "exchange"})

    @unittest.skipIf(not LAUNCHER, "needs MPI")
    def test_three_ranks_over_mpi_are_rejected(self) -> None:
        done = run("--benchmark_filter=^mpi/", launcher=(*LAUNCHER, "3"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("between 2: say mpirun -n 2", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
