"""Each SVG figure of docs/figures equals the output of its script."""

import math
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

SOURCES = pathlib.Path(__file__).resolve().parents[2]
FIGURES = SOURCES / "docs" / "figures"
sys.dont_write_bytecode = True
sys.path.insert(0, str(FIGURES))
sys.path.insert(0, str(SOURCES / "bench" / "report"))

import charts  # noqa: E402
import svg  # noqa: E402
from words import in_words  # noqa: E402

NAMESPACE = "{http://www.w3.org/2000/svg}"


class Files(unittest.TestCase):
    def test_files_match_the_script_output(self) -> None:
        command = [sys.executable, FIGURES / "make_figures.py", "--check"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_each_file_has_a_title_two_themes_and_no_address(self) -> None:
        files = sorted(FIGURES.glob("*.svg"))
        self.assertEqual(len(files), 6)
        for file in files:
            text = file.read_text()
            root = xml.fromstring(text)
            for name in ("title", "desc"):
                self.assertTrue(root.findtext(NAMESPACE + name), file.name)
            self.assertIn("prefers-color-scheme: dark", text)
            self.assertNotRegex(text, r"href|url\(|@import|<image|<script")

    def test_colours_have_contrast_to_the_paper_in_both_themes(self) -> None:
        for name, both in svg.COLOURS.items():
            for colour, paper in zip(both, svg.COLOURS["paper"], strict=True):
                if name not in ("paper", "grid", "box"):
                    self.assertGreater(contrast(colour, paper), 4.5, (name, colour))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of the Web Content Accessibility Guidelines 2.1."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [value / 255 for value in bytes.fromhex(colour[1:])]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class Numbers(unittest.TestCase):
    def test_allreduce_time(self) -> None:
        seconds = charts.allreduce_seconds
        self.assertAlmostEqual(seconds(1e9, "none", 1e9), 56.0)
        self.assertAlmostEqual(seconds(1e9, "none", 1e9, machines=2), 32.0)
        self.assertAlmostEqual(seconds(1e9, "none", 1e9) / seconds(1e9, "int4", 1e9), 7.53, 2)

    def test_readme_shows_the_same_times(self) -> None:
        rows = re.findall(r"^\| (\d+) ([MG])bit/s \| (.*) \|$", readme(), re.MULTILINE)
        self.assertEqual(len(rows), 4)
        for number, unit, cells in rows:
            rate = float(number) * {"M": 1e6, "G": 1e9}[unit]
            for parameters, cell in zip((1e7, 1e8, 1e9), cells.split(" | "), strict=True):
                value, of_time = cell.split()
                shown = float(value) * {"s": 1.0, "ms": 1e-3}[of_time]
                expected = charts.allreduce_seconds(parameters, "none", rate)
                self.assertTrue(math.isclose(shown, expected, rel_tol=0.02), (number, unit, cell))

    def test_linear_and_logarithmic_axes(self) -> None:
        self.assertEqual(svg.Axis(0, 10, 100, 200)(5), 150)
        self.assertAlmostEqual(svg.Axis(1, 100, 0, 10, logarithmic=True)(10), 5)

    def test_too_wide_text_is_rejected(self) -> None:
        drawing = svg.Drawing(100, 100, "figure", "")
        drawing.text(0, 50, "short")
        with self.assertRaisesRegex(ValueError, "wider"):
            drawing.text(0, 50, "a text of more than a hundred pixels")


def readme() -> str:
    return (SOURCES / "README.md").read_text()


class Words(unittest.TestCase):
    def test_codecs_and_hooks(self) -> None:
        for spec, words in (
            ("int8", "int8"),
            ("int8:rounding=stochastic", "int8 stochastic"),
            ("topk:density=0.001,values=int8", "topk 0.1 %, int8 values"),
            ("intsum:lanes=16", "intsum 16 bits"),
            ("adamw:hadamard:bits=1+ef", "CompressedAdamW, hadamard 1 bit, error feedback"),
            (
                "muon,momentum=0.7:blocktopk:density=0.01+ef",
                "CompressedMuon, blocktopk 1 %, error feedback, momentum 0.7",
            ),
            ("muon", "uncompressed Muon"),
            ("torch:powersgd=4", "PyTorch PowerSGD hook, rank 4"),
            ("torch:fp16", "PyTorch fp16 hook"),
            ("onebit-adam=400", "1-bit Adam, 400 uncompressed steps"),
            ("demo=20", "DeMo, 20 coefficients per chunk"),
            ("dion=4,factor=1,bf16", "Dion, rank 4, factor 1, bf16"),
            ("sparseloco=20,density=0.03", "SparseLoCo every 20 steps, density 0.03"),
            ("adamw=50:int8+ef", "CompressedAdamW after 50 steps, int8, error feedback"),
            ("diloco=20,rate=1:int4+ef/bf16",
             "DiLoCo every 20 steps, int4, error feedback / bf16, rate 1"),
            ("torchft=20,delay=4", "torchft's DiLoCo every 20 steps, delay 4"),
            ("server=BSP:int8+ef", "parameter server, BSP, int8, error feedback"),
            ("gossip=ring:int8", "gossip, ring, int8"),
            ("tersor:none", "Tersor none"),
            ("weighted:int8", "sample-weighted int8"),
        ):
            self.assertEqual(in_words(spec), words)


if __name__ == "__main__":
    unittest.main()
