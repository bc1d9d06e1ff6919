"""The parts of scripts/test, with substitutes for the build and test programs.

Each part builds, tests, and ends with the summary line. CONTRIBUTING.md lists the same parts.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TARGETS = "tersor_gpu_test tersor_gpu_nccl_test tersor_kernels_test tersor_cuda_kernels tersor_faults_test"
TARGETS += " tersor_codecs_test tersor-bench"
CMAKE = f"""#!/bin/sh
echo "cmake $*" >> "$CALLS"
case "$*" in
  *"--target help"*) echo "[1/1] Targets:"; printf '%s: phony\\n' {TARGETS} ;;
  *--build*) [ -z "$BROKEN_BUILD" ] ;;
  *) mkdir -p build/release/ptx_device build/quick/ptx_device ;;
esac
"""
CTEST = """#!/bin/sh
echo "ctest $TERSOR_TEST_CASES $*" >> "$CALLS"
while [ "$1" != --output-junit ]; do shift; done
echo '<testsuite><testcase name="A" status="run"/></testsuite>' > "$2"
"""
PYTHON = """#!/bin/sh
echo "test-python $*" >> "$CALLS"
[ -z "$3" ] || echo '<testsuite><testcase name="B"/></testsuite>' > "$3/python-$2.xml"
"""
GIT = """#!/bin/sh
mkdir -p "$4" && cp -r scripts "$4"
"""  # git clone --quiet . FOLDER
NOTHING = "#!/bin/sh\n"
CHECK = """#!/bin/sh
echo "test-python ${0##*/} $*" >> "$CALLS"
[ -z "$BROKEN_BUILD" ] || { echo "<broken> & \\"so\\""; exit 1; }
[ -z "$SKIPS" ] || { echo "no \\"abidiff\\""; exit 77; }
"""
CHECKS = ("check-abi", "clean-root", "debian-packages", "wheels")


class Parts(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.install("scripts/setup", NOTHING)
        self.install("scripts/test-python", PYTHON)
        for name in CHECKS:
            self.install(f"scripts/{name}", CHECK)
        self.install("bin/cmake", CMAKE)
        self.install("bin/ctest", CTEST)
        self.install("bin/git", GIT)
        self.install("bin/cuobjdump", NOTHING)  # prevents a download
        for name in ("test", "test_summary.py", "compatibility.py"):
            shutil.copy(REPOSITORY / "scripts" / name, self.root / "scripts" / name)

    def install(self, path, text):
        program = self.root / path
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def run_test(self, *arguments, **variables):
        """Returns the result of scripts/test and the called programs."""
        calls = self.root / "calls"
        calls.write_text("")
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CALLS": str(calls), **variables}
        done = subprocess.run([self.root / "scripts" / "test", *arguments], env=environment,
                              capture_output=True, text=True, check=False)
        return done, calls.read_text()

    def parts(self):
        return self.run_test("--parts")[0].stdout.split()

    def test_each_part_ends_with_the_summary(self) -> None:
        for part in self.parts():
            done, calls = self.run_test("--part", part)
            self.assertEqual(done.returncode, 0, part + done.stdout + done.stderr)
            self.assertRegex(done.stdout.splitlines()[-1], r"^[12] passed, 0 failed, 0 skipped$")
            self.assertRegex(calls, "ctest|test-python")

    def test_broken_build_is_a_failure(self) -> None:
        for part in set(self.parts()) - {"push", "wheel", "python-long", "oldest-torch", "frameworks"}:
            done, calls = self.run_test("--part", part, BROKEN_BUILD="yes")
            self.assertEqual(done.returncode, 1, part)
            self.assertRegex(done.stdout.splitlines()[-1], "^0 passed, [12] failed, 0 skipped$")
            self.assertNotIn("ctest", calls)

    def test_skipped_check_reports_its_reason(self) -> None:
        done, _ = self.run_test("--part", "abi", SKIPS="yes")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('no "abidiff"', done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 0 failed, 1 skipped")

    def test_parts_build_only_the_needed_targets(self) -> None:
        _, calls = self.run_test("--part", "seeds")  # for a build without TCP and MPI
        self.assertRegex(calls, r"cmake --build --preset quick -j \d+ --target tersor_faults_test\n")

    def test_all_option_runs_each_part(self) -> None:
        done, calls = self.run_test("--all")
        self.assertEqual(done.returncode, 0)
        for what in ("newest", "long", "oldest", "frameworks", "wheel", "split-long", "grid-long", "preset fuzz"):
            self.assertIn(what, calls)

    def test_contributing_table_lists_each_part(self) -> None:
        text = (REPOSITORY / "CONTRIBUTING.md").read_text()
        table = re.search(r"^\| part \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
        self.assertEqual(self.parts(), re.findall(r"^\| `([a-z-]+)` \|", table[1], re.MULTILINE))

    def test_unknown_parts_are_rejected_with_a_list(self) -> None:
        for arguments in [("--part",), ("--part", "seeds", "sieve"), ("--most",), ("--all", "seeds")]:
            refused, calls = self.run_test(*arguments)
            self.assertEqual((refused.returncode, refused.stdout, calls), (2, "", ""), arguments)
            self.assertIn("fuzzing", refused.stderr)


if __name__ == "__main__":
    unittest.main()
