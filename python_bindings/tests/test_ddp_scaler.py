"""Loss scales under DistributedDataParallel: residuals follow, skipped steps are seen."""

from __future__ import annotations

import torch
from ddp_models import gradients, inputs, mlp, wrap

import ranks
import tersor.torch


def scaled(rank: int, _: int, growth: bool) -> torch.Tensor:
    """Returns the sum of unscaled gradients over steps. The scale doubles, or stays 1."""
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1, enabled=growth)
    tersor.torch.compress(model, scaler=scaler, codec="int4+ef")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    total = torch.zeros(())
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(inputs(rank, step)).square().mean()).backward()
        scaler.unscale_(optimizer)
        total = total + gradients(model)
        scaler.step(optimizer)
        scaler.update()
    return total


def test_residuals_follow_the_loss_scale() -> None:
    # Powers of two change no bits but exponents: what comes back is the same at any scale.
    for one, other in zip(ranks.run(scaled, 2, True), ranks.run(scaled, 2, False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def last_step(
    rank: int, _: int, overflow: bool, transactional: bool, by_hand: bool = False
) -> tuple[torch.Tensor, int]:
    """Returns the unscaled gradients of the last step. With ``overflow``, a step before has a block
    that is not finite."""
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    handle = tersor.torch.compress(
        model, scaler=scaler, codec="int4+ef", transactional=transactional
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in (0, 1, 2) if overflow else (0, 2):
        optimizer.zero_grad()
        loss = scaler.scale(model(inputs(rank, step)).square().mean())
        spoiled = model.module[3].weight.register_hook(spoil) if step == 1 else None
        loss.backward()
        if spoiled is not None:
            spoiled.remove()
            if by_hand:
                handle.discard_step()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (2.0 if overflow else 4.0)
    return gradients(model), handle.skipped_steps


def spoil(gradient: torch.Tensor) -> torch.Tensor:
    spoiled = gradient.clone()
    spoiled[0, 0] = torch.inf
    return spoiled


def test_skipped_step_is_counted_and_undone_on_request() -> None:
    without = ranks.run(last_step, 2, False, True)
    undone = ranks.run(last_step, 2, True, True)
    kept = ranks.run(last_step, 2, True, False)
    assert [one[1] for one in ranks.run(last_step, 2, True, True, True)] == [
        1,
        1,
    ]  # taken back once
    for (wanted, none), (found, counted), (other, also) in zip(without, undone, kept, strict=True):
        assert (none, counted, also) == (0, 1, 1)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
        assert not torch.allclose(other, wanted, rtol=1e-3)


def starts_to_scale(rank: int, _: int, scale: float) -> torch.Tensor:
    """Returns the unscaled gradients after a checkpoint from a training without a scaler."""
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec="int4+ef")
    model(inputs(rank, 0)).square().mean().backward()
    saved = handle.state_dict()
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
    handle = tersor.torch.compress(model, scaler=scaler, codec="int4+ef")
    handle.load_state_dict(saved)
    scaler.scale(model(inputs(rank, 1)).square().mean()).backward()
    return gradients(model) / scale


def test_unscaled_residuals_are_rescaled_on_load() -> None:
    for one, other in zip(
        ranks.run(starts_to_scale, 2, 1024.0), ranks.run(starts_to_scale, 2, 1.0), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
