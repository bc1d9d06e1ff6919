"""Models of 16 bits under a gradient scaler, with optimizers that exchange compressed updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ranks
from tersor.torch import CompressedAdamW, CompressedMuon, CompressedSGD

SHAPES = {"weight": (64, 128), "bias": (128,)}  # the bias is sent without feedback


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@ranks.on(2)
def test_gradients_are_unscaled_in_f32(rank: int, count: int, dtype: torch.dtype) -> None:
    """Gradients outside the range of f16 move weights like a model of f32."""
    torch.manual_seed(0)
    signs = {name: torch.randn(shape).sign() for name, shape in SHAPES.items()}
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (CompressedAdamW, {"lr": 1e-2, "eps": 1e-12}),
        (CompressedMuon, {"lr": 1e-2, "adamw": {"eps": 1e-12}}),
        (CompressedSGD, {"lr": 1e6, "momentum": 0.5}),
    ]
    for kind, options in kinds:
        for size in (1e-8, 1e-7):
            moved = []
            for of in (dtype, torch.float32):
                named = {
                    name: torch.nn.Parameter(torch.zeros(shape, dtype=of))
                    for name, shape in SHAPES.items()
                }
                optimizer = kind(named.items(), codec="int8+ef", **options)
                enabled = of != torch.float32
                scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=enabled)
                for _ in range(3):
                    optimizer.zero_grad()
                    loss = sum((one * signs[name] * size).sum() for name, one in f32(named).items())
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                moved.append(f32(named))
                assert all(one.dtype == of for one in named.values())
            for name, found in moved[0].items():
                wanted = moved[1][name]
                assert wanted.abs().max() > 1e-3
                torch.testing.assert_close(
                    found, wanted, rtol=0.02, atol=1e-4, msg=f"{kind} {name}"
                )


def f32(named: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: one.float() for name, one in named.items()}


@ranks.on(1)
def test_schedule_does_not_recompile_a_compiled_step(rank: int, count: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = CompressedAdamW([("w", weight)], lr=1e-2, rules=[("*", "int8+ef")])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    frames = []
    for _ in range(4):
        weight.grad = torch.randn(64, 64)
        step()
        schedule.step()
        frames.append(torch._dynamo.utils.counters["frames"]["total"])
    assert frames[1] == frames[-1]
