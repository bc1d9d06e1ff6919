"""The parameter server and gossip among ranks in threads of this process."""

from __future__ import annotations

import array
import contextlib
import gc
import pickle
import threading
import time
from typing import Any, Literal

import numpy as np
import pytest
from pages import programs

import tersor
import tersor.local

SHAPES = {"first.weight": (70, 90), "first.bias": (90,), "second.weight": (90, 3)}


def zeros() -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def gradient(worker: int, clock: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1000 * clock + worker)
    return {n: draw.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def flat(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([one.ravel() for one in arrays.values()])


def test_bulk_synchronous_workers_apply_the_mean_gradient() -> None:
    def rank(transport: tersor.Transport) -> Any:
        weights = zeros()
        if transport.rank == 3:
            server = tersor.ParameterServer(transport, weights, 0.5, servers=[3], pull="none")
            server.wait()
            told = server.statistics()
            assert told.pushes == 12
            assert told.lost == []
            assert told.pushed_bytes < 0.3 * 12 * 4 * flat(weights).size
            return np.concatenate([own for _, own in server.parameters().values()])
        with tersor.ParameterClient(transport, weights, servers=[3], pull="none") as client:
            for clock in range(4):
                assert client.clock == clock
                client.pull(weights)
                client.push(gradient(transport.rank, clock))
        return flat(weights)

    *workers, whole = tersor.local.run(4, rank)
    means = [np.mean([flat(gradient(w, c)) for w in range(3)], axis=0) for c in range(4)]
    np.testing.assert_allclose(whole, -0.5 * np.sum(means, axis=0), atol=0.02)
    for one in workers:
        np.testing.assert_array_equal(one, workers[0])
        np.testing.assert_allclose(one, -0.5 * np.sum(means[:3], axis=0), atol=0.02)


def test_ranks_may_serve_and_work_with_an_update_function() -> None:
    def rank(transport: tersor.Transport) -> Any:
        weights = zeros()
        seen: list[str] = []

        def update(parts: list[tuple[str, np.ndarray, np.ndarray]]) -> None:
            for name, own, by in parts:
                seen.append(name)
                own += by

        codecs = {"push": "none", "pull": "none", "reduction": "sum"}
        everybody = range(transport.ranks)
        server = tersor.ParameterServer(transport, weights, update, servers=everybody, **codecs)
        with tersor.ParameterClient(transport, weights, server=server, **codecs) as client:
            for clock in range(3):
                client.push(gradient(transport.rank, clock))
            client.pull(weights)
        server.wait()
        assert set(seen) <= set(SHAPES)
        assert len(seen) % 3 == 0
        return flat(weights)

    wanted = np.sum([flat(gradient(w, c)) for w in range(3) for c in range(3)], axis=0)
    for one in tersor.local.run(3, rank):
        np.testing.assert_allclose(one, wanted, atol=1e-5)


def test_slow_worker_does_not_block_within_the_staleness_bound() -> None:
    clocks, pause = 5, 0.2

    def rank(transport: tersor.Transport) -> float:
        weights = zeros()
        told = {"staleness": clocks}
        if transport.rank == 0:
            tersor.ParameterServer(transport, weights, **told).wait()
            return 0.0
        start = time.monotonic()
        with tersor.ParameterClient(transport, weights, **told) as client:
            for clock in range(clocks):
                client.pull(weights)
                if transport.rank == 2:
                    time.sleep(pause)
                client.push(gradient(transport.rank, clock))
            quick = time.monotonic() - start
        return quick

    _, quick, slow = tersor.local.run(3, rank)
    assert slow >= clocks * pause
    assert quick < slow


def test_arrays_of_another_shape_are_rejected() -> None:
    def rank(transport: tersor.Transport) -> None:
        parameters = {"w": np.zeros((2, 3), np.float32)}
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, parameters, 1.0)
            server.wait()
            assert server.statistics().pushes == 1
            return
        other = {"w": np.ones((3, 2), np.float32)}
        with tersor.ParameterClient(transport, parameters) as client:
            for call in (client.pull, client.push):
                with pytest.raises(tersor.InvalidArgumentError, match=r"\(3, 2\) .* \(2, 3\)"):
                    call(other)
            client.pull(parameters)
            client.push(parameters)

    tersor.local.run(2, rank)


@pytest.mark.parametrize("waits_in", ["pull", "leave"])
def test_silent_worker_does_not_fail_the_others_with_equal_timeouts(waits_in: str) -> None:
    """The server's time limit is half of the clients' time limit."""
    told: Any = {"timeout": 4.0, "push": "none", "pull": "none"}
    left = threading.Barrier(3)

    def rank(transport: tersor.Transport) -> None:
        weights = zeros()
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, weights, **told)
            with pytest.warns(UserWarning, match=r"left out workers \[2\]"):
                assert server.wait() == [2]
            return
        client = tersor.ParameterClient(transport, weights, **told)
        if transport.rank != 2:
            client.push(gradient(transport.rank, 0))
            if waits_in == "pull":
                client.pull(weights)
            client.leave()
        left.wait(60)
        if transport.rank == 2:
            client.push(gradient(transport.rank, 0))
            with pytest.raises(tersor.Error, match=r"was left out|is gone"):
                client.flush()

    tersor.local.run(4, rank)


def test_server_rejects_nonfinite_and_third_unanswered_pushes() -> None:
    """The worker ignores the protocol."""
    arrays = [np.zeros(100, np.float32)]
    options = tersor.server.core_options({"push": "none"}, [0, 1], {"w": arrays[0]})
    shard = tersor._core.ParameterShard(arrays, (1.0, 0.0), options, 0, 1)
    frames = tersor._core.WorkerFrames(arrays, options, 1, 0, 1)
    out = np.empty(frames.push_capacity, np.uint8)

    def push(clock: int, value: float) -> None:
        of = [np.full(100, value, np.float32)]
        shard.push(1, clock, out[: frames.encode(of, clock, out)])

    shard.join(0)
    shard.join(1)
    with pytest.raises(
        tersor.InvalidArgumentError, match=r"worker 1's push for clock 0: .* not finite"
    ):
        push(0, np.nan)
    push(0, 1.0)
    push(1, 1.0)
    with pytest.raises(
        tersor.InvalidArgumentError, match="worker 1 pushes while 2 of its pushes wait"
    ):
        push(2, 1.0)
    assert shard.leave_out_silent(60.0) == []
    shard.leave(0, True)
    assert (shard.values(0) == -2).all()


def test_invalid_options_raise() -> None:
    def refused(transport: tersor.Transport, words: str, **options: Any) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match=words):
            tersor.ParameterServer(transport, zeros(), **options)

    def rank(transport: tersor.Transport) -> None:
        refused(transport, "staleness is -1", staleness=-1)
        refused(transport, r"servers=\[7\]", servers=[7])
        refused(transport, "leave out \\+ef", pull="int8+ef")
        refused(transport, "needs an exchange of all ranks", push="intsum")
        refused(transport, "no option 'codec'", codec="int8")
        refused(transport, "update=nan: give a finite", update=float("nan"))
        refused(transport, "update=-inf: give a finite", update=-float("inf"))
        refused(transport, "momentum=nan: give a finite", momentum=float("nan"))
        refused(transport, "momentum=1e\\+39: give a finite", momentum=1e39)
        refused(transport, "less than timeout=5", timeout=5.0, straggler_timeout=5.0)
        with pytest.raises(tersor.InvalidArgumentError, match="pass it as server="):
            tersor.ParameterClient(transport, zeros())

    tersor.local.run(1, rank)


@pytest.mark.parametrize("other", ["order", "shape"])
def test_model_with_another_order_or_shape_is_rejected(other: str) -> None:
    def rank(transport: tersor.Transport) -> None:
        shapes = {"a": (2, 3), "b": (2, 3)}
        if transport.rank == 1:
            shapes = {"b": (2, 3), "a": (2, 3)} if other == "order" else {**shapes, "b": (3, 2)}
        arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, arrays)
            server.wait()  # until it is gone
            assert server.statistics().lost == [1]
            return
        with pytest.raises(tersor.TransportError, match="model is "):
            tersor.ParameterClient(transport, arrays)

    tersor.local.run(2, rank)


def test_update_error_fails_the_calls_of_all_ranks() -> None:
    told: Any = {"servers": [0], "workers": range(2)}

    def broken(parts: list[tuple[str, np.ndarray, np.ndarray]]) -> None:
        raise RuntimeError("no disk")

    def rank(transport: tersor.Transport) -> None:
        weights, server = zeros(), None
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, weights, broken, **told)
        client = tersor.ParameterClient(transport, weights, server=server, **told)

        def train() -> None:
            client.push(gradient(transport.rank, 0))
            client.pull(weights)

        with pytest.raises((RuntimeError, tersor.InvalidArgumentError), match="no disk"):
            train()
        client.leave()
        if server is not None:
            with pytest.raises(RuntimeError, match="no disk"):
                server.wait()

    tersor.local.run(2, rank)


def test_worker_leaves_after_raising_in_its_block() -> None:
    def rank(transport: tersor.Transport) -> None:
        weights = zeros()
        if transport.rank == 0:
            tersor.ParameterServer(transport, weights, 0.1, timeout=60).wait()
            return
        with tersor.ParameterClient(transport, weights, timeout=60) as client:
            client.push(gradient(1, 0))
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        tersor.local.run(2, rank)


def test_update_arrays_stay_valid_while_referenced() -> None:
    told: Any = {"servers": [0], "workers": range(2)}
    seen: list[np.ndarray] = []

    def update(parts: list[tuple[str, np.ndarray, np.ndarray]]) -> None:
        for _, values, gradients in parts:
            values -= gradients
            seen.append(values)

    def rank(transport: tersor.Transport) -> None:
        weights, server = zeros(), None
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, weights, update, **told)
        client = tersor.ParameterClient(transport, weights, server=server, **told)
        client.push({name: np.ones_like(one) for name, one in weights.items()})
        client.leave()
        if server is not None:
            server.wait()

    tersor.local.run(2, rank)
    gc.collect()
    assert [float(one.max()) for one in seen] == [-1.0] * 3


def test_worker_with_a_different_model_raises() -> None:
    told_so = threading.Event()

    def rank(transport: tersor.Transport) -> None:
        if transport.rank == 0:
            server = tersor.ParameterServer(transport, zeros(), workers=[1])
            server.wait()
            assert server.statistics().pushes == 1
            return
        told = {"like": {"w": np.zeros(3, np.float32)}} if transport.rank == 2 else {}
        arguments = {"like": zeros(), "workers": [1], **told}
        if transport.rank == 2:
            with pytest.raises(tersor.TransportError, match="has other options") as caught:
                tersor.ParameterClient(transport, **arguments)
            assert [one.name for one in caught.value.disagreement if one.name == "model"]
            told_so.set()
            return
        with tersor.ParameterClient(transport, **arguments) as client:
            client.push(gradient(1, 0))
            assert told_so.wait(60)
            with pytest.raises(tersor.InvalidArgumentError, match=r"first\.bias"):
                client.push({"first.weight": zeros()["first.weight"]})

    tersor.local.run(3, rank)


@pytest.mark.parametrize("topology", ["ring", "torus", "exponential"])
@pytest.mark.parametrize("codec", ["int8", "hadamard:bits=1", "blocktopk:density=0.1"])
def test_gossip_converges_to_the_mean(topology: str, codec: str) -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        weights = gradient(transport.rank, 0)
        gossip = tersor.Gossip(transport, topology, codec)
        for name, one in weights.items():
            gossip.add(name, one)
        for _ in range(150):
            gossip.mix()
        told = gossip.statistics()
        assert told.steps == 150
        assert told.lost == []
        assert 0 < gossip.step_size <= 1
        return flat(weights)

    mean = np.mean([flat(gradient(r, 0)) for r in range(6)], axis=0)
    for one in tersor.local.run(6, rank):
        assert np.linalg.norm(one - mean) < 0.02 * np.linalg.norm(mean)


def test_gossip_keeps_array_memory_alive() -> None:
    def rank(transport: tersor.Transport) -> list[float]:
        values = array.array("f", [float(transport.rank)] * 1000)
        gossip = tersor.Gossip(transport, "ring", codec="none")
        gossip.add("values", values)
        gossip.mix()
        with pytest.raises(BufferError):
            values.append(0.0)
        for _ in range(30):
            gossip.mix()
        return values.tolist()

    for found in tersor.local.run(2, rank):
        assert found == pytest.approx([0.5] * 1000, abs=1e-3)


def test_documented_gossip_program_averages(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = programs("docs/systems/gossip.md")
    exec(program, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 8
    for value, sent, *_, whole in lines:
        assert abs(float(value.rstrip(",")) - 3.5) < 0.01
        assert float(sent) < 0.3 * float(whole)


@pytest.mark.parametrize("on_split", ["raise", "warn"])
def test_rank_without_neighbours_raises_or_warns(on_split: Literal["raise", "warn"]) -> None:
    def rank(transport: tersor.Transport) -> list[int]:
        gossip = tersor.Gossip(transport, on_split=on_split)
        gossip.add("w", np.full(100, transport.rank, np.float32))
        gossip.mix()
        if transport.rank == 1:
            return []
        with contextlib.ExitStack() as stack:
            if on_split == "raise":
                stack.enter_context(pytest.raises(tersor.TransportError, match="ranks 1 any more"))
            else:
                stack.enter_context(pytest.warns(UserWarning, match="to ranks 1"))
            for _ in range(3):
                gossip.mix()
        gossip.mix()
        return gossip.statistics().cut_off

    assert tersor.local.run(2, rank)[0] == [1]


def test_invalid_gossip_topologies_are_rejected() -> None:
    apart = [[(1, 0.5)], [(0, 0.5)], [(3, 0.5)], [(2, 0.5)]]

    def rank(transport: tersor.Transport) -> None:
        for topology, words in (
            ("star", "ring, torus or exponential"),
            (apart, "{0, 1} {2, 3}"),
            ([[(1, 0.5)], [(0, 0.4)], [], []], "give equal weights above 0"),
            ([[(1, 0.5)], [(0, 0.5)]], "has 2 ranks, the transport 4"),
        ):
            with pytest.raises(tersor.InvalidArgumentError, match=words):
                tersor.Gossip(transport, topology)
        with pytest.raises(tersor.InvalidArgumentError, match="on_split='stop'"):
            tersor.Gossip(transport, on_split="stop")  # type: ignore[arg-type]

    tersor.local.run(4, rank)


def test_gossip_error_names_mismatched_options() -> None:
    def mix(transport: tersor.Transport) -> None:
        gossip = tersor.Gossip(transport, codec="int4" if transport.rank == 1 else "int8")
        gossip.add("w", np.zeros(10, np.float32))
        gossip.mix()

    with pytest.raises(tersor.TransportError, match="codec is ") as caught:
        tersor.local.run(4, mix)
    assert [one.name for one in caught.value.disagreement] == ["codec"]


def test_old_names_work_and_warn() -> None:
    def rank(transport: tersor.Transport) -> None:
        values = {"w": np.ones(4, np.float32)}
        told: Any = {"servers": [0], "workers": [0], "push": "none", "pull": "none"}
        with pytest.warns(DeprecationWarning, match=r"ParameterServer\(weights=\).*parameters="):
            server = tersor.ParameterServer(transport, weights=values, **told)
        with tersor.ParameterClient(transport, values, server=server, **told) as client:
            with pytest.warns(DeprecationWarning, match=r"pull\(weights=\).*parameters="):
                client.pull(weights=values)
            with pytest.raises(TypeError, match="pass parameters="):
                client.pull(parameters=values, weights=values)
        server.wait()
        with pytest.warns(DeprecationWarning, match=r"weights\(\).*use parameters\(\)"):
            assert server.weights()["w"][0] == 0
        gossip = tersor.Gossip(transport)
        with pytest.warns(DeprecationWarning, match=r"Gossip.add\(weights=\).*parameter="):
            gossip.add("w", weights=values["w"])

    tersor.local.run(1, rank)


def test_statistics_support_pickle_and_warn_on_indexing() -> None:
    shard = tersor._core.ParameterShard(
        [np.zeros(3, np.float32)], (1.0, 0.0), tersor._core.ServerOptions(), 0, 1
    )
    shard.join(4)
    shard.leave(4, lost=True)
    copy = pickle.loads(pickle.dumps(shard.statistics()))
    assert (copy.lost, copy.pushes) == ([4], 0)
    with pytest.warns(DeprecationWarning, match=r"use \.lost"):
        assert copy["lost"] == [4]
