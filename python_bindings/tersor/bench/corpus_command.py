"""``corpus``: a text to train on, from source code and documents of installed packages.

The files are sorted by a hash, so the packages are mixed and equal versions give equal texts. Equal
files count once. ``train --data FILE`` reads the text.
"""

import argparse
import collections
import gzip
import hashlib
import importlib.metadata
import pathlib
from collections.abc import Iterator

from tersor.bench.data import GZIP_SUFFIX
from tersor.bench.errors import BenchmarkError, fail_if
from tersor.bench.records import Record, add, columns, report

SUFFIXES = (".cuh", ".h", ".hpp", ".md", ".py", ".pyi", ".rst", ".txt")
COLUMNS = columns("package=package, version=version, files=files, bytes=bytes:B")


def add_options(parser: argparse.ArgumentParser) -> None:
    text = f"the text to write, with {GZIP_SUFFIX} compressed by gzip"
    parser.add_argument("file", type=pathlib.Path, metavar="FILE", help=text)
    names = ["torch", "sympy", "numpy"]
    add(parser, "packages", names, "installed Python packages", metavar="NAME")
    add(parser, "mib", 64, "size of the text in MiB, before compression")


def run(chosen: argparse.Namespace) -> None:
    """Writes the text. Raises BenchmarkError if a package is missing or the text is too short."""
    report(chosen, _written(chosen), COLUMNS)


def _written(chosen: argparse.Namespace) -> Iterator[Record]:
    """Writes the text, and yields the part of each package."""
    found: dict[bytes, tuple[str, pathlib.Path]] = {}
    for name in sorted(chosen.packages):
        for path in _files(name):
            found.setdefault(hashlib.sha256(path.read_bytes()).digest(), (name, path))
    size, text = chosen.mib * 2**20, bytearray()
    files, bytes_of = collections.Counter[str](), collections.Counter[str]()
    for _, (name, path) in sorted(found.items()):
        content = path.read_bytes()[: size - len(text)]
        text += content
        files[name] += bool(content)
        bytes_of[name] += len(content)
    few = f"the packages have {len(text) / 2**20:.1f} MiB of text: give fewer --mib or more "
    fail_if(len(text) < size, f"{few}--packages")
    is_compressed = chosen.file.suffix == GZIP_SUFFIX
    output = gzip.compress(text, compresslevel=6, mtime=0) if is_compressed else text
    try:
        chosen.file.write_bytes(output)
    except OSError as error:
        raise BenchmarkError(f"cannot write {chosen.file}: {error.strerror}") from error
    for name in sorted(chosen.packages):
        yield {
            "benchmark": "corpus",
            "package": name,
            "version": importlib.metadata.version(name),
            "files": files[name],
            "bytes": bytes_of[name],
            "sha256": hashlib.sha256(text).hexdigest(),
        }


def _files(name: str) -> Iterator[pathlib.Path]:
    """The texts of an installed package, in UTF-8."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise BenchmarkError(f"the package {name} is not installed") from error
    fail_if(files is None, f"the package {name} has no list of files (RECORD)")
    for file in files or ():
        path = pathlib.Path(str(file.locate()))
        if file.suffix in SUFFIXES and path.is_file() and _is_utf8(path):
            yield path


def _is_utf8(path: pathlib.Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True
