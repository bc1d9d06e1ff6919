"""The reducer's rules, and residuals in the caller's memory, as for FSDP2."""

from __future__ import annotations

import numpy as np
import pytest

import tersor
import tersor.local
from tersor import _core
from tersor.collectives import reduce_scatter


def choose(options: dict[str, object], shape: list[int], dtype: str = "f32") -> _core.CodecChoice:
    wanted = _core.ReducerOptions()
    for key, value in options.items():
        setattr(wanted, key, value)
    return _core.choose_codec(wanted, "layer.weight", shape, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "codec", "reason"),
    [
        ([100, 50], "f32", "int8", "the codec for all"),
        ([100, 5, 10], "bf16", "int8", "the codec for all"),
        ([5000], "f32", "bf16", "a 1-D parameter"),
        ([5000], "f16", "none", "a 1-D parameter"),
        ([63, 65], "f32", "bf16", "fewer than 4096 values"),
        ([], "f32", "bf16", "fewer than 4096 values"),
    ],
)
def test_global_codec_applies_only_to_large_matrices(
    shape: list[int], dtype: str, codec: str, reason: str
) -> None:
    choice = choose({"codec": "int8"}, shape, dtype)
    assert (choice.codec, choice.reason) == (codec, reason)


@pytest.mark.parametrize(
    ("codec", "by_value", "feedback"),
    [
        ("none", True, False),
        ("bf16", True, False),
        ("bf16+ef", False, True),
        ("int8", False, False),
        ("intsum:scale=0.1", False, False),
        ("topk+ef", False, True),
        ("auto", False, False),
    ],
)
def test_codec_choice_reports_codec_requirements(
    codec: str, by_value: bool, feedback: bool
) -> None:
    choice = choose({"rules": [("*.weight", codec), ("*", "none")]}, [3])
    assert (choice.by_value, choice.feedback) == (by_value, feedback)
    assert choice.codec.startswith(codec.removesuffix("+ef"))
    assert choice.reason == 'rule "*.weight"'


def test_invalid_rules_are_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="no rule matches"):
        choose({"rules": [("*.bias", "int8")]}, [3])
    with pytest.raises(tersor.InvalidArgumentError, match="int9"):
        choose({"codec": "int9"}, [3])


def fresh_words() -> np.ndarray:
    return np.frombuffer(_core.FRESH_STATE_WORDS, np.int32).copy()


def test_residuals_may_use_caller_arrays() -> None:
    def rank(transport: tersor.Transport) -> tuple[np.ndarray, np.ndarray, int]:
        gradient = np.random.default_rng(transport.rank).standard_normal(2000).astype(np.float32)
        residual, words = np.zeros(2000, np.float32), fresh_words()
        state = _core.FeedbackState(residual, words)
        received, shard = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
        for _ in range(7):
            reduce_scatter(transport, gradient, shard, codec="topk:density=0.1+ef", state=state)
            received += shard
        return 7 * gradient - residual, received, int(words[0])

    found = tersor.local.run(2, rank)
    sent = sum(one[0] for one in found)  # what is not in a residual was sent, and arrived
    np.testing.assert_allclose(np.concatenate([one[1] for one in found]), sent, atol=1e-4)
    assert [one[2] for one in found] == [7, 7]


def test_invalid_residual_arrays_are_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="12 bytes; pass 24"):
        _core.FeedbackState(np.zeros(3, np.float32), np.zeros(3, np.int32))
    with pytest.raises(tersor.InvalidArgumentError, match="aligned"):
        _core.FeedbackState(np.zeros(3, np.float32), np.zeros(7, np.int64).view(np.int32)[1:7])
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        _core.FeedbackState(np.zeros(3), fresh_words())
