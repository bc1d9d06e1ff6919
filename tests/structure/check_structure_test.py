#!/usr/bin/env python3
"""check_structure.py must find each kind of violation and accept a valid tree."""
import pathlib
import tempfile
import unittest

import check_structure

GOOD = {
    "include/tersor/tersor.h": "#include <tersor/codec.h>\n",
    "include/tersor/codec.h": "#include <vector>\n\nclass Codec {\n  enum class Way { kFirst };\n};\n",
    "kernels/int8/cpu.cc": '#include "kernels/int8/formulas.h"\n',
    "codecs/int8.cc": '#include "kernels/int8/cpu.h"\n#include <tersor/codec.h>\nstruct Way {\n};\n',
    "comm/transport/mpi/mpi.cc": "#include <mpi.h>\n#include <tersor/transport.h>\n",
    "comm/allreduce.cc": '#include "comm/transport/ring.h"\n#include "codecs/registry.h"\n',
    "comm/c.h": "namespace own {\nstruct Way {\n};\n}  // namespace own\nnamespace {\nstruct One {\n",
    "comm/d.cc": "namespace {\nstruct One {\n};\n}  // namespace\n",
    "kernels/e.h": "namespace own {\ninline int sum(int a, int b) {\n",
    "kernels/f.h": "namespace other {\ninline int sum(int a, int b) {\n",
    "kernels/g.h": "namespace own {\ninline int sum(int a) {\nnamespace {\nint one(int a) {\n}\n}  // namespace\n",
    "CONTRIBUTING.md": "    kernels/int8/ host/ quantize/\n    comm/\n      transport/ mpi/ tuning/ calls/ collectives/\n",
    "docs/site/public.py": '("codec", "mpi", "codecs/int8", "int8", "tersor", "a")\n',
    "cmake/exports.map.in": "global:\n  tersor::sum*; tersor::own::*; tersor::Rule[CPS]*;\n",
    "tests/gpu/a.cc": '#include "tests/ptx_device/hooks.h"\n',
    "tests/ptx_device/runtime/a.cc": '#include "tests/ptx_device/hooks.h"\n',
    "tests/codecs/int8_test.cc": '#include "bench/records.h"\n#include "tests/support/round_trip.h"\n',
}

# path, text, and a part of the expected sentence
BAD = [
    ("docs/site/public.py", '("codec", "int8", "tersor", "a")\n', "lacks include/tersor/mpi.h"),
    ("cmake/exports.map.in", "  tersor::sum*; tersor::total*;\n", "no header declares total"),
    ("kernels/a.cc", '#include "codecs/registry.h"\n', "a layer above"),
    ("codecs/a.cc", '#include "comm/allreduce.h"\n', "a layer above"),
    ("codecs/a.cc", "#include <tersor/transport.h>\n", "must not know it"),
    ("comm/transport/a.cc", '#include "comm/allreduce.h"\n', "a layer above"),
    ("comm/transport/a.cc", "#include <tersor/codec.h>\n", "must not know it"),
    ("comm/transport/a.cc", "#include <tersor/codecs/int8.h>\n", "must not know it"),
    ("comm/collectives/a.cc", '#include "comm/tuning/tuner.h"\n', "a layer above"),
    ("comm/tuning/a.cc", '#include "comm/calls/arguments.h"\n', "a layer above"),
    ("comm/calls/a.cc", '#include "comm/reducer/impl.h"\n', "a layer above"),
    ("comm/a.cc", '#include "bench/train.h"\n', "a layer above"),
    ("comm/a.cc", '#include "kernels/quantize/kernels.h"\n', "must not know it"),
    ("kernels/host/a.cc", '#include "kernels/device/stream.h"\n', "a layer above"),
    ("kernels/quantize/a.cc", '#include "kernels/topk/cpu.h"\n', "a layer above"),
    ("comm/a.cc", "  #  include <mpi.h>\n", "only comm/transport/mpi/ may"),
    ("comm/a.cc", '#include "../codecs/registry.h"\n', "no '..'"),
    ("include/tersor/a.h", '#include "kernels/a.h"\n', "a layer above"),
    ("codecs/a.cc", '#include "tersor/codec.h"\n', "write <tersor/"),
    ("codecs/a.cc", '#include "registry.h"\n', "a path from the root"),
    ("comm/a.h", "namespace host {\nclass Codec final : public Way {\n", "the name of a public type"),
    ("kernels/a.cc", "  struct Codec {\n", "the name of a public type"),
    ("comm/b.h", "namespace own {\nstruct Way {\n", "defines own::Way: so does comm/b.h"),
    ("kernels/h.h", "namespace own {\ntemplate <class T>\nint sum(int x, int y) {\n", "so does kernels/e.h"),
    ("comm/server/a.cc", "\n", "the map lacks comm/server/"),
    ("tests/gpu/a.cc", '#include "tests/ptx_device/runtime/queue.h"\n', "hooks.h is the public header"),
    ("tests/ptx_device/a.cc", '#include "tests/support/grid.h"\n', "includes no other folder"),
    ("bench/a.cc", "\n" * 401, "has 401 lines"),
    ("bench/a.cc", "x" * 101, "line 1 has 101 columns"),
    ("include/tersor/codec.h", "#include <tersor/codecs/int8.h>\n", "brings in tersor/codecs/int8.h"),
    ("include/tersor/tersor.h", "#include <tersor/mpi.h>\n", "brings in tersor/mpi.h"),
]


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {"include/tersor/codecs/int8.h": "", "include/tersor/mpi.h": "", **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return list(check_structure.violations(root))


class CheckStructure(unittest.TestCase):
    def test_a_good_tree_passes(self):
        self.assertEqual(check(GOOD), [])

    def test_each_violation_is_detected(self):
        for path, text, sentence in BAD:
            with self.subTest(path=path, text=text[:40]):
                found = check({**GOOD, path: text})
                self.assertEqual(len(found), 1, found)
                self.assertIn(sentence, found[0])


if __name__ == "__main__":
    unittest.main()
