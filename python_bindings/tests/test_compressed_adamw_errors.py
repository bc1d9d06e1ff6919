"""CompressedAdamW over gloo processes: sharded parameters, and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from test_compressed_adamw import EXACT, flat, loss_of, make_model, train, wrap
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
from tersor.torch import CompressedAdamW

FEW_BITS = [("0.weight", "hadamard:bits=1+ef"), ("*", "bf16")]


def hybrid(rank: int, count: int) -> list[torch.Tensor]:
    """Two hosts of two ranks: sharded within a host, exchanged between them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "shards"))
    found = []
    for rules in (EXACT, FEW_BITS):
        model = make_model()
        fully_shard(model, mesh=mesh["shards"])
        with pytest.raises(tersor.InvalidArgument, match=r"0.weight is sharded over ranks of the"):
            wrap(model)
        optimizer = wrap(model, rules=rules, group=mesh["hosts"].get_group())
        train(model, optimizer, rank, range(2))
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, rank, range(2, 4))
        again = fully_shard(make_model(), mesh=mesh["shards"])
        again.load_state_dict(saved[0])
        resumed = wrap(again, rules=rules, group=mesh["hosts"].get_group())
        resumed.load_state_dict(saved[1])
        train(again, resumed, rank, range(2, 4))
        found.append(full(model))
        assert torch.equal(full(again), found[-1])
    return found


def full(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().full_tensor().flatten() for one in model.parameters()])


def of_two_hosts(rank: int, count: int) -> torch.Tensor:
    """The same with a rank a host, whose gradient is the mean of the host's two."""
    model = make_model()
    optimizer = wrap(model, rules=EXACT)
    for step in range(4):
        for part in (2 * rank, 2 * rank + 1):
            (loss_of(model, part, step) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def test_fsdp_shards_within_hosts_are_exchanged_between_them() -> None:
    found = ranks.run(hybrid, 4)
    for exact, few_bits in found:
        assert torch.equal(exact, found[0][0])
        assert torch.equal(few_bits, found[0][1])
        assert not torch.equal(exact, few_bits)
    torch.testing.assert_close(found[0][0], ranks.run(of_two_hosts, 2)[0], rtol=0, atol=1e-5)


def names_a_mistake(rank: int, count: int, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(tersor.InvalidArgument, match=message):
        CompressedAdamW(make_model().named_parameters(), **options)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("add [+]ef", {"codec": "hadamard:bits=1"}),
        ("add [+]ef", {"rules": [("*", "int8")]}),
        ("by name", {"codec": "auto"}),
        ("int9", {"codec": "int9+ef"}),
        ("lr=-1", {"lr": -1}),
        ("eps=nan", {"eps": math.nan}),
        ("weight_decay=-0.1", {"weight_decay": -0.1}),
        ("betas", {"betas": (0.9, 1.0)}),
        ("betas", {"betas": (0.9,)}),
        ("dense_steps=-1", {"dense_steps": -1}),
        ("int9", {"dense_codec": "int9", "dense_steps": 1}),
        ("takes the mean", {"reduction": "sum"}),
        ("no option 'bits'", {"bits": 1}),
    ],
)
def test_wrong_options_are_named(message: str, options: dict[str, Any]) -> None:
    ranks.run(names_a_mistake, 1, message, options)


def names_parameters(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgument, match=r"1 \(float64\)"):
        CompressedAdamW(
            [
                ("0", torch.nn.Parameter(torch.ones(3))),
                ("1", torch.nn.Parameter(torch.ones(3).double())),
            ]
        )
    table = torch.nn.Embedding(70, 60, sparse=True)
    optimizer = CompressedAdamW(table.parameters())
    table(torch.tensor([rank])).sum().backward()
    with pytest.raises(tersor.InvalidArgument, match=r"parameter.0 is sparse.*sparse=False"):
        optimizer.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3).double())]})
    optimizer.zero_grad()
    optimizer.param_groups[1]["params"][0].sum().backward()
    with pytest.raises(tersor.InvalidArgument, match=r"parameter.1 \(float64\)"):
        optimizer.step()


def test_wrong_parameters_are_named() -> None:
    ranks.run(names_parameters, 2)
