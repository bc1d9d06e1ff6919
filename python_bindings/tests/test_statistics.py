"""The statistics of handles: bytes by parameter, tables, TensorBoard's curves, and the picture."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import ranks
import tersor.local
from tersor import _core
from tersor.reducer import GradientReducer

pytest.importorskip("torch")

from tersor.torch import log_statistics
from tersor.torch._src.statistics import records as statistics
from tersor.torch._src.statistics.handles import Reporting
from tersor.torch._src.statistics.records import ParameterStatistics

SHAPES = {"head.weight": (300, 200), "head.bias": (300,), "body.weight": (100, 128)}
STEPS = 3


class Counted(Reporting):
    """The counts of one rank's reducer, as in a handle."""

    def __init__(self, reducer: GradientReducer, ranks: int) -> None:
        every, norms = reducer.parameter_statistics(), reducer.residual_norms()
        self._parameters = [
            statistics.of_parameter(one, ranks, norm)
            for one, norm in zip(every, norms, strict=True)
        ]
        self._totals = statistics.of_parameter(reducer.statistics(), ranks, math.hypot(*norms))

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        return [_told(one, residual_norms) for one in self._parameters]

    def totals(self, *, residual_norms: bool = False) -> ParameterStatistics:
        return _told(self._totals, residual_norms)

    def _cores(self) -> list[_core.GradientReducer]:
        raise NotImplementedError


class OfReducer(Counted):
    """Asks the reducer."""

    def __init__(self, reducer: GradientReducer, ranks: int) -> None:
        self._reducer = reducer

    def _cores(self) -> list[_core.GradientReducer]:
        return [self._reducer]


def _told(one: ParameterStatistics, residual_norms: bool) -> ParameterStatistics:
    return one if residual_norms else dataclasses.replace(one, residual_norm=None)


def train(transport: _core.Transport, **options: Any) -> Counted:
    reducer = GradientReducer(transport, **options)
    generator = np.random.default_rng(transport.rank)
    for name, shape in SHAPES.items():
        reducer.add(name, np.zeros(shape, np.float32))
    for _ in range(STEPS):
        for name, shape in SHAPES.items():
            reducer.ready(name, generator.standard_normal(shape).astype(np.float32))
        reducer.wait()
    counted = Counted(reducer, transport.ranks)
    transport.barrier()  # no rank leaves while others still want to know something
    return counted


def counted(ranks: int, **options: Any) -> list[Counted]:
    return tersor.local.run(ranks, lambda transport: train(transport, **options))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_uncompressed_traffic_matches_uncompressed_bytes(ranks: int) -> None:
    everywhere = counted(ranks, rules=[("*", "none")])
    sent = sum(one.totals().sent_bytes for one in everywhere)
    expected = sum(one.totals().uncompressed_bytes for one in everywhere)
    assert expected == pytest.approx(
        2 * (ranks - 1) * STEPS * 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())
    )
    assert expected < sent < 1.02 * expected


def test_bytes_are_reported_per_parameter() -> None:
    (one, *_) = counted(4, codec="int8")
    by_name = {entry.name: entry for entry in one.statistics()}
    assert list(by_name) == list(SHAPES)
    assert by_name["head.weight"].codec == "int8"
    assert 3.85 < by_name["head.weight"].ratio < 3.95
    assert by_name["head.bias"].codec == "bf16"
    assert by_name["head.bias"].reason == "fewer than 4096 values"
    parameters = sum(entry.sent_bytes for entry in one.statistics())
    assert parameters <= one.totals().sent_bytes < 1.02 * parameters + 4096


def test_unmeasured_error_is_none() -> None:
    (one, *_) = counted(2, codec="int8")
    assert {entry.relative_error for entry in one.statistics()} == {None}
    (one, *_) = counted(2, codec="int8", measure_error=True)
    error = one.statistics()[0].relative_error
    assert error is not None
    assert 1e-3 < error < 2e-2


def test_table_has_a_line_per_parameter_and_a_total() -> None:
    (one, *_) = counted(2, codec="int8+ef")
    head, *lines = one.table().splitlines()
    assert [line.split()[0] for line in lines] == [*SHAPES, "all"]
    assert head.split()[:4] == ["parameter", "gradient", "uncompressed", "sent"]
    cells = lines[0].split("  ")
    assert "234 KiB" in lines[0]  # 300 · 200 values of 4 bytes
    assert cells[-1] == "int8+ef (the codec for all)"
    assert len({line.index(cells[-1][:3]) for line in lines if "int8" in line}) == 1


def test_add_up_matches_the_totals() -> None:
    (one, *_) = counted(3, codec="int8+ef", measure_error=True)
    told = one.totals(residual_norms=True)
    added = statistics.add_up(one.statistics(residual_norms=True))
    others = {"name", "codec", "reason", "algorithm", "sent_bytes", "codec_changes"}
    for field in {field.name for field in dataclasses.fields(told)} - others:
        assert getattr(added, field) == pytest.approx(getattr(told, field)), field
    assert added.codec == statistics.SEVERAL
    assert added.residual_norm is not None
    assert added.residual_norm > 0
    assert added.relative_error is not None


def test_add_up_keeps_unknown_fields_none() -> None:
    (one, *_) = counted(2, codec="int8")
    known = statistics.add_up(one.statistics())
    assert known.relative_error is None
    optional = ("hidden_seconds", "exposed_seconds", "overflows", "steps_discarded")
    unknown: Any = dict.fromkeys(optional)
    added = statistics.add_up(dataclasses.replace(entry, **unknown) for entry in one.statistics())
    for field in optional:
        assert getattr(known, field) is not None
        assert getattr(added, field) is None


def test_dict_access_to_statistics_warns() -> None:
    (one, *_) = counted(2, codec="int8")
    with pytest.warns(
        DeprecationWarning, match=r"statistics\['codec'\] is deprecated.* use .codec"
    ):
        assert one.statistics()[0]["codec"] == "int8"


@pytest.mark.filterwarnings("ignore:statistics:DeprecationWarning")
def test_unknown_fields_are_missing_from_the_dict() -> None:
    one = ParameterStatistics("weight", "int8", "", 1, 8.0, 8.0, 2.0, 0.1, 0.1, 0.1)
    assert "sent_bytes" in one
    assert "residual_norm" not in one
    assert one.get("sent_bytes") == 2.0
    assert one.get("residual_norm", 5.0) == 5.0
    assert one.get("relative_error", 5.0) is None
    found: Any = one
    assert dict(found)["codec"] == "int8"
    with pytest.raises(KeyError, match="residual_norm"):
        one["residual_norm"]


def test_reset_statistics_clears_reducer_counts() -> None:
    def restarted(transport: _core.Transport) -> None:
        reducer = GradientReducer(transport, codec="int8")
        handle = OfReducer(reducer, transport.ranks)
        reducer.add("w", np.zeros(5000, np.float32))
        for _ in range(2):
            reducer.ready("w", np.ones(5000, np.float32))
            reducer.wait()
        (told,) = handle.reducer_statistics()
        assert told.steps == 2
        assert told.sent_bytes > 5000
        handle.reset_statistics()
        assert handle.reducer_statistics()[0].steps == 0
        transport.barrier()

    tersor.local.run(2, restarted)


def test_tensorboard_contains_the_counts(tmp_path: pathlib.Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (one, *_) = counted(2, codec="int8+ef")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        log_statistics(writer, one, 7, residual_norms=True, parameters_every=7)
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()

    def value(tag: str) -> float:
        (event,) = events.Scalars(tag)
        assert event.step == 7
        return float(event.value)

    totals, weight = one.totals(), one.statistics(residual_norms=True)[0]
    assert value("tersor/sent_bytes") == pytest.approx(totals.sent_bytes / STEPS)
    assert value("tersor/wire_seconds") == pytest.approx(totals.wire_seconds / STEPS)
    assert value("tersor/ratio") == pytest.approx(totals.ratio)
    folder = "tersor parameters/head.weight"
    assert value(f"{folder}/residual_norm") == pytest.approx(weight.residual_norm)
    assert value(f"{folder}/sent_bytes") == pytest.approx(weight.sent_bytes / STEPS)
    assert f"{folder}/relative_error" not in events.Tags()["scalars"]


def test_tensorboard_logs_parameters_every_100_steps() -> None:
    class Tags(list[tuple[str, int]]):
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.append((tag, step))

    (one, *_), tags = counted(2, codec="int8"), Tags()
    for step in range(201):
        log_statistics(tags, one, step)
    assert tags.count(("tersor/ratio", 1)) == 1
    of_weight = [step for tag, step in tags if tag == "tersor parameters/head.weight/ratio"]
    assert of_weight == [0, 100, 200]


def test_scalars_are_means_per_step() -> None:
    (one, *_) = counted(2, codec="int8+ef")
    totals, scalars = one.totals(), one.scalars()
    assert scalars["tersor/steps"] == STEPS
    assert scalars["tersor/sent_bytes"] == pytest.approx(totals.sent_bytes / STEPS)
    assert scalars["tersor/uncompressed_bytes"] > 3.5 * scalars["tersor/sent_bytes"]
    assert scalars["tersor/hidden_seconds"] + scalars["tersor/exposed_seconds"] > 0
    assert {"tersor/residual_norm", "tersor/relative_error"}.isdisjoint(scalars)
    for counter in ("overflows", "skipped_steps", "steps_discarded", "codec_changes"):
        assert scalars[f"tersor/{counter}"] == 0
    assert one.scalars(residual_norms=True)["tersor/residual_norm"] > 0


def test_prometheus_exports_scalars_with_rank() -> None:
    client = pytest.importorskip("prometheus_client")
    from tersor.prometheus import Collector

    (one, *_) = counted(2, codec="int8")
    registry = client.CollectorRegistry()
    registry.register(Collector(one, rank=0))
    registry.register(Collector(one, rank=0, name="critic"))
    text = client.generate_latest(registry).decode()
    sent = one.scalars()["tersor/sent_bytes"]
    assert registry.get_sample_value("tersor_sent_bytes", {"rank": "0"}) == sent
    assert registry.get_sample_value("critic_sent_bytes", {"rank": "0"}) == sent
    assert text.count("# TYPE tersor_ratio gauge") == text.count("# TYPE critic_ratio gauge") == 1
    assert registry.get_sample_value("tersor_residual_norm", {"rank": "0"}) is None


def test_statistics_before_the_first_step() -> None:
    def untrained(transport: _core.Transport) -> Counted:
        reducer = GradientReducer(transport, codec="int8")
        reducer.add("weight", np.zeros((100, 100), np.float32))
        return Counted(reducer, transport.ranks)

    (one, _) = tersor.local.run(2, untrained)
    assert one.totals().sent_bytes == 0
    assert one.totals().per_step("sent_bytes") is None
    assert "all" in one.table()


def draws_without_matplotlib(rank: int, count: int) -> None:
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    from tersor.torch._src.statistics.picture import draw
    from tersor.torch._src.statistics.records import add_up

    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw([], add_up([]), "none.png")


def test_report_without_matplotlib_names_the_package_to_install() -> None:
    ranks.run(draws_without_matplotlib, 1, fresh=True)
