"""scripts/check-abi on small libraries: symbols without a node, private names, and a changed ABI."""

import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check-abi"
loader = importlib.machinery.SourceFileLoader("check_abi", str(SCRIPT))
check_abi = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_abi", loader))
loader.exec_module(check_abi)

HEADER = """
namespace tersor {
struct Options { int level; %s };
struct Codec { virtual ~Codec(); virtual int level(const Options&) const; %s };
int encode(const Options& options);  // hidden_word
}
"""
SOURCE = """
#include "codec.h"
namespace tersor {
Codec::~Codec() {}
int Codec::level(const Options& options) const { return options.level; }
int encode(const Options& options) { return Codec().level(options); }
%s
}
"""
MAP = "TERSOR_0.1 { global: _Z*N6tersor*; local: *; };\n"


class CheckAbi(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def library(self, name, field="", method="", more="", script=MAP, soname="libtersor.so.0.1"):
        """Compiles a library. Returns its file and the folder of its header."""
        folder = self.root / name
        folder.mkdir()
        (folder / "codec.h").write_text(HEADER % (field, method))
        (folder / "codec.cc").write_text(SOURCE % more)
        (folder / "map").write_text(script)
        link = ["-Wl,--version-script=map"] if script else []
        command = ["g++", "-g", "-shared", "-fPIC", "codec.cc", "-o", "libtersor.so"]
        subprocess.run([*command, f"-Wl,-soname,{soname}", *link], cwd=folder, check=True)
        return folder / "libtersor.so", folder

    def faults(self, library):
        file, include = library
        return check_abi.faults_of(
            check_abi.symbols_of(file), check_abi.public_names(include), "TERSOR_0.1"
        )

    def test_names_of_the_headers_are_public(self) -> None:
        self.assertEqual(self.faults(self.library("a")), [])

    def test_symbols_without_a_version_node_are_reported(self) -> None:
        faults = self.faults(self.library("a", script=""))
        self.assertIn("tersor::encode(tersor::Options const&) has the version of none", faults)

    def test_names_outside_of_the_headers_are_private(self) -> None:
        more = "int hidden_word() { return 1; } namespace kernels { int scan() { return 2; } }"
        self.assertEqual(
            sorted(self.faults(self.library("a", more=more))),
            ["tersor::hidden_word() is private", "tersor::kernels::scan() is private"],
        )

    def test_private_node_may_contain_private_names(self) -> None:
        script = MAP + 'TERSOR_PRIVATE_0.1.0 { global: extern "C++" { "tersor::hidden_word()"; }; };\n'
        more = "int hidden_word() { return 1; }"
        self.assertEqual(self.faults(self.library("a", more=more, script=script)), [])

    def changed(self, **changes):
        old, old_include = self.library("old")
        new, new_include = self.library("new", **changes)
        if shutil.which("abidiff") is None:
            self.skipTest("needs abidiff (abigail-tools)")
        return check_abi.differences(old, new, old_include, new_include)

    def test_compatible_library_may_add_functions(self) -> None:
        self.assertEqual(self.changed(more="int decode() { return 1; }"), "")

    def test_changed_type_size_is_a_difference(self) -> None:
        self.assertIn("size changed from 32 to 64", self.changed(field="int more;"))

    def test_added_virtual_function_is_a_difference(self) -> None:
        method = "virtual int more() const { return 1; }"
        self.assertIn("virtual", self.changed(method=method))

    def test_library_with_a_new_soname_may_differ(self) -> None:
        self.assertEqual(self.changed(field="int more;", soname="libtersor.so.0.2"), "")


if __name__ == "__main__":
    unittest.main()
