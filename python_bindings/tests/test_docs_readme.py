"""The programs of two pages train; test_examples.py has the README's."""

from __future__ import annotations

import pathlib
import re

import pytest
from pages import output_on_ranks, programs

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("page", "unit", "share"),
    [
        ("docs/get-started/pytorch.md", "KiB", 0.3),
        pytest.param("docs/how-to/diloco.md", "bytes", 0.001, marks=pytest.mark.long),
    ],
)
def test_documentation_program_trains(
    page: str, unit: str, share: float, tmp_path: pathlib.Path
) -> None:
    [program] = programs(page)
    (tmp_path / "train.py").write_text(program)
    printed, _ = output_on_ranks(tmp_path / "train.py", folder=tmp_path)
    first, *_, last = map(float, re.findall(r"loss (\d+\.\d+)", printed))
    assert last < 0.5 * first
    sent = re.search(rf"sent ([\d.]+) {unit} per step instead of ([\d.]+)", printed)
    assert sent is not None, printed
    assert float(sent[1]) < share * float(sent[2])
