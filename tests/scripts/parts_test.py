"""The parts of scripts/test: their names, and those of CONTRIBUTING.md."""

import pathlib
import re
import subprocess
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments):
    command = [REPOSITORY / "scripts" / "test", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Parts(unittest.TestCase):
    def test_each_stands_in_the_table(self) -> None:
        text = (REPOSITORY / "CONTRIBUTING.md").read_text()
        table = re.search(r"^\| part \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
        named = re.findall(r"^\| `([a-z-]+)` \|", table[1], re.MULTILINE)
        self.assertEqual(run("--parts").stdout.split(), named)

    def test_others_are_refused_with_the_names(self) -> None:
        for arguments in [("--part",), ("--part", "seeds", "sieve"), ("--most",), ("--all", "seeds")]:
            refused = run(*arguments)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""), arguments)
            self.assertIn("fuzzing", refused.stderr)


if __name__ == "__main__":
    unittest.main()
