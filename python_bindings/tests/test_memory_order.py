"""Values are sent in memory order. Codecs of matrices follow the order, and ranks compare the
order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tersor
import tersor.local

Array = np.ndarray


def of_rank_1(rows: int, columns: int) -> Array:
    generator = np.random.default_rng(0)
    left, right = generator.standard_normal(rows), generator.standard_normal(columns)
    return np.outer(left, right).astype(np.float32)


def transposed(array: Array) -> Array:
    """The same values, the first axis innermost in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)


def channels_last(array: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def reduce(transport: tersor.Transport, like: Array, gradient: Array, codec: str) -> Array:
    reducer = tersor.GradientReducer(transport, rules=[("*", codec)], reduction="mean")
    reducer.add("w", like)
    reducer.ready("w", gradient)
    reducer.wait()
    return gradient


@pytest.mark.parametrize(
    ("shape", "lay"),
    [
        ((256, 192), np.ascontiguousarray),
        ((256, 192), transposed),
        ((64, 16, 3, 3), channels_last),
        ((64, 16, 3, 3), transposed),
    ],
)
def test_lowrank_follows_the_memory_order(
    shape: tuple[int, ...], lay: Callable[[Array], Array]
) -> None:
    whole = of_rank_1(shape[0], int(np.prod(shape[1:]))).reshape(shape)
    results = tersor.local.run(
        2, lambda transport: reduce(transport, lay(whole), lay(whole), "lowrank:rank=1")
    )
    for result in results:
        np.testing.assert_allclose(result, whole, rtol=1e-4, atol=1e-5)


def test_gradient_in_a_different_memory_order_is_rejected() -> None:
    matrix = of_rank_1(256, 192)

    def refused(transport: tersor.Transport) -> str:
        with pytest.raises(tersor.InvalidArgumentError) as error:
            reduce(transport, matrix, transposed(matrix), "none")
        return str(error.value)

    for text in tersor.local.run(2, refused):
        assert '"w" has shape (256, 192)' in text
        assert "(1, 0)" in text
        assert "(0, 1)" in text


def test_flat_gradient_uses_the_added_memory_order() -> None:
    matrix = transposed(of_rank_1(256, 192))

    def flat(transport: tersor.Transport) -> Array:
        return reduce(transport, matrix, matrix.flatten(order="K"), "lowrank:rank=1")

    for result in tersor.local.run(2, flat):
        np.testing.assert_allclose(result, matrix.flatten(order="K"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(256, 192), (64, 64)])
def test_memory_order_mismatch_raises(size: tuple[int, int]) -> None:
    matrix = of_rank_1(*size)

    def lying(transport: tersor.Transport) -> Array:
        return matrix.copy() if transport.rank == 0 else transposed(matrix)

    def reducer(transport: tersor.Transport) -> None:
        array = lying(transport)
        reduce(transport, array, array, "none")

    def allreduce(transport: tersor.Transport) -> None:
        tersor.allreduce(transport, lying(transport), codec="none")

    def broadcast(transport: tersor.Transport) -> None:
        tersor.broadcast(transport, lying(transport), root=0)

    for call in (reducer, allreduce, broadcast):
        with pytest.raises(tersor.TransportError, match="other arguments"):
            tersor.local.run(2, call)
