"""Tests for all handles, of layers and gradients that come and go (handle_conformance.py)."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from handles import EXACT, FEW_BITS, FIRST, HANDLES, SECOND, Training, equal, equal_on_ranks
from torch.distributed.device_mesh import init_device_mesh

import ranks
import tersor
import tersor.torch

every_handle = pytest.mark.parametrize("name", HANDLES)


def moved(training: Training, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, one in training.weights().items() if not torch.equal(one, before[name])}


@every_handle
@ranks.on(3)
def test_frozen_layer_keeps_weights_and_residuals(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](unused=True)
    training.steps(rank, range(3))
    before, kept = training.weights(), training.residuals()
    assert any(one.any() for one in kept.values())
    training.freeze()
    training.steps(rank, range(3, 6))
    assert moved(training, before) == set(SECOND)
    assert equal(training.residuals(), kept)
    assert equal_on_ranks(training.weights())
    training.freeze(False)
    training.steps(rank, range(6, 9))
    assert moved(training, before) == {*FIRST, *SECOND}
    assert not equal(training.residuals(), kept)
    assert equal_on_ranks(training.weights())


@pytest.mark.parametrize("name", [name for name in HANDLES if name != "DDP"])
@ranks.on(3)
def test_unfrozen_layer_is_exchanged(rank: int, count: int, name: str) -> None:
    training = HANDLES[name](frozen=True)
    before = training.weights()
    training.steps(rank, range(2))
    assert moved(training, before) == set(SECOND)
    training.freeze(False)
    training.steps(rank, range(2, 5))
    assert moved(training, before) == {*FIRST, *SECOND}
    assert equal_on_ranks(training.weights())
    again = HANDLES[name]()
    again.resume(training.save())
    for one in (training, again):
        one.steps(rank, range(5, 8))
    assert equal(again.weights(), training.weights())
    assert equal_on_ranks(training.weights())


@pytest.mark.parametrize("name", [name for name in HANDLES if name not in ("DDP", "FSDP2")])
@ranks.on(2)
def test_layer_unfrozen_on_one_rank_trains_on_all_ranks(rank: int, count: int, name: str) -> None:
    """The layer counts as zero on ranks with a frozen layer."""
    training = HANDLES[name](EXACT, frozen=True)
    training.step(rank, 0)
    before = training.weights()
    training.freeze(rank == 1)
    training.step(rank, 1)
    assert moved(training, before) == {*FIRST, *SECOND}
    training.freeze(False)
    training.step(rank, 2)
    assert equal_on_ranks(training.weights())


@every_handle
@ranks.on(2)
def test_states_ignore_default_device_and_dtype(rank: int, count: int, name: str) -> None:
    """Under another default device and dtype, as in a program for large models."""
    training, again = HANDLES[name](), HANDLES[name]()
    training.steps(rank, range(2))
    saved = training.save()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            again.load(training.state("portable"))
            again.load(saved["handle"])
            state = again.state()
    finally:
        torch.set_default_dtype(torch.float32)
    again.resume({**saved, "handle": state})
    for one in (training, again):
        one.steps(rank, range(2, 4))
    assert equal(again.weights(), training.weights())


def throws_a_gradient_away(training: Training, rank: int, way: str) -> None:
    training.optimizer.zero_grad()
    training.backward(rank, 99)
    if way == "after synchronize":
        training.optimizer.synchronize()
    if way == "by the model":  # as GANs do, whose next pass is then the first to tell
        return training.model.zero_grad()
    if way != "by the handle":
        return training.optimizer.zero_grad()
    training.handle.discard_step()
    with pytest.raises(tersor.InvalidArgumentError, match="no step to discard"):
        training.handle.discard_step()
    return training.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("DDP", "by the handle"),
        ("FSDP2", "by the handle"),
        ("DistributedOptimizer", "by the handle"),
        ("DistributedOptimizer", "by zero_grad"),
        ("DistributedOptimizer", "after synchronize"),
        ("DistributedOptimizer", "by the model"),
    ],
)
@ranks.on(3)
def test_discarded_gradient_does_not_affect_training(
    rank: int, count: int, name: str, way: str
) -> None:
    ours, reference = (HANDLES[name](transactional=True) for _ in range(2))
    reference.steps(rank, range(4))
    ours.steps(rank, range(2))
    for step in (2, 3):
        throws_a_gradient_away(ours, rank, way)
        ours.step(rank, step)
    assert equal(ours.weights(), reference.weights())
    assert equal(ours.residuals(), reference.residuals())


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("DistributedOptimizer", False),
        ("DistributedOptimizer", True),
        ("CompressedAdamW", False),
        ("CompressedMuon", False),
        ("CompressedSGD", False),
    ],
)
@ranks.on(2)
def test_parameters_of_an_added_group_are_exchanged(
    rank: int, count: int, name: str, wrapped: bool
) -> None:
    """A new parameter group trains a layer from the third step on."""
    training = HANDLES[name](FEW_BITS)
    training.steps(rank, range(2))
    extra = torch.nn.Linear(3, 3)  # on each rank another
    with torch.no_grad():
        extra.weight.copy_(torch.eye(3)), extra.bias.zero_()
    training.model = torch.nn.Sequential(training.layers, extra)
    optimizer = training.optimizer.optimizer if wrapped else training.optimizer
    optimizer.add_param_group({"params": list(extra.named_parameters()), "lr": 0.02})
    training.steps(rank, range(2, 5))
    assert not torch.equal(extra.weight, torch.eye(3))
    assert equal_on_ranks({**training.weights(), **dict(extra.named_parameters())})
    assert [one.name for one in training.handle.statistics()][-2:] == ["weight", "bias"]


ACROSS_HOSTS = [name for name in HANDLES if name not in ("DDP", "FSDP2")]


def of_two_hosts(rank: int, count: int) -> list[dict[str, torch.Tensor]]:
    """One rank per host. The gradient is the mean of the host's two ranks."""
    found = []
    for name in ACROSS_HOSTS:
        passes = {"backward_passes_per_step": 2} if name == "DistributedOptimizer" else {}
        training = HANDLES[name](EXACT, **passes)
        for step in range(4):
            training.optimizer.zero_grad()
            for part in (2 * rank, 2 * rank + 1):
                training.backward(part, step, scale=0.5)
            training.end_step()
        found.append(training.weights())
    return found


def hybrid(rank: int, count: int) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Two hosts with two ranks each: shards within a host, an exchange between hosts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "shards"))
    options = {"shards": mesh["shards"], "group": mesh["hosts"].get_group()}
    found = []
    for name in ACROSS_HOSTS:
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"0.weight is sharded over ranks of the"
        ):
            HANDLES[name](shards=mesh["shards"])
        exact, few_bits, again = (
            HANDLES[name](rules, **options)  # type: ignore[arg-type]
            for rules in (EXACT, FEW_BITS, FEW_BITS)
        )
        exact.steps(rank, range(4))
        few_bits.steps(rank, range(2))
        again.resume(few_bits.save())
        for one in (few_bits, again):
            one.steps(rank, range(2, 4))
        assert equal(again.weights(), few_bits.weights())
        found.append((exact.weights(), few_bits.weights()))
    return found


def test_fsdp_shards_are_exchanged_between_hosts() -> None:
    found, wanted = ranks.run(hybrid, 4), ranks.run(of_two_hosts, 2)[0]
    for number in range(len(ACROSS_HOSTS)):
        first_exact, first_few_bits = found[0][number]
        for of_rank in found:
            exact, few_bits = of_rank[number]
            assert equal(exact, first_exact)
            assert equal(few_bits, first_few_bits)
            assert not equal(exact, few_bits)
        for name, one in wanted[number].items():
            torch.testing.assert_close(first_exact[name], one, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["CompressedAdamW", "CompressedMuon", "CompressedSGD"])
@ranks.on(4)
def test_nonfinite_gradient_in_one_shard_skips_the_step_on_all_ranks(
    rank: int, count: int, name: str
) -> None:
    names = f"hosts of {name}", f"shards of {name}"  # DTensor keeps meshes, by value and names
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    training = HANDLES[name](shards=mesh[names[1]], group=mesh[names[0]].get_group())
    training.step(rank, 0)
    before = training.weights()
    training.optimizer.zero_grad()
    training.backward(rank, 1)
    if rank == 3:
        training.gradients()["0.weight"][0, 0] = torch.inf
    training.end_step()
    assert training.handle.skipped_steps == 1
    assert equal(training.weights(), before)


class Double(torch.nn.Module):
    """A parameter without a codec beside a supported parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(70, 80) * dist.get_rank())
        self.second = torch.nn.Parameter(torch.ones(3).double() * dist.get_rank())


@ranks.on(2)
def test_unsupported_dtype_raises_and_keeps_parameters(rank: int, count: int) -> None:
    model = Double()
    for make in (
        lambda: tersor.torch.DiLoCo(model),
        lambda: tersor.torch.CompressedAdamW(model.named_parameters()),
        lambda: tersor.torch.CompressedMuon(model.named_parameters()),
    ):
        with pytest.raises(tersor.InvalidArgumentError, match=r"second \(float64\)"):
            make()
    assert bool((model.first == rank).all())
    assert bool((model.second == rank).all())


def unfreezes_under_ddp(rank: int, count: int) -> str:
    training = HANDLES["DDP"](frozen=True)
    training.step(rank, 0)
    training.freeze(False)
    with pytest.raises(tersor.Error) as raised:
        training.step(rank, 1)
    return str(raised.value)


def test_ddp_error_names_the_unfrozen_layer() -> None:
    for message in ranks.run(unfreezes_under_ddp, 2):
        assert "0.weight" in message
        assert "DistributedDataParallel" in message
