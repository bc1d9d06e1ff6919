"""The programs of pages with PyTorch alone run unchanged, on two ranks."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from pages import PAGES, SOURCES, output_on_ranks, programs, surroundings

import ranks

torch = pytest.importorskip("torch")

RANKS = 2
# A rank has gradients of its own, and equal parameters.
OWN_GRADIENTS = ("DiLoCo", "torch.Compressed", "torch.allocate", "ParameterClient")


def weights_of(found: dict[str, Any]) -> list[Any]:
    """Returns the common tensors of all ranks after a program: parameters and gradients."""
    if "model" not in found:
        return [found[name] for name in ("gradient",) if name in found]
    from torch.distributed.tensor import DTensor

    tensors = [one for p in found["model"].parameters() for one in (p.detach(), p.grad)]
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in tensors]


def run_program(rank: int, _: int, program: str, folder: str) -> list[Any]:
    found = surroundings(rank, folder)
    exec(program, found)
    return weights_of(found)


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(programs(page, "torch")))],
)
def test_a_program_runs_and_ranks_agree(page: str, number: int, tmp_path: pathlib.Path) -> None:
    program = programs(page, "torch")[number]
    if "tensorboard" in program:
        pytest.importorskip("tensorboard")
    first, second = ranks.run(run_program, RANKS, program, str(tmp_path))
    step = 2 if any(name in program for name in OWN_GRADIENTS) else 1
    for one, other in zip(first[::step], second[::step], strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def test_pages_with_programs_link_to_the_setup() -> None:
    assert [page for page in PAGES if programs(page, "setup")] == ["docs/how-to/ddp.md"]
    (setup,) = programs("docs/how-to/ddp.md", "setup")
    assert setup.count("init_process_group") == 1
    for page in PAGES:
        if programs(page, "torch"):
            text = (SOURCES / page).read_text()
            own = page == "docs/how-to/ddp.md"
            assert ("[setup](#setup)" if own else "ddp.md#setup)") in text, page


def test_copied_program_with_setup_runs(tmp_path: pathlib.Path) -> None:
    page = "docs/how-to/ddp.md"
    (setup,), program = programs(page, "setup"), programs(page, "torch")[0]
    (tmp_path / "train.py").write_text(setup + program)
    printed, _ = output_on_ranks(tmp_path / "train.py", folder=tmp_path)
    assert "int8" in printed
