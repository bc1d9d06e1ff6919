"""The notebook for newcomers runs from top to bottom, with the results in the text."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = pathlib.Path(__file__).parents[2] / "docs" / "get-started" / "tersor.ipynb"
CELL_SECONDS = 180

# Run after the last cell, where the notebook's variables still are.
LESSONS = """
assert "int8: loss" in done.stdout, done.stdout
assert float(done.stdout.split("by Muon: loss ")[1].split()[0]) < 1, done.stdout
losses = {codec: run[0][-1] for codec, run in runs.items()}
sent = {codec: run[1] for codec, run in runs.items()}
assert abs(losses["int8"] - losses["none"]) < 0.02 * losses["none"], losses
assert abs(losses["int4+ef"] - losses["none"]) < 0.02 * losses["none"], losses
assert losses["topk:density=0.01+ef"] < 1.2 * losses["none"], losses
assert losses["topk:density=0.01"] > 5 * losses["none"], losses
assert sent["none"] > 3.7 * sent["int8"] > 3.7 * sent["topk:density=0.01+ef"], sent
"""


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def pictures(cell: Any) -> int:
    outputs = cell.get("outputs", [])
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.long
def test_notebook_runs_and_results_match_its_text(notebook: Any, tmp_path: pathlib.Path) -> None:
    notebook.cells.append(nbformat.v4.new_code_cell(LESSONS))
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    assert sum(map(pictures, notebook.cells)) == 2


def test_the_notebook_is_committed_without_outputs(notebook: Any) -> None:
    for cell in notebook.cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None, cell.id
