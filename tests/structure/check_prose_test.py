#!/usr/bin/env python3
"""check_prose.py must see each kind of violation, and accept plain English."""

import pathlib
import tempfile
import unittest
from unittest import mock

import check_prose

PLAIN = "// Sends each shard to the owner of the shard. Returns the bytes on the wire.\n"
FRAGMENTS = "// Of all ranks the first one. Where no rank is late the call returns.\n"
PRONOUNS = "// It sends what they asked for, if it has those which are theirs.\n"
LONG = "// " + "The transport sends the encoded frames " * 5 + "to the peers.\n"


def found(files, retired=None):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        with mock.patch.object(check_prose, "RETIRED", retired or {}):
            return list(check_prose.check(root))


class Prose(unittest.TestCase):
    def test_plain_english_passes(self):
        self.assertEqual(found({"comm/a/a.h": PLAIN * 9, "codecs/a.cc": PLAIN}), [])

    def test_each_limit(self):
        for text, part in ((FRAGMENTS, "fragments"), (PRONOUNS, "pronouns"), (LONG, "over 25 words")):
            with self.subTest(part):
                violations = found({"comm/a.h": "int i;\n".join([text] * 9)})
                self.assertTrue(any(part in one for one in violations), violations)

    def test_a_trailing_comment_counts(self):
        self.assertTrue(found({"include/a.h": "int a;  ///< what it is that they want\n" * 9}))

    def test_strings_and_code_do_not_count(self):
        self.assertEqual(found({"include/a.h": PLAIN + 'auto a = "it is what it is";\n' * 9}), [])

    def test_a_good_folder_does_not_hide_a_bad_folder(self):
        files = {"comm/good/a.h": "int i;\n".join([PLAIN] * 90)}
        files["comm/bad/b.h"] = "int i;\n".join([PRONOUNS] * 9)
        self.assertTrue(all(one.startswith("comm/bad:") for one in found(files)))
        self.assertTrue(found(files))

    def test_names_of_tests(self):
        files = {"tests/a_test.cc": "TEST(A, WhatFits) {}\nTEST_P(A,\n       OfAll) {}\nTEST(A, OffByOne) {}\n"}
        files["python_bindings/tests/test_a.py"] = "def test_who_waits():\n    ...\n\ndef test_whole():\n    ...\n"
        names = [one.rpartition(" ")[2] for one in found(files)]
        self.assertEqual(names, ["WhatFits", "OfAll", "test_who_waits"])

    def test_pages_and_docstrings(self):
        bad = "It sends what they asked for, if it has those which are theirs.\n"
        for path, text in {
            "docs/a.md": bad * 9,
            "python_bindings/tersor/a/b.py": f'def f():\n    """{bad * 9}"""\n',
        }.items():
            [violation] = found({path: text})
            self.assertIn("pronouns", violation)
            self.assertIn(path.removesuffix("/b.py"), violation)
        code = f"A list of the bytes that each rank sends:\n\n```text\n{bad * 9}```\n\n    {bad}\n\n| {bad}|\n"
        self.assertEqual(found({"README.md": code * 9}), [])

    def test_hash_comments(self):
        bad = "# It sends what they asked for, if it has those which are theirs.\n"
        trailing = "set(a 1) # what it is that they want\n"
        for path in ("CMakeLists.txt", "cmake/a.cmake", "tests/a/CMakeLists.txt", "scripts/a", ".ci/run"):
            for text in (bad, trailing):
                violations = found({path: (text + "a()\n") * 9})
                self.assertTrue(any("pronouns" in one for one in violations), path)
        for text in ("#!/bin/it what is it\n", 'echo "# it is what it is"\n', "#   up   it is what it is\n"):
            self.assertEqual(found({"scripts/a": "# Starts each rank.\n" + text * 9}), [], text)
        python = f'#!/usr/bin/env python3\n"""{bad[2:] * 9}"""\n'
        self.assertTrue(found({"scripts/b": python}))

    def test_retired_words(self):
        retired = {"lane": ("kernels/host/",)}
        for name in ("lane", "lane_count", "kLanes", "LaneOwner", "byLane"):
            self.assertTrue(found({"comm/a.cc": f"int {name} = 0;\n"}, retired), name)
        for text in ("int plane;\n", 'auto a = "lane";\n', "// a SIMD lane\n"):
            self.assertEqual(found({"comm/a.cc": text}, retired), [], text)
        self.assertEqual(found({"kernels/host/a.h": "int lanes;\n"}, retired), [])


if __name__ == "__main__":
    unittest.main()
