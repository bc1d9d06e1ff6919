"""Errors name options and calls with the same words in C++ and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tersor
import tersor.local

ROOT = Path(__file__).resolve().parents[2]
CPP_NAME = re.compile(r"[A-Z]\w+::\w+|\bk[A-Z][A-Za-z]+\b")


def messages() -> Iterator[str]:
    """Returns the messages in the library's sources, with adjacent literals joined."""
    for layer in ("codecs", "comm", "kernels"):
        for path in sorted((ROOT / layer).rglob("*.cc")):
            text = re.sub(r'"\s*\n\s*"', "", path.read_text())
            yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


def test_messages_contain_no_cpp_names() -> None:
    texts = list(messages())
    assert len(texts) > 1000
    assert [text for text in texts if CPP_NAME.search(text)] == []


def discard(transport: tersor.Transport) -> None:
    tersor.GradientReducer(transport).discard_step()


def settle(transport: tersor.Transport) -> None:
    tersor.allreduce(transport, np.zeros(8, np.float32), codec="auto")


def feed_back(transport: tersor.Transport) -> None:
    tersor.allreduce(transport, np.zeros(8, np.float32), codec="int8+ef")


def leave_out(transport: tersor.Transport) -> None:
    reducer = tersor.GradientReducer(transport)
    reducer.add("w", np.zeros(8, np.float32))
    reducer.wait()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (discard, "needs the option transactional"),
        (settle, "pass it as tuner"),
        (feed_back, "pass a FeedbackState as state"),
        (leave_out, "with the contribution none"),
    ],
)
def test_errors_name_arguments(call: Callable[[tersor.Transport], None], says: str) -> None:
    with pytest.raises(tersor.Error) as error:
        tersor.local.run(1, call)
    assert says in str(error.value)
    assert "::" not in str(error.value)
