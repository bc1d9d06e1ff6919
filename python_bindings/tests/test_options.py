"""The options of reducers: dataclasses, former plain keywords, and docstrings."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, get_type_hints

import numpy as np
import pytest

import tersor
import tersor.local
from tersor import _core, _options, _renamed
from tersor.reducer import (
    AdvancedOptions,
    ExchangeOptions,
    GradientReducer,
    OptimizerOptions,
    ReducerOptions,
    ShardedOptions,
    merged_options,
)

KINDS = [AdvancedOptions, OptimizerOptions, ShardedOptions]


@_renamed.renamed_keywords(spec="codec")
@_options.takes_advanced(AdvancedOptions)
def compressed(
    model: str, codec: str = "bf16", *, advanced: AdvancedOptions | None = None
) -> tuple[str, str, AdvancedOptions | None]:
    return model, codec, advanced


@pytest.fixture(autouse=True)
def no_warnings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_renamed, "_warned", set())


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_every_field(kind: type[ExchangeOptions]) -> None:
    for one in dataclasses.fields(kind):
        assert f"\n    {one.name}: " in str(kind.__doc__)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_match_the_library(kind: type[ExchangeOptions]) -> None:
    library = _core.ReducerOptions()
    for name, value in merged_options(kind, None).items():
        assert getattr(library, name) == value, name


def test_reducer_accepts_every_advanced_option() -> None:
    known = get_type_hints(ReducerOptions, {"Tuner": _core.Tuner})
    assert {one.name for one in dataclasses.fields(AdvancedOptions)} < set(known)
    assert set(known) == {name for name in dir(_core.ReducerOptions()) if name[0] != "_"}


def test_none_options_use_library_defaults() -> None:
    rules = (pair for pair in [("*", "int8")])
    found = merged_options(AdvancedOptions, AdvancedOptions(threads=3), rules=rules, timeout=None)
    assert found["rules"] == [("*", "int8")]
    assert found["threads"] == 3
    assert not found.keys() & {"timeout", "stream", "bucket_bytes"}
    assert merged_options(AdvancedOptions, None, codec=None)["codec"] is None  # the reducer raises
    with pytest.raises(TypeError, match=r"rules must be a list of pairs.*, not 5"):
        merged_options(AdvancedOptions, None, rules=5)


def test_wrong_option_classes_are_rejected() -> None:
    for other in (ShardedOptions(), OptimizerOptions(), {"threads": 2}):
        with pytest.raises(TypeError, match=r"advanced must be AdvancedOptions\(\.\.\.\), not"):
            merged_options(AdvancedOptions, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["FeedbackState", "Workspace", "Tuner"])
def test_type_error_names_the_expected_option_type(name: str) -> None:
    key = name.removeprefix("Feedback").lower()
    with pytest.raises(TypeError, match=f"{key} must be a {name}, not 3"):
        _options.fill(_core.CallOptions(), {key: 3})


def test_plain_keywords_warn_once_and_take_effect() -> None:
    old: dict[str, Any] = {"threads": 2, "seed": 3}
    with pytest.warns(DeprecationWarning, match="use advanced") as told:
        found = compressed("model", "int8", advanced=AdvancedOptions(seed=3, dims=[2, 2]), **old)
    assert found == ("model", "int8", AdvancedOptions(threads=2, seed=3, dims=[2, 2]))
    assert [str(one.message) for one in told] == [
        f"compressed({name}=) is deprecated and ends with the next release: use "
        f"advanced=AdvancedOptions({name}=...)"
        for name in old
    ]
    assert {one.filename for one in told} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compressed(model="model", **old) == ("model", "bf16", AdvancedOptions(**old))


def test_conflicting_option_values_are_rejected() -> None:
    old: dict[str, Any] = {"seed": 3}
    message = r"compressed\(\) got seed= and advanced=AdvancedOptions\(seed=\.\.\.\)"
    with pytest.raises(TypeError, match=message):
        compressed("model", advanced=AdvancedOptions(seed=1), **old)


def test_options_without_an_effect_warn_and_are_ignored() -> None:
    for name, value in {"missing": "inactive", "progress": "thread", "elastic": False}.items():
        with pytest.warns(DeprecationWarning, match=rf"\({name}=\).*leave the option out"):
            assert compressed("model", **{name: value}) == ("model", "bf16", AdvancedOptions())


def test_unknown_option_error_lists_all_options() -> None:
    wrong: dict[str, Any] = {"codek": "int8"}
    message = r"compressed: there is no option 'codek'.*codec.*AdvancedOptions\(.*threads"
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        compressed("model", **wrong)
    elastic: dict[str, Any] = {"elastic": True}
    with pytest.raises(tersor.InvalidArgumentError, match="torchft"):
        compressed("model", **elastic)


def old_spellings(transport: tersor.Transport) -> list[str]:
    gradient = np.ones(5, np.float32)
    old: dict[str, Any] = {"order": "of-ready", "missing": "inactive"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            reducer = GradientReducer(transport, codec="none", **old)
            reducer.add("weight", gradient)
            reducer.ready("weight", gradient, "nowhere")
            reducer.wait()
            GradientReducer(transport, rules=[("*", "intsum:scale=2,lanes=16")])
            tersor.Codec("intsum:lanes=16+ef")
            tersor.Gossip(transport, "ring", codec="intsum:lanes=8")
    assert not gradient.any()
    assert {one.filename for one in told} == {__file__}
    return [str(one.message) for one in told]


def test_old_spellings_warn_once_and_keep_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_renamed, "_warned", set())
    (found,) = tersor.local.run(1, old_spellings)
    ends = "is deprecated and ends with the next release:"
    assert sorted(found) == [
        f'"intsum:lanes=" {ends} use "intsum:bits="',
        f"GradientReducer(missing=) {ends} leave the option out",
        f'contribution="nowhere" {ends} use "globally-unused"',
        f'order="of-ready" {ends} use "ready_order"',
    ]


def least_ranks(transport: tersor.Transport) -> None:
    old: dict[str, Any] = {"least_ranks": 1, "elastic": True}
    with pytest.warns(DeprecationWarning, match=r"GradientReducer\(least_ranks=\).*min_ranks="):
        GradientReducer(transport, codec="none", **old)
    with pytest.raises(TypeError, match="min_ranks= and least_ranks="):
        GradientReducer(transport, codec="none", min_ranks=1, **old)


def test_reducer_accepts_the_old_name_of_min_ranks() -> None:
    tersor.local.run(1, least_ranks)
