"""Modules by their former names: the same module, and one warning that has the new name."""

import importlib
import pickle
import subprocess
import sys
import warnings

import pytest

import tersor
from tersor import _renamed

FRAMEWORKS = {"flower": "flwr", "nvflare": "nvflare", "torch": "torch"}
PROGRAM = """
import tersor.torch
tersor.torch.group.close
tersor.torch.group.close
from tersor.torch import group
from tersor.torch.compressed_adamw import CompressedAdamW
import tersor.lanes
assert CompressedAdamW is tersor.torch.CompressedAdamW
"""


@pytest.mark.parametrize("old", sorted(_renamed._RENAMED))
def test_a_former_name_is_the_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(FRAMEWORKS.get(old.split(".")[1], "numpy"))
    new, public = _renamed._RENAMED[old]
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated .* use {public}"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)


def test_each_warns_once_where_it_is_used() -> None:
    pytest.importorskip("torch")
    ended = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in ended.stderr.splitlines() if "is deprecated and ends" in line]
    assert [line.split(":")[1] for line in told] == ["3", "6", "7"], ended.stderr


def test_a_saved_model_of_before_is_read() -> None:
    pytest.importorskip("torch")
    copies = importlib.import_module("tersor.torch._src.ddp.copies")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = pickle.loads(b"ctersor.torch.copied\nCopiedHookState\n.")
    assert found is copies.CopiedHookState


def test_what_is_no_name_is_an_error() -> None:
    pytest.importorskip("torch")
    torch = importlib.import_module("tersor.torch")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = torch.nonsense
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tersor.nonsense")
    assert {"compress", "close", "transport", "optim"} <= set(dir(torch))
    assert {"Tuner", "TcpTransport", "ReducerOptions"} <= set(tersor.__all__)
