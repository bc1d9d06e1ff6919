"""Errors of compressed FSDP2, before and during a step."""

from __future__ import annotations

import functools
import gc
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import backward, gradients, make_model, plain_step, sharded_model
from torch.distributed.fsdp import FSDPModule

import ranks
import tersor
from tersor.torch import fsdp
from tersor.torch._src.fsdp.exchange import Sender
from tersor.torch._src.fsdp.weights import WeightExchange
from tersor.torch._src.parameters import selection as parameters


@ranks.on(1)
def test_invalid_options_raise_before_training(rank: int, count: int) -> None:
    two_shot: Any = "two-shot"
    by_hosts = fsdp.ShardedOptions(algorithm="hierarchical")
    refused: list[tuple[str, dict[str, Any]]] = [
        ("no option 'reduction'", {"reduction": "sum"}),
        ("algorithm must be one of", {"advanced": fsdp.ShardedOptions(algorithm=two_shot)}),
        ("auto chooses the algorithm", {"codec": "auto", "advanced": by_hosts}),
        ("weights_codec", {"weights_codec": "int8+ef"}),
        ("int7", {"weights_codec": "int7"}),
        ("residual_dtype", {"residual_dtype": "f16"}),
    ]
    for message, options in refused:
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            fsdp.compress(sharded_model(count), **options)
    with pytest.raises(TypeError, match=r"advanced must be ShardedOptions\(\.\.\.\)"):
        fsdp.compress(sharded_model(count), advanced=tersor.AdvancedOptions())  # type: ignore[arg-type]
    with pytest.raises(tersor.InvalidArgumentError, match="call fully_shard"):
        fsdp.compress(make_model())
    model = sharded_model(count)
    fsdp.compress(model)
    with pytest.raises(tersor.InvalidArgumentError, match="remove"):
        fsdp.compress(model)


@ranks.on(1)
def test_handle_of_a_deleted_model_raises(rank: int, count: int) -> None:
    handle = fsdp.compress(sharded_model(count), codec="int4+ef")
    gc.collect()
    with pytest.raises(tersor.InvalidArgumentError, match="the model that was compressed is gone"):
        handle.state_dict()
    handle.remove()


class Foreign:
    """Somebody else's collective."""

    def allocate(self, *arguments: Any, **options: Any) -> None:
        raise AssertionError("is not called")

    def __call__(self, *arguments: Any, **options: Any) -> None:
        raise AssertionError("is not called")


def finds_a_foreign_exchange(rank: int, count: int) -> None:
    model = sharded_model(count)
    model[2].set_custom_reduce_scatter(Foreign())  # type: ignore[operator,union-attr]
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"2 has a custom reduce-scatter.*Foreign"
    ):
        fsdp.compress(model)


def finds_a_foreign_gather(rank: int, count: int) -> None:
    model = sharded_model(count)
    model[2].set_custom_all_gather(Foreign())  # type: ignore[operator,union-attr]
    with pytest.raises(tersor.InvalidArgumentError, match=r"2 has a custom all-gather.*Foreign"):
        fsdp.compress(model, weights_codec="int8")
    fsdp.compress(model)  # leaves weights alone


@pytest.mark.parametrize("body", [finds_a_foreign_exchange, finds_a_foreign_gather])
def test_a_custom_collective_is_not_replaced(body: Callable[[int, int], None]) -> None:
    ranks.run(body, 1)


def has_different_codecs(rank: int, count: int) -> str:
    model = sharded_model(count)
    handle = fsdp.compress(model, codec="int8" if rank == 0 else "int4")
    with pytest.raises(tersor.TransportError) as raised:
        backward(model, rank, 0)
    assert bool(torch.isnan(gradients(model)).any())
    model.zero_grad()
    handle.reset()
    handle.remove()
    fsdp.compress(model, codec="int8")  # over new connections; and FSDP itself is as it was
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain_step(model, optimizer, rank, 1)
    assert all(bool(torch.isfinite(one.to_local()).all()) for one in model.parameters())
    return str(raised.value)


def test_ranks_recover_from_a_codec_mismatch() -> None:
    for message in ranks.run(has_different_codecs, 2):
        assert "gradient reducer" in message


def fails_alone(rank: int, count: int, weights: bool) -> str:
    """The last rank raises before sending. The other ranks must not wait."""
    kept_model = sharded_model(count)
    gradients = fsdp.compress(kept_model, codec="int8")._gradients[0]
    failing = rank == count - 1
    long, short, world = (
        torch.ones(150 if failing and weights else 200),
        torch.ones(100),
        dist.group.WORLD,
    )
    operation = dist.ReduceOp.MAX if failing else dist.ReduceOp.AVG
    call = functools.partial(gradients, short, long, world, operation)
    if weights:
        exchange = WeightExchange("int8", gradients._sender, gradients)
        call = functools.partial(exchange, long, short, world)
    with pytest.raises(tersor.InvalidArgumentError if failing else tersor.TransportError) as raised:
        call()
    assert bool(torch.isnan(long if weights else short).any())
    return str(raised.value)


@pytest.mark.parametrize("weights", [False, True])
def test_failing_rank_notifies_the_other_ranks(weights: bool) -> None:
    found = ranks.run(fails_alone, 2, weights)  # with a deadline below the timeout of 300 s
    assert found[1] in found[0]


class Step:
    """The step of a reducer, which ends with or without an error."""

    in_step = True

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def finish(self) -> None:
        self.in_step = False
        if self._error is not None:
            raise self._error


def test_error_finishes_all_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Step(), Step(RuntimeError("first")), Step(RuntimeError("second")), Step()]
    sender, late = Sender({}), torch.zeros(3)
    monkeypatch.setattr(sender, "every_reducer", lambda: steps)
    sender.defer(late)
    with pytest.raises(RuntimeError, match="first"):
        sender._end()
    assert not any(one.in_step for one in steps)
    assert bool(late.isnan().all())


def backward_double(model: torch.nn.Module, rank: int) -> None:
    inputs = torch.randn(8, 65, generator=torch.Generator().manual_seed(rank)).double()
    model(inputs).square().sum().backward()


@ranks.on(2)
def test_unsupported_dtypes_pass_through_with_a_warning(rank: int, count: int) -> None:
    ours, reference = sharded_model(count), sharded_model(count)
    fsdp.compress(ours, codec="int4")
    for model in (ours, reference):
        model.double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backward_double(ours, rank)
    sharded = [one for one in ours.modules() if isinstance(one, FSDPModule)]
    assert len(caught) == (len(sharded) if rank == 0 else 0)
    assert {one.filename for one in caught} <= {parameters.__file__}
    assert all(str(one.message).endswith("(float64)") for one in caught)
    backward_double(reference, rank)
    assert torch.equal(gradients(ours), gradients(reference))


@ranks.on(2)
def test_unsupported_dtypes_raise_with_the_error_option(rank: int, count: int) -> None:
    model = sharded_model(count)
    fsdp.compress(model, unsupported="error")
    model.double()
    with pytest.raises(tersor.InvalidArgumentError, match="float64"):
        backward_double(model, rank)


def tells_its_memory(rank: int, count: int, options: dict[str, Any]) -> list[str]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tersor").addHandler(handler)
    fsdp.compress(sharded_model(count), **options)
    logging.getLogger("tersor").removeHandler(handler)
    return messages


def test_feedback_logs_its_memory() -> None:
    assert ranks.run(tells_its_memory, 1, {"codec": "int4"}) == [[]]
    values = 65 * 71 * 2  # of both weights that a codec takes
    (f32,) = ranks.run(tells_its_memory, 1, {"codec": "int4+ef"})
    assert len(f32) == 1
    assert f"{4 * values / 2**20:.1f} MiB" in f32[0]
    (bf16,) = ranks.run(tells_its_memory, 1, {"codec": "int4+ef", "residual_dtype": "bf16"})
    assert f"{2 * values / 2**20:.1f} MiB" in bf16[0]
