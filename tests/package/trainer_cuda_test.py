"""The CUDA trainer's steps contain exactly the five lines of Tersor shown in docs/how-to/gpu.md."""

import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TRAINER = REPOSITORY / "bench" / "train" / "cuda" / "trainer.cc"


def without_space(text):
    return re.sub(r"\s+", "", re.sub(r"//.*", "", text))


def shown_lines():
    text = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text()
    blocks = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if "GradientReducer" in block]
    return [line for line in block.splitlines() if line.strip()]


class FiveLines(unittest.TestCase):
    def test_the_trainer_has_each_line_that_is_shown(self) -> None:
        trainer = without_space(TRAINER.read_text())
        self.assertEqual(len(shown_lines()), 5)
        for line in shown_lines():
            self.assertIn(without_space(line), trainer)

    def test_the_reducer_is_named_in_these_alone(self) -> None:
        shown = sum(len(re.findall(r"\breducer\b", line)) for line in shown_lines())
        self.assertEqual(len(re.findall(r"\breducer\b", TRAINER.read_text())), shown)


if __name__ == "__main__":
    unittest.main()
