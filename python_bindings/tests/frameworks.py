"""Versions of frameworks with which tests were last seen green, and the table that tells of them.

``@green("transformers")`` notes them when a test has passed, in ``build/test-results``;
``python3 python_bindings/tests/frameworks.py`` then writes the table of
docs/reference/compatibility.md.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import importlib.metadata
import importlib.util
import json
import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

from pages import SOURCES

PAGE = SOURCES / "docs" / "reference" / "compatibility.md"
FOUND = SOURCES / "build" / "test-results" / "frameworks.json"
HEAD = "| package | version | beside | day |\n| --- | --- | --- | --- |\n"
ROW = re.compile(r"^\| (\S+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)

Rows = dict[str, list[str]]


def green(*packages: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Notes the versions of these, which are installed, once the test that it decorates passed."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def noting(*arguments: Any, **named: Any) -> None:
            test(*arguments, **named)
            note({name: importlib.metadata.version(name) for name in packages})

        return noting

    return decorate


def note(versions: Mapping[str, str]) -> None:
    """Adds them to the file, which several processes may do at once."""
    beside = f"Python {platform.python_version()}"
    if importlib.util.find_spec("torch") is not None:
        beside = f"PyTorch {importlib.metadata.version('torch')}, {beside}"
    rows = {
        name: [version, beside, datetime.date.today().isoformat()]
        for name, version in versions.items()
    }
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    with FOUND.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = {**json.loads(file.read() or "{}"), **rows}
        file.truncate(0)
        file.write(json.dumps(rows, indent=1))


def table_of(page: str) -> tuple[str, Rows]:
    """The table as it stands there, and its rows."""
    begin = page.index(HEAD)
    table = re.match(r"(\|.*\n)+", page[begin:])
    assert table is not None
    return table[0], {name: row for name, *row in ROW.findall(table[0][len(HEAD) :])}


def with_rows(page: str, found: Rows) -> str:
    """The page with these in its table; those of other packages stay."""
    table, rows = table_of(page)
    rows |= found
    lines = [f"| {name} | {' | '.join(rows[name])} |\n" for name in sorted(rows)]
    return page.replace(table, HEAD + "".join(lines))


if __name__ == "__main__":
    PAGE.write_text(with_rows(PAGE.read_text(), json.loads(FOUND.read_text())))
