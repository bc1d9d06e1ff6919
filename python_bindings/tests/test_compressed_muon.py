"""CompressedMuon over gloo processes: the arithmetic, the hidden matrices, and errors.

The tests of CompressedAdamW cover the common properties.
"""

from __future__ import annotations

import math
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from test_compressed_adamw import (
    EXACT,
    ByHand,
    flat,
    make_model,
    mean_of_ranks,
    own_moments,
    parted,
    train,
    wrap,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
import tersor
from tersor.torch import CompressedMuon
from tersor.torch._src.optim.muon import orthogonal

IN_FLOAT32 = mock.patch("tersor.torch._src.optim.muon._fast_dtype", return_value=torch.float32)
AS_BY_HAND = {"betas": (0.9, 0.999), "weight_decay": 0.01}


def by_newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """Computes the orthogonal matrix of a wide or tall matrix by the formula, in float64."""
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


@pytest.mark.parametrize("shape", [(3, 20, 50), (2, 50, 20), (1, 30, 30), (4, 1, 9)])
def test_newton_schulz_orthogonalizes_matrices(shape: tuple[int, ...]) -> None:
    matrices = 100 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with IN_FLOAT32:
        found = orthogonal(matrices, 5)
    for one, matrix in zip(found, matrices, strict=True):
        torch.testing.assert_close(one.double(), by_newton_schulz(matrix), rtol=0, atol=1e-4)
        left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        within = (left.T @ one.double() @ right.T).diagonal()
        assert within.min() > 0.5
        assert within.max() < 1.3
    in_its_own = orthogonal(matrices, 5)
    assert float((in_its_own - found).norm() / found.norm()) < 0.05
    assert not orthogonal(torch.zeros(shape), 5).any()


class MuonByHand(ByHand):
    """The formula in the module's text for the first matrix, and AdamW's formula for all others."""

    momentum = 0.0

    @torch.no_grad()
    def step(self) -> None:
        hidden = self.model[0].weight
        before, gradient = hidden.double(), hidden.grad.double()
        super().step()
        self.momentum = 0.8 * self.momentum + 0.2 * gradient
        update = by_newton_schulz(0.8 * self.momentum + 0.2 * gradient) * 0.2 * math.sqrt(90)
        hidden.copy_(before * (1 - 0.01 * 0.1) - 0.01 * mean_of_ranks(update))


def follows_the_recipe(rank: int, count: int, passes: int) -> tuple[float, torch.Tensor]:
    ours, reference = make_model(), make_model()
    optimizer = wrap(ours, kind=CompressedMuon, rules=EXACT, adamw=AS_BY_HAND)
    by_hand = MuonByHand(reference)
    with IN_FLOAT32:
        error = parted(rank, passes, (ours, optimizer), (reference, by_hand))
    return error, own_moments(optimizer)


@pytest.mark.parametrize(("count", "passes"), [(1, 1), (2, 2), (3, 1)])
def test_updates_match_reference(count: int, passes: int) -> None:
    found = ranks.run(follows_the_recipe, count, passes)
    assert max(error for error, _ in found) < 1e-4
    for _, momenta in found[1:]:
        assert not torch.equal(momenta, found[0][1])


class Network(torch.nn.Module):
    """An embedding, convolutions, matrices of equal shapes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(70, 64)
        self.convolution = torch.nn.Conv2d(1, 64, 8, stride=8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        self.head = torch.nn.Linear(64, 10)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        states = self.embedding(indices)
        states = states + self.convolution(states.view(-1, 1, 8, 8)).view(-1, 64)
        for block in self.blocks:
            states = states + torch.tanh(block(states))
        found: torch.Tensor = self.head(states)
        return found


def learns(rank: int, count: int, kind: str, lr: float) -> tuple[float, torch.Tensor]:
    """Trains a model to predict residues of numbers. Each rank sees other numbers. Returns the mean
    of the last ten losses, and the weights."""
    model = Network()
    named = model.named_parameters()
    optimizer = getattr(tersor.torch, kind)(named, lr=lr, weight_decay=0.0)
    random = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(60):
        numbers = torch.randint(70, (32,), generator=random)
        loss = torch.nn.functional.cross_entropy(model(numbers), numbers * 7 % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / 10, flat(model)


def test_muon_at_one_bit_reaches_lower_loss_than_adamw() -> None:
    (loss, first), (_, second) = ranks.run(learns, 2, "CompressedMuon", 0.01)
    assert torch.equal(first, second)
    assert loss < 0.3
    for lr in (0.003, 0.01, 0.03):
        assert min(one for one, _ in ranks.run(learns, 2, "CompressedAdamW", lr)) > loss


@ranks.on(2)
def test_uneven_shards_are_gathered_in_the_same_order(rank: int, count: int) -> None:
    """The larger shards of rank 0 fill a part, and the shards of rank 1 do not."""
    names = ("hosts", "uneven")  # DTensor keeps meshes, by value and names
    mesh = init_device_mesh("cpu", (1, count), mesh_dim_names=names)
    found = []
    for values in (1 << 20, 32 * 40):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(*one, bias=False) for one in [(40, 63), (63, 40)] * 2]
        model = fully_shard(torch.nn.Sequential(*layers), mesh=mesh["uneven"])
        group = mesh["hosts"].get_group()
        optimizer = CompressedMuon(model.named_parameters(), hidden="", process_group=group)
        for one in model.parameters():
            one.grad = one.detach().clone()
        with mock.patch("tersor.torch._src.optim.compressed._BATCH_VALUES", values):
            optimizer.step()
        found.append([one.detach().full_tensor() for one in model.parameters()])  # type: ignore[attr-defined]
    torch.testing.assert_close(*found)


@ranks.on(1)
def test_hidden_matrices_are_selected_by_name_shape_or_group(rank: int, count: int) -> None:
    model = Network()
    blocks = [f"blocks.{i}.weight" for i in range(3)]
    by_default = CompressedMuon(model.named_parameters())
    assert by_default.hidden == ["convolution.weight", *blocks]
    assert [len(one["params"]) for one in by_default.param_groups] == [4, 7]
    for hidden in (r"^blocks\.", lambda name, one: name in blocks):
        assert CompressedMuon(model.named_parameters(), hidden=hidden).hidden == blocks
    groups = [
        {"params": list(model.blocks.parameters())[::2], "use_muon": True, "lr": 0.3},
        {"params": model.head.parameters(), "use_muon": False, "betas": (0.5, 0.6)},
    ]
    by_groups = CompressedMuon(groups, lr=0.1, adamw={"lr": 0.2})
    assert by_groups.hidden == [f"parameter.{i}" for i in range(3)]
    assert [one["lr"] for one in by_groups.param_groups] == [0.3, 0.2]
    assert by_groups.param_groups[1]["betas"] == (0.5, 0.6)
    assert by_groups.param_groups[0]["momentum"] == 0.8


NAMES = {
    "transformer.wte.weight": False,
    "model.embed_tokens.weight": False,
    "bert.embeddings.word_embeddings.weight": False,
    "lm_head.weight": False,
    "heads.head.weight": False,
    "fc.weight": False,
    "output.weight": False,
    "score.weight": False,
    "transformer.h.0.mlp.c_fc.weight": True,
    "bert.encoder.layer.0.attention.output.dense.weight": True,
    "blocks.0.attn.multi_head.weight": True,
    "model.layers.3.self_attn.q_proj.weight": True,
}


def test_embeddings_and_heads_are_not_hidden_matrices() -> None:
    one = torch.ones(2, 2)
    assert {name: tersor.torch._src.optim.muon.is_hidden(name, one) for name in NAMES} == NAMES
    assert not tersor.torch._src.optim.muon.is_hidden("experts.weight", torch.ones(2, 2, 2))


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("add [+]ef", {"codec": "hadamard:bits=1"}),
        ("momentum=1", {"momentum": 1.0}),
        ("ns_steps=0", {"ns_steps": 0}),
        ("weight_decay=-1", {"adamw": {"weight_decay": -1}}),
        ("no option 'beta'.* lr, .*betas", {"adamw": {"beta": 1}}),
        ("no parameter is a hidden matrix", {"hidden": "none"}),
    ],
)
@ranks.on(1)
def test_invalid_options_raise(
    rank: int, count: int, message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=message):
        CompressedMuon(make_model().named_parameters(), **options)


@ranks.on(1)
def test_invalid_parameters_raise_or_warn(rank: int, count: int) -> None:
    model = Network()
    for message, params in {
        r"by their names: .*named_parameters\(\)": model.parameters(),
        r"head.bias of shape \(10,\) is not a matrix.*use_muon=False": [
            {"params": list(model.head.named_parameters("head")), "use_muon": True}
        ],
    }.items():
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            CompressedMuon(params)
    with pytest.warns(UserWarning, match=r"embedding.weight seems to be an embedding: .* rows"):
        CompressedMuon(model.named_parameters(), hidden="weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CompressedMuon(model.named_parameters())


@ranks.on(3)
def test_hidden_matrix_mismatch_raises_on_all_ranks(rank: int, count: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"0.weight is a hidden matrix on 2 of 3"):
        wrap(make_model(), kind=CompressedMuon, hidden="2" if rank == 1 else "0|2")
    model = make_model()
    optimizer = wrap(model, kind=CompressedMuon)
    train(model, optimizer, rank, range(1))
    more = torch.nn.Parameter(torch.ones(70, 80))
    optimizer.add_param_group({"params": [("more", more)], "use_muon": rank == 2})
    more.grad = torch.ones(70, 80)
    with pytest.raises(tersor.InvalidArgumentError, match="more is a hidden matrix on 1 of 3"):
        optimizer.step()
