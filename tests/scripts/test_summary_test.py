"""scripts/test_summary.py on result files of CTest and pytest."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"

CTEST = """<testsuite>
<testcase name="Int8.RoundTrip" classname="Int8.RoundTrip" time="1.25" status="run"/>
<testcase name="Int8.Golden" classname="Int8.Golden" time="0.5" status="fail">
<failure message=""/><system-out>one value differs</system-out></testcase>
<testcase name="gpu.Stream" classname="gpu.Stream" time="0.01" status="notrun">
<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
<testcase name="mpi.needs_mpi" classname="mpi.needs_mpi" time="0" status="notrun">
<skipped message=""/></testcase>
</testsuite>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="tests.test_ddp" name="test_sums" time="30.5"/>
<testcase classname="tests.test_ddp" name="test_raises" time="2">
<failure message="x">assert 1 == 2</failure></testcase>
<testcase classname="tests.test_ddp" name="test_device" time="0">
<skipped message="needs CUDA"/></testcase>
</testsuite></testsuites>"""
SUITE = """<testsuite>
<testcase name="ptx.Fp8/Codec:2" classname="ptx.Fp8/Codec:2" time="3" status="{status}">
<system-out>{output}</system-out></testcase>
</testsuite>"""
CASES = """<testsuites><testsuite>
<testcase name="Golden/1" classname="Fp8/Codec" time="1.5" status="run"/>
<testcase name="Device/1" classname="Fp8/Codec" time="0" status="run"><skipped message=""/></testcase>
<testcase name="Sum/1" value_param="4" classname="Fp8/Codec" time="1" status="run">{failures}</testcase>
</testsuite></testsuites>"""
FAILURES = '<failure message="x">a is not b</failure><failure message="y">c is not d</failure>'
MANY = "".join(f'<testcase name="n{i}" time="{i}" status="run"/>' for i in range(25))


class TestSummary(unittest.TestCase):
    def summary_of(self, *texts, broken=0, cases=""):
        """Exit status and lines. `cases` are the results of the only suite in the first file."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for text in texts:
                paths.append(pathlib.Path(folder) / f"{len(paths)}.xml")
                paths[-1].write_text(text)
            if cases:
                file = pathlib.Path(folder) / "0" / "ptx.Fp8" / "Codec:2.xml"
                file.parent.mkdir(parents=True)
                file.write_text(cases)
            command = [sys.executable, "-B", str(SUMMARY), str(broken), *map(str, paths)]
            run = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout.splitlines()

    def test_counts_both_kinds_of_files(self):
        status, lines = self.summary_of(CTEST, PYTEST)
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "2 passed, 2 failed, 3 skipped (2 for want of a GPU)")

    def test_reports_why_a_test_failed(self):
        _, lines = self.summary_of(CTEST, PYTEST)
        self.assertEqual(lines[:4], ["failed: Int8.Golden", "  one value differs",
                                     "failed: test_raises", "  assert 1 == 2"])

    def test_lists_the_slowest_tests_of_all_files_first(self):
        _, lines = self.summary_of(CTEST, PYTEST)
        slowest = lines[lines.index("slowest tests:") + 1 : -1]
        self.assertEqual(len(slowest), 7)
        self.assertEqual(slowest[:3], ["    30.5 s  tests.test_ddp.test_sums",
                                       "     2.0 s  tests.test_ddp.test_raises",
                                       "     1.2 s  Int8.RoundTrip"])

    def test_lists_only_the_ten_slowest_tests(self):
        status, lines = self.summary_of(f"<testsuite>{MANY}</testsuite>")
        self.assertEqual(status, 0)
        self.assertEqual([line.split()[-1] for line in lines[1:-1]],
                         [f"n{i}" for i in range(24, 14, -1)])
        self.assertEqual(lines[-1], "25 passed, 0 failed, 0 skipped")

    def test_counts_the_cases_of_a_suite(self):
        status, lines = self.summary_of(SUITE.format(status="run", output=""),
                                        cases=CASES.format(failures=""))
        self.assertEqual(status, 0)
        self.assertEqual(lines[1], "     1.5 s  ptx.Fp8/Codec.Golden/1")
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")

    def test_names_the_failed_case(self):
        printed = "[ RUN      ] Fp8/Codec.Sum/1\nkernel, block 3\n[  FAILED  ] Fp8/Codec.Sum/1 (2 ms)"
        for output, shown in [("cut off", ["  a is not b", "  c is not d"]),
                              ("before\n" + printed, ["  kernel, block 3"])]:
            status, lines = self.summary_of(SUITE.format(status="fail", output=output),
                                            cases=CASES.format(failures=FAILURES))
            self.assertEqual(status, 1)
            self.assertEqual(lines[: len(shown) + 1], ["failed: ptx.Fp8/Codec.Sum/1 (4)", *shown])
            self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")

    def test_suite_failure_outside_its_cases_counts(self):
        for cases in ["", CASES.format(failures="")]:
            status, lines = self.summary_of(SUITE.format(status="fail", output="signal 11"), cases=cases)
            self.assertEqual(status, 1)
            self.assertEqual(lines[:2], ["failed: ptx.Fp8/Codec:2", "  signal 11"])
            passed, skipped = (2, 1) if cases else (0, 0)
            self.assertEqual(lines[-1], f"{passed} passed, 1 failed, {skipped} skipped")

    def test_failures_outside_of_tests_count(self):
        status, lines = self.summary_of(broken=2)
        self.assertEqual((status, lines), (1, ["0 passed, 2 failed, 0 skipped"]))


if __name__ == "__main__":
    unittest.main()
