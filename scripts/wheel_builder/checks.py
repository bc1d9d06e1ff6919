"""Checks of finished wheels: sizes, auditwheel, codec tests. QEMU runs other processors' code."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from sources import GLIBC, OUT, ROOT, output_of, run

MAX_WHEEL_MIB = 5
MAX_INSTALLED_MIB = 12
CODEC_TESTS = ("test_codec.py", "test_codec_golden.py")
WHEEL_TESTS = ("test_wheel.py", "test_wheel_cuda.py")  # tests that start further interpreters
TEST_PACKAGES = ("numpy>=1.24", "ml_dtypes>=0.4", "pytest>=8")
DEBIAN_PYTHONS = {"cp311": ("bookworm", "3.11"), "cp312": ("trixie", "3.13")}  # by wheel tag
SKIPPED = 77


def check_sizes(wheel: Path) -> None:
    """Ends the program if a CPU wheel exceeds its limits."""
    with zipfile.ZipFile(wheel) as archive:
        installed = sum(file.file_size for file in archive.infolist())
    for size, limit, what in (
        (wheel.stat().st_size, MAX_WHEEL_MIB, "the wheel has"),
        (installed, MAX_INSTALLED_MIB, "its files have"),
    ):
        print(f"wheels: {wheel.name}: {what} {size / 2**20:.2f} MiB of at most {limit}")
        if size > limit * 2**20:
            sys.exit(f"wheels: too large: {wheel}")


def check_platform(wheel: Path, tools: Path) -> None:
    """Ends the program unless auditwheel confirms the wheel's tag."""
    answer = output_of(tools / "auditwheel", "show", wheel)
    found = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_', " ".join(answer.split()))
    needed = tuple(map(int, GLIBC.split(".")))
    print(f"wheels: {wheel.name}: auditwheel: {found and found[0]}")
    if found is None or (int(found[1]), int(found[2])) > needed:
        sys.exit(f"wheels: auditwheel does not confirm glibc {GLIBC}:\n{answer}")


def test(wheels: list[Path], python: str, name: str) -> None:
    """Runs tests with the wheels, in a new environment of ``python``.

    ``wheels``: the wheel of tersor, or the wheels of tersor and tersor-cuda13.
    """
    environment = OUT / f"test-{name}"
    run(python, "-m", "venv", "--clear", environment)
    pip = (environment / "bin/python", "-m", "pip", "install", "--quiet")
    run(*pip, *TEST_PACKAGES)
    run(*pip, "--no-index", "--no-deps", *wheels)
    with_cuda = len(wheels) > 1
    check_package(environment, "tersor-cuda13" if with_cuda else "tersor")
    run(environment / "bin/python", *pytest(*CODEC_TESTS, *WHEEL_TESTS), cwd=OUT)
    if with_cuda:
        run(environment / "bin/python", "-m", "pip", "uninstall", "--yes", "tersor-cuda13")
        check_package(environment, "tersor")


def check_package(environment: Path, package: str) -> None:
    """Ends the program unless ``import tersor`` loads the module of this package."""
    program = f"import tersor; i = tersor.build_info(); print(i); assert i.package == {package!r}"
    run(environment / "bin/python", "-c", program, cwd=OUT)


def test_emulated(wheel: Path, arch: str) -> int:
    """Runs the codec tests under QEMU. Returns SKIPPED if a program or this Python is missing."""
    qemu = shutil.which(f"qemu-{arch}-static") or shutil.which(f"qemu-{arch}")
    if qemu is None or shutil.which("mmdebstrap") is None:
        return skip(wheel, "install qemu-user-static and mmdebstrap (Debian, Ubuntu)")
    suite, version = DEBIAN_PYTHONS.get(wheel.name.split("-")[2], ("", ""))
    if not suite:
        return skip(wheel, "Debian has no Python for this wheel")
    root = OUT / arch / f"root-{suite}"
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        debian = {"aarch64": "arm64"}.get(arch, arch)
        run(
            *("mmdebstrap", "--variant=extract", "--skip=check/qemu"),
            *(
                "--include=python3-minimal,libpython3-stdlib,libstdc++6",
                f"--architectures={debian}",
            ),
            *("--setup-hook=ln -s usr/lib $1/lib", suite, root, "http://deb.debian.org/debian"),
        )
        (root / "complete").touch()
    site = OUT / arch / "site"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [f"--platform=manylinux_2_{minor}_{arch}" for minor in (17, 27, 28)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site), "--upgrade"]
    pip += [*platforms, f"--python-version={version}", "--only-binary=:all:"]
    run(*pip, *TEST_PACKAGES)
    run(*pip, "--no-index", "--no-deps", wheel)
    run(
        *(qemu, "-L", root, root / f"usr/bin/python{version}", *pytest(*CODEC_TESTS)),
        cwd=OUT,
        environment=os.environ | {"PYTHONPATH": str(site)},
    )
    return 0


def skip(wheel: Path, reason: str) -> int:
    print(f"wheels: {wheel.name} is not tested: {reason}", flush=True)
    return SKIPPED


def pytest(*files: str) -> list[str | Path]:
    options = ("-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml")
    return ["-m", "pytest", *options, *(ROOT / "python_bindings/tests" / name for name in files)]
