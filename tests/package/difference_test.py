"""The MPI trainers with and without Tersor differ by the README's lines only."""

import difflib
import pathlib
import re
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
README = FOLDER.parents[1] / "README.md"


def code_lines(text):
    """The code without comments, blank lines and indentation."""
    lines = (re.sub(r"//.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def changes():
    """The lines removed from the plain trainer, and the added lines."""
    before, after = (
        code_lines((FOLDER / "mpi" / name).read_text())
        for name in ("trainer.cc", "trainer_tersor.cc")
    )
    lines = list(difflib.ndiff(before, after))
    return [
        [line[2:] for line in lines if line.startswith(sign)] for sign in ("- ", "+ ")
    ]  # fmt: skip


def readme_lines():
    blocks = re.findall(r"^```cpp\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [code_lines(block) for block in blocks if "make_mpi_transport" in block]


class Difference(unittest.TestCase):
    def test_tersor_adds_five_lines_and_two_headers(self) -> None:
        _, added = changes()
        headers = [line for line in added if line.startswith("#include <tersor/")]
        self.assertEqual((len(headers), len(added) - len(headers)), (2, 5))

    def test_tersor_removes_the_manual_averaging(self) -> None:
        removed, _ = changes()
        self.assertLessEqual(len(removed), 5)
        self.assertIn("MPI_Allreduce", "".join(removed))

    def test_readme_shows_the_added_lines(self) -> None:
        _, added = changes()
        self.assertEqual(readme_lines(), [added])


if __name__ == "__main__":
    unittest.main()
