"""Errors of CompressedAdamW, over gloo processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_compressed_adamw import Kind, every_kind, make_model

import ranks
import tersor
from tersor.torch import CompressedAdamW, CompressedMuon


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("add [+]ef", {"codec": "hadamard:bits=1"}),
        ("add [+]ef", {"rules": [("*", "int8")]}),
        ("name a codec", {"codec": "auto"}),
        ("int9", {"codec": "int9+ef"}),
        ("lr=-1", {"lr": -1}),
        ("eps=nan", {"eps": math.nan}),
        ("weight_decay=-0.1", {"weight_decay": -0.1}),
        ("betas", {"betas": (0.9, 1.0)}),
        ("betas", {"betas": (0.9,)}),
        ("warmup_steps=-1", {"warmup_steps": -1}),
        ("int9", {"warmup_codec": "int9", "warmup_steps": 1}),
        ("no option 'reduction': the ranks' mean", {"reduction": "sum"}),
        ("no option 'weighted': set optimizer.samples before step", {"weighted": True}),
        ("no option 'transactional': only step", {"transactional": True}),
        ("no option 'bits'", {"bits": 1}),
    ],
)
@ranks.on(1)
def test_invalid_options_raise(
    rank: int, count: int, message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        CompressedAdamW(make_model().named_parameters(), **options)


@every_kind
@ranks.on(1)
def test_unsupported_group_options_are_rejected(rank: int, count: int, kind: Kind) -> None:
    others = {"amsgrad": True, "dampening": 0.1, "maximize": True}
    others |= {} if kind is CompressedMuon else {"nesterov": True}
    for name, value in others.items():
        groups: Any = [{"params": list(make_model().named_parameters()), name: value}]
        with pytest.raises(tersor.InvalidArgumentError, match=f"{name}={value}: .*no such option"):
            kind(groups)
    groups = [{"params": list(make_model().named_parameters()), **dict.fromkeys(others, False)}]
    kind(groups)


@ranks.on(2)
def test_unsupported_parameters_raise(rank: int, count: int) -> None:
    table = torch.nn.Embedding(70, 60, sparse=True)
    optimizer = CompressedAdamW(table.parameters())
    table(torch.tensor([rank])).sum().backward()
    with pytest.raises(tersor.InvalidArgumentError, match=r"parameter.0 is sparse.*sparse=False"):
        optimizer.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3).double())]})
    optimizer.zero_grad()
    optimizer.param_groups[1]["params"][0].sum().backward()
    with pytest.raises(tersor.InvalidArgumentError, match=r"parameter.1 \(float64\)"):
        optimizer.step()
