"""Checks the public names, writes the pages and runs Sphinx. scripts/docs calls this program.

usage: build.py [--record]    after Doxygen
    --record writes tersor-bench.txt and the table of tested versions, and removes documented names
    from the allow-lists
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import command_line
import compatibility
import coverage
import headers
import pages
import public
from sphinx.cmd.build import build_main

BUILD = public.ROOT / "build"
# Every warning is an error, and every name in a signature must be known.
OPTIONS = (
    "-q",
    "-W",
    "--keep-going",
    "-n",
    "-c",
    public.ROOT / "docs" / "site",
    "-d",
    BUILD / "docs-doctrees",
)


def main() -> int:
    recording = sys.argv[1:] == ["--record"]
    if recording and (built := command_line.program()):
        command_line.record(built)
    if recording:
        compatibility.write()
    reasons = coverage.failures(recording) + compatibility.differences()
    for reason in reasons:
        print(f"docs: {reason}", file=sys.stderr)
    headers.adapt(BUILD / "docs-xml" / "xml")
    pages.write(BUILD / "docs-source")
    status = build_main([str(word) for word in (*OPTIONS, BUILD / "docs-source", BUILD / "docs")])
    return status or bool(reasons)


if __name__ == "__main__":
    sys.exit(main())
