"""Errors speak of what a Python program has: its arguments and options, by their names."""

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
    """The texts of the library's sources, parts that stand one behind the other joined."""
    for floor in ("codecs", "comm", "kernels"):
        for path in sorted((ROOT / floor).rglob("*.cc")):
            text = re.sub(r'"\s*\n\s*"', "", path.read_text())
            yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


def test_every_name_of_cpp_has_a_word_in_python() -> None:
    source = (ROOT / "python_bindings" / "src" / "errors.cc").read_text()
    words = re.findall(r'\{"((?:[^"\\]|\\.)*)",', source)
    named = [text for text in messages() if CPP_NAME.search(text)]
    assert len(named) > 10
    for text in named:
        for word in words:
            text = text.replace(word, "")
        assert not CPP_NAME.search(text), text


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
        (discard, "transactional=True"),
        (settle, "pass it as tuner"),
        (feed_back, "pass state=FeedbackState"),
        (leave_out, 'pass contribution="none"'),
    ],
)
def test_errors_name_arguments(call: Callable[[tersor.Transport], None], says: str) -> None:
    with pytest.raises(tersor.Error) as error:
        tersor.local.run(1, call)
    assert says in str(error.value)
    assert "::" not in str(error.value)
