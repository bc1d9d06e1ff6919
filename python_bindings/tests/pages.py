"""The Python programs of Markdown pages, for tests that run the programs as readers copy them."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Any

SOURCES = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 180

# Pages for users; each page's programs run in a test.
PAGES = tuple(
    sorted(
        str(page.relative_to(SOURCES))
        for folder in ("get-started", "how-to", "systems")
        for page in (SOURCES / "docs" / folder).glob("*.md")
    )
)


def kinds(page: str) -> list[str]:
    """Returns the KIND of each block that starts with "```python KIND", in order."""
    return re.findall(r"^```python *(.*)$", (SOURCES / page).read_text(), re.MULTILINE)


def programs(page: str, kind: str = "") -> list[str]:
    """Returns the blocks that start with "```python KIND", in order. `page` is relative to the
    sources."""
    text = (SOURCES / page).read_text()
    opening = f"```python {kind}".rstrip()
    return re.findall(rf"^{opening}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def surroundings(rank: int, folder: str) -> dict[str, Any]:
    """Returns the names of the DDP page's setup, without the process group.

    All pages link to this setup, and a test checks the links. `folder` replaces the reader's
    folder.
    """
    (setup,) = programs("docs/how-to/ddp.md", "setup")
    without_group, count = re.subn(r"^dist\.init_process_group.*\n", "", setup, flags=re.MULTILINE)
    assert count == 1
    found: dict[str, Any] = {}
    exec(without_group.replace("dist.get_rank()", str(rank)), found)
    return found | {"folder": folder}


def output_by_torchrun(program: str, folder: pathlib.Path, ranks: int = 2) -> str:
    """Runs a program by torchrun, and returns the output. Raises for an error of the program."""
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
