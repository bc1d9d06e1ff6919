"""The Python programs of Markdown pages, for tests that run the programs as readers copy them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pathlib
import re
import runpy
import sys
from typing import Any

import ranks

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


def as_torchrun(rank: int, count: int, port: int, folder: str, words: list[str]) -> str:
    """Runs a command line of Python in a folder, in torchrun's environment. Returns the output."""
    import torch

    from tersor.bench.world import environment

    gc.freeze()  # the end of the process visits no modules
    torch.set_num_threads(1)
    os.environ.update(environment(rank, count, port))
    os.chdir(folder)
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    sys.path.insert(0, folder if is_module else os.path.dirname(words[0]))
    run = runpy.run_module if is_module else runpy.run_path
    status: object = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            run(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            status = ended.code
    assert not status, status
    return printed.getvalue()


def output_on_ranks(
    *words: str | pathlib.Path, folder: pathlib.Path = SOURCES, count: int = 2
) -> tuple[str, str]:
    """Runs a command line of Python on the ranks that torchrun would start.

    torchrun and each of its ranks would import PyTorch, which takes seconds. Returns the standard
    output and the standard error of all ranks.
    """
    from tersor.bench.world import local_store

    for _ in range(3):
        store = local_store()
        arguments = (store.port, str(folder), list(map(str, words)))
        found = ranks.outcomes(
            as_torchrun, count, *arguments, group=False, close=False, fresh=True, attempts=1
        )
        if not any(one.unconnected for one in found):
            break
    for one in found:
        assert one.error is None, one.traceback + one.output
        assert one.exit_code == 0, one.output
    return "".join(one.value for one in found), "".join(one.output for one in found)
