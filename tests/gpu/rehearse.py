"""Takes scripts/gpu-check from end to end on the device that interprets PTX.

usage: rehearse.py BUILD OUT    BUILD: a build folder with the device; OUT: gets what gpu-check writes

Every step must do its work, but for those that need what is not here: a package of Python for a
GPU. Its figures mean nothing and meet no aim.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOOD = re.compile(r"[1-9]\d* (figures$|passed, 0 failed)|.*accuracy|none found$|/.*libnccl")
MISSING = re.compile(r"not run: there is no .*/python/tersor$")


def main() -> int:
    build, out = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    device = build / "ptx_device"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(device),
        "TERSOR_NCCL_LIBRARY": str(device / "libnccl.so.2"),
    }
    words = [ROOT / "scripts" / "gpu-check", "--rehearse", "--build", build, "--out", out]
    status = subprocess.run(words, env=environment, check=False).returncode
    summary = json.loads((out / "summary.json").read_text())
    wrong = {step["name"]: step["result"] for step in summary["steps"] if not is_fine(step["result"])}
    met = [figure["name"] for figure in summary["figures"] if figure["verdict"] in ("met", "missed")]
    for name, result in wrong.items():
        print(f"rehearsal: {name}: {result}")
    for name in met:
        print(f"rehearsal: {name}: judged on too few values")
    return 1 if status or wrong or met else 0


def is_fine(result: str) -> bool:
    return bool(GOOD.match(result) or MISSING.match(result))


if __name__ == "__main__":
    sys.exit(main())
