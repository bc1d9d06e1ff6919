"""scripts/compatibility.py: the versions of passed tests, and the table of the page."""

import json
import os
import pathlib
import platform
import sys
import tempfile
import unittest
from unittest import mock

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))
sys.dont_write_bytecode = True

import compatibility  # noqa: E402

PYTEST = """<testsuites><testsuite>
<testcase classname="tests.test_ddp" name="test_sums" time="1"/>
<testcase classname="tests.test_ddp" name="test_device" time="0"><skipped message="needs CUDA"/></testcase>
<testcase classname="tests.test_mpi" name="test_sums" time="0"><skipped message="needs MPI"/></testcase>
<testcase classname="tests.test_codec" name="test_sizes" time="1">{failure}</testcase>
</testsuite></testsuites>"""
CTEST = """<testsuite>
<testcase name="mpi.sums" classname="mpi.sums" time="1" status="run"/>
<testcase name="scripts.test_summary" classname="scripts.test_summary" time="1" status="run"/>
<testcase name="ptx.Int8" classname="ptx.Int8" time="0" status="notrun"><skipped message=""/></testcase>
</testsuite>"""
PACKAGES = {"torch": "9.1", "numpy": "2.4", "mpi4py": "4.1", "ray": "2.60"}


def row(version, passed, component="PyTorch", day="2026-01-01"):
    return {"component": component, "version": version, "with": "", "passed": passed, "run": "",
            "day": day, "commit": "0123abcd"}  # fmt: skip


def printed(*command):
    texts = {"HEAD": "0123abcd", "--porcelain": "", "-dumpfullversion": "12.2.0"}
    return texts.get(command[-1], "mpirun (Open MPI) 4.1.4")


class Noted(unittest.TestCase):
    def rows_of(self, text, name="python-newest.xml", output_of=printed):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / name
            file.write_text(text)
            with (
                mock.patch.object(compatibility, "output_of", output_of),
                mock.patch.object(compatibility.shutil, "which", lambda name, path: name),
                mock.patch.object(compatibility, "version_of", PACKAGES.get),
            ):
                compatibility.note(file.parent, [file])
            rows = json.loads(file.with_suffix(".versions.json").read_text())
        return {one["component"]: (one["version"], one["passed"]) for one in rows}, rows

    def test_a_package_counts_if_its_tests_passed(self):
        found, rows = self.rows_of(PYTEST.format(failure=""))
        glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
        python = platform.python_version()
        self.assertEqual(found, {"glibc": (glibc, 2), "Python": (python, 2), "PyTorch": ("9.1", 1),
                                 "NumPy": ("2.4", 1)})  # fmt: skip
        self.assertEqual({one["run"] for one in rows}, {"Python, newest"})
        self.assertTrue(all(one["commit"] == "0123abcd" for one in rows))

    def test_a_failed_test_leaves_no_row(self):
        self.assertEqual(self.rows_of(PYTEST.format(failure="<failure/>"))[1], [])

    def test_a_program_counts_if_its_tests_passed(self):
        found, _ = self.rows_of(CTEST, "1.xml")
        self.assertEqual(found["Open MPI"], ("4.1.4", 1))
        self.assertEqual(found["GCC"], ("12.2.0", 2))
        self.assertNotIn("CUDA toolkit, simulated GPU", found)
        self.assertNotIn("Python", found)

    def test_tree_with_changes_is_marked_and_not_collected(self):
        def changed(*command):
            return " M README.md" if command[-1] == "--porcelain" else printed(*command)

        _, rows = self.rows_of(CTEST, "1.xml", changed)
        self.assertEqual({one["commit"] for one in rows}, {"0123abcd with changes"})
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "1.versions.json").write_text(json.dumps(rows))
            with self.assertRaisesRegex(SystemExit, "uncommitted changes: 0123abcd"):
                compatibility.collect([pathlib.Path(folder)])

    def test_a_clean_system(self):
        found, _ = self.rows_of('{"system": "Debian 13", "glibc": "2.41", "python": "3.13.5"}', "trixie.json")
        self.assertEqual(found, {"Python": ("3.13.5", 1), "glibc": ("2.41", 1)})

    def test_folder_without_results_is_rejected(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(SystemExit, "scripts/test"):
            compatibility.collect([pathlib.Path(folder)])


class Table(unittest.TestCase):
    def test_new_rows_replace_old_rows_of_the_same_version(self):
        old = [row("2.9", 50), row("2.10", 90)]
        new = [row("2.10", 7), row("2.10", 8), row("3.11", 1, "Python")]
        found = [(one["component"], one["version"], one["passed"]) for one in compatibility.merged(old, new)]
        self.assertEqual(found, [("Python", "3.11", 1), ("PyTorch", "2.9", 50), ("PyTorch", "2.10", 8)])

    def test_page_matches_the_data(self):
        self.assertEqual(compatibility.differences(), [])
        for one in json.loads(compatibility.DATA.read_text()):
            self.assertIn(f"| {one['component']} | {one['version']} | ", compatibility.PAGE.read_text())
            self.assertRegex(one["commit"], r"^[0-9a-f]{8}$")

    def test_changed_page_is_detected_and_rewritten(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "compatibility.md"
            page.write_text(compatibility.PAGE.read_text().replace("| NCCL | 2", "| NCCL | 1"))
            with mock.patch.object(compatibility, "PAGE", page):
                self.assertEqual(len(compatibility.differences()), 1)
                compatibility.write()
                self.assertEqual(compatibility.differences(), [])

    def test_gpu_rows_name_the_device_and_records(self):
        rows = {one["component"]: one for one in compatibility.rows_of_gpu()}
        self.assertEqual(rows["NCCL"]["with"], "NVIDIA H200")
        self.assertRegex(rows["NCCL"]["run"], r"^benchmarks, gpu-h200[\w-]*\.json$")


if __name__ == "__main__":
    unittest.main()
