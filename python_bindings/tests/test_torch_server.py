"""A parameter server and gossip of models, among processes."""

from __future__ import annotations

import os
import signal
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import ranks as processes  # noqa: E402  torch comes first
import tersor  # noqa: E402
import tersor.torch  # noqa: E402

SAMPLES = torch.randn(64, 20, generator=torch.Generator().manual_seed(3))


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 20))


def loss_of(model: torch.nn.Module, part: slice = slice(None)) -> torch.Tensor:
    inputs = SAMPLES[part]
    return (model(inputs) - inputs.roll(1, 1)).square().mean()


def by_adam(parts: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parts, lr=0.01)


def alone(steps: int) -> torch.nn.Module:
    model = network()
    optimizer = by_adam(list(model.parameters()))
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model


@processes.on(3)
def test_server_optimizer_updates_the_weights(rank: int, ranks: int) -> None:
    told: Any = {"push": "none", "pull": "none"}
    model = network() if rank == 0 else network(seed=5)  # which the workers pull over
    if rank == 0:
        server = tersor.torch.ParameterServer(model, by_adam, **told)
        server.wait()
        assert server.statistics().pushes == 40
        return
    half = slice(32 * (rank - 1), 32 * rank)
    with tersor.torch.ParameterClient(model, **told) as client:
        for _ in range(20):
            client.pull()
            model.zero_grad()
            loss_of(model, half).backward()
            client.push()
        client.pull()
    for own, wanted in zip(model.parameters(), alone(20).parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)


@processes.on(3)
def test_frozen_layers_stay_and_nonfinite_gradients_push_zeros(rank: int, ranks: int) -> None:
    """Two layers of a value each are on no server but one; weight decay moves nothing frozen."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    model.load_state_dict({name: torch.ones_like(one) for name, one in model.state_dict().items()})
    model[0].requires_grad_(False)
    server = tersor.torch.ParameterServer(
        model,
        lambda parts: torch.optim.AdamW(parts, lr=0.1, weight_decay=0.5),
        servers=range(ranks),
    )
    with tersor.torch.ParameterClient(model, server=server) as client:
        for step in range(4):
            client.pull()
            model.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            if step == 1 and rank == 2:
                model[1].weight.grad.fill_(float("inf"))
                with pytest.warns(UserWarning, match=r"1\.weight is not finite: pushed zeros"):
                    client.push()
            else:
                client.push()
        assert client.skipped_steps == (rank == 2)
        client.pull()
        model[0].requires_grad_(True)
        model(torch.ones(1, 1)).sum().backward()
        with pytest.raises(tersor.InvalidArgumentError, match=r"0\.weight has a gradient"):
            client.push()
    server.wait()
    assert all(bool((one == 1).all()) for one in model[0].parameters())
    assert all(0 < one.item() < 1 for one in model[1].parameters())


@processes.on(2)
def test_nonfinite_parameters_on_the_server_warn(rank: int, ranks: int) -> None:
    model = torch.nn.Linear(2, 2)
    server = tersor.torch.ParameterServer(
        model, lambda parts: torch.optim.SGD(parts, lr=torch.inf), servers=range(ranks)
    )
    with tersor.torch.ParameterClient(model, server=server) as client:
        client.pull()
        model(torch.ones(1, 2)).sum().backward()
        client.push()
        with pytest.warns(UserWarning, match=r"weight on the server is not finite"):
            client.pull()
    server.wait()


@processes.on(2)
def test_unsupported_parameters_and_timeouts_raise(rank: int, ranks: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"weight: .* float32, bfloat16"):
        tersor.torch.ParameterClient(torch.nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"straggler_timeout=1e.09: .* less than timeout="
    ):
        tersor.torch.ParameterServer(network(), by_adam, straggler_timeout=1e9)


@processes.on(2)
def test_sparse_gradient_raises(rank: int, ranks: int) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(50, 20, sparse=True))
    server = tersor.torch.ParameterServer(model, by_adam, servers=range(2))
    with tersor.torch.ParameterClient(model, server=server) as client:
        client.pull()
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(tersor.InvalidArgumentError, match=r"0\.weight is sparse"):
            client.push()
        model[0].weight.grad = model[0].weight.grad.to_dense()
        client.push()
    server.wait()


@processes.on(2)
def test_serving_rank_also_trains_in_bfloat16(rank: int, ranks: int) -> None:
    model = network().to(torch.bfloat16)
    first = loss_of(model.float()).item()
    model.to(torch.bfloat16)
    server = tersor.torch.ParameterServer(model, by_adam, servers=range(2))
    with tersor.torch.ParameterClient(model, server=server) as client:
        for _ in range(60):
            client.pull()
            model.zero_grad()
            inputs = SAMPLES.to(torch.bfloat16)
            (model(inputs) - inputs.roll(1, 1)).square().mean().backward()
            model[0].bias.grad = None
            client.push()
    server.wait()
    assert loss_of(model.float()).item() < 0.9 * first


@processes.on(2)
def test_client_follows_replaced_parameters(rank: int, ranks: int) -> None:
    told: Any = {"push": "none", "pull": "none"}
    model, reference = network(), network()
    if rank == 0:
        tersor.torch.ParameterServer(model, by_adam, **told).wait()
        return
    optimizer = by_adam(list(reference.parameters()))
    with tersor.torch.ParameterClient(model, **told) as client:
        for clock in range(4):
            state = {name: one.clone() for name, one in model.state_dict().items()}
            if clock == 1:
                model.load_state_dict(state, assign=True)
            if clock == 2:
                model[0] = torch.nn.Linear(20, 40)
            client.pull()
            for one, other in ((model, client), (reference, optimizer)):
                one.zero_grad()
                loss_of(one).backward()
                other.push() if other is client else other.step()
        client.pull()
        for own, wanted in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own, wanted)
        model[0] = torch.nn.Linear(20, 41)
        with pytest.raises(tersor.InvalidArgumentError, match=r"0\.weight: the model has no such"):
            client.pull()


def mortal_worker(rank: int, ranks: int) -> list[int]:
    model = network()
    if rank == 0:
        server = tersor.torch.ParameterServer(model, by_adam)
        with pytest.warns(UserWarning, match=r"left out workers \[2\]"):
            return server.wait()
    with tersor.torch.ParameterClient(model) as client:
        for clock in range(20):
            client.pull()
            loss_of(model).backward()
            if rank == 2 and clock == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            client.push()
    return [client.clock]


def test_killed_worker_is_reported_and_does_not_block_the_others() -> None:
    found = processes.outcomes(mortal_worker, 4)
    assert found[0].value == [2], found[0].traceback
    assert found[1].value == found[3].value == [20]
    assert found[2].exit_code == -signal.SIGKILL


@processes.on(4)
def test_gossip_converges_to_the_mean(rank: int, ranks: int) -> None:
    model = network(seed=rank)
    all_weights = [list(network(seed=one).parameters()) for one in range(4)]
    mean = [sum(own) / 4 for own in zip(*all_weights, strict=True)]
    if rank % 2:
        model[2].to(torch.bfloat16)  # as the others' to the graph, which sees float32
    gossip = tersor.torch.Gossip(model, "ring", codec="int8")
    for _ in range(40):
        gossip.step()
    for own, wanted in zip(model.parameters(), mean, strict=True):
        torch.testing.assert_close(own.float(), wanted, rtol=0.02, atol=0.01)
    assert gossip.statistics().steps == 40


@processes.on(2)
def test_gossip_does_not_depend_on_the_default_device(rank: int, ranks: int) -> None:
    model = network().bfloat16()
    torch.set_default_device("meta")
    try:
        gossip = tersor.torch.Gossip(model, "ring")
    finally:
        torch.set_default_device(None)
    gossip.step()
    assert model[0].weight.isfinite().all()


@processes.on(2)
def test_gossip_during_training(rank: int, ranks: int) -> None:
    halves = torch.nn.Linear(16, 16).half()
    generator = torch.Generator().manual_seed(rank)
    halves.weight.data = 65504 * torch.randn(16, 16, generator=generator).sign().half()
    mixing = tersor.torch.Gossip(halves, codec="hadamard:bits=1", on_split="warn")
    for _ in range(3):
        mixing.step()
    assert halves.weight.isfinite().all()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    gossip = tersor.torch.Gossip(model, codec="int4")
    first = loss_of(model).item()
    half = slice(32 * rank, 32 * (rank + 1))
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model, half).backward()
        optimizer.step()
        gossip.step()
    assert loss_of(model).item() < 0.9 * first


@processes.on(1)
def test_gossip_rejects_unsupported_models(rank: int, ranks: int) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="whole parameters of float32"):
        tersor.torch.Gossip(network().double())
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module"):
        tersor.torch.Gossip(torch.ones(3))  # type: ignore[arg-type]


@processes.on(2)
def test_gossip_rejects_added_and_untied_parameters(rank: int, ranks: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    gossip = tersor.torch.Gossip(model)
    gossip.step()
    model[1].weight = torch.nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(tersor.InvalidArgumentError, match=r"1\.weight is new"):
        gossip.step()
    model[1].weight = model[0].weight
    gossip.step()
    model.append(torch.nn.Linear(8, 1, bias=False))
    with pytest.raises(tersor.InvalidArgumentError, match=r"2\.weight is new"):
        gossip.step()


@processes.on(2)
def test_network_split_raises_after_the_weight_update(rank: int, ranks: int) -> None:
    model = network().bfloat16()
    gossip = tersor.torch.Gossip(model)

    def mix(mixing: tersor.torch.Gossip) -> None:
        mixing._mixed["0.weight"].fill_(2)
        raise tersor.TransportError("no path connects rank 0 to ranks 2 3")

    with mock.patch.object(tersor.Gossip, "mix", mix), pytest.raises(tersor.TransportError):
        gossip.step()
    assert torch.all(model[0].weight == 2)
