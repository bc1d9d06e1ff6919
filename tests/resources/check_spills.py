"""Runs the kernel report's check on the object files of a build.

usage: check_spills.py ARCHITECTURE [OBJECT...]    exit status 77: skipped; the reason is printed
"""

import pathlib
import subprocess
import sys

SKIPPED = 77
REPORT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "kernel-report"


def main() -> int:
    architecture, *objects = sys.argv[1:]
    if not objects:
        print("skipped: this build has no CUDA (TERSOR_CUDA=OFF, or no nvcc)")
        return SKIPPED
    command = [sys.executable, str(REPORT), "--check", "--architecture", architecture, *objects]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
