"""The GradientReducer among ranks in threads of this process."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import math
import pathlib
import time
import weakref

import numpy as np
import pytest

import tersor
import tersor.local
from tersor.reducer import GradientReducer

SHAPES = {"embedding.weight": (200, 64), "norm.bias": (300,), "head.weight": (40, 8, 16)}


def gradients(rank: int, step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1000 * rank + step)
    return {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }


def mean(ranks: int, step: int, name: str) -> np.ndarray:
    return np.mean([gradients(rank, step)[name] for rank in range(ranks)], axis=0)


def make(transport: tersor.Transport, **options: object) -> GradientReducer:
    reducer = GradientReducer(transport, **options)  # type: ignore[arg-type]
    for name, gradient in gradients(0, 0).items():
        reducer.add(name, gradient)
    return reducer


def train(reducer: GradientReducer, rank: int, steps: range) -> list[dict[str, np.ndarray]]:
    results = []
    for step in steps:
        values = gradients(rank, step)
        for name in reversed(values):
            reducer.ready(name, values[name])
        reducer.wait()
        results.append(values)
    return results


def assert_equal(found: list[dict[str, np.ndarray]], wanted: list[dict[str, np.ndarray]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for name in SHAPES:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_reduced_gradients_equal_the_mean(ranks: int, progress: str) -> None:
    results = tersor.local.run(
        ranks,
        lambda transport: train(
            make(transport, codec="none", progress=progress), transport.rank, range(3)
        ),
    )
    for result in results:
        assert_equal(result, results[0])
    for step in range(3):
        for name in SHAPES:
            np.testing.assert_allclose(
                results[0][step][name], mean(ranks, step, name), rtol=1e-2, atol=1e-2
            )


def test_per_thread_stream_is_rejected() -> None:
    def body(transport: tersor.Transport) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match="per-thread"):
            GradientReducer(transport, codec="none", stream=2)

    tersor.local.run(1, body)


def test_flat_gradients_match_single_gradients_bit_for_bit() -> None:
    def single(transport: tersor.Transport) -> list[dict[str, np.ndarray]]:
        return train(make(transport, codec="int8+ef"), transport.rank, range(3))

    def flat(transport: tersor.Transport) -> list[dict[str, np.ndarray]]:
        reducer = make(transport, codec="int8+ef")
        results = []
        for step in range(3):
            values = gradients(transport.rank, step)
            bucket = np.concatenate([values[name].ravel() for name in reversed(values)])
            ready = reducer.ready_flat(list(reversed(values)), bucket)
            reducer.flush()
            ready.wait()
            assert ready.test()
            results.append(apart(bucket))
        return results

    for one, other in zip(tersor.local.run(3, single), tersor.local.run(3, flat), strict=True):
        assert_equal(one, other)


def apart(bucket: np.ndarray) -> dict[str, np.ndarray]:
    values, first = {}, 0
    for name in reversed(SHAPES):
        count = int(np.prod(SHAPES[name]))
        values[name] = bucket[first : first + count].reshape(SHAPES[name])
        first += count
    return values


def test_gradients_are_kept_alive_while_they_are_reduced() -> None:
    def rank(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int8")
        for step in range(3):
            for name, values in gradients(transport.rank, step).items():
                reducer.ready(name, values)
            del values
            gc.collect()
            reducer.wait()

    tersor.local.run(2, rank)


def test_gradients_are_released_when_results_arrive() -> None:
    def rank(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int8")
        for step in range(2):
            values = gradients(transport.rank, step)
            taken = {name: weakref.ref(value) for name, value in values.items()}
            sent = {name: reducer.ready(name, value) for name, value in values.items()}
            del values
            if step == 0:
                reducer.wait()
            else:
                reducer.flush()
                name = next(iter(sent))
                sent[name].wait()
                assert taken.pop(name)() is None
                while not all(one.test() for one in sent.values()):
                    reducer.progress()
            assert [name for name, reference in taken.items() if reference() is not None] == []
        reducer.wait()

    tersor.local.run(2, rank)


def test_failed_call_keeps_gradients_in_flight_alive() -> None:
    def rank(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int8")
        values = gradients(transport.rank, 0)
        taken = {name: weakref.ref(value) for name, value in values.items()}
        for name, value in values.items():
            reducer.ready(name, value)
        del value
        with pytest.raises(tersor.InvalidArgumentError, match="was ready before in this step"):
            reducer.ready(name, np.zeros_like(values[name]))
        del values
        gc.collect()
        assert all(reference() is not None for reference in taken.values())
        reducer.wait()

    tersor.local.run(2, rank)


def test_discard_step_restores_the_state() -> None:
    def rank(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int4+ef", transactional=True)
        train(reducer, transport.rank, range(2))
        before = reducer.save_state()
        train(reducer, transport.rank, range(2, 3))
        assert reducer.save_state() != before
        reducer.discard_step()
        assert reducer.save_state() == before
        assert reducer.statistics().steps_discarded == 1

    tersor.local.run(3, rank)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": [0, 0, 1]}, "hosts has 3 numbers for 2 ranks: give one number per rank"),
        ({"elastic": True, "min_ranks": 99}, "min_ranks is 99: give 1 to 2"),
        ({"elastic": True, "min_ranks": -1}, "min_ranks is -1: give 1 to 2"),
        ({"min_ranks": 1}, "min_ranks is 1, but the reducer is not elastic"),
    ],
)
def test_options_inconsistent_with_the_ranks_are_rejected(
    options: dict[str, object], message: str
) -> None:
    def rank(transport: tersor.Transport) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match=message):
            tersor.GradientReducer(transport, codec="int8", **options)
        if "hosts" in options:
            with pytest.raises(tersor.InvalidArgumentError, match=message):
                tersor.allreduce(transport, np.zeros(4, np.float32), codec="int8", **options)

    tersor.local.run(2, rank)


def test_run_resumes_bit_for_bit_from_a_saved_state() -> None:
    def rank(transport: tersor.Transport) -> None:
        options = {"codec": "int4:rounding=stochastic+ef", "seed": 5}
        first = make(transport, **options)
        train(first, transport.rank, range(2))
        state = first.save_state()
        other = make(transport, **options)
        other.load_state(state)
        assert_equal(
            train(other, transport.rank, range(2, 5)), train(first, transport.rank, range(2, 5))
        )

    tersor.local.run(2, rank)


def scatter(transport: tersor.Transport) -> None:
    """Reduces rows of a matrix, padded to equal shards, and a vector that a step omits."""
    reducer = GradientReducer(transport, codec="none", order="ready_order")
    like = np.empty(0, np.float32)
    shard = -(-7 // transport.ranks) * 5
    reducer.add_sharded("matrix", like, [7, 5], shard)
    reducer.add_sharded("vector", like, [8], 8)
    for step in range(2):
        matrix = np.zeros(transport.ranks * shard, np.float32)
        matrix[:35] = np.arange(35) + transport.rank
        vector = np.ones(8 * transport.ranks, np.float32)
        found, other = np.empty(shard, np.float32), np.empty(8, np.float32)
        names = ["matrix", "vector"][: 2 - step]
        handle = reducer.ready_sharded(
            names, [matrix, vector][: 2 - step], [found, other][: 2 - step]
        )
        del matrix, vector
        gc.collect()
        handle.wait()
        reducer.wait()
        whole = np.zeros(transport.ranks * shard, np.float32)
        whole[:35] = np.arange(35) + (transport.ranks - 1) / 2
        own = slice(transport.rank * shard, (transport.rank + 1) * shard)
        np.testing.assert_allclose(found, whole[own], rtol=1e-6)
        assert step == 1 or (other == 1).all()
    assert [one.steps for one in reducer.parameter_statistics()] == [2, 1]
    with pytest.raises(tersor.InvalidArgumentError, match="1 names, 0 gradients and 0 shards"):
        reducer.ready_sharded(["matrix"], [], [])
    with pytest.raises(
        tersor.InvalidArgumentError, match=f"was added with {8 * transport.ranks} val"
    ):
        reducer.ready_sharded(["vector"], [np.ones(3, np.float32)], [np.ones(8, np.float32)])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ready_sharded_gives_each_rank_its_shard(ranks: int) -> None:
    tersor.local.run(ranks, scatter)


def test_other_threads_may_read_statistics_during_a_step() -> None:
    def ask(transport: tersor.Transport) -> tuple[int, int, int]:
        reducer = make(transport, codec="int8")
        train(reducer, transport.rank, range(2))
        for name, shape in SHAPES.items():
            reducer.ready(name, np.ones(shape, np.float32))
        reducer.flush()
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            so_far = other.submit(reducer.statistics_so_far).result(timeout=60).steps
        reducer.wait()
        return so_far, reducer.statistics_so_far().steps, reducer.statistics().steps

    for during, after, at_last in tersor.local.run(2, ask):
        assert during in (2, 3)
        assert after == at_last == 3


def test_trace_contains_events_of_each_parameter(tmp_path: pathlib.Path) -> None:
    def traced(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int8+ef", trace=str(tmp_path / "trace.json"))
        train(reducer, transport.rank, range(3))
        if transport.rank == 1:
            reducer.write_trace()

    tersor.local.run(2, traced)
    gc.collect()
    for rank in range(2):
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        rows = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        assert list(rows.values()) == ["trainer", "wire", *SHAPES]
        done = [event for event in events if event["ph"] == "X"]
        assert all(event["dur"] >= 0 for event in done)
        assert {rows[event["tid"]] for event in done} == {"trainer", "wire", *SHAPES}
        for name in ("encode", "decode"):
            steps = {event["args"]["step"] for event in done if event["name"] == name}
            assert steps == {0, 1, 2}
        assert abs(done[0]["ts"] / 1e6 - time.time()) < 3600  # of the system's clock


def test_unwritable_trace_raises_before_training(tmp_path: pathlib.Path) -> None:
    with pytest.raises(tersor.InvalidArgumentError, match=r"no/trace\.rank0\.json"):
        tersor.local.run(
            1, lambda transport: make(transport, trace=str(tmp_path / "no/trace.json"))
        )
    with pytest.raises(tersor.InvalidArgumentError, match="name a file by the option trace"):
        tersor.local.run(1, lambda transport: make(transport).write_trace())


def test_scale_residuals_scales_residual_norms() -> None:
    def norms(transport: tersor.Transport) -> tuple[float, float]:
        reducer = make(transport, codec="int4+ef")
        train(reducer, transport.rank, range(1))
        before = math.hypot(*reducer.residual_norms())
        reducer.scale_residuals(0.5)
        return before, math.hypot(*reducer.residual_norms())

    for before, after in tersor.local.run(2, norms):
        assert before > 0
        assert after == pytest.approx(before / 2)


def test_residuals_are_scaled_by_name() -> None:
    def norms(transport: tersor.Transport) -> list[float]:
        reducer = make(transport, codec="int4+ef", transactional=True)
        for step in range(2):
            train(reducer, transport.rank, range(step, step + 1))
        names = [one.name for one in reducer.parameter_statistics()]
        before = reducer.residual_norms()
        kept = [name for name, norm in zip(names, before, strict=True) if norm > 0]
        with pytest.raises(tersor.InvalidArgumentError, match='parameter "nobody" was not added'):
            reducer.scale_residuals(0.5, [kept[0], "nobody"])
        assert reducer.residual_norms() == before
        reducer.scale_residuals(0.5, [kept[0]])
        reducer.scale_residuals(0.5, ())
        assert len(kept) > 1
        after = reducer.residual_norms()
        return [new / old for new, old in zip(after, before, strict=True) if old > 0]

    for first, *others in tersor.local.run(2, norms):
        assert first == pytest.approx(0.5)
        assert set(others) == {1.0}


def test_gradient_unless_zero_keeps_the_residual() -> None:
    def norms(transport: tersor.Transport) -> list[float]:
        reducer = make(transport, codec="topk:density=0.01+ef")
        train(reducer, transport.rank, range(1))
        found = [math.hypot(*reducer.residual_norms())]
        for contribution in ("gradient-unless-zero", "gradient"):
            for name, shape in SHAPES.items():
                reducer.ready(name, np.zeros(shape, np.float32), contribution)
            reducer.wait()
            found.append(math.hypot(*reducer.residual_norms()))
        return found

    for first, inactive, active in tersor.local.run(2, norms):
        assert inactive == first
        assert active < first


def test_repeated_pattern_rules_form_a_schedule() -> None:
    schedule = [("*", "bf16"), ("*", "int8", 1), ("*", "int4", 3)]

    def codecs(transport: tersor.Transport) -> list[str]:
        reducer = make(transport, rules=schedule)
        found = []
        for step in range(4):
            train(reducer, transport.rank, range(step, step + 1))
            found.append(reducer.parameter_statistics()[0].codec)
        return found

    assert tersor.local.run(2, codecs) == [["bf16", "int8", "int8", "int4"]] * 2


def test_schedule_without_a_first_step_is_rejected() -> None:
    with pytest.raises(tersor.InvalidArgumentError, match="begins with step 7"):
        tersor.local.run(1, lambda transport: make(transport, rules=[("*", "int8", 7)]))


def test_rules_choose_codecs_and_explain_choices() -> None:
    def rank(transport: tersor.Transport) -> None:
        rules = [("*.bias", "none"), ("head.*", "int8"), ("*", "topk:density=0.05+ef")]
        reducer = make(transport, rules=rules)
        train(reducer, transport.rank, range(2))
        chosen = {one.name: one for one in reducer.parameter_statistics()}
        assert chosen["norm.bias"].codec == "none"
        assert chosen["head.weight"].codec == "int8"
        norms = dict(zip(chosen, reducer.residual_norms(), strict=True))
        assert norms["embedding.weight"] > 0
        assert chosen["head.weight"].steps == 2
        assert chosen["head.weight"].gradient_bytes == 2 * 4 * 40 * 8 * 16
        assert 'rule "head.*"' in reducer.explain()

    tersor.local.run(2, rank)


def test_auto_choices_match_on_all_ranks() -> None:
    def rank(transport: tersor.Transport) -> str:
        reducer = GradientReducer(transport, codec="auto")
        gradient = np.ones((2048, 512), np.float32)
        reducer.add("w", gradient)
        reducer.ready("w", gradient)
        reducer.wait()
        return reducer.parameter_statistics()[0].codec

    assert tersor.local.run(2, rank, link="100Mbit,50us") == ["int8", "int8"]


class Watched(tersor.Tuner):
    """A tuner with support for weak references."""


def test_reducer_keeps_its_tuner_alive() -> None:
    def rank(transport: tersor.Transport) -> bool:
        tuner = Watched(transport, codecs=["int8", "int4"])
        watched = weakref.ref(tuner)
        reducer = GradientReducer(transport, codec="auto", tuner=tuner)
        del tuner
        gc.collect()
        lived = watched() is not None
        del reducer
        gc.collect()
        return lived and watched() is None

    assert tersor.local.run(1, rank) == [True]


def test_missing_parameter_raises_on_all_ranks() -> None:
    errors = []

    def rank(transport: tersor.Transport) -> None:
        values = gradients(transport.rank, 0)
        try:  # a rank may be told before it has its own reducer
            reducer = make(transport, codec="int8", timeout=20)
            for name in values:
                if transport.rank != 1 or name != "norm.bias":
                    reducer.ready(name, values[name])
            reducer.wait()
        except tersor.Error as error:
            errors.append(str(error))

    tersor.local.run(2, rank)
    assert len(errors) == 2
    assert all("norm.bias" in error for error in errors)


def test_invalid_calls_raise() -> None:
    def rank(transport: tersor.Transport) -> None:
        reducer = make(transport, codec="int8")
        flat = np.zeros(301, np.float32)
        with pytest.raises(tersor.InvalidArgumentError, match="was added with 300 values"):
            reducer.ready("norm.bias", flat)
        with pytest.raises(tersor.InvalidArgumentError, match='parameter "nobody" was not added'):
            reducer.ready("nobody", flat)
        with pytest.raises(tersor.InvalidArgumentError, match="gradients has 301 values"):
            reducer.ready_flat(["norm.bias"], flat)
        with pytest.raises(tersor.InvalidArgumentError, match='parameter "nobody" was not added'):
            reducer.ready_flat(["norm.bias", "nobody"], flat)
        for name, values in gradients(0, 0).items():  # no mistake made anything ready
            reducer.ready(name, values)
        reducer.wait()
        with pytest.raises(tersor.InvalidArgumentError, match="needs the option transactional"):
            reducer.discard_step()
        with pytest.raises(tersor.InvalidArgumentError, match="no option 'codecs'"):
            make(transport, codecs="int8")
        with pytest.raises(
            tersor.InvalidArgumentError, match="residual_dtype is f16: give f32 or bf16"
        ):
            make(transport, residual_dtype="f16")
        with pytest.raises(tersor.InvalidArgumentError, match="not a reducer's state"):
            reducer.load_state(b"nothing of the kind")

    tersor.local.run(1, rank)
