"""A parameter server as actors of Ray."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pages import programs

import tersor

ray = pytest.importorskip("ray")
import tersor.ray  # noqa: E402  # Ray is needed

pytestmark = pytest.mark.long  # where Ray is, in a part of scripts/test of its own

COUNTS = {"a": (3, 7), "b": (5_000,), "c": (1,)}
EXACT: Any = {"push": "none", "pull": "none"}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_documented_program() -> None:
    (program,) = programs("docs/systems/ray.md", "ray")
    exec(program.replace("ray.init()", ""), {})


def zeros() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, np.float32) for name, shape in COUNTS.items()}


def gradient(worker: int, clock: int) -> dict[str, np.ndarray[Any, Any]]:
    drawn = np.random.default_rng(100 * worker + clock)
    return {name: drawn.standard_normal(one.shape, np.float32) for name, one in zeros().items()}


@ray.remote
def train(server: Any, worker: int, clocks: int, dies_at: int | None = None) -> list[float]:
    """The first weight of each clock."""
    seen, weights = [], zeros()
    with server.client(worker) as client:
        for clock in range(clocks):
            client.pull(weights)
            seen.append(float(weights["b"][0]))
            if clock == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            client.push(gradient(worker, clock))
    return seen


@pytest.mark.parametrize("servers", [1, 2])
def test_server_applies_the_mean_gradient(servers: int) -> None:
    server = tersor.ray.ParameterServer(zeros(), 0.5, servers=servers, workers=range(3), **EXACT)
    seen = ray.get([train.remote(server, worker, 5) for worker in range(3)])
    assert seen[0] == seen[1] == seen[2]
    for name, found in server.parameters().items():
        pushes = [gradient(worker, clock)[name] for worker in range(3) for clock in range(5)]
        np.testing.assert_allclose(found, -0.5 * sum(pushes) / 3, rtol=1e-5, atol=1e-5)
    assert sum(one.pushes for one in server.statistics()) == 15 * servers


def test_feedback_sends_residuals_later_with_fewer_bytes() -> None:
    server = tersor.ray.ParameterServer(zeros(), 1.0, push="topk:density=0.1+ef", pull="int8")
    with server.client(0) as client:
        for _ in range(60):
            client.push(gradient(0, 0))
    wanted = -60 * gradient(0, 0)["b"]
    assert np.linalg.norm(server.parameters()["b"] - wanted) < 0.3 * np.linalg.norm(wanted)
    (told,) = server.statistics()
    assert told.pushed_bytes < 60 * 0.4 * 4 * 5_022


def test_custom_update_function() -> None:
    def halve(parts: list[tuple[str, Any, Any]]) -> None:
        for name, own, by in parts:
            own -= (2.0 if name == "b" else 1.0) * by

    server = tersor.ray.ParameterServer(zeros(), halve, **EXACT)
    with server.client(7) as client:
        client.push(gradient(7, 0))
    np.testing.assert_allclose(server.parameters()["b"], -2 * gradient(7, 0)["b"], rtol=1e-6)
    np.testing.assert_allclose(server.parameters()["a"], -gradient(7, 0)["a"], rtol=1e-6)


def test_killed_worker_does_not_block_the_others() -> None:
    server = tersor.ray.ParameterServer(zeros(), workers=range(3), timeout=1.0, **EXACT)
    dying = train.options(max_retries=0).remote(server, 2, 8, dies_at=3)
    others = [train.remote(server, worker, 8) for worker in range(2)]
    assert all(len(seen) == 8 for seen in ray.get(others))
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(dying)
    assert server.statistics()[0].lost == [2]


def test_worker_may_join_late_and_leave() -> None:
    server = tersor.ray.ParameterServer(zeros(), staleness=1, **EXACT)
    with server.client(0) as first:
        for clock in range(3):
            first.push(gradient(0, clock))
        assert len(ray.get(train.remote(server, 1, 2))) == 2  # clocks 3 and 4
        first.pull(zeros())  # nobody waits for who has left


def test_a_worker_may_leave_early() -> None:
    server = tersor.ray.ParameterServer(zeros(), servers=2, **EXACT)
    with server.client(0) as client:
        client.push(gradient(0, 0))
        client.leave()
        client.leave()
    client.push(gradient(0, 1))
    with pytest.raises(tersor.InvalidArgumentError, match="worker 0 has not joined"):
        client.flush()


def test_silent_worker_is_lost_and_may_rejoin() -> None:
    server = tersor.ray.ParameterServer(zeros(), workers=range(2), timeout=0.5, **EXACT)
    silent = server.client(0)
    ray.get(train.remote(server, 1, 3))
    assert server.statistics()[0].lost == [0]
    with pytest.raises(
        tersor.InvalidArgumentError, match="worker 0 has not joined, or was considered lost"
    ):
        silent.pull(zeros())
    with server.client(0) as again:
        again.pull(zeros())


def test_invalid_options_and_pushes_are_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"leave out \+ef"):
        tersor.ray.ParameterServer(zeros(), pull="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="leave out max_restarts"):
        tersor.ray.ParameterServer(zeros(), actor_options={"max_restarts": 1})
    with pytest.raises(tersor.InvalidArgumentError, match="no option 'pul'"):
        tersor.ray.ParameterServer(zeros(), pul="int8")  # type: ignore[call-arg]
    server = tersor.ray.ParameterServer(zeros(), **EXACT)
    client = server.client(0)
    bad = gradient(0, 0)
    bad["b"][7] = np.nan
    with pytest.raises(tersor.InvalidArgumentError, match="not finite"):
        client.push(bad)
    client.push(gradient(0, 0))
    client._clocks = [0]
    client.push(gradient(0, 0))
    with pytest.raises(
        tersor.InvalidArgumentError, match="pushes for clock 0, but its next clock is 1"
    ):
        client.leave()
    np.testing.assert_allclose(server.parameters()["b"], -0.1 * gradient(0, 0)["b"], rtol=1e-6)


def test_missing_worker_fails_the_calls_of_the_others() -> None:
    server = tersor.ray.ParameterServer(zeros(), workers=range(3), timeout=0.5, **EXACT)
    client = server.client(1)
    with pytest.raises(tersor.Error, match=r"workers \[0, 2\] .* did not join within 0\.5 s"):
        client.pull(zeros())
    client.push(gradient(1, 0))
    with pytest.raises(tersor.Error, match=r"workers \[0, 2\]"):
        client.leave()


def test_update_error_reaches_every_worker() -> None:
    def fails(parts: list[tuple[str, Any, Any]]) -> None:
        raise ValueError("no disk")

    server = tersor.ray.ParameterServer(zeros(), fails, workers=range(3), timeout=5.0, **EXACT)
    clients = [server.client(worker) for worker in range(3)]
    for worker, client in enumerate(clients):
        client.push(gradient(worker, 0))
    for client in clients:
        with pytest.raises(RuntimeError, match="no disk"):
            client.pull(zeros())
    with pytest.raises(RuntimeError, match="no disk"):
        server.client(3)


@pytest.mark.parametrize("push", ["none", "int8+ef"])
def test_rejected_push_reaches_no_server(push: str) -> None:
    server = tersor.ray.ParameterServer(zeros(), 1.0, servers=3, push=push, pull="none")
    wrong: list[tuple[str, Any, str]] = [
        ("c", np.ones(2, np.float32), r"c is float32 of \(2,\)"),
        ("b", np.ones(5_000), "b is float64"),
        ("b", np.ones(5_000, np.float16), "b is float16"),
        ("b", [1.0] * 4_999, r"b is float64 of \(4999,\)"),
        ("a", np.ones((7, 3), np.float32), r"pass float32 of \(3, 7\)"),
        ("d", np.ones(1, np.float32), "no parameters d"),
    ]
    ones = {name: np.ones_like(one) for name, one in zeros().items()}
    with server.client(0) as client:
        for name, array, said in wrong:
            with pytest.raises(tersor.InvalidArgumentError, match=said):
                client.push({**ones, name: array})
        with pytest.raises(tersor.InvalidArgumentError, match="pull: a is float32"):
            client.pull({**zeros(), "a": np.ones((7, 3), np.float32)})
        client.push({**ones, "b": np.ones(10_000, np.float32)[::2]})
    assert [one.pushes for one in server.statistics()] == [1, 1, 1]
    assert all(np.allclose(one, -1, atol=0.01) for one in server.parameters().values())


def raw_push(client: Any, clock: int, of: dict[str, np.ndarray[Any, Any]]) -> Any:
    """A push of a worker that keeps to nothing."""
    actor, frames, life = client._servers[0]
    frame = np.empty(frames.push_capacity, np.uint8)
    used = frames.encode(list(of.values()), clock, frame)
    return actor.push.remote(client._worker, life, clock, frame[:used])


def test_server_rejects_a_third_unanswered_push() -> None:
    server = tersor.ray.ParameterServer(zeros(), workers=range(2), timeout=60.0, **EXACT)
    client, other = server.client(0), server.client(1)
    first, second, *more = [raw_push(client, clock, gradient(0, 0)) for clock in (0, 1, 2, 1)]
    for refused in more:
        with pytest.raises(
            tersor.InvalidArgumentError, match="worker 0 pushes while 2 of its pushes"
        ):
            ray.get(refused)
    other.push(gradient(1, 0))
    ray.get(first)
    client._clocks = [2]
    client.push(gradient(0, 2))
    other.push(gradient(1, 1))
    other.push(gradient(1, 2))
    ray.get(second)
    client.leave()
    other.leave()
    assert server.statistics()[0].pushes == 6


@pytest.mark.parametrize("staleness", [0, None])
def test_nonfinite_push_does_not_change_parameters(staleness: int | None) -> None:
    server = tersor.ray.ParameterServer(zeros(), staleness=staleness, **EXACT)
    client = server.client(4)
    bad = gradient(4, 0)
    bad["b"][7] = np.inf
    client._pushed.append([raw_push(client, 0, bad)])
    client._clocks = [1]
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"worker 4's push for clock 0: .* not finite"
    ):
        client.pull(zeros())
    assert all((one == 0).all() for one in server.parameters().values())


def test_retried_task_replaces_the_old_worker() -> None:
    server = tersor.ray.ParameterServer(zeros(), workers=range(2), timeout=600.0, **EXACT)
    first = server.client(0)
    again = server.client(0)
    other = train.remote(server, 1, 1)
    again.push(gradient(0, 0))
    ray.get(other)
    first.push(gradient(0, 5))
    with pytest.raises(tersor.InvalidArgumentError, match="another worker has its number"):
        first.flush()
    again.leave()


def test_late_worker_pushes_count_on_each_server() -> None:
    server = tersor.ray.ParameterServer(zeros(), servers=2, staleness=None, **EXACT)
    fast = server.client(0)
    for clock in range(20):
        fast.push(gradient(0, clock))
    late = ray.get([train.remote(server, worker, 4) for worker in (1, 2)])
    assert [len(seen) for seen in late] == [4, 4]
    fast.leave()
    assert [one.pushes for one in server.statistics()] == [28, 28]


@pytest.mark.parametrize("nodes", [1, 2])
def test_benchmark_runs_on_one_or_two_nodes(tmp_path: pathlib.Path, nodes: int) -> None:
    from ray.cluster_utils import Cluster

    words = ["--codec", "int8+ef", "--mib", "1", "--pushes", "2", "--turns", "1"]
    path = tmp_path / "records.json"
    command = [sys.executable, "-m", "tersor.bench", "ray", *words, "--json", str(path)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        subprocess.run([*command, "--address", cluster.address], check=True, timeout=240)
    finally:
        cluster.shutdown()
    (record,) = json.loads(path.read_text())
    assert record["nodes"] == nodes
    assert record["payload_bytes"] < 0.27 * 4 * record["count"]
    assert 0 < record["ratio"] == pytest.approx(record["baseline_seconds"] / record["seconds"])
