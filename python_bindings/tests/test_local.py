"""Collectives among ranks in threads of this process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import tersor
import tersor.local
from tersor.collectives import FeedbackState, allgather, allreduce, reduce_scatter

CODECS = ["none", "bf16", "int8", "int4:rounding=stochastic", "topk:density=0.25"]


def gradient(rank: int, count: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(100 + rank).standard_normal(count).astype(dtype)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_allreduce_leaves_the_mean_on_all_ranks(codec: str, ranks: int) -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        values = gradient(transport.rank, 5003)
        allreduce(transport, values, codec=codec, reduction="mean")
        return values

    found = tersor.local.run(ranks, rank)
    wanted = np.mean([gradient(r, 5003) for r in range(ranks)], axis=0)
    for one in found:
        np.testing.assert_array_equal(one, found[0])
    assert relative_error(found[0], wanted) < (0.9 if codec.startswith("topk") else 0.3)


def test_allreduce_sums_by_default_and_keeps_the_shape() -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        values = np.full((3, 5, 7), transport.rank + 1, np.float16)
        allreduce(transport, values, codec="none")
        return values

    for found in tersor.local.run(3, rank):
        np.testing.assert_array_equal(found, np.full((3, 5, 7), 6, np.float16))


def test_reduce_scatter_then_allgather_equals_allreduce() -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        values = gradient(transport.rank, 6000)
        shard, output = np.empty(2000, np.float32), np.empty(6000, np.float32)
        reduce_scatter(transport, values, shard, codec="none")
        allgather(transport, shard, output, codec="none")
        return output

    wanted = np.sum([gradient(r, 6000) for r in range(3)], axis=0)
    for found in tersor.local.run(3, rank):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_grid_allreduce_respects_error_growth() -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        values = gradient(transport.rank, 5003)
        options = {"codec": "int8+ef", "algorithm": "two-shot", "dims": [2, 2]}
        state = FeedbackState(transport, values, error_growth=1.5, **options)
        allreduce(transport, values, state=state, error_growth=1.5, **options)
        with pytest.raises(tersor.InvalidArgumentError, match="2 x 2, with 3 quantisations"):
            allreduce(transport, values, state=state, error_growth=1, **options)
        with pytest.raises(tersor.InvalidArgumentError, match="give at least 1, the growth"):
            tersor.GradientReducer(transport, error_growth=0.5)
        return values

    found = tersor.local.run(4, rank)
    for one in found:
        np.testing.assert_array_equal(one, found[0])
    assert relative_error(found[0], np.sum([gradient(r, 5003) for r in range(4)], axis=0)) < 0.02


@pytest.mark.parametrize("algorithm", ["two-shot", "one-shot", "hierarchical"])
def test_feedback_reduces_the_mean_error_over_steps(algorithm: str) -> None:
    steps = 20

    def rank(transport: tersor.Transport) -> np.ndarray:
        values = gradient(transport.rank, 4096)
        options = {"codec": "int4+ef", "algorithm": algorithm, "reduction": "mean"}
        state = FeedbackState(transport, values, **options)
        workspace = tersor.Workspace(threads=2)
        total = np.zeros(4096, np.float32)
        for _ in range(steps):
            reduced = values.copy()
            allreduce(transport, reduced, state=state, workspace=workspace, **options)
            total += reduced
        return total / steps

    wanted = np.mean([gradient(r, 4096) for r in range(4)], axis=0)
    for found in tersor.local.run(4, rank, link="none,per_host=2"):
        assert relative_error(found, wanted) < 0.02  # 0.13 without feedback


def test_hierarchical_reduce_scatter_and_allgather() -> None:
    def rank(transport: tersor.Transport) -> tuple[np.ndarray, np.ndarray, list[str]]:
        values = gradient(transport.rank, 8000)
        codec = {"codec": "int4+ef", "algorithm": "hierarchical"}
        state = FeedbackState(transport, values, collective="reduce_scatter", **codec)
        assert state.bytes < 5 * len(values) / 2
        total, shard = np.zeros(2000, np.float32), np.empty(2000, np.float32)
        for _ in range(20):
            call = reduce_scatter(transport, values, shard, state=state, **codec)
            total += shard / 20
        kept = FeedbackState(transport, total, collective="allgather", **codec)
        found = np.empty((2, 8000), np.float32)
        ways = [call.algorithm]
        for output, algorithm in zip(found, ("hierarchical", "auto"), strict=True):
            call = allgather(transport, total, output, codec="int8", algorithm=algorithm)
            ways.append(call.algorithm)
        allgather(transport, total, np.empty(8000, np.float32), state=kept, **codec)
        return *found, ways

    wanted = np.sum([gradient(r, 8000) for r in range(4)], axis=0)
    for by_hosts, direct, ways in tersor.local.run(4, rank, link="none,per_host=2"):
        np.testing.assert_array_equal(by_hosts, direct)
        assert relative_error(by_hosts, wanted) < 0.03
        assert ways == ["hierarchical", "hierarchical", "one-shot"]


def test_hierarchical_shards_require_equal_ranks_per_host() -> None:
    def rank(transport: tersor.Transport) -> str:
        values, shard = gradient(transport.rank, 3000), np.empty(1000, np.float32)
        with pytest.raises(tersor.InvalidArgumentError, match="but the hosts have 1, 2"):
            reduce_scatter(transport, values, shard, algorithm="hierarchical", hosts=[0, 1, 1])
        return reduce_scatter(transport, values, shard, algorithm="hierarchical").algorithm

    assert tersor.local.run(3, rank, link="none,per_host=2") == ["one-shot"] * 3


def test_reduce_scatter_and_allgather_on_a_grid() -> None:
    def rank(transport: tersor.Transport) -> np.ndarray:
        values, shard = gradient(transport.rank, 6000), np.empty(1000, np.float32)
        output = np.empty(6000, np.float32)
        reduce_scatter(transport, values, shard, codec="int8", dims=[3, 2])
        allgather(transport, shard, output, codec="int8", dims=[3, 2])
        return output

    wanted = np.sum([gradient(r, 6000) for r in range(6)], axis=0)
    for found in tersor.local.run(6, rank):
        assert relative_error(found, wanted) < 0.03


def test_statistics_count_sent_bytes() -> None:
    def rank(transport: tersor.Transport) -> tersor.CollectiveStatistics:
        return allreduce(transport, gradient(transport.rank, 1 << 20), codec="int8")

    for statistics in tersor.local.run(4, rank):
        assert statistics.algorithm == "two-shot"
        assert statistics.gradient_bytes == 4 << 20
        assert 1.5 * (1 << 20) < statistics.sent_bytes < 1.6 * (1 << 20)


def test_gil_is_released_while_a_rank_waits() -> None:
    # Otherwise the first rank would wait for the second rank until the deadline.
    started = threading.Barrier(2)

    def rank(transport: tersor.Transport) -> None:
        started.wait()
        for _ in range(20):
            allreduce(transport, gradient(transport.rank, 1000), codec="int8", timeout=20)

    tersor.local.run(2, rank)


def test_run_raises_the_error_of_the_failed_rank() -> None:
    def rank(transport: tersor.Transport) -> None:
        if transport.rank == 1:
            raise KeyError("no such batch")
        transport.barrier(timeout=20)

    with pytest.raises(KeyError, match="no such batch"):
        tersor.local.run(3, rank)


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [OSError("\udcff"), NoTextError()])
def test_error_without_text_fails_the_other_ranks(error: Exception) -> None:
    ended = []

    def rank(transport: tersor.Transport) -> None:
        if transport.rank == 1:
            raise error
        with pytest.raises(tersor.TransportError, match=type(error).__name__) as raised:
            transport.barrier(timeout=5)
        ended.append(str(raised.value))

    with pytest.raises(type(error)):
        tersor.local.run(2, rank)
    assert len(ended) == 1


def test_interrupt_stops_all_ranks() -> None:
    ended = threading.Event()

    def rank(transport: tersor.Transport) -> None:
        if transport.rank == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            ended.wait(5)
        else:
            with pytest.raises(tersor.TransportError, match="KeyboardInterrupt"):
                transport.barrier(timeout=5)
            ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist ignores interrupts
    try:
        with pytest.raises(KeyboardInterrupt):
            tersor.local.run(2, rank)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_codec_mismatch_raises_on_all_ranks() -> None:
    errors = []

    def rank(transport: tersor.Transport) -> None:
        try:
            codec = "int4" if transport.rank == 1 else "int8"
            allreduce(transport, gradient(0, 5000), codec=codec, timeout=20)
        except tersor.TransportError as error:
            errors.append(error)

    tersor.local.run(3, rank)
    assert len(errors) == 3


def test_split_ranks_exchange_separately() -> None:
    def rank(transport: tersor.Transport) -> float:
        half = transport.split([0, 2] if transport.rank % 2 == 0 else [1, 3])
        values = np.full(600, transport.rank, np.float32)
        allreduce(half, values, codec="none")
        return float(values[0])

    assert tersor.local.run(4, rank) == [2, 4, 2, 4]


def test_emulated_link_delays_messages() -> None:
    def rank(transport: tersor.Transport) -> float:
        return allreduce(transport, gradient(transport.rank, 1 << 18), codec="none").seconds

    # 1 MiB at 12.5 MB/s; the bytes may arrive before the later rank receives.
    assert max(tersor.local.run(2, rank, link="100Mbit")) > 0.08


def test_invalid_arguments_raise() -> None:
    def rank(transport: tersor.Transport) -> None:
        values = gradient(0, 100)
        with pytest.raises(
            tersor.InvalidArgumentError, match=r"no option 'codek'.*chunk_count, codec"
        ):
            allreduce(transport, values, codek="int8")  # type: ignore[call-arg]
        with pytest.raises(
            tersor.InvalidArgumentError, match='reduction is "average"; pass one of "sum", "mean"'
        ):
            allreduce(transport, values, reduction="average")  # type: ignore[arg-type]
        with pytest.raises(tersor.InvalidArgumentError, match="timeout"):
            allreduce(transport, values, timeout=0)
        with pytest.raises(tersor.InvalidArgumentError, match="int9"):
            allreduce(transport, values, codec="int9")
        with pytest.raises(tersor.InvalidArgumentError, match="state"):
            allreduce(transport, values, codec="int8+ef")

    tersor.local.run(1, rank)
    with pytest.raises(tersor.InvalidArgumentError, match="ranks is 0: give at least 1"):
        tersor.local.run(0, rank)
    with pytest.raises(tersor.InvalidArgumentError, match="RATE"):
        tersor.local.run(1, rank, link="fast")


def test_elastic_reducer_reports_the_remaining_ranks() -> None:
    def rank(transport: tersor.Transport) -> tuple[list[int], int, str]:
        values = gradient(transport.rank, 640)
        reducer = tersor.GradientReducer(transport, elastic=True)
        reducer.add("w", values)
        step(reducer, values)
        if transport.rank == 1:
            return [], 0, ""  # this destroys the reducer
        with pytest.raises(tersor.RanksLostError) as lost:
            step(reducer, values)
        return lost.value.members, lost.value.last_step, str(lost.value)

    first, _, third = tersor.local.run(3, rank)
    assert first[:2] == third[:2] == ([0, 2], 1)
    # The texts differ: a rank detects the loss itself or receives the announcement of another rank.
    assert "rank 1 left" in first[2]
    assert "rank 1 left" in third[2]


def step(reducer: tersor.GradientReducer, values: np.ndarray) -> None:
    reducer.ready("w", values)
    reducer.wait()


def test_elastic_reducer_resumes_in_a_later_schedule_phase() -> None:
    def rank(transport: tersor.Transport) -> float:
        values = np.ones(5000, np.float32)
        rules = [("*", "bf16"), ("*", "int8", 1)]
        reducer = tersor.GradientReducer(transport, rules=rules, elastic=True)
        reducer.add("w", values)
        for _ in range(2):
            values[:] = 1 + transport.rank
            step(reducer, values)
        if transport.rank == 2:
            return 0.0
        values[:] = 1 + transport.rank
        with pytest.raises(tersor.RanksLostError):
            step(reducer, values)
        reducer.resume()
        values[:] = 1 + transport.rank
        step(reducer, values)
        return float(values[0])

    assert tersor.local.run(3, rank)[:2] == pytest.approx([1.5, 1.5], rel=0.01)


def test_error_names_lost_rank_and_option_mismatch() -> None:
    def rank(transport: tersor.Transport) -> tuple[list[int], int, list[tuple[str, ...]]] | None:
        values = gradient(transport.rank, 6400)
        codec = "int8" if transport.rank == 1 else "none"
        reducer = tersor.GradientReducer(transport, elastic=True, rules=[("*", codec)])
        reducer.add("w", values)
        transport.barrier()  # all ranks have a reducer
        if transport.rank == 2:
            with pytest.raises(tersor.TransportError):
                transport.barrier()  # until the other ranks disagree; then this rank leaves
            return None
        with pytest.raises(tersor.RanksLostError, match="rank 2 failed after step 0") as caught:
            step(reducer, values)
        lost = caught.value
        differences = [
            (one.item, one.name, one.rank, one.value, one.other_rank, one.other_value)
            for one in lost.disagreement
        ]
        return lost.members, lost.last_step, differences

    first, second, third = tersor.local.run(3, rank)
    assert first == second == ([0, 1], 0, [('"w"', "codec", 0, "none", 1, "int8")])
    assert third is None
    assert tersor.RanksLostError("text").disagreement == []
    assert isinstance(tersor.RanksLostError("text"), tersor.TransportError)


def test_error_names_all_mismatched_options() -> None:
    def rank(transport: tersor.Transport) -> list[tuple[str, int, str, int, str]]:
        odd = transport.rank == 1
        options = (
            {"codec": "topk:density=0.0137", "reduction": "mean"} if odd else {"codec": "int8"}
        )
        with pytest.raises(tersor.TransportError) as caught:
            allreduce(transport, gradient(transport.rank, 5000), **options)
        return [
            (one.name, one.rank, one.value, one.other_rank, one.other_value)
            for one in caught.value.disagreement
        ]

    wanted = [
        ("codec", 0, "int8", 1, "topk:density=0.0137"),
        ("reduction", 0, "sum", 1, "mean"),
    ]
    for found in tersor.local.run(2, rank):
        assert [one for one in found if one[0] in ("codec", "reduction")] == wanted
    assert tersor.TransportError("text").disagreement == []


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_collectives_accept_the_largest_chunk_count(count: int) -> None:
    def rank(transport: tersor.Transport) -> float:
        values = np.ones(count, np.float32)
        tersor.broadcast(transport, values, 0, chunk_count=2**64 - 1)
        for algorithm in ("one-shot", "two-shot"):
            options = {"codec": "int8", "algorithm": algorithm, "chunk_count": 2**64 - 1}
            tersor.allreduce(transport, values, **options)
        return float(values[-1])

    assert tersor.local.run(2, rank) == [4.0, 4.0]


def test_workspace_in_use_is_rejected() -> None:
    workspace = tersor.Workspace()
    errors = []

    def rank(transport: tersor.Transport) -> None:
        for _ in range(20):
            try:
                allreduce(transport, gradient(transport.rank, 100_000), workspace=workspace)
            except tersor.InvalidArgumentError as error:
                errors.append(str(error))
                raise

    with pytest.raises(tersor.Error):
        tersor.local.run(2, rank)
    assert "give each thread a workspace of its own" in errors[0]


def test_arrays_in_other_memory_orders_need_equal_shapes() -> None:
    def rank(transport: tersor.Transport) -> None:
        shape = (2, 6) if transport.rank == 0 else (3, 4)
        allreduce(transport, np.asfortranarray(np.ones(shape, np.float32)))

    with pytest.raises(tersor.TransportError, match="memory"):
        tersor.local.run(2, rank)


PROGRAMS = {
    "a daemon thread in a call": (
        "import threading, time\n"
        "def go():\n"
        "    while True: codec.decode(codec.encode(values))\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "time.sleep(0.3)\n"
    ),
    "threads of a forked process": (
        "import os, sys\n"
        "codec.encode(values)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    tersor.Codec('int8', threads=2).encode(values)\n"
        "    del codec\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_process_exits_without_an_abort(program: str) -> None:
    begin = (
        "import numpy, tersor\n"
        "codec = tersor.Codec('int8', threads=2)\n"
        "values = numpy.ones(1_000_000, numpy.float32)\n"
    )
    found = subprocess.run([sys.executable, "-c", begin + PROGRAMS[program]], check=False)
    assert found.returncode == 0
