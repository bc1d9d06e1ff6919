"""The picture of a handle's counts."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import types

import pytest

from tersor import _style

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from tersor.torch._src.statistics import picture as report
from tersor.torch._src.statistics.records import ParameterStatistics, add_up

MIB = 2.0**20


def parameter(name: str, mebibytes: float, codec: str = "int8+ef") -> ParameterStatistics:
    """Returns the counts of 10 steps. Each step sent a quarter of ``mebibytes``."""
    return ParameterStatistics(
        name=name,
        codec=codec,
        reason="the codec for all",
        steps=10,
        gradient_bytes=10 * mebibytes * MIB,
        uncompressed_bytes=10 * mebibytes * MIB,
        sent_bytes=10 * mebibytes * MIB / 4,
        encode_seconds=0.02,
        decode_seconds=0.01,
        wire_seconds=0.5,
        hidden_seconds=0.3,
        exposed_seconds=0.2,
        relative_error=0.007,
        residual_norm=mebibytes if "+ef" in codec else 0.0,
    )


def totals(parameters: list[ParameterStatistics]) -> ParameterStatistics:
    return dataclasses.replace(add_up(parameters), hidden_seconds=0.3, exposed_seconds=0.2)


def test_bar_lengths_match_the_counts() -> None:
    parameters = [parameter("bias", 0.5, "bf16"), parameter("weight", 8)]
    made = report.figure(parameters, totals(parameters))
    sent, residuals, seconds = made.axes
    assert [label.get_text() for label in sent.get_yticklabels()] == ["weight", "bias"]
    assert [bar.get_width() / MIB for bar in sent.patches] == [8, 0.5, 2, 0.125]  # light, then dark
    assert sent.patches[2].get_facecolor()[:3] != sent.patches[3].get_facecolor()[:3]
    assert [bar.get_width() for bar in residuals.patches] == [8, 0]
    assert [bar.get_width() for bar in seconds.patches] == pytest.approx([0.03, 0.02, 0.004, 0.002])
    assert {axis.get_xlim()[0] for axis in made.axes} == {0}
    assert made.get_suptitle() == (f"2.12 MiB sent a step instead of 8.50 MiB: 4{chr(0xD7)} less")


def test_small_parameters_share_one_summed_bar() -> None:
    parameters = [parameter(f"layer.{i}.weight", 1 + i) for i in range(40)]
    made = report.figure(parameters, totals(parameters))
    sent = made.axes[0]
    labels = [label.get_text() for label in sent.get_yticklabels()]
    assert len(labels) == report.MAX_ROWS
    assert labels[0] == "layer.39.weight"
    assert labels[-1] == "25 smaller ones"
    widths = [bar.get_width() / MIB for bar in sent.patches[: report.MAX_ROWS]]
    assert sum(widths) == pytest.approx(sum(range(1, 41)))


def test_report_without_feedback_has_no_residual_bars() -> None:
    parameters = [parameter("weight", 8, "int8")]
    residuals = report.figure(parameters, totals(parameters)).axes[1]
    assert not residuals.patches
    assert [text.get_text() for text in residuals.texts] == ["no error feedback"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_report_writes_an_image_file(tmp_path: pathlib.Path, ending: str) -> None:
    path = tmp_path / f"report.{ending}"
    parameters = [parameter("weight", 8)]
    report.draw(parameters, totals(parameters), path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(begins)


def test_report_of_an_empty_run(tmp_path: pathlib.Path) -> None:
    empty = dataclasses.replace(parameter("weight", 0), steps=0)
    report.draw([empty], totals([empty]), tmp_path / "empty.png")
    report.draw([], totals([]), tmp_path / "none.png")


def palette() -> types.ModuleType:
    path = pathlib.Path(__file__).parents[2] / "bench" / "report" / "palette.py"
    if not path.exists():
        pytest.skip("the sources' bench/report is not here")
    specification = importlib.util.spec_from_file_location("palette", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_codec_colours_match_the_other_reports() -> None:
    other = palette()
    for spec in ("none", "bf16", "f16", "int8", "int8+ef", "int4", "int4+ef"):
        assert _style.colour(spec) == other.STYLES[spec].colour
    for spec in ("topk:density=0.01", "topk:density=0.01+ef"):
        assert _style.colour(spec) == other.STYLES[spec].colour
    light = other.LIGHT
    assert (light.ink, light.paper) == (_style.INK, _style.PAPER)
    assert (light.grid, light.quiet) == (_style.GRID, _style.MUTED)
    assert _style.tint("#2f7fc1", 0.35) == "#b6d2e9"  # 35 % of the colour, 65 % paper
