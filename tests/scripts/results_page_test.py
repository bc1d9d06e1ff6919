"""The results page and its charts equal the output of the generator."""

import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
for folder in ("bench/report", "docs/figures"):
    sys.path.insert(0, str(REPOSITORY / folder))
sys.dont_write_bytecode = True

import results_page  # noqa: E402
import results_tables  # noqa: E402

OUTPUT = REPOSITORY / "docs" / "results"
MOST_WORDS = 2750
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


class ResultsPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.pages = results_page.pages()

    def test_committed_files_match_the_generator(self) -> None:
        for name, text in self.pages.items():
            with self.subTest(name):
                committed = (OUTPUT / name).read_text(encoding="utf-8")
                self.assertEqual(committed, text, "run docs/figures/make_figures.py")

    def test_no_other_file_is_left_in_the_folder(self) -> None:
        files = {path.name for path in OUTPUT.iterdir()}
        self.assertEqual(files, set(self.pages))

    def test_the_page_stays_short(self) -> None:
        words = self.pages["index.md"].replace("|", " ").split()
        self.assertLess(len(words), MOST_WORDS)

    def test_page_contains_all_record_tables(self) -> None:
        for table in results_tables.TABLES:
            self.assertIn(table(), self.pages["index.md"])

    def test_each_link_to_a_note_has_a_file(self) -> None:
        for target in LINK.findall(self.pages["index.md"]):
            if "/notes/" in target or target.endswith(".svg"):
                self.assertTrue((OUTPUT / target).exists(), target)

    def test_charts_are_valid_xml_with_a_direction_label(self) -> None:
        for name in self.pages:
            if name.endswith(".svg"):
                root = xml.etree.ElementTree.fromstring(self.pages[name])
                texts = [one.text for one in root.iter() if one.tag.endswith("}text")]
                self.assertTrue(any("better" in text for text in texts), name)

    def test_labels_are_escaped(self) -> None:
        drawn = results_page.time_bars("a < b", {"<x>": 1.0})
        xml.etree.ElementTree.fromstring(drawn)
        self.assertNotIn("<x>", drawn)


class Figures(unittest.TestCase):
    def test_number_formats(self) -> None:
        self.assertEqual(results_tables.ms(0.0123), "12.3 ms")
        self.assertEqual(results_tables.ms(1.0274), "1,027 ms")
        self.assertEqual(results_tables.times(3.867), "3.87x")
        self.assertEqual(results_tables.times(20.06), "20.1x")
        self.assertEqual(results_tables.kib(3280896), "3.13 MiB")
        self.assertEqual(results_tables.percent(0.00983), "0.98 %")
        self.assertEqual(results_tables.signed(-0.066, 2), "−0.07")

    def test_empty_selection_raises(self) -> None:
        with self.assertRaisesRegex(results_tables.records.ReportError, "0 records"):
            results_tables.only(results_tables.MPI, codec="no such codec")


if __name__ == "__main__":
    unittest.main()
