"""Errors under DistributedDataParallel, and training after an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ddp_models import gradients, inputs, mean_gradients, mlp, relative_error, train, wrap
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import ranks
import tersor
import tersor.torch


def message_of(call: Any) -> str:
    try:
        call()
    except tersor.InvalidArgumentError as error:
        return str(error)
    return ""


def one_backward(model: torch.nn.Module, rank: int, step: int) -> BaseException | None:
    model.zero_grad()
    loss = model(inputs(rank, step)).square().mean()
    try:
        loss.backward()
    except tersor.Error as error:
        return error
    return None


def refusals(rank: int, count: int) -> tuple[list[str], float]:
    hooked = wrap(mlp())
    tersor.torch.compress(hooked, codec="int8")
    theirs = wrap(mlp())
    theirs.register_comm_hook(None, default_hooks.allreduce_hook)
    corrected = wrap(mlp())
    mixed = wrap(mlp())
    mixed.mixed_precision = _MixedPrecision()  # which DDP itself takes on a GPU only
    fused = mlp()
    _apply_optimizer_in_backward(torch.optim.SGD, fused.parameters(), {"lr": 0.1})
    messages = [
        message_of(lambda: tersor.torch.compress(hooked, codec="int8")),
        message_of(lambda: tersor.torch.compress(theirs, codec="int8")),
        message_of(lambda: tersor.torch.compress(wrap(fused), codec="int8")),
        message_of(lambda: tersor.torch.compress(corrected, codec="int9")),
        message_of(lambda: tersor.torch.compress(wrap(mlp()), codek="int8")),
        message_of(lambda: tersor.torch.compress(mlp(), codec="int8")),
        message_of(lambda: tersor.torch.compress(mixed, codec="int8")),
    ]
    tersor.torch.compress(corrected, codec="int8")
    assert one_backward(corrected, rank, 0) is None
    return messages, relative_error(gradients(corrected), mean_gradients(count, 0))


def test_invalid_models_and_options_raise() -> None:
    for messages, error in ranks.run(refusals, 2):
        again, hooked, fused, codec, option, bare, mixed = messages
        assert 1e-4 < error < 0.03  # what was corrected is compressed
        assert "communication hook already" in again
        assert "communication hook already" in hooked
        assert "optimizer in the backward pass" in fused
        assert "int9" in codec
        assert "int8" in codec
        assert "no option 'codek'" in option
        assert "DistributedDataParallel" in bare
        assert "Sequential" in bare
        assert "mixed_precision" in mixed


class DeepSpeedEngine(torch.nn.Module):
    """Found by name, because DeepSpeed may be missing."""


@ranks.on(1)
def test_other_parallel_wrappers_are_rejected_with_advice(rank: int, count: int) -> None:
    refused = {
        "torchrun.*DistributedDataParallel": torch.nn.DataParallel(mlp()),
        "FSDP1: use fully_shard": FullyShardedDataParallel(mlp(), device_id=torch.device("cpu")),
        r"ZeRO\+\+": DeepSpeedEngine(),
    }
    for text, model in refused.items():
        with pytest.raises(tersor.InvalidArgumentError, match=f"{text}.*compatibility.md"):
            tersor.torch.compress(model, codec="int8")


class NoRank(tersor.TransportError):
    """The error of a rank that misses the rendezvous."""


@ranks.on(2)
def test_failed_compress_leaves_no_hook(rank: int, count: int) -> None:
    """Each error has a separate message, and leaves nothing in DDP."""
    model = wrap(mlp())
    refused: list[tuple[str, dict[str, Any]]] = [
        ("nonsense", {"codec": "nonsense"}),
        ("no rule matches", {"rules": [("x", "int8")]}),
        ("no option 'codek'", {"codek": "int8"}),
    ]
    for text, options in refused:
        with pytest.raises(tersor.InvalidArgumentError, match=text):
            tersor.torch.compress(model, **options)
    double = wrap(mlp().double())
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        tersor.torch.compress(double, unsupported="error")
    warns = pytest.warns(UserWarning, match="float64") if rank == 0 else contextlib.nullcontext()
    with warns, pytest.raises(ValueError, match="no gradient"):
        tersor.torch.compress(double)
    absent = mock.patch(
        "tersor.torch._src.process_group.connections.transport",
        side_effect=NoRank("rank 1 did not come"),
    )
    with absent, pytest.raises(NoRank):
        tersor.torch.compress(model, codec="int8")
    tersor.torch.compress(model, codec="int8")
    with pytest.raises(tersor.InvalidArgumentError, match="communication hook already"):
        tersor.torch.compress(model, codec="int4")
    assert len(model._comm_hooks) == 1
    assert one_backward(model, rank, 0) is None


def python_reducer(rank: int, _: int) -> str:
    model = wrap(mlp())
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        return message_of(lambda: tersor.torch.compress(model, codec="int8"))


def test_compress_rejects_the_python_reducer() -> None:
    for message in ranks.run(python_reducer, 1):
        assert '"ddp_optimizer"' in message


def python_reducer_of_a_hook(rank: int, _: int) -> str:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = wrap(mlp())
        model.register_comm_hook(tersor.torch.HookState(codec="int8"), tersor.torch.hook)
        return str(one_backward(model, rank, 0))


def test_hook_rejects_the_python_reducer() -> None:
    for message in ranks.run(python_reducer_of_a_hook, 1):
        assert '"ddp_optimizer"' in message


def ends_with_an_error(rank: int, _: int) -> None:
    model = wrap(mlp())
    tersor.torch.compress(model, codec="int8", timeout=20)
    list(train(model, rank, range(2)))
    raise KeyError("a mistake of the trainer's")


@pytest.mark.long
def test_process_exits_cleanly_without_close() -> None:
    for outcome in ranks.outcomes(ends_with_an_error, 2, fresh=True):
        assert isinstance(outcome.error, KeyError)
        assert outcome.exit_code == 0
        assert "terminate" not in outcome.output


def wrong_model(rank: int, _: int) -> str:
    model = DistributedDataParallel(mlp())
    state = tersor.torch.HookState(mlp(), codec="int8")
    model.register_comm_hook(state, tersor.torch.hook)
    assert one_backward(model, rank, 0) is not None
    state.reset()  # of what there never was a first good pass
    return str(one_backward(model, rank, 1))


def test_hook_state_of_another_model_raises() -> None:
    for message in ranks.run(wrong_model, 2):
        assert "that is not in the model" in message


def append(module: Any) -> None:
    module.append(nn.Conv2d(8, 8, 3, padding=1))


def replace(module: Any) -> None:
    module[1] = nn.Conv2d(8, 8, 3, padding=1)


def reorder(module: Any) -> None:
    module.to(memory_format=torch.channels_last)


def changed(rank: int, count: int, change: Callable[[Any], object]) -> str:
    """Returns the error of the pass after a change of the model."""
    layers = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    model = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=True)
    tersor.torch.compress(model, codec="int8")
    images = torch.ones(2, 8, 5, 5)
    model(images).sum().backward()
    change(model.module)
    with torch.no_grad():
        model(images)  # no gradients
    return message_of(lambda: model(images))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (append, "2.weight, 2.bias: added after DistributedDataParallel was made"),
        (replace, "1.weight, 1.bias: added after DistributedDataParallel was made"),
        (reorder, "0.weight has another memory order"),
    ],
)
def test_changed_model_is_rejected(change: Callable[[Any], object], text: str) -> None:
    for message in ranks.run(changed, 2, change):
        assert text in message


def frozen_in_between(rank: int, count: int) -> str:
    model = wrap(mlp(), find_unused_parameters=True)
    model.module[0].weight.requires_grad_(False)
    tersor.torch.compress(model, codec="int8", timeout=10)
    return str(one_backward(model, rank, 0))


def test_layer_frozen_between_ddp_and_compress_is_rejected() -> None:
    for message in ranks.run(frozen_in_between, 2):
        assert "0.weight was frozen between DistributedDataParallel and compress()" in message


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_close_and_destroy_in_any_order(when: str) -> None:
    for outcome in ranks.outcomes(closes, 2, when, fresh=True):
        assert outcome.error is None, outcome.traceback
        assert outcome.exit_code == 0, outcome.output


def closes(rank: int, _: int, when: str) -> None:
    model = wrap(mlp())
    handle = tersor.torch.compress(model, codec="int8")
    list(train(model, rank, range(2)))
    if when == "before":
        handle.close()
    dist.destroy_process_group()
    if when == "after":
        handle.close()
