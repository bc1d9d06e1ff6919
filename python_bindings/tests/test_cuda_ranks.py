"""Collectives and the reducer on arrays of a device, by way of the host and over NCCL.

Ranks are threads. Both ways have the host's bits.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import cuda_arrays
import numpy
import pytest
from cuda_arrays import DTYPES, DeviceArray, refused
from test_codec import gaussian

import tersor
import tersor.local
from tersor import Transport, _core
from tersor.collectives import CollectiveOptions

pytestmark = cuda_arrays.on_cuda

RANKS = 2
SHARD = 1003
TIMEOUT = 20.0
OWN, HOST = "NCCL", "by way of the host"
Make = Callable[[Any], Any]
Body = Callable[[Transport, Make], Any]
over_nccl = [
    pytest.mark.skipif(not _core.has_nccl(), reason="this build has no NCCL"),
    cuda_arrays.two_devices,  # NCCL takes one rank of a process for each
]
everywhere = pytest.mark.parametrize("way", [HOST, pytest.param(OWN, marks=over_nccl)])
SHAPES = {"embedding.weight": (200, 64), "norm.bias": (300,), "head.weight": (40, 8, 16)}


def on_ranks(body: Body, way: str) -> list[Any]:
    """Returns the results of ``body(transport, make)`` on all ranks. ``make`` copies an array of
    NumPy to the rank's device."""

    def rank(meeting: Transport) -> Any:
        device = meeting.rank % cuda_arrays.device_count()
        cuda_arrays.call("cudaSetDevice", device)

        def make(values: Any) -> DeviceArray:
            return DeviceArray.of(values, device=device)

        return body(_core.nccl_transport(meeting, TIMEOUT) if way == OWN else meeting, make)

    return tersor.local.run(RANKS, rank)


def on_host(body: Body) -> list[Any]:
    return tersor.local.run(RANKS, lambda transport: body(transport, numpy.array))


def same_on_host(body: Body, way: str) -> None:
    """Compares with the host. ``body`` returns bytes or lists of bytes."""
    found, wanted = on_ranks(body, way), on_host(body)
    assert found == wanted


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    gc.collect()
    assert cuda_arrays.lent() == 0


@everywhere
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(
    ("codec", "algorithm"),
    [("none", "two-shot"), ("int8", "two-shot"), ("int4", "one-shot"), ("topk", "one-shot")],
)
def test_collectives_match_host_bits(codec: str, algorithm: Any, dtype: Any, way: str) -> None:
    options: CollectiveOptions = {"codec": codec, "algorithm": algorithm, "timeout": TIMEOUT}

    def collect(transport: Transport, make: Make) -> list[bytes]:
        values = gaussian(RANKS * SHARD, transport.rank, dtype)
        summed, whole = make(values.reshape(RANKS, SHARD)), make(values)
        part, parts = make(values[:SHARD]), make(numpy.zeros_like(values))
        statistics = tersor.allreduce(transport, summed, reduction="mean", **options)
        assert statistics.gradient_bytes == values.nbytes
        tersor.reduce_scatter(transport, whole, part, **options)
        tersor.allgather(transport, part, parts, codec=codec, timeout=TIMEOUT)
        return [each.tobytes() for each in (summed, part, parts)]

    same_on_host(collect, way)


@everywhere
@pytest.mark.parametrize("residual_dtype", ["f32", "bf16"])
def test_feedback_is_kept_between_calls(residual_dtype: Any, way: str) -> None:
    def train(transport: Transport, make: Make) -> list[bytes]:
        options: CollectiveOptions = {
            "codec": "topk:density=0.1+ef", "algorithm": "one-shot", "timeout": TIMEOUT,
        }  # fmt: skip
        like = make(gaussian(4000))
        state = tersor.FeedbackState(transport, like, dtype=residual_dtype, **options)
        workspace = tersor.Workspace()
        sums = []
        for step in range(3):
            gradient = make(gaussian(4000, 10 * step + transport.rank))
            tersor.allreduce(transport, gradient, state=state, workspace=workspace, **options)
            sums.append(gradient.tobytes())
        return sums

    same_on_host(train, way)


@everywhere
def test_feedback_in_caller_owned_arrays(way: str) -> None:
    def train(transport: Transport, make: Make) -> list[bytes]:
        residual = make(numpy.zeros(RANKS * SHARD, numpy.float32))
        words = make(numpy.frombuffer(_core.FRESH_STATE_WORDS, numpy.int64))
        state = _core.FeedbackState(residual, words)
        found = []
        for step in range(2):
            gradient = make(gaussian(RANKS * SHARD, 10 * step + transport.rank))
            shard = make(numpy.zeros(SHARD, numpy.float32))
            tersor.reduce_scatter(
                transport, gradient, shard, codec="int4:rounding=stochastic+ef", state=state,
                timeout=TIMEOUT,
            )  # fmt: skip
            found += [shard.tobytes(), residual.tobytes()]
        return found

    same_on_host(train, way)


@pytest.mark.parametrize("way", [pytest.param(OWN, marks=over_nccl)])
def test_calls_are_queued_on_their_stream(way: str) -> None:
    """Over NCCL, a call returns on a held-up stream, and the sum arrives later."""

    def collect(transport: Transport, make: Make) -> bytes:
        stream = cuda_arrays.new_stream()
        workspace = tersor.Workspace()
        gradient, later = make(gaussian(SHARD)), make(gaussian(SHARD, 5))
        options: CollectiveOptions = {
            "codec": "int8", "workspace": workspace, "timeout": TIMEOUT,
        }  # fmt: skip
        tersor.allreduce(transport, gradient, stream=stream, **options)
        with cuda_arrays.held(stream):
            cuda_arrays.queue_copy(gradient, later, stream)
            tersor.allreduce(transport, gradient, stream=stream, **options)
            assert not cuda_arrays.is_idle(stream)
        found: bytes = gradient.tobytes()
        return found

    def wanted(transport: Transport, make: Make) -> bytes:
        gradient = make(gaussian(SHARD, 5))
        tersor.allreduce(transport, gradient, codec="int8")
        found: bytes = gradient.tobytes()
        return found

    assert on_ranks(collect, way) == on_host(wanted)


def gradients(rank: int, step: int) -> dict[str, Any]:
    return {
        name: gaussian(int(numpy.prod(shape)), 100 * step + 10 * rank + i).reshape(shape)
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def reducer_of(transport: Transport, make: Make, **options: Any) -> tersor.GradientReducer:
    reducer = tersor.GradientReducer(transport, timeout=TIMEOUT, **options)
    for name, gradient in gradients(0, 0).items():
        reducer.add(name, make(gradient))
    return reducer


def train(reducer: Any, transport: Transport, make: Make, steps: range) -> list[bytes]:
    found = []
    for step in steps:
        values = {name: make(each) for name, each in gradients(transport.rank, step).items()}
        for name in reversed(values):
            reducer.ready(name, values[name])
        reducer.wait()
        found += [each.tobytes() for each in values.values()]
    return found


@everywhere
@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_reducer_matches_host_bits(progress: str, way: str) -> None:
    rules = [
        ("*.bias", "bf16"),
        ("head.*", "topk:density=0.1+ef"),
        ("*", "int8:rounding=stochastic"),
    ]

    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, rules=rules, progress=progress, algorithm="one-shot")
        found = train(reducer, transport, make, range(3))
        assert [one.steps for one in reducer.parameter_statistics()] == [3, 3, 3]
        return found

    same_on_host(body, way)


@everywhere
def test_each_step_rounds_differently(way: str) -> None:
    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, codec="intsum:rounding=stochastic")
        first, second = (train(reducer, transport, make, range(1)) for _ in range(2))
        assert first[0] != second[0]
        return [*first, *second]

    same_on_host(body, way)


@everywhere
def test_flat_gradients_match_separate_gradients_bit_for_bit(way: str) -> None:
    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, codec="int8+ef", algorithm="two-shot")
        single = reducer_of(transport.channel(), make, codec="int8+ef", algorithm="two-shot")
        values = gradients(transport.rank, 0)
        bucket = make(numpy.concatenate([values[name].ravel() for name in reversed(values)]))
        ready = reducer.ready_flat(list(reversed(values)), bucket)
        reducer.flush()
        ready.wait()
        apart = train(single, transport, make, range(1))
        assert bucket.tobytes() == b"".join(reversed(apart))
        return apart

    same_on_host(body, way)


@everywhere
def test_training_resumes_from_saved_state(way: str) -> None:
    options = {"codec": "int4:rounding=stochastic+ef", "seed": 5, "algorithm": "two-shot"}

    def body(transport: Transport, make: Make) -> list[bytes]:
        first = reducer_of(transport, make, transactional=True, **options)
        train(first, transport, make, range(2))
        state = first.save_state()
        train(first, transport, make, range(9, 10))
        first.discard_step()
        other = reducer_of(transport.channel(), make, **options)
        other.load_state(state)
        went_on = train(first, transport, make, range(2, 4))
        assert train(other, transport, make, range(2, 4)) == went_on
        first.scale_residuals(0.5)
        assert max(first.residual_norms()) > 0
        return [*went_on, first.save_portable_state()]

    same_on_host(body, way)


@everywhere
def test_missing_and_zero_contributions_match_host_bits(way: str) -> None:
    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, codec="topk:density=0.01+ef", algorithm="one-shot")
        found = train(reducer, transport, make, range(1))
        for contribution in ("none", "gradient"):
            values = {
                name: make(numpy.zeros(shape, numpy.float32)) for name, shape in SHAPES.items()
            }
            for name, each in values.items():
                reducer.ready(name, each, contribution)
            reducer.wait()
            found += [each.tobytes() for each in values.values()]
        return found

    same_on_host(body, way)


@everywhere
@pytest.mark.parametrize(
    ("codec", "algorithm"), [("int8+ef", "two-shot"), ("lowrank:rank=2+ef", "auto")]
)
def test_globally_unused_parameters_are_zeroed_and_keep_state(
    codec: str, algorithm: Any, way: str
) -> None:
    options = {"codec": codec, "algorithm": algorithm}

    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, **options)
        other = reducer_of(transport.channel(), make, **options)
        found = train(reducer, transport, make, range(1))
        nothing = {name: make(numpy.ones(shape, numpy.float32)) for name, shape in SHAPES.items()}
        for name, each in nothing.items():
            reducer.ready(name, each, "globally-unused")
        reducer.wait()
        assert not any(any(each.tobytes()) for each in nothing.values())
        found += train(reducer, transport, make, range(1, 3))
        assert found == train(other, transport, make, range(3))
        return found

    same_on_host(body, way)


@everywhere
@pytest.mark.parametrize("progress", ["thread", "caller"])
@cuda_arrays.two_devices
def test_calls_while_another_device_is_current(progress: str, way: str) -> None:
    def body(transport: Transport, make: Make) -> list[bytes]:
        reducer = reducer_of(transport, make, codec="int8+ef", progress=progress)
        values = {name: make(each) for name, each in gradients(transport.rank, 0).items()}
        with cuda_arrays.on_device(1 - transport.rank):
            state = reducer.save_state()
            for _ in range(2):
                for name, each in values.items():
                    reducer.ready(name, each)
                reducer.wait()
            reducer.scale_residuals(0.5)
            found = [reducer.save_portable_state(), reducer.save_state()]
            reducer.load_state(state)
        return found + [each.tobytes() for each in values.values()]

    same_on_host(body, way)


@cuda_arrays.two_devices
def test_reducer_destroyed_while_residuals_are_cleared() -> None:
    def body(transport: Transport) -> None:
        gradient = DeviceArray((1024, 1024), device=1)
        reducer = tersor.GradientReducer(transport, codec="int8+ef", timeout=TIMEOUT)
        for i in range(30):
            reducer.add(f"w{i}", gradient)
        reducer.ready("w0", gradient)
        del reducer
        with cuda_arrays.on_device(1):
            cuda_arrays.call("cudaDeviceSynchronize")  # reports work on freed memory

    tersor.local.run(RANKS, body)


@everywhere
@pytest.mark.parametrize("told_by", ["memory", "stream"])
def test_auto_selects_the_same_codec_on_all_ranks(told_by: str, way: str) -> None:
    def body(transport: Transport, make: Make) -> list[str]:
        place: Any = {"memory": "device", "stream": cuda_arrays.new_stream()}
        reducer = tersor.GradientReducer(
            transport,
            codec="auto",
            timeout=TIMEOUT,
            **{told_by: place[told_by]},
        )
        gradient = make(numpy.full((300, 40), 1 + transport.rank, numpy.float32))
        reducer.add("w", gradient)
        reducer.ready("w", gradient)
        reducer.wait()
        numpy.testing.assert_allclose(gradient.numpy(), 1.5, rtol=0.02)
        return [reducer.parameter_statistics()[0].codec]

    first, second = on_ranks(body, way)
    assert first == second


@everywhere
def test_gradients_produced_on_another_stream(way: str) -> None:
    """The reducer waits for another library's stream, as DLPack requires."""

    def body(transport: Transport, make: Make) -> bytes:
        stream, making = cuda_arrays.new_stream(), cuda_arrays.new_stream()
        reducer = tersor.GradientReducer(transport, codec="none", stream=stream, timeout=TIMEOUT)
        gradient, later = make(gaussian(SHARD)), make(numpy.full(SHARD, 2, numpy.float32))
        reducer.add("w", gradient)
        reducer.ready("w", gradient)
        reducer.wait()
        cuda_arrays.synchronize(stream)
        gradient.work = making
        with cuda_arrays.held(making):
            cuda_arrays.queue_copy(gradient, later, making)
            reducer.ready("w", gradient)
        reducer.wait()
        cuda_arrays.synchronize(stream)
        assert set(gradient.asked_for) <= {-1, stream}
        found: bytes = gradient.tobytes()
        return found

    assert set(on_ranks(body, way)) == {numpy.full(SHARD, 2, numpy.float32).tobytes()}


@pytest.mark.parametrize("ended_by", ["wait", "handle.wait", "handle.test"])
@pytest.mark.parametrize("way", [pytest.param(OWN, marks=over_nccl)])
def test_a_reducer_follows_the_current_stream(
    ended_by: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of a library with a current stream: another stream in ready() than in wait()."""
    current: Any = threading.local()
    cupy: Any = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: current)
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    class Array(DeviceArray):
        __module__ = "cupy"

    def body(transport: Transport, make: Make) -> bytes:
        reducer = tersor.GradientReducer(transport, codec="none", timeout=TIMEOUT)
        gradient, later = make(gaussian(SHARD)), make(numpy.full(SHARD, 2, numpy.float32))
        result = make(gaussian(SHARD))
        gradient.__class__ = Array
        gradient.work = making = current.ptr = cuda_arrays.new_stream()
        reducer.add("w", gradient)
        reducer.ready("w", gradient)
        reducer.wait()
        cuda_arrays.call("cudaDeviceSynchronize")
        with cuda_arrays.held(making):
            cuda_arrays.queue_copy(gradient, later, making)
            handle = reducer.ready("w", gradient)
            reducer.flush()
            current.ptr = using = cuda_arrays.new_stream()
            if ended_by == "wait":
                reducer.wait()
            elif ended_by == "handle.wait":
                handle.wait()
            else:
                assert handle.test()
            cuda_arrays.queue_copy(result, gradient, using)
        found: bytes = result.tobytes()
        return found

    assert set(on_ranks(body, way)) == {numpy.full(SHARD, 2, numpy.float32).tobytes()}


@everywhere
def test_invalid_arguments_raise(way: str) -> None:
    def body(transport: Transport, make: Make) -> None:
        gradient = make(gaussian(SHARD))
        refused("shard: the array is on the host", lambda: tersor.reduce_scatter(
            transport, gradient, numpy.zeros(SHARD, numpy.float32)))  # fmt: skip
        refused("int9", lambda: tersor.allreduce(transport, gradient, codec="int9"))
        refused("gaps", lambda: tersor.allreduce(transport, gradient.view((5,), (2,))))
        gradient.read_only = True
        refused("gradient: .*read-only", lambda: tersor.allreduce(transport, gradient))
        reducer = reducer_of(transport, make, codec="none")
        refused("norm.bias", lambda: reducer.ready("norm.bias", numpy.zeros(300, numpy.float32)))
        refused('parameter "x" was not added', lambda: reducer.ready("x", make(gaussian(3))))

    on_ranks(body, way)


@pytest.mark.parametrize("way", [pytest.param(OWN, marks=over_nccl)])
def test_nccl_rejects_host_memory(way: str) -> None:
    def body(transport: Transport, make: Make) -> None:
        with pytest.raises(tersor.InvalidArgumentError, match="host"):
            tersor.allreduce(transport, gaussian(SHARD), codec="int8", timeout=TIMEOUT)

    on_ranks(body, way)


@pytest.mark.parametrize("way", [pytest.param(OWN, marks=over_nccl)])
def test_nccl_error_names_mismatched_rank(way: str) -> None:
    def body(transport: Transport, make: Make) -> None:
        gradient = make(gaussian(SHARD + transport.rank))
        with pytest.raises(tersor.TransportError, match="rank 1"):
            tersor.allreduce(transport, gradient, codec="int8", timeout=TIMEOUT)

    on_ranks(body, way)
