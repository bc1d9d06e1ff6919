"""scripts/gpu-check without a GPU: processing of records. A failed step must not stop the run."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import typing
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent / "bench" / "report")]
sys.dont_write_bytecode = True

import gpu_figures  # noqa: E402
import microbench  # noqa: E402

MI = 2**20

# Replace the benchmarks: write results from a file in the same folder, selected by the arguments.
FAKE_BENCH = """#!/usr/bin/env python3
import json, pathlib, sys
words = sys.argv[1:]
def after(name):
    rest = words[words.index(name) + 1:]
    ends = [i for i, word in enumerate(rest) if word.startswith("--")]
    return rest[: ends[0]] if ends else rest
known = json.loads(pathlib.Path(__file__).with_name("allreduces.json").read_text())
found = [r for r in known if r["algorithm"] == after("--algorithm")[0]
         and r["graph"] == ("--graph" in words)]
pathlib.Path(after("--json")[0]).write_text(json.dumps(found) if found else "")
print("a table" if found else "tersor-bench: rank 1 ended with exit status 1")
sys.exit(0 if found else 1)
"""

FAKE_MICROBENCH = """#!/usr/bin/env python3
import json, pathlib, re, sys
words = sys.argv[1:]
flags = dict(word.split("=", 1) for word in words if word.startswith("--benchmark"))
def after(name):
    rest = words[words.index(name) + 1:]
    ends = [i for i, word in enumerate(rest) if word.startswith("--")]
    return rest[: ends[0]] if ends else rest
counts = {"64M": 64 * 2**20, "128M": 128 * 2**20, "256M": 256 * 2**20}
whole = json.loads(pathlib.Path(__file__).with_name("benchmarks.json").read_text())
found = [one for one in whole["benchmarks"]
         if re.search(flags["--benchmark_filter"], one["run_name"])
         and one["run_name"].split("/")[2] in [c.replace("+ef", "") for c in after("--codec")]
         and int(one["run_name"].split("/")[4]) == counts[after("--count")[0]]
         and one["run_name"].split("/")[3] == after("--dtype")[0]]
text = json.dumps({**whole, "benchmarks": found}) if found else '{"context": {'
pathlib.Path(flags["--benchmark_out"]).write_text(text)
print("tersor-microbench: half way, the device went away" if not found else "a table")
sys.exit(0 if found else 1)
"""

FAKE_TESTS = """#!/usr/bin/env python3
import json, pathlib, sys
file = next(w for w in sys.argv if w.startswith("--gtest_output=json:")).split(":", 1)[1]
cases = [{"name": "A", "classname": "S", "result": "COMPLETED"},
         {"name": "B", "classname": "S", "result": "SKIPPED"}]
if FAILS: cases.append({"name": "C", "classname": "S", "failures": [{}]})
pathlib.Path(file).write_text(json.dumps({"testsuites": [{"testsuite": cases}]}))
sys.exit(1 if FAILS else 0)
"""

FAKE_PYTEST = """
import pathlib, sys
report = sys.argv[[a.startswith("--junitxml") for a in sys.argv].index(True)][11:]
bad = '<testcase classname="test_devices" name="test_copies"><failure/></testcase>' if FAILS else ""
pathlib.Path(report).write_text(f'<testsuite>{bad}<testcase classname="a" name="b"/></testsuite>')
print("3 passed, 1 failed" if FAILS else "4 passed")
sys.exit(1 if FAILS else 0)
"""
FAKE_PYTHON_BENCH = """
import pathlib, sys
if sys.argv[1] == "train": sys.exit("tersor.bench: no use")
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text("[1, 2]")
"""

FAKE_TRAINING = """
import json, pathlib, sys
told = lambda name: sys.argv[sys.argv.index(name) + 1]
path = pathlib.Path(told("--json"))
kept = json.loads(path.read_text()) if path.exists() else []
kept.append([told("--hooks"), told("--rate"), told("--data"), "--resume" in sys.argv])
path.write_text(json.dumps(kept))
"""


def record(codec: str, operation: str, **changes: typing.Any) -> gpu_figures.Record:
    base = {
        "benchmark": "codecs", "device": "GPU", "codec": codec, "operation": operation,
        "dtype": "f32", "count": 64 * MI, "seconds": 1e-4, "ratio": 0.95, "read_ratio": 0.9,
        "checksum": False,
    }  # fmt: skip
    return {**base, **changes}


RECORDS = [
    record("int8", "encode", seconds=1e-4, ratio=0.95),
    record("int8", "encode (two kernels, plain CUDA)", seconds=1.5e-4),
    record("int8", "decode", ratio=0.87, memset_ratio=0.8),
    record("int8:rounding=stochastic", "encode", seconds=1.04e-4),
    record("int4", "encode", count=128 * MI, dtype="bf16", ratio=0.881),
    record("topk:density=0.01+ef", "encode+feedback", count=256 * MI, seconds=1e-3, ratio=0.8),
    record("topk:density=0.01+ef", "encode+feedback (CUB sort)", count=256 * MI, seconds=6e-3),
]


def benchmark_of(record: gpu_figures.Record) -> dict[str, typing.Any]:
    """As Google Benchmark writes it."""
    operations = {record: name for name, record in microbench.OPERATIONS.items()}
    operation = operations.get(record["operation"], record["operation"])
    codec = record["codec"].replace("+ef", "")
    path = f"cuda/{operation}/{codec}/{record['dtype']}/{record['count']}/threads:1"
    checksum = "on" if record["checksum"] else "off"
    ratios = {name: value for name, value in record.items() if name.endswith("ratio")}
    return {
        "run_name": f"{path}/checksum:{checksum}/manual_time", "run_type": "iteration",
        "real_time": record["seconds"] * 1e6, "time_unit": "us", "label": "copy",
        "bytes_per_second": 3e12, "relative_error": 0.0, "payload_bytes": 5.0,
        "workspace_bytes": 6.0, **ratios,
    }  # fmt: skip


CONTEXT = {"machine": "CPU", "gpu": "GPU", "date": "today", "commit": "abc", "data": "normal"}


def allreduce(codec: str, algorithm: str, **changes: typing.Any) -> gpu_figures.Record:
    base = {
        "benchmark": "allreduce", "codec": codec, "algorithm": algorithm, "dtype": "f32",
        "count": 64 * MI, "seconds": 0.2, "busbw": 1.3, "speed_of_f32": 2.5, "host_seconds": 3e-5,
        "wrong": 0, "graph": False, "nccl": "NCCL 2.28.9 (/lib/libnccl.so.2)",
        "note": "one GPU, sockets",
    }  # fmt: skip
    return {**base, **changes}


ALLREDUCES = [
    allreduce("int8", "two-shot"),
    allreduce("int8", "one-shot", seconds=0.3),
    allreduce("int8", "two-shot", graph=True, count=MI),
]


class Figures(unittest.TestCase):
    def measured(self, records: list[gpu_figures.Record]) -> dict[str, gpu_figures.Measured]:
        return {f.name: gpu_figures.measure(f, records) for f in gpu_figures.figures()}

    def test_figure_names_are_unique(self) -> None:
        figures = gpu_figures.figures()
        self.assertEqual(len({f.name for f in figures}), len(figures))

    def test_met_missed_and_not_run(self) -> None:
        found = self.measured(RECORDS)
        verdicts = {
            "int8 encode, of a copy": "met",
            "int8 decode, of a copy": "missed",
            "int8 decode, of a memset": "",
            "int8 stochastic encode, of nearest's speed": "met",
            "int8 encode, times two kernels' speed": "missed",
            "bf16 to int4 encode, of a copy": "met",
            "topk 0.01 encode with feedback, 1 GiB, of a copy": "met",
            "topk 0.01, 1 GiB, times CUB sort's speed": "met",
            "topk 0.001, 1 GiB, times CUB sort's speed": "not run",
            "int8, 500 tensors, of one flat tensor's speed": "not run",
        }
        for name, verdict in verdicts.items():
            self.assertEqual(found[name].verdict, verdict, name)

    def test_times_are_divided_the_right_way_round(self) -> None:
        found = self.measured(RECORDS)
        self.assertAlmostEqual(found["int8 encode, times two kernels' speed"].value, 1.5)
        stochastic = found["int8 stochastic encode, of nearest's speed"].value
        self.assertAlmostEqual(stochastic, 1 / 1.04)

    def test_the_last_of_repeated_records_counts(self) -> None:
        again = [*RECORDS, record("int8", "encode", ratio=0.5)]
        self.assertEqual(self.measured(again)["int8 encode, of a copy"].verdict, "missed")

    def test_allreduces_are_rows_with_a_note_instead_of_figures(self) -> None:
        self.assertEqual({m.verdict for m in self.measured(ALLREDUCES).values()}, {"not run"})
        page = gpu_figures.summary(ALLREDUCES, [], "GPU")
        self.assertIn("| 256 | f32 | int8 | two-shot | 200.000 | 1.30 | 2.50 | 30 | 0 |", page)
        self.assertIn("| 4 | f32 | int8 | two-shot, graph |", page)
        self.assertEqual(page.count("**one GPU, sockets.**"), 1)
        self.assertNotIn("Allreduce", gpu_figures.summary(RECORDS, [], "GPU"))

    def test_rehearsal_figures_use_few_values_and_have_no_verdict(self) -> None:
        few = {"encode": MI // 16, "encode+feedback (CUB sort)": 16 * 1024}
        records = [{**r, "count": few.get(r["operation"], 0)} for r in RECORDS]
        figures = gpu_figures.figures(rehearsed=True)
        found = {f.name: gpu_figures.measure(f, records) for f in figures}
        self.assertEqual(found.keys(), self.measured(RECORDS).keys())
        self.assertEqual(found["int8 encode, of a copy"].value, 0.95)
        self.assertEqual({m.verdict for m in found.values()}, {"", "not run"})

    def test_records_with_checksums_are_a_separate_case(self) -> None:
        only = [record("int8", "encode", checksum=True)]
        self.assertEqual(self.measured(only)["int8 encode, of a copy"].verdict, "not run")


class Program(unittest.TestCase):
    """The whole command with substitutes for the project's programs."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()

    def install(self, name: str, text: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def install_bench(self) -> None:
        self.install("tersor-bench", FAKE_BENCH)
        self.install("tersor-microbench", FAKE_MICROBENCH)
        benchmarks = {"context": CONTEXT, "benchmarks": [benchmark_of(r) for r in RECORDS]}
        (self.folder / "bin" / "benchmarks.json").write_text(json.dumps(benchmarks))
        (self.folder / "bin" / "allreduces.json").write_text(json.dumps(ALLREDUCES))

    def install_nccl_tests(self) -> None:
        says = 'import os\nprint("2 ranks, NCCL", os.environ.get("TERSOR_NCCL_LIBRARY"))\n'
        text = FAKE_TESTS.replace("FAILS", "False").replace("import json", says + "import json")
        self.install("tersor_gpu_nccl_test", text)

    def install_package(self, fails: bool) -> None:
        package = self.folder / "python" / "tersor"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "bench.py").write_text(FAKE_PYTHON_BENCH)
        (package.parent / "pytest.py").write_text(FAKE_PYTEST.replace("FAILS", str(fails)))

    def check(
        self, *options: str, **environment: str
    ) -> tuple[int, dict[str, typing.Any], str]:
        out = self.folder / "out"
        command = [SCRIPTS / "gpu-check", "--build", self.folder, "--out", out]
        done = subprocess.run(
            [*command, *(options or ["--quick"])],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.assertTrue((out / "summary.md").exists(), done.stderr)
        summary = json.loads((out / "summary.json").read_text())
        return done.returncode, summary, done.stdout

    def test_records_of_all_runs_are_collected(self) -> None:
        self.install("tersor_gpu_test", FAKE_TESTS.replace("FAILS", "False"))
        self.install_bench()
        status, summary, output = self.check()
        self.assertEqual(status, 0)
        verdicts = [f["verdict"] for f in summary["figures"]]
        self.assertEqual((verdicts.count("met"), verdicts.count("missed")), (5, 2))
        records = json.loads((self.folder / "out" / "records.json").read_text())
        self.assertEqual(len(records), len(RECORDS) + len(ALLREDUCES))
        self.assertIn("1 passed, 0 failed, 1 skipped", output)
        self.assertIn("allreduce: two-shot: 1 figures", output)
        self.assertIn("allreduce: auto: 0 figures, then failed: tersor-bench: rank 1", output)
        self.assertIn("went away", (self.folder / "out" / "log.txt").read_text())

    def test_nccl_tests_receive_the_library_path(self) -> None:
        self.install_nccl_tests()
        status, summary, output = self.check(TERSOR_NCCL_LIBRARY="/opt/libnccl.so.2")
        self.assertEqual(status, 0)
        results = {step["name"]: step["result"] for step in summary["steps"]}
        self.assertIn("/opt/libnccl.so.2", results["NCCL"])
        self.assertEqual(results["tests over NCCL"], "1 passed, 0 failed, 1 skipped")
        self.assertIn("NCCL /opt/libnccl.so.2", (self.folder / "out" / "log.txt").read_text())

    def test_nccl_is_found_beside_pytorch(self) -> None:
        package = self.folder / "site" / "nvidia" / "nccl"
        (package / "lib").mkdir(parents=True)
        (package / "lib" / "libnccl.so.2").touch()
        self.install_nccl_tests()
        _, summary, _ = self.check(PYTHONPATH=str(self.folder / "site"), TERSOR_NCCL_LIBRARY="")
        found = next(step["result"] for step in summary["steps"] if step["name"] == "NCCL")
        self.assertEqual(found, str(package / "lib" / "libnccl.so.2"))
        log = (self.folder / "out" / "log.txt").read_text()
        self.assertIn(f"2 ranks, NCCL {found}", log)

    def test_failed_test_is_reported_and_does_not_stop_the_run(self) -> None:
        self.install("tersor_gpu_test", FAKE_TESTS.replace("FAILS", "True"))
        self.install_bench()
        status, summary, output = self.check()
        self.assertEqual(status, 1)
        self.assertTrue(summary["failed"])
        self.assertIn("S.C", output)
        self.assertIn("met", [f["verdict"] for f in summary["figures"]])

    def test_large_gpt_training(self) -> None:
        self.install_package(fails=False)
        (self.folder / "python" / "tersor" / "bench.py").write_text(FAKE_TRAINING)
        corpus = self.folder / "corpus.gz"
        status, summary, _ = self.check("--training", str(corpus))
        self.assertEqual(status, 2)
        self.assertIn("tersor.bench corpus FILE", summary["steps"][-2]["result"])
        corpus.touch()
        status, summary, _ = self.check("--training", str(corpus))
        self.assertEqual(status, 0)
        trained = json.loads((self.folder / "out" / "training.json").read_text())
        self.assertEqual(trained[0], ["none", "4", str(corpus), True])
        self.assertEqual([one[0] for one in trained[1::2]], ["adamw:hadamard:bits=1+ef",
                         "muon:hadamard:bits=1+ef", "muon:blocktopk:density=0.03+ef"])  # fmt: skip

    def test_the_python_package_is_tested_and_measured(self) -> None:
        for fails in (False, True):
            with self.subTest(fails=fails), tempfile.TemporaryDirectory() as folder:
                self.folder = pathlib.Path(folder)
                self.install_package(fails)
                if fails:
                    (self.folder / "python" / "text.txt").touch()
                status, summary, _ = self.check()
                self.assertEqual((status, summary["failed"]), (int(fails), fails))
                results = {step["name"]: step["result"] for step in summary["steps"]}
                named = "failed: 3 passed, 1 failed, test_devices.test_copies"
                expected = named if fails else "4 passed"
                self.assertEqual(results["tests of Python"], expected)
                self.assertEqual(results["Python: backward"], "2 figures")
                said = "0 figures, then failed: tersor.bench: no use" if fails else "not run: there"
                self.assertIn(said, results["Python: training"])

    def test_missing_programs_are_reported_as_not_run(self) -> None:
        status, summary, _ = self.check()
        self.assertEqual(status, 2)
        self.assertEqual({f["verdict"] for f in summary["figures"]}, {"not run"})
        results = {step["name"]: step["result"] for step in summary["steps"]}
        self.assertIn("not run: there is no", results["tests of Python"])


if __name__ == "__main__":
    unittest.main()
