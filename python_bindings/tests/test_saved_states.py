"""States in ``saved_states.pt``, of the version before the names of 0.2, still load.

Two ranks saved them by ``state_dict("portable")``, three steps into a training (DiLoCo: six).
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

import ranks
import tersor.torch

FILE = pathlib.Path(__file__).with_name("saved_states.pt")
RULES = [("0.weight", "int4+ef"), ("*", "bf16")]


def make_model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Tanh(), torch.nn.Linear(24, 2))


def handles(layers: Any) -> dict[str, Any]:
    """Functions that make a handle of a model."""
    named = list(layers.named_parameters())
    diloco: dict[str, Any] = {"sync_every": 4, "error_decay": 0.9, "rules": RULES}
    return {
        "CompressedAdamW": lambda: tersor.torch.CompressedAdamW(named, rules=RULES),
        "CompressedMuon": lambda: tersor.torch.CompressedMuon(named, rules=RULES, hidden="^0"),
        "CompressedSGD": lambda: tersor.torch.CompressedSGD(named, rules=RULES),
        "DiLoCo": lambda: tersor.torch.DiLoCo(layers, fragments=2, fragment_sync_delay=1, **diloco),
        "DiLoCo late": lambda: tersor.torch.DiLoCo(layers, straggler_timeout=60.0, **diloco),
    }


def tensors(state: Any, path: str = "") -> dict[str, Any]:
    if isinstance(state, torch.Tensor):
        return {path: state.detach().clone()}
    children: Any = enumerate(state) if isinstance(state, list) else ()
    if isinstance(state, dict):
        children = state.items()
    return {k: v for key, one in children for k, v in tensors(one, f"{path}/{key}").items()}


def same(found: Any, saved: Any) -> None:
    """All tensors are equal, and some differ from zero."""
    found, saved = tensors(found), tensors(saved)
    assert found.keys() == saved.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, saved[name], rtol=0, atol=0)
    assert any(bool(one.any()) for name, one in saved.items() if "residuals" in name)


def loads(rank: int, count: int, name: str) -> None:
    saved = torch.load(FILE, weights_only=True)[name]
    handle = handles(make_model())[name]()
    handle.load_state_dict(saved)
    same(handle.state_dict("portable"), saved)
    if name.startswith("DiLoCo"):
        handle.close()


@pytest.mark.parametrize(
    "name", ["CompressedAdamW", "CompressedMuon", "CompressedSGD", "DiLoCo", "DiLoCo late"]
)
def test_state_of_the_previous_version_loads(name: str) -> None:
    ranks.run(loads, 2, name)


@ranks.on(2)
def test_previous_version_residuals_load_into_a_wrapped_optimizer(rank: int, count: int) -> None:
    saved = torch.load(FILE, weights_only=True)["DistributedOptimizer"]
    layers = make_model()
    optimizer = tersor.torch.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9),
        layers.named_parameters(),
        rules=RULES,
    )
    optimizer.load_state_dict(saved["plain"])
    with pytest.warns(DeprecationWarning, match="use load_state_dict"):
        optimizer.load_residual_state_dict(saved["residuals"])
    state = optimizer.state_dict("portable")
    same(state["param_groups"][0]["tersor"], saved["residuals"])
    wanted, found = tensors(saved["plain"]["state"]), tensors(state["state"])
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, wanted[name], rtol=0, atol=0)
