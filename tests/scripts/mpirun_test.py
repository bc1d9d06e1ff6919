"""scripts/mpirun: forwarded options and error messages."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "mpirun"

# Replaces mpirun: prints a line per argument.
FAKE_MPIRUN = """#!/bin/sh
printf '%s\\n' "ROOT=${OMPI_ALLOW_RUN_AS_ROOT:-no}" "$@"
"""


def start(*words, **environment):
    return subprocess.run(
        [SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


class Options(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "mpirun"
        program.write_text(FAKE_MPIRUN)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.path = f"{folder.name}:{os.environ['PATH']}"

    def words(self, *words, **environment) -> list[str]:
        done = start(*words, PATH=self.path, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_command_is_forwarded_verbatim_at_the_end(self) -> None:
        words = self.words(3, "program", "--tcp", "two words", "")
        self.assertEqual(words[-6:], ["-n", "3", "program", "--tcp", "two words", ""])
        self.assertEqual(words[words.index("btl") + 1], "self,vader")
        self.assertNotIn("--enable-recovery", words)

    def test_tcp_options_select_the_tcp_transport(self) -> None:
        for options, ways, network in (
            (["--tcp"], "self,tcp", "lo"),
            (["--network", "eth7"], "self,vader,tcp", "eth7"),
        ):
            words = self.words(*options, 2, "program")
            self.assertEqual(words[words.index("btl") + 1], ways)
            self.assertEqual(words[words.index("btl_tcp_if_include") + 1], network)

    def test_environment_selects_other_transports(self) -> None:
        words = self.words(2, "program", TERSOR_BTL="self,ofi")
        self.assertEqual(words[words.index("btl") + 1], "self,ofi")

    def test_recover_and_pass_options_are_forwarded(self) -> None:
        words = self.words("--recover", "--pass", "--hostfile", "--pass", "my hosts", 2, "program")
        self.assertIn("--enable-recovery", words)
        self.assertEqual(words[words.index("--hostfile") + 1], "my hosts")

    def test_root_permission_is_set_only_for_root(self) -> None:
        root = self.words(2, "program")[0]
        self.assertEqual(root, "ROOT=1" if os.geteuid() == 0 else "ROOT=no")


class Complaints(unittest.TestCase):
    def test_wrong_usage_exits_with_2_and_prints_the_usage(self) -> None:
        wrong = {
            (): "'' is not a number of ranks",
            ("0", "program"): "'0' is not a number of ranks",
            ("two", "program"): "'two' is not a number of ranks",
            ("2",): "nothing to run",
            ("--udp", "2", "program"): "unknown option --udp",
            ("--network",): "--network needs a value",
            ("--pass",): "--pass needs a value",
        }
        for words, sentence in wrong.items():
            done = start(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(sentence, done.stderr)
            self.assertIn("usage: scripts/mpirun", done.stderr)

    def test_missing_mpirun_names_the_package_to_install(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bash", "sed"):
                os.symlink(shutil.which(name), pathlib.Path(folder) / name)
            done = start(2, "program", PATH=folder)
        self.assertEqual(done.returncode, 127)
        self.assertIn("openmpi-bin", done.stderr)


class Launch(unittest.TestCase):
    @unittest.skipUnless(shutil.which("mpirun"), "needs Open MPI")
    def test_ranks_are_started(self) -> None:
        for options in ([], ["--tcp", "--recover"]):
            done = start(*options, 3, "sh", "-c", "echo $OMPI_COMM_WORLD_RANK")
            self.assertEqual(sorted(done.stdout.split()), ["0", "1", "2"], done.stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "needs Open MPI")
    def test_ranks_start_from_an_mpi_singleton_process(self) -> None:
        done = start(1, "echo", "started", OMPI_MCA_ess="singleton", PMIX_RANK="0")
        self.assertEqual(done.stdout.split(), ["started"], done.stderr)


if __name__ == "__main__":
    unittest.main()
