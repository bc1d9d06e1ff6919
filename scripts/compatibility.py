"""Records the versions of passed tests, and writes the table of docs/reference/compatibility.md.

usage: compatibility.py note FOLDER FILE.xml ...    writes FOLDER/FILE.versions.json: the versions
           of this interpreter, its packages and this system, if FILE has passed and no failed tests
       compatibility.py note FOLDER SYSTEM.json ...    the versions of a scripts/clean-root record
       compatibility.py collect FOLDER ...    adds these versions to docs/data/compatibility.json
       compatibility.py write    writes the table from docs/data/compatibility.json
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

import test_summary  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data" / "compatibility.json"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BLOCK = re.compile(r"(?<=<!-- tested versions -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEAD = "| component | version | with | passed tests | run | day | commit |\n"
HEAD += "| --- | --- | --- | ---: | --- | --- | --- |\n"

# Component, distribution on PyPI, and the tests that use the package.
PACKAGES = (
    ("PyTorch", "torch", r"test_(ddp|fsdp|optimizer|compressed|diloco|checkpoint)"),
    ("NumPy", "numpy", r"test_(arrays|codec)\."),
    ("mpi4py", "mpi4py", r"test_mpi\."),
    ("transformers", "transformers", r"test_transformers\.|test_docs_frameworks\.\w*transformers"),
    ("Accelerate", "accelerate", r"test_docs_frameworks\.\w*accelerate"),
    ("Lightning", "lightning", r"test_docs_frameworks\.\w*lightning"),
    ("TensorFlow", "tensorflow_cpu", r"test_tensorflow\."),
    ("Keras", "keras", r"test_tensorflow\."),
    ("torchft", "torchft", r"test_torchft\."),
    ("torchao", "torchao", r"test_torchao\."),
    ("vLLM", "vllm", r"test_vllm\."),
    ("Ray", "ray", r"test_ray\."),
    ("Flower", "flwr", r"test_flower"),
    ("NVFlare", "nvflare", r"test_nvflare\."),
)
# Component, command, pattern of the version in the output, and the ctest tests of the component.
PROGRAMS = (
    ("GCC", ("g++", "-dumpfullversion"), r"(.+)", r"."),
    ("Open MPI", ("mpirun", "--version"), r"\(Open MPI\) (\S+)", r"mpi\."),
    ("CUDA toolkit, simulated GPU", ("nvcc", "--version"), r"release ([\d.]+)", r"ptx\."),
)  # fmt: skip
ORDER = ("Python", "glibc", *(name for name, *_ in PROGRAMS), "NCCL")
ORDER += tuple(dict.fromkeys(name for name, *_ in PACKAGES))

Row = dict[str, str | int]


def output_of(*command: str) -> str:
    """Returns the output, or "" if the program is missing or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def system() -> str:
    name = platform.freedesktop_os_release()
    return f"{name['ID'].capitalize()} {name.get('VERSION_ID', '')}, {platform.machine()}"


def glibc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


def version_of(package: str) -> str:
    """Returns the version, or "" if this interpreter does not have the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def found_versions(tests: list[str], python: bool) -> list[tuple[str, str, int]]:
    """Returns component, version and number of tests, per component of these passed tests."""
    found = [("glibc", glibc(), len(tests))]
    if python:
        found.append(("Python", platform.python_version(), len(tests)))
    for component, package, pattern in PACKAGES if python else ():
        used = sum(bool(re.search(pattern, name)) for name in tests)
        if used and (version := version_of(package)):
            found.append((component, version, used))
    for component, command, pattern, uses in () if python else PROGRAMS:
        used = sum(bool(re.match(uses, name)) for name in tests)
        program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
        version = re.search(pattern, output_of(program, *command[1:])) if program else None
        if used and version:
            found.append((component, version[1], used))
    return found


def day_and_commit(file: Path) -> Row:
    commit = output_of("git", "rev-parse", "--short=8", "HEAD")
    if not commit:
        sys.exit("compatibility: versions need a commit, and this is no clone")
    changes = " with changes" if output_of("git", "status", "--porcelain") else ""
    day = time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime))
    return {"day": day, "commit": commit + changes}


def rows_of_system(file: Path) -> list[Row]:
    """Returns the rows of a clean system, in which two processes have summed."""
    found = json.loads(file.read_text())
    text = f"{found['system']}, {platform.machine()}"
    row: Row = {"with": text, "passed": 1, "run": "clean system"} | day_and_commit(file)
    return [
        {"component": name, "version": found[name.lower()]} | row for name in ("Python", "glibc")
    ]


def rows_of(file: Path) -> list[Row]:
    """Returns the rows of one JUnit file: none if a test failed, or if no test passed."""
    tests = list(test_summary.tests_in(file))
    if any(test_summary.failure_text(test) is not None for test in tests):
        return []
    passed = [test_summary.full_name(test) for test in tests if not test_summary.is_skipped(test)]
    if not passed:
        return []
    python = file.stem.startswith("python-")  # pytest's file; all other files are ctest's
    versions = found_versions(passed, python)
    beside = {component: version for component, version, _ in versions}
    if "Python" in beside and (torch := version_of("torch")):
        beside["PyTorch"] = torch
    run = file.stem.replace("python-", "Python, ") if python else "C++"
    when = day_and_commit(file)
    rows: list[Row] = []
    for component, version, used in versions:
        others = [f"{name} {beside[name]}" for name in ("Python", "PyTorch") if name in beside]
        text = ", ".join([*(other for other in others if other.split()[0] != component), system()])
        rows.append(
            {"component": component, "version": version, "with": text, "passed": used, "run": run}
            | when
        )
    return rows


def note(folder: Path, files: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        rows = rows_of(file) if file.suffix == ".xml" else rows_of_system(file)
        (folder / f"{file.stem}.versions.json").write_text(json.dumps(rows, indent=1))


def rows_of_gpu() -> list[Row]:
    """Returns NCCL and PyTorch of the newest records of a GPU in bench/results."""
    found: dict[tuple[str, str], Row] = {}
    for file in sorted((ROOT / "bench" / "results").glob("gpu-h200*.json")):
        for record in json.loads(file.read_text()):
            device = record.get("gpu", record.get("device", ""))
            for component in ("nccl", "torch"):
                version = re.sub(r"^NCCL (\S+).*", r"\1", record.get(component, ""))
                if not version or "H200" not in device:
                    continue
                name = {"nccl": "NCCL", "torch": "PyTorch"}[component]
                row: Row = {"component": name, "version": version, "with": device, "passed": 0}
                row |= {"run": f"benchmarks, {file.name}", "day": record["date"][:10]}
                row |= {"commit": record["commit"][:8]}
                if str(found.get((name, version), {}).get("day", "")) <= str(row["day"]):
                    found[name, version] = row
    return list(found.values())


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Returns one row per component and version: the new row with most tests, else the old row."""
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(new, key=lambda row: int(row["passed"])):
        best[str(row["component"]), str(row["version"])] = row
    rows = {(str(row["component"]), str(row["version"])): row for row in old} | best
    return sorted(rows.values(), key=order)


def order(row: Row) -> tuple[int, list[int]]:
    numbers = [int(number) for number in re.findall(r"\d+", str(row["version"]))]
    return ORDER.index(str(row["component"])), numbers


def collect(folders: list[Path]) -> None:
    new: list[Row] = []
    for folder in folders:
        if not any(folder.glob("*.versions.json")):
            sys.exit(f"compatibility: {folder} has no *.versions.json: run scripts/test first")
        for file in sorted(folder.glob("*.versions.json")):
            new += json.loads(file.read_text())
    if changed := {str(row["commit"]) for row in new if "changes" in str(row["commit"])}:
        sys.exit(f"compatibility: these tests ran with uncommitted changes: {', '.join(changed)}")
    rows = merged(json.loads(DATA.read_text()), [*new, *rows_of_gpu()])
    lines = ",\n".join(json.dumps(row) for row in rows)
    DATA.write_text(f"[\n{lines}\n]\n")
    write()


def table() -> str:
    rows = json.loads(DATA.read_text())
    for row in rows:
        row["passed"] = f"{row['passed']:,}" if row["passed"] else ""
    return HEAD + "".join(f"| {' | '.join(str(cell) for cell in row.values())} |\n" for row in rows)


def page() -> str:
    return BLOCK.sub(lambda _: f"\n{table()}\n", PAGE.read_text())


def differences() -> list[str]:
    """Returns a reason if the committed page differs from the data."""
    if page() == PAGE.read_text():
        return []
    return [f"{PAGE.name} differs from docs/data/{DATA.name}: run scripts/docs --record"]


def write() -> None:
    PAGE.write_text(page())


def main(command: str, *paths: str) -> None:
    folders = [Path(path) for path in paths]
    if command == "note" and len(paths) >= 2:
        note(folders[0], folders[1:])
    elif command == "collect" and paths:
        collect(folders)
    elif command == "write" and not paths:
        write()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
