"""scripts/release refuses a tree that is not ready; the versions of this tree agree; workflows."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FILES = ("CMakeLists.txt", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "include/tersor/version.h",
         "scripts/release")  # fmt: skip
LAUNCHER = "#!/bin/sh\nexit 1\n"  # of a version manager, without this version


def git(folder, *arguments):
    command = ("git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name) / "tree"
        for name in FILES:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, self.tree / name)
        (self.tree / ".gitignore").write_text("build/\n")
        git(self.tree, "init", "--quiet")
        self.commit()

    def commit(self):
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--quiet", "--allow-empty", "-m", "a")

    def replace(self, name, old, new):
        text = (self.tree / name).read_text()
        self.assertIn(old, text)
        (self.tree / name).write_text(text.replace(old, new, 1))

    def release(self, *arguments, path=None):
        command = (sys.executable, str(self.tree / "scripts" / "release"), *arguments)
        environment = {"PATH": path} if path else None
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def refusal(self, *arguments, **options):
        done = self.release(*arguments, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertFalse((self.tree / "build").exists())
        self.assertRegex(done.stderr, "^release: ")
        return done.stderr

    def test_the_versions_of_this_tree_agree(self):
        self.assertIn("lists needs these steps first: tools, wheels", self.release("--step", "lists").stderr)

    def test_uncommitted_changes_are_rejected(self):
        (self.tree / "new.txt").write_text("")
        self.assertIn("?? new.txt", self.refusal("--step", "sdist"))
        (self.tree / "new.txt").unlink()
        self.replace("CITATION.cff", "title:", "title: ")
        self.assertIn("M CITATION.cff", self.refusal("--step", "sdist"))

    def test_version_mismatch_in_each_file_is_rejected(self):
        for name, old, new in (
            ("CMakeLists.txt", "project(tersor VERSION 0.", "project(tersor VERSION 9."),
            ("CHANGELOG.md", "## [0.", "## [9."),
            ("CHANGELOG.md", "## [0.", "## [Unreleased]\n\n## [0."),
            ("CITATION.cff", "\nversion: 0.", "\nversion: 9."),
            ("pyproject.toml", 'dynamic = ["version"]', 'version = "9.1.0"'),
            ("pyproject.toml", "regex = '''project", "regex = '''no project"),
            ("include/tersor/version.h", "TERSOR_VERSION_MAJOR 0", "TERSOR_VERSION_MAJOR 9"),
            ("include/tersor/version.h", "#define TERSOR_VERSION_PATCH", "#define TERSOR_PATCH"),
        ):
            with self.subTest(new):
                before = (self.tree / name).read_text()
                self.replace(name, old, new)
                self.commit()
                self.assertIn("the versions differ: CMakeLists.txt ", self.refusal("--step", "sdist"))
                (self.tree / name).write_text(before)

    def test_different_release_days_are_rejected(self):
        for name, old in (("CITATION.cff", "date-released: 2"), ("CHANGELOG.md", "] - 2")):
            before = (self.tree / name).read_text()
            self.replace(name, old, old[:-1] + "1")
            self.commit()
            self.assertIn("need the same day of version", self.refusal("--step", "sdist"))
            (self.tree / name).write_text(before)

    def test_tag_on_another_commit_is_rejected(self):
        version = re.search(r"tersor VERSION ([\d.]+)", (self.tree / "CMakeLists.txt").read_text())[1]
        git(self.tree, "tag", f"v{version}")
        self.commit()
        self.assertIn(f"tag v{version} is another commit", self.refusal("--step", "sdist"))

    def test_missing_programs_are_listed_before_the_build(self):
        programs = self.programs("git")
        (programs / "python3.12").write_text(LAUNCHER)
        (programs / "python3.12").chmod(0o755)
        refusal = self.refusal(path=str(programs))
        for line in ("cpack: apt-get install cmake", "dpkg-shlibdeps: apt-get install dpkg-dev",
                     "python3.12: apt-get", "doxygen: apt-get", "uv python install"):  # fmt: skip
            self.assertIn(line, refusal)
        self.assertNotIn("doxygen", self.refusal("--step", "wheels", path=str(programs)))

    def test_unknown_step_is_rejected(self):
        done = self.release("--step", "publish")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'publish'", done.stderr)

    def test_a_failed_step_shows_its_log_and_runs_again(self):
        self.write_builder("echo no such architecture; exit 1")
        for _ in range(2):
            done = self.release("--step", "wheels", "--python", "python3")
            self.assertEqual(done.returncode, 1)
            self.assertIn("release: wheels failed: scripts/wheels --python python3", done.stderr)
            self.assertIn("no such architecture", done.stdout)

    def test_finished_steps_count_until_the_next_commit(self):
        self.write_builder("mkdir -p build/wheels && touch build/wheels/tersor-1-x86_64.whl")
        step = ("--step", "wheels", "--python", "python3")
        self.assertEqual(self.release(*step).returncode, 0)
        (folder,) = (self.tree / "build" / "releases").iterdir()
        self.assertTrue((folder / "files" / "tersor-1-x86_64.whl").exists())
        next_step = ("--step", "cuda", "--python", "python3")
        path = str(self.programs("git", "python3"))
        self.assertIn("left out: nvcc", self.release(*next_step, path=path).stdout)
        self.commit()
        self.assertIn("cuda needs these steps first: wheels", self.release(*next_step).stderr)

    def programs(self, *names):
        folder = self.tree.parent / "bin"
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(sys.executable if name == "python3" else shutil.which(name))
        return folder

    def write_builder(self, program):
        (self.tree / "scripts" / "wheels").write_text(f"#!/bin/sh\n{program}\n")
        (self.tree / "scripts" / "wheels").chmod(0o755)
        self.commit()


class Workflows(unittest.TestCase):
    def test_actions_are_pinned_and_scripts_exist(self):
        texts = [file.read_text() for file in (REPOSITORY / ".github" / "workflows").glob("*.yml")]
        self.assertEqual(len(texts), 2)
        for action in re.findall(r"uses: (.*)", "".join(texts)):
            self.assertRegex(action, r"^[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
        scripts = set(re.findall(r"run: (\.?\w+/\w+)", "".join(texts)))
        self.assertEqual(scripts, {".ci/run", "scripts/wheels"})
        self.assertTrue(all((REPOSITORY / script).is_file() for script in scripts))


if __name__ == "__main__":
    unittest.main()
