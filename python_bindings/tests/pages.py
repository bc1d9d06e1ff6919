"""The Python programs of a Markdown page, so that tests run what readers copy."""

from __future__ import annotations

import pathlib
import re

SOURCES = pathlib.Path(__file__).resolve().parents[2]


def programs(page: str, kind: str = "") -> list[str]:
    """The blocks that begin with "```python KIND", in order; `page` as seen from the sources."""
    text = (SOURCES / page).read_text()
    opening = f"```python {kind}".rstrip()
    return re.findall(rf"^{opening}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
