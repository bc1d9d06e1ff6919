"""The benchmark's models split over ranks (experts and stages), compared with whole models."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402  torch comes first
from tersor.bench import hook_kinds, split_hooks  # noqa: E402
from tersor.bench.__main__ import main  # noqa: E402
from tersor.bench.errors import BenchmarkError  # noqa: E402
from tersor.bench.measures import Traffic  # noqa: E402
from tersor.bench.models import (  # noqa: E402
    Gpt,
    GptShape,
    MixtureOfExperts,
)
from tersor.bench.split_hooks import ExpertHook, StageHook  # noqa: E402
from tersor.bench.tasks import ExpertTask, StageTask, TaskOptions  # noqa: E402

CHARACTERS, CONTEXT, BATCH = 11, 8, 8


@pytest.mark.parametrize(
    "name", ["none", "torch:bf16", "torch:fp16", "int8", "tersor:none", "int8/bf16"]
)
def test_valid_activation_codecs(name: str) -> None:
    split_hooks.check(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch:powersgd", "CODEC/CODEC"),
        ("torch:int8", "CODEC/CODEC"),
        ("int8+ef", "without feedback"),
        ("int8/int4+ef", "without feedback"),
        ("int9", "int9"),
        ("int8/int9", "int9"),
        ("auto", "auto"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["train", "--model", "moe"],
        ["train", "--model", "pipeline"],
        ["backward", "--parallel", "experts"],
    ],
)
def test_invalid_activation_codecs_are_rejected(
    command: list[str], name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--hooks", "none", name]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--bucket", "4"], "--bucket is for DDP only"),
        (["--weights", "int8"], "--parallel fsdp only"),
    ],
)
def test_experts_reject_bucket_and_weights_options(
    option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backward", "--parallel", "experts", *option]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "ranks_", "batch", "message"),
    [
        (ExpertTask, 3, 8, "8 experts are not a multiple of 3 ranks"),
        (StageTask, 3, 8, "4 layers are not a multiple of 3 stages"),
        (StageTask, 2, 6, "a batch of 6 is not a multiple of 4 microbatches"),
    ],
)
def test_uneven_splits_are_rejected(
    task: Any, ranks_: int, batch: int, message: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "text"
    path.write_text("In the beginning God created the heaven and the earth. " * 300, "utf-8")
    with pytest.raises(BenchmarkError, match=message):
        task(TaskOptions(path, batch, 1, 1, torch.device("cpu"), ranks_))


def test_router_sends_rows_to_the_top_expert() -> None:
    torch.manual_seed(0)
    mixture = MixtureOfExperts(width=6, hidden=9, experts=4)
    states = torch.randn(2, 5, 6)
    rows = states.flatten(end_dim=-2)
    shares = mixture.router(rows).softmax(dim=1)
    expected = [
        mixture.experts[one.argmax()](row) * one.max()
        for row, one in zip(rows, shares, strict=True)
    ]
    with torch.no_grad():
        torch.testing.assert_close(mixture(states), torch.stack(expected).view_as(states))
    assert mixture.likings.count_nonzero() == 0  # an evaluation leaves no trace
    torch.testing.assert_close(mixture(states), torch.stack(expected).view_as(states))
    counts = torch.bincount(shares.argmax(dim=1), minlength=4)
    assert torch.equal(mixture.likings.sign(), (2.5 - counts).sign())


def gpt(experts: int = 0) -> Gpt:
    torch.manual_seed(3)
    return Gpt(CHARACTERS, GptShape(layers=2, heads=2, width=32, context=CONTEXT, experts=experts))


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rank)
    windows = torch.randint(CHARACTERS, (BATCH, CONTEXT + 1), generator=draw)
    return windows[:, :-1], windows[:, 1:]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: one.grad for name, one in model.named_parameters()}
    return {name: one.clone() for name, one in found.items() if one is not None}


def crowd(model: Gpt) -> None:
    """Sends all rows of a layer to the first expert. The experts of other ranks get no rows."""
    mixture = model.blocks[0].expansion[1]
    assert isinstance(mixture, MixtureOfExperts)
    mixture.likings[0] = 9


def learned(kind: type, name: str, experts: int, rank: int) -> tuple[float, dict[str, Any], float]:
    """Returns a step's mean loss, the gradients of all parameters, and the sent bytes of this
    rank."""
    model = gpt(experts)
    if experts:
        crowd(model)
    hook = kind(model, name)
    loss = torch.as_tensor(hook.run_backward(batch(rank if experts else 0)))
    torch.distributed.all_reduce(loss)
    hook.gather("grad")
    mean = float(loss) / torch.distributed.get_world_size()
    return mean, gradients(model), hook.traffic(1).sent_bytes


def whole(experts: int, count: int) -> tuple[float, dict[str, Any]]:
    """Returns the same values for one rank with the inputs of all ranks."""
    model = gpt(experts)
    losses = []
    for rank in range(count if experts else 1):
        if experts:
            for block in model.blocks:
                block.expansion[1].likings.zero_()
            crowd(model)
        losses.append(float(hook_kinds.Hook.run_backward(Whole(model), batch(rank))))
    return sum(losses) / len(losses), {k: g / len(losses) for k, g in gradients(model).items()}


class Whole(hook_kinds.Hook):
    """A hook of an unsplit model."""

    bytes_are = "counted"

    def total(self, steps: int) -> Traffic:
        return Traffic(0.0)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / (expected.norm() + 1e-20))


def learns_as_a_whole(rank: int, count: int, kind: type, experts: int) -> None:
    loss, exact = whole(experts, count)
    sent: dict[str, float] = {}
    for name, least, most in (
        ("none", 0, 1e-5),
        ("tersor:none", 0, 1e-5),
        ("torch:bf16", 1e-4, 0.03),
        ("int8", 1e-4, 0.05),
        ("none/int8", 1e-4, 0.05),  # the loss is exact, gradients are not
    ):
        found, split, sent[name] = learned(kind, name, experts, rank)
        is_exact = name in ("none", "tersor:none", "none/int8")
        assert found == pytest.approx(loss, rel=1e-6 if is_exact else 1e-2), (name, found, loss)
        assert split.keys() == exact.keys()
        errors = {k: relative(split[k], gradient) for k, gradient in exact.items()}
        first = errors["embedding.characters.weight"]  # which only encoded gradients reach
        assert least <= first < most, (name, first)
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < 4 * most, (name, worst, errors[worst])
    assert sent["torch:bf16"] == sent["none"] / 2
    assert sent["int8"] < sent["tersor:none"] / 2


@pytest.mark.parametrize("count", [2, 4])
def test_experts_on_several_ranks_match_a_single_rank(count: int) -> None:
    ranks.run(learns_as_a_whole, count, ExpertHook, 8)


def test_stages_match_the_unsplit_model() -> None:
    ranks.run(learns_as_a_whole, 2, StageHook, 0)
