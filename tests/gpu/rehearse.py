"""Runs all of scripts/gpu-check on the PTX interpreter.

usage: rehearse.py BUILD OUT    BUILD: a build folder with the PTX interpreter; OUT: output folder

Every step must work, and every figure must appear in the results. The values have no meaning and
no targets. The steps of the Python package are skipped, because PyTorch has its own kernels.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Expected output per step name; the first match counts.
RESULTS = {
    "GPU": ".+",  # this machine's GPU, unused
    "NCCL": ".*/ptx_device/libnccl.so.2, by TERSOR_NCCL_LIBRARY",
    "tests of Python|Python: .*": r"not run: there is no .*/python/(tersor|text\.txt)",
    "tests.*": r"[1-9]\d* passed, 0 failed, 0 skipped",
    "MPS.*": "not run: a rehearsal|was not on",
    "(allreduce|benchmark): .*": r"[1-9]\d* figures",
}


def main() -> int:
    build, out = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    (out / "summary.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "bin").symlink_to(build / "bin")  # a build without Python
        status = rehearse(pathlib.Path(folder), build / "ptx_device", out)
    found = list(mistakes(json.loads((out / "summary.json").read_text())))
    for mistake in found:
        print(f"rehearsal: {mistake}")
    return 1 if status or found else 0


def rehearse(build: pathlib.Path, device: pathlib.Path, out: pathlib.Path) -> int:
    """Returns the exit status."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(device),
        "PTX_DEVICE_STRICT": "1",
        "TERSOR_NCCL_LIBRARY": str(device / "libnccl.so.2"),
    }
    program = str(ROOT / "scripts" / "gpu-check")
    words = [program, "--rehearse", "--build", str(build), "--out", str(out)]
    return subprocess.run(words, env=environment, check=False).returncode


def mistakes(summary: dict[str, typing.Any]) -> typing.Iterator[str]:
    for step in summary["steps"]:
        if not is_fine(step["name"], step["result"]):
            yield f"{step['name']}: {step['result']}"
    for figure in summary["figures"]:
        if figure["value"] is None:
            yield f"{figure['name']}: nothing was measured that it could be made of"
        elif figure["verdict"]:
            yield f"{figure['name']}: judged, on too few values"


def is_fine(name: str, result: str) -> bool:
    expected = next((words for names, words in RESULTS.items() if re.fullmatch(names, name)), None)
    return expected is not None and re.fullmatch(expected, result) is not None


if __name__ == "__main__":
    sys.exit(main())
