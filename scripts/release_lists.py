"""Writes the bill of materials (CycloneDX), the release notes and SHA256SUMS. scripts/release calls
this program with the Python of its tools.

usage: release_lists.py FOLDER    of a version: files/, source/, tools/, steps.json
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import NamedTuple

from cyclonedx import model
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


class Library(NamedTuple):
    """A library inside the files. ``source`` is a header, or a command with the version in its
    output. ``pattern`` has the numbers of the version as groups."""

    name: str
    license: str
    home: str
    source: str
    pattern: str


ASIO = ("asio", "BSL-1.0", "https://think-async.com/Asio")
SODIUM = ("libsodium", "ISC", "https://libsodium.org")
LLVM = ("Apache-2.0 WITH LLVM-exception", "https://libcxx.llvm.org")
ASIO_VERSION, SODIUM_VERSION = r"// (\d+\.\d+\.\d+)$", r'VERSION_STRING "([\d.]+)"'
LLVM_VERSION = r"_LIBCPP_VERSION (\d\d)(\d\d)(\d\d)"
PREFIX = "source/build/wheels/x86_64/prefix/include"
PACKAGES = "source/build/wheels/tools/lib/python3*/site-packages"
LLVM_HEADER = f"{PACKAGES}/ziglang/lib/libcxx/include/__config"
IN_WHEELS = (
    Library(
        "highway", "Apache-2.0", "https://github.com/google/highway",
        f"{PREFIX}/hwy/highway.h", r"#define HWY_(?:MAJOR|MINOR|PATCH) (\d+)",
    ),
    Library(*SODIUM, f"{PREFIX}/sodium/version.h", SODIUM_VERSION),
    Library(*ASIO, f"{PREFIX}/asio/version.hpp", ASIO_VERSION),
    Library(
        "nanobind", "BSD-3-Clause", "https://github.com/wjakob/nanobind",
        f"{PACKAGES}/nanobind/include/nanobind/nanobind.h",
        r"#define NB_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)",
    ),
    Library(
        "robin-map", "MIT", "https://github.com/Tessil/robin-map",
        f"{PACKAGES}/nanobind/ext/robin_map/include/tsl/robin_growth_policy.h",
        r"#define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)",
    ),
    Library(
        "Zig's compiler_rt", "MIT", "https://ziglang.org",
        f"{PACKAGES}/ziglang-*.dist-info/METADATA", r"^Version: (.+)$",
    ),
)  # fmt: skip
IN_CPU_WHEELS = (*IN_WHEELS, Library("libc++ and libunwind", *LLVM, LLVM_HEADER, LLVM_VERSION))
IN_CUDA_WHEELS = (
    *IN_WHEELS,
    Library("libunwind", *LLVM, LLVM_HEADER, LLVM_VERSION),
    Library(
        "libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org",
        "g++ -dumpfullversion", r"^(.+)$",
    ),
    Library(
        "CUDA runtime, static", "NVIDIA CUDA Toolkit EULA", "https://docs.nvidia.com/cuda/eula",
        "nvcc --version", r"release ([\d.]+)",
    ),
)  # fmt: skip
IN_DEBIAN = (
    Library(*SODIUM, "/usr/include/sodium/version.h", SODIUM_VERSION),
    Library(*ASIO, "/usr/include/asio/version.hpp", ASIO_VERSION),
)


def component_of(library: Library, folder: Path) -> Component:
    """Raises SystemExit if the source of the version is missing."""
    if " " in library.source:
        command = library.source.split()
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    else:
        top = Path("/") if library.source.startswith("/") else folder
        text = "".join(file.read_text() for file in top.glob(library.source.lstrip("/")))
    found = [match.groups() for match in re.finditer(library.pattern, text, re.M)]
    version = re.sub(r"\b0+(?=\d)", "", ".".join(part for groups in found for part in groups))
    if not version:
        sys.exit(f"release: no version of {library.name} in {library.source}")
    return Component(
        name=library.name,
        version=version,
        bom_ref=f"{library.name}@{version}",
        licenses=[LicenseFactory().make_from_string(library.license)],
        external_references=[
            model.ExternalReference(
                type=model.ExternalReferenceType.WEBSITE, url=model.XsUri(library.home)
            )
        ],
    )


def libraries_of(file: Path) -> tuple[Library, ...]:
    if file.suffix == ".whl":
        return IN_CUDA_WHEELS if file.name.startswith("tersor_cuda") else IN_CPU_WHEELS
    return IN_DEBIAN if re.match(r"libtersor\d", file.name) else ()


def needs_of(file: Path) -> list[model.Property]:
    """Packages that an installer takes for the file."""
    if file.suffix == ".deb":
        command = ("dpkg-deb", "--field", str(file), "Depends")
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return [model.Property(name="debian:Depends", value=text)] if text else []
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            lines = re.findall(r"^Requires-Dist: (.+)$", archive.read(name).decode(), re.M)
        needed = [line for line in lines if "extra ==" not in line]
        return [model.Property(name="python:Requires-Dist", value=line) for line in needed]
    return []


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_bill(folder: Path, version: str, commit: str) -> None:
    """One component per file, with the libraries inside."""
    product = Component(
        name="tersor", version=version, type=ComponentType.APPLICATION, bom_ref=f"tersor@{version}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        properties=[model.Property(name="git:commit", value=commit)],
    )  # fmt: skip
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"tersor {version} {commit}")
    bom = Bom(serial_number=serial, metadata=BomMetaData(component=product, timestamp=time))
    files = []
    for path in packages(folder):
        digest = model.HashType(alg=model.HashAlgorithm.SHA_256, content=sha256(path))
        file = Component(
            name=path.name, version=version, type=ComponentType.FILE, bom_ref=path.name,
            hashes=[digest], properties=needs_of(path),
        )  # fmt: skip
        libraries = [component_of(library, folder) for library in libraries_of(path)]
        for component in (file, *libraries):
            bom.components.add(component)
        bom.register_dependency(file, libraries)
        files.append(file)
    bom.register_dependency(product, files)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"release: the bill of materials is not valid: {error}")
    (folder / "files" / f"tersor-{version}.cdx.json").write_text(text + "\n")


def packages(folder: Path) -> list[Path]:
    found = sorted((folder / "files").iterdir())
    return [file for file in found if file.name.endswith((".whl", ".deb", ".tar.gz"))]


def write_notes(folder: Path, version: str, steps: dict[str, dict[str, object]]) -> None:
    """The entries of the changelog, and the table of installed files and missing files."""
    changes = (folder / "source" / "CHANGELOG.md").read_text()
    begin = changes.index(f"## [{version}]")
    end = changes.find("\n## [", begin)
    lines = [changes[begin : end if end > 0 else None].rstrip(), "", "## Installed files", ""]
    lines += ["| file | system | passed tests | install to first all-reduce |"]
    lines += ["| --- | --- | --- | --- |"]
    for name, state in steps.items():
        lines += [f"| {' | '.join(row)} |" for row in state["rows"]]  # type: ignore[attr-defined]
        lines += [f"| {name} | left out: {state['left_out']} | | |"] if state["left_out"] else []
    (folder / "files" / "RELEASE-NOTES.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    state = json.loads((folder / "steps.json").read_text())
    (folder / "files" / "SHA256SUMS").unlink(missing_ok=True)
    write_bill(folder, folder.name, state["commit"])
    write_notes(folder, folder.name, state["steps"])
    sums = [f"{sha256(file)}  {file.name}\n" for file in sorted((folder / "files").iterdir())]
    (folder / "files" / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
