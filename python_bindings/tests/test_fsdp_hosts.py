"""Hierarchical FSDP2: gradients are added within each host, and encoded between hosts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sharded_models import (
    INPUTS,
    backward,
    gradients,
    make_model,
    shard,
    sharded_model,
    train,
    weights,
)
from torch.distributed.device_mesh import init_device_mesh

import ranks
import tersor
from tersor.torch import fsdp

HOSTS = [0, 1, 1, 0]


def by_hosts(hosts: list[int]) -> dict[str, Any]:
    return {
        "rules": [("*.weight", "int4+ef"), ("*", "bf16")],
        "advanced": fsdp.ShardedOptions(algorithm="hierarchical", hosts=hosts),
    }


BY_HOSTS = by_hosts(HOSTS)


@ranks.on(4)
def test_gradients_are_near_the_mean(rank: int, count: int) -> None:
    plain, model = sharded_model(count), sharded_model(count)
    handle = fsdp.compress(model, **{**BY_HOSTS, "rules": [("*.weight", "int8"), ("*", "bf16")]})
    for one in (plain, model):
        backward(one, rank, 0)
    wanted, found = gradients(plain), gradients(model)
    assert 0 < float((found - wanted).norm() / wanted.norm()) < 0.02
    assert {one.algorithm for one in handle.statistics()} == {"hierarchical"}
    # A rank sends half of a gradient to the neighbour as f32, and a quarter to the other host.
    (weight,) = [one for one in handle.statistics() if one.name == "0.weight"]
    assert 0.5 * 1.1 < weight.sent_bytes / weight.gradient_bytes < 0.5 * 1.3


@ranks.on(4)
def test_weights_match_the_direct_algorithm_bit_for_bit(rank: int, count: int) -> None:
    found = []
    for advanced in (None, BY_HOSTS["advanced"]):
        model = sharded_model(count)
        fsdp.compress(model, codec="none", weights_codec="int8", advanced=advanced)
        found.append(model(torch.ones(2, INPUTS)))
    assert torch.equal(*found)


@ranks.on(4)
def test_exact_state_resumes_bit_for_bit(rank: int, count: int) -> None:
    first = sharded_model(count)
    handle = fsdp.compress(first, **BY_HOSTS)
    train(first, rank, range(3))
    second = sharded_model(count)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    again = fsdp.compress(second, **BY_HOSTS)
    again.load_state_dict(copy.deepcopy(handle.state_dict()))
    for model in (first, second):
        train(model, rank, range(3, 6))
    assert torch.equal(weights(first), weights(second))
    kept = handle.feedback["0.weight"]
    assert len(kept.residual) == kept.longest == 2 * kept.parameter.shard_count
    other_model = sharded_model(count)
    other = fsdp.compress(other_model, **by_hosts([0, 0, 1, 1]))
    with pytest.raises(tersor.InvalidArgumentError, match="grouped by host in another way"):
        other.load_state_dict(handle.state_dict())


def saves(rank: int, count: int) -> dict[str, Any]:
    model = sharded_model(count)
    handle = fsdp.compress(model, **BY_HOSTS)
    train(model, rank, range(3))
    return handle.state_dict("portable")


def owes(rank: int, count: int, state: dict[str, Any], hosts: list[int]) -> dict[str, Any]:
    """Returns the share of the residuals in the mean."""
    way = "hierarchical" if len(set(hosts)) < count else "auto"
    advanced = fsdp.ShardedOptions(algorithm=way, hosts=hosts)
    kept_model = sharded_model(count)
    handle = fsdp.compress(kept_model, **{**BY_HOSTS, "advanced": advanced})
    handle.load_state_dict(state)
    totals = handle.state_dict("portable")["residuals"]
    return {name: total / count for name, total in totals.items()}


def test_portable_state_preserves_the_mean_for_any_host_layout() -> None:
    state = ranks.run(saves, 4)[0]
    assert all(float(total.norm()) > 0 for total in state["residuals"].values())
    for hosts in (HOSTS, [0, 0, 1, 1], [0, 1], [0, 1, 2, 3]):
        for found in ranks.run(owes, len(hosts), state, hosts):
            for name, values in found.items():
                torch.testing.assert_close(values, state["residuals"][name] / 4)


@ranks.on(4)
def test_shards_within_hosts_are_encoded_between_replicas_only(rank: int, count: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = shard(make_model(), count, mesh=mesh)
    handle = fsdp.compress(model, **by_hosts([0, 0, 1, 1]))
    backward(model, rank, 0)
    codecs = {str(one.name): one.codec for one in handle.statistics()}
    assert codecs["0.weight"] == "none"  # within a host
    assert codecs["0.weight (replicas)"] == "int4+ef"


@ranks.on(3)
def test_invalid_hosts_raise(rank: int, count: int) -> None:
    model = sharded_model(count)
    with pytest.raises(tersor.InvalidArgumentError, match="hosts has 2 numbers for 3 ranks"):
        fsdp.compress(model, **by_hosts([0, 1]))
    fsdp.compress(model, **by_hosts([0, 0, 1]))
    # Or a rank receives the error of another rank.
    with pytest.raises(
        (tersor.InvalidArgumentError, tersor.TransportError), match="the hosts have 2, 1"
    ):
        backward(model, rank, 0)
