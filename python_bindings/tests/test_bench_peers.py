"""The peers of the benchmark, over gloo processes: equal to dense steps in the limit, sent bytes,
and what stays on a rank."""

from __future__ import annotations

import math
import pathlib
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from tersor.bench import hooks
from tersor.bench.errors import BenchmarkError
from tersor.bench.measures import ring_bytes
from tersor.bench.peers import CHUNK, DeMo, Dion, _Chunks, _cosines

RATE, DECAY = 0.01, 0.1
SHAPES = {"hidden": (70, 130), "deep": (24, 16), "norm": (100,), "embedding": (6, 5)}


def model() -> nn.ParameterDict:
    torch.manual_seed(0)
    return nn.ParameterDict({name: torch.randn(shape) for name, shape in SHAPES.items()})


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def mean_gradients(world: int, step: int) -> dict[str, Tensor]:
    own = [gradients(rank, step) for rank in range(world)]
    return {name: torch.stack([one[name] for one in own]).mean(0) for name in SHAPES}


def adamw(weights: nn.ParameterDict) -> torch.optim.AdamW:
    return torch.optim.AdamW(weights.parameters(), RATE, (0.9, 0.95), weight_decay=DECAY)


def train(rank: int, world: int, name: str, steps: int, of: int = 0) -> dict[str, Any]:
    """The weights, momenta and sent bytes of a hook. With ``of``, a rank has the mean gradient."""
    weights = model()
    hook = hooks.attach(weights, name)
    optimizer = hook.optimizer(adamw(weights))
    for step in range(steps):
        own = mean_gradients(of, step) if of else gradients(rank, step)
        for key, weight in weights.items():
            weight.grad = own[key].clone()
        optimizer.step()
    momenta = optimizer.momenta if isinstance(optimizer, Dion) else []
    return {
        "weights": {key: weight.detach() for key, weight in weights.items()},
        "momenta": momenta,
        "bytes": hook.traffic(steps).sent_bytes,
        "waits": len(hook.exposed_in_step()),
    }


# --- PowerSGD ---


def reduce_by(rank: int, world: int, name: str, steps: int) -> tuple[list[Tensor], float, float]:
    """The gradients of steps, the bytes of the hook, and those given to each all-reduce."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 4))
    hook, given = hooks.attach(net, name), []
    plain = dist.all_reduce

    def counting(values: Tensor, *others: Any, **options: Any) -> Any:
        given.append(values.nbytes)
        return plain(values, *others, **options)

    dist.all_reduce = counting
    try:
        for step in range(steps):
            net.zero_grad()
            inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))
            hook.model(inputs).square().mean().backward()
    finally:
        dist.all_reduce = plain
    counted = ring_bytes(sum(given), world)
    return [one.grad.clone() for one in net.parameters()], hook.traffic(steps).sent_bytes, counted


@pytest.mark.parametrize(
    ("name", "start"),
    [("torch:powersgd=1", hooks.POWERSGD_START), ("torch:powersgd=1,start=2", 2)],
)
def test_powersgd_byte_count(name: str, start: int) -> None:
    for _, reported, counted in ranks.run(reduce_by, 2, name, start + 3):
        assert reported == counted
        factors = 40 + 30 + 30 + 4 + 30 + 4  # of rank 1, and both biases
        values = 40 * 30 + 30 + 30 * 4 + 4
        assert reported == 4 * (start * values + 3 * factors)


def test_full_rank_powersgd_equals_dense() -> None:
    steps = hooks.POWERSGD_START + 2
    (all_of_it, *_), _ = ranks.run(reduce_by, 2, "torch:powersgd=1000", steps)
    (plain, *_), _ = ranks.run(reduce_by, 2, "none", steps)
    torch.testing.assert_close(all_of_it, plain)


# --- DeMo ---


def chunks_of(*shapes: tuple[int, ...], chunk: tuple[int, int], top: int) -> _Chunks:
    torch.manual_seed(0)
    return _Chunks([nn.Parameter(torch.randn(shape)) for shape in shapes], chunk, top)


@pytest.mark.parametrize("count", [1, 2, 35, 64])
def test_cosines_are_orthonormal(count: int) -> None:
    made = _cosines(count, torch.device("cpu"))
    torch.testing.assert_close(made @ made.T, torch.eye(count), atol=1e-6, rtol=0)
    torch.testing.assert_close(made[0], torch.full((count,), count**-0.5))


def test_chunks_hold_every_value_once() -> None:
    chunks = chunks_of((70, 130), (35, 2, 22), chunk=(35, 44), top=1)
    own = [one.detach() for one in chunks.parameters]
    for back, one in zip(chunks.from_chunks(chunks._to_chunks(own)), own, strict=True):
        assert torch.equal(back, one)


def test_demo_keeps_unsent_part_in_momentum() -> None:
    chunks = chunks_of((70, 130), chunk=(35, 44), top=5)
    (parameter,) = chunks.parameters
    for step in range(3):
        before = chunks.momentum.clone()
        parameter.grad = torch.randn(70, 130, generator=torch.Generator().manual_seed(step))
        indices, values = chunks.pop_largest(decay=0.9)
        assert (indices.dtype, values.dtype) == (torch.int16, torch.bfloat16)
        assert indices.shape == (2 * 3, 5)
        sent = chunks.decoded(indices[None], values[None]) * chunks._inside
        expected = 0.9 * before + chunks._to_chunks([parameter.grad])
        torch.testing.assert_close(chunks.momentum + sent, expected, atol=1e-5, rtol=0)
        assert chunks.momentum.norm() < expected.norm()


def test_demo_sends_the_largest_coefficient() -> None:
    """A product of two cosines is one coefficient."""
    chunks = chunks_of((64, 64), chunk=(64, 64), top=1)
    cosines = _cosines(64, torch.device("cpu"))
    chunks.parameters[0].grad = 3 * torch.outer(cosines[5], cosines[9])
    indices, values = chunks.pop_largest(decay=0.9)
    assert (indices.tolist(), values.tolist()) == ([[5 * 64 + 9]], [[3.0]])
    assert chunks.momentum.abs().max() < 1e-5


def test_demo_with_all_coefficients_steps_by_the_sign_of_the_mean() -> None:
    results = ranks.run(train, 2, "demo=4096", 1)
    assert all(
        torch.equal(results[0]["weights"][name], results[1]["weights"][name]) for name in SHAPES
    )
    for name, mean in mean_gradients(2, 0).items():
        moved = results[0]["weights"][name] - model()[name].detach() * (1 - RATE * DECAY)
        clear = mean.abs() > 0.05  # bf16 rounds the coefficients
        assert clear.float().mean() > 0.8
        torch.testing.assert_close(moved[clear], -RATE * mean.sign()[clear], atol=1e-6, rtol=0)


def test_demo_counts_indices_and_values() -> None:
    top, chunks = 3, {"hidden": 2 * 3, "deep": 1, "norm": 2, "embedding": 1}
    for world in (1, 3):
        for result in ranks.run(train, world, f"demo={top}", 2):
            assert result["bytes"] == 2 * (world - 1) * (2 + 2) * top * sum(chunks.values())
            assert result["waits"] == 2


def test_small_chunks_send_all_of_their_coefficients() -> None:
    sizes = [min(32, side) for side in (35 * 44, 24 * 16, 50, 6 * 5)]
    sent = sum(count * size for count, size in zip([6, 1, 2, 1], sizes, strict=True))
    assert ranks.run(train, 2, "demo", 1)[0]["bytes"] == 4 * sent


# --- Dion ---


@pytest.mark.parametrize("name", ["dion=3", "dion=16"])
def test_dion_matches_one_process_with_the_mean_gradient(name: str) -> None:
    several, (alone,) = ranks.run(train, 3, name, 4), ranks.run(train, 1, name, 4, 3)
    for result in several:
        assert all(torch.equal(result["weights"][n], several[0]["weights"][n]) for n in SHAPES)
    torch.testing.assert_close(several[0]["weights"], alone["weights"], atol=2e-5, rtol=1e-4)
    means = [
        torch.stack(own).mean(0) for own in zip(*(one["momenta"] for one in several), strict=True)
    ]
    torch.testing.assert_close(means, alone["momenta"], atol=2e-4, rtol=1e-3)


def test_dion_uses_adamw_for_other_parameters() -> None:
    plain = model()
    optimizer = adamw(plain)
    for step in range(3):
        for key, gradient in mean_gradients(2, step).items():
            plain[key].grad = gradient
        optimizer.step()
    found = ranks.run(train, 2, "dion=2", 3)[0]["weights"]
    for key in ("norm", "embedding"):
        torch.testing.assert_close(found[key], plain[key].detach())
    assert not torch.allclose(found["deep"], plain["deep"])


def test_dion_byte_count() -> None:
    rest = 100 + 6 * 5
    values = [16 * (70 + 130) + 16 * (24 + 16) + rest, 20 * (70 + 130) + 16 * (24 + 16) + rest]
    for name, count, width in (
        ("dion=16", values[0], 4), ("dion=20", values[1], 4), ("dion=16,bf16", values[0], 2)
    ):  # fmt: skip
        for result in ranks.run(train, 2, name, 3):
            assert result["bytes"] == 3 * width * count
            assert result["waits"] == 2 * 3


def train_dion(rank: int, world: int, name: str, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Trains a matrix by a constant gradient. Returns the gradient, last update and momentum."""
    weights = nn.ParameterDict({"hidden": torch.zeros(12, 8)})
    plain = torch.optim.AdamW(weights.parameters(), 1.0, weight_decay=0.0)
    optimizer = hooks.attach(weights, name).optimizer(plain)
    gradient = torch.randn(12, 8, generator=torch.Generator().manual_seed(3))
    for _ in range(steps):
        before = weights["hidden"].detach().clone()
        weights["hidden"].grad = gradient.clone()
        optimizer.step()
    return gradient, weights["hidden"].detach() - before, optimizer.momenta[0]


def test_full_rank_dion_orthogonalizes_the_momentum() -> None:
    name = "dion=8,momentum=0.5,factor=1"
    gradient, update, momentum = ranks.run(train_dion, 1, name, 400)[0]
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    torch.testing.assert_close(update, -math.sqrt(12 / 8) * left @ right, atol=1e-3, rtol=0)
    torch.testing.assert_close(momentum, gradient, atol=1e-4, rtol=0)  # g/2 + g/4 + …


def test_dion_keeps_unsent_part_in_momentum() -> None:
    gradient, update, momentum = ranks.run(train_dion, 1, "dion=2,momentum=0", 1)[0]
    basis = torch.linalg.svd(update).U[:, :2]
    torch.testing.assert_close(momentum, gradient - basis @ (basis.T @ gradient), atol=1e-5, rtol=0)


def test_dion_needs_a_hidden_matrix() -> None:
    weights = nn.ParameterDict({"embedding": torch.zeros(3, 3), "norm": torch.zeros(3)})
    with pytest.raises(BenchmarkError, match="dion: the model has no hidden matrix"):
        alone(weights, "dion=2")


def alone(weights: nn.ParameterDict, name: str) -> Any:
    """An optimizer in a group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return hooks.attach(weights, name).optimizer(adamw(weights))
    finally:
        dist.destroy_process_group()


# --- SparseLoCo ---


def train_locally(rank: int, world: int, name: str, rounds: int) -> tuple[Tensor, float, float]:
    """Rounds of two steps of SGD with rate 1, by gradients of this rank."""
    weights = nn.ParameterDict({"hidden": torch.zeros(64, 64)})
    hook = hooks.attach(weights, name)
    optimizer = hook.optimizer(torch.optim.SGD(weights.parameters(), 1.0))
    for step in range(2 * rounds):
        weights["hidden"].grad = local_gradient(rank, step)
        optimizer.step()
    common = hook._outer.common_parameters()["hidden"].detach().clone()
    return common, hook.traffic(2 * rounds).sent_bytes, hook._outer.outer_optimizer.defaults["lr"]


def local_gradient(rank: int, step: int) -> Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(100 * rank + step))


def test_sparseloco_matches_the_papers_recursion() -> None:
    rounds, world, top = 3, 3, 123  # 3 % of 4,096
    common, residuals = torch.zeros(4096), [torch.zeros(4096) for _ in range(world)]
    for turn in range(rounds):
        mean = torch.zeros(4096)
        for rank, residual in enumerate(residuals):
            moved = sum(local_gradient(rank, 2 * turn + n) for n in range(2))
            residual.mul_(0.95).add_(moved.flatten())
            chosen = residual.abs().topk(top).indices
            sent = torch.zeros(4096)
            sent[chosen] = residual[chosen].sign() * residual[chosen].abs().mean()
            residual -= sent
            mean += sent / world
        common -= 0.5 * mean
    name = "sparseloco=2,density=0.03,rate=0.5,values=sign"
    for found, sent_bytes, rate in ranks.run(train_locally, world, name, rounds):
        torch.testing.assert_close(found.flatten(), common, atol=1e-5, rtol=0)
        assert rate == 0.5
        # 123 indices of 6 bits and a high part, signs, a scale, and headers: to both other ranks
        assert 2 * 123 * 9 / 8 < sent_bytes / rounds < 2 * (123 * 9 / 8 + 300)


# --- Tersor's own ---


def test_tersor_optimizers_count_waits() -> None:
    for result in ranks.run(train, 2, "adamw:int8+ef", 3):
        # The presence of gradients and the exchange in each step, and a comparison of parameters.
        assert result["waits"] == 3 * 2 + 1


# --- names ---


def test_script_lists_valid_hooks_with_at_least_three_rates() -> None:
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "peers-bench"
    peers = re.findall(r'^  "(\S+)  (.*)"$', script.read_text(encoding="utf-8"), re.MULTILINE)
    methods = {hooks.method_of(name)[0] for name, _ in peers}
    assert {"torch:powersgd", "onebit-adam", "demo", "dion", "sparseloco", "torchft"} <= methods
    for name, rates in peers:
        hooks.check(name)
        assert len({float(rate) for rate in rates.split()}) >= 3


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("none", "none", ""),
        ("torch:powersgd=4", "torch:powersgd", "4"),
        ("torch:bf16", "torch:bf16", ""),
        ("int8+ef", "tersor", "int8+ef"),
        ("tersor:none", "tersor", "none"),
        ("onebit-adam=400", "onebit-adam", "400"),
        ("demo", "demo", ""),
        ("demo=8,decay=0.9", "demo", "8,decay=0.9"),
        ("dion=4,factor=2,bf16", "dion", "4,factor=2,bf16"),
        ("sparseloco=20,density=.01", "sparseloco", "20,density=.01"),
        ("torchft=20,fragments=4,delay=4", "torchft", "20,fragments=4,delay=4"),
        ("adamw:hadamard:bits=1+ef", "adamw", "hadamard:bits=1+ef"),
    ],
)
def test_names_of_methods(name: str, method: str, options: str) -> None:
    hooks.check(name)
    assert hooks.method_of(name) == (method, options)


@pytest.mark.parametrize(
    "name", ["demo=0", "demo=x", "demo:int8", "dion", "dion=0", "dion=4,f16", "sparseloco",
             "sparseloco=0", "sparseloco=20,values=int8", "sparseloco=20:int8"],
)  # fmt: skip
def test_invalid_method_names(name: str) -> None:
    assert hooks.in_optimizer(name)
    with pytest.raises(BenchmarkError, match=r"demo\[=K\]"):
        hooks.check(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"demo={CHUNK**2 + 1}", "4097 is above 4096"),
        ("demo=3,decay=1.5", "1.5 is above 1"),
        ("dion=3,momentum=2", "2 is above 1"),
        ("sparseloco=20,density=0.5", "0.5 is above 0.25"),
    ],
)
def test_options_out_of_range(name: str, text: str) -> None:
    with pytest.raises(BenchmarkError, match=text):
        hooks.check(name)


@pytest.mark.parametrize("name", ["demo", "dion=2"])
def test_demo_and_dion_require_adamw(name: str) -> None:
    weights = nn.ParameterDict({"hidden": torch.zeros(3, 3)})
    hook = hooks.attach(weights, name)
    with pytest.raises(BenchmarkError, match=f"{name[:4]}: needs AdamW"):
        hook.optimizer(torch.optim.SGD(weights.parameters(), 0.1))


def test_demo_reads_the_rate_of_its_group() -> None:
    weights = model()
    optimizer = alone(weights, "demo")
    assert isinstance(optimizer, DeMo)
    assert optimizer.param_groups[0]["lr"] == RATE
