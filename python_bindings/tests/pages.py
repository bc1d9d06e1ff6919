"""The Python programs of a Markdown page, so that tests run what readers copy."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 180


def programs(page: str, kind: str = "") -> list[str]:
    """The blocks that begin with "```python KIND", in order; `page` as seen from the sources."""
    text = (SOURCES / page).read_text()
    opening = f"```python {kind}".rstrip()
    return re.findall(rf"^{opening}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def output_by_torchrun(program: str, folder: pathlib.Path, ranks: int = 2) -> str:
    """What a program prints that torchrun starts, as a reader would; it must succeed."""
    file = folder / "train.py"
    file.write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={ranks}", str(file)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
