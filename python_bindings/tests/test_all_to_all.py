"""Rows sent to other ranks, and gradients back, among processes and threads."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

import ranks
import tersor
import tersor.local
from tersor.torch import all_to_all_single

COLUMNS = 300

SPLITS = {  # [from][to], by the number of ranks
    2: ([[3, 5], [2, 1]], [[0, 7], [0, 0]], [[4, 0], [0, 4]]),
    3: ([[1, 2, 3], [0, 5, 1], [4, 0, 2]], [[0, 0, 6], [0, 0, 1], [0, 0, 0]]),
}


def relative(found: Tensor, expected: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    return float((found.float() - expected.float()).norm() / (expected.float().norm() + 1e-20))


def tokens(rank: int, rows: int, dtype: torch.dtype) -> Tensor:
    made = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rank))
    return made.to(dtype).requires_grad_()


def expert(rank: int, dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(50 + rank)
    return nn.Linear(COLUMNS, COLUMNS, bias=False).to(dtype)


def exchanged(
    rows: Tensor, received: list[int] | None = None, sent: list[int] | None = None, **options: Any
) -> Tensor:
    output = rows.new_empty((sum(received) if received else len(rows), *rows.shape[1:]))
    return all_to_all_single(output, rows, received, sent, **options)


class Layer:
    """Sends tokens to experts and back. Returns the results and the gradients."""

    def __init__(
        self,
        rank: int,
        deal: list[list[int]],
        dtype: torch.dtype,
        combine: Any = None,
        **codecs: Any,
    ) -> None:
        sent, received = deal[rank], [one[rank] for one in deal]
        self.tokens, self.expert = tokens(rank, sum(sent), dtype), expert(rank, dtype)
        made = self.expert(self.pass_on(self.tokens, received, sent, codecs))
        self.output = self.pass_on(made, sent, received, combine or codecs)
        weights = tokens(rank + 9, sum(sent), dtype).detach()
        (self.output * weights).sum().backward()

    @staticmethod
    def pass_on(rows: Tensor, received: list[int], sent: list[int], codecs: Any) -> Tensor:
        if not codecs:
            return all_to_all_single_autograd(rows, received, sent, dist.group.WORLD)
        return exchanged(rows, received, sent, **codecs)

    def results(self) -> list[Tensor]:
        assert self.tokens.grad is not None
        assert self.expert.weight.grad is not None
        return [self.output.detach(), self.tokens.grad, self.expert.weight.grad]


@pytest.mark.parametrize("count", [2, 3])
@ranks.on("count")
def test_experts_match_uncompressed_all_to_all(rank: int, count: int) -> None:
    for deal in SPLITS[count]:
        for dtype in (torch.float32, torch.bfloat16):
            plain = Layer(rank, deal, dtype).results()
            same = Layer(rank, deal, dtype, codec="none").results()
            for one, other in zip(same, plain, strict=True):
                assert torch.equal(one, other)
            ways: list[tuple[dict[str, Any], float]] = [
                ({"codec": "int8"}, 0.03),
                ({"codec": "int8", "backward_codec": "bf16", "combine": {"codec": "bf16"}}, 0.03),
                ({"codec": "hadamard:bits=4"}, 0.3),
            ]
            for codecs, error in ways:
                lossy = Layer(rank, deal, dtype, **codecs).results()
                for one, other in zip(lossy, plain, strict=True):
                    assert one.dtype == other.dtype
                    assert one.shape == other.shape
                    assert relative(one, other) < error


@ranks.on(2)
def test_gradients_use_the_backward_codec(rank: int, count: int) -> None:
    rows = tokens(rank, 4, torch.float32)
    output = exchanged(rows, codec="none", backward_codec="int8")
    gradient = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(7))
    output.backward(gradient)
    assert rows.grad is not None
    back = exchanged(gradient, codec="int8")
    assert torch.equal(rows.grad, back)
    assert 0 < relative(back[2 * rank :][:2], gradient[2 * rank :][:2]) < 0.01


@ranks.on(2)
def test_rows_may_have_any_shape(rank: int, count: int) -> None:
    workspace = tersor.Workspace()
    for sent in (1, 2, 1, 0):
        rows = torch.full((2 * sent, 4, 64), float(rank), dtype=torch.float16)
        rows = rows.transpose(1, 2)  # not contiguous
        splits = [sent, sent]
        output = exchanged(rows, splits, splits, codec="int8", workspace=workspace)
        assert output.shape == rows.shape
        assert output.dtype == torch.float16
        assert output[:sent].unique().tolist() == [0.0][:sent]
        assert output[sent:].unique().tolist() == [1.0][:sent]


@ranks.on(2)
def test_invalid_arguments_raise_and_later_calls_succeed(rank: int, count: int) -> None:
    rows = torch.zeros(4, 8)
    with pytest.raises(tersor.InvalidArgumentError, match=f"on rank {rank}: sent adds up to 5"):
        exchanged(rows, [2, 2], [2, 3])
    with pytest.raises(tersor.InvalidArgumentError, match="not a multiple of 2 ranks"):
        exchanged(torch.zeros(3, 8))
    with pytest.raises(tersor.InvalidArgumentError, match="give 0 or more rows"):
        exchanged(rows, [2, 2], [5, -1])
    with pytest.raises(tersor.InvalidArgumentError, match="leave out"):
        exchanged(rows, codec="int8+ef")
    with pytest.raises(tersor.InvalidArgumentError, match="supports only allreduce"):
        exchanged(rows, codec="intsum")
    with pytest.raises(tersor.InvalidArgumentError, match="int64"):
        exchanged(torch.zeros(4, 8, dtype=torch.int64))
    with pytest.raises(tersor.InvalidArgumentError, match="has no rows"):
        all_to_all_single(torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(tersor.InvalidArgumentError, match="rows of the output have shape"):
        all_to_all_single(torch.zeros(32), rows)
    with pytest.raises(tersor.InvalidArgumentError, match="output"):
        all_to_all_single(torch.zeros(5, 8), rows)
    assert torch.equal(exchanged(rows), rows)


@ranks.on(2)
def test_output_receives_rows_and_propagates_gradients(rank: int, count: int) -> None:
    rows = tokens(rank, 4, torch.float32)
    output = torch.empty(4, COLUMNS)
    assert all_to_all_single(output, rows, codec="none") is output
    output.sum().backward()
    assert rows.grad is not None
    assert rows.grad.unique().tolist() == [1.0]
    with torch.no_grad():
        exact = torch.empty(4, COLUMNS)
        dist.all_to_all_single(exact, rows)
    assert torch.equal(output, exact)


@ranks.on(2)
def test_deprecated_calls_without_an_output_still_work(rank: int, count: int) -> None:
    rows, old = tokens(rank, 4, torch.float32), cast(Any, all_to_all_single)
    wanted = exchanged(rows, [2, 2], [2, 2], codec="int8")
    group = dist.group.WORLD
    with pytest.warns(DeprecationWarning, match=r"all_to_all_single\(output, input") as warned:
        found = [old(rows, [2, 2], [2, 2], "int8", None, group)]
    assert all(one.filename == __file__ for one in warned)
    found += [
        old(rows, codec="int8"),
        old(rows, None, None, codec="int8"),
        old(input=rows, output_splits=[2, 2], input_splits=[2, 2], group=group),
    ]
    assert all(torch.equal(one, wanted) for one in found)
    with pytest.raises(TypeError, match=r"input must be a torch.Tensor, not list"):
        old([1.0])


def disagree(rank: int, count: int) -> None:
    splits = [[2, 3], [2, 2]][rank]  # rank 1 expects 2 rows
    exchanged(torch.ones(sum(splits), 8), [2, 2], splits)


def test_split_mismatch_raises_on_both_ranks() -> None:
    for outcome in ranks.outcomes(disagree, 2, deadline=60):
        assert outcome.finished
        assert isinstance(outcome.error, tersor.TransportError | tersor.WireError)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_numpy_all_to_all(count: int) -> None:
    def rank(transport: tersor.Transport) -> None:
        sent = [(transport.rank + peer) % 3 for peer in range(count)]  # and as many come
        rows = np.full((sum(sent), 5), transport.rank, np.float32)
        output = np.empty_like(rows)
        call = tersor.all_to_all(
            transport, rows, output, sent=sent, received=sent, codec="int8", checksum=False
        )
        np.testing.assert_array_equal(output[:, 0], np.repeat(np.arange(count), sent))
        by_hosts = np.empty_like(rows)
        tersor.all_to_all(
            transport, rows, by_hosts, sent=sent, received=sent, codec="int8",
            algorithm="hierarchical", hosts=[rank // 2 for rank in range(count)],
        )  # fmt: skip
        np.testing.assert_array_equal(by_hosts, output)
        assert call.gradient_bytes == (rows.nbytes if count > 1 else 0)
        with pytest.raises(tersor.InvalidArgumentError, match="give columns="):
            tersor.all_to_all(transport, rows.ravel(), output.ravel())
        tersor.all_to_all(transport, rows.ravel(), output.ravel(), 5, sent=sent, received=sent)

    tersor.local.run(count, rank)


@ranks.on(2)
def test_narrow_rows_are_compressed(rank: int, count: int) -> None:
    """Narrow rows, too, by splits and without, of tensors and of NumPy's arrays."""
    transport = tersor.torch.transport(None)
    for shape in ((16384,), (16384, 1), (8192, 2), (4096, 5)):
        rows = torch.randn(shape, generator=torch.Generator().manual_seed(rank))
        few, many = len(rows) // 4, 3 * len(rows) // 4
        for splits in (None, [few, many] if rank == 0 else [many, few]):
            for codec, error in (("int8", 0.02), ("bf16", 0.01)):
                before = transport.counters().sent_bytes
                found = exchanged(rows, splits, splits, codec=codec)
                going = rows[0].nbytes * (many if splits else len(rows) // 2)
                assert transport.counters().sent_bytes - before < 0.6 * going, (shape, codec)
                exact = exchanged(rows, splits, splits, codec="none")
                assert relative(found, exact) < error
                array, told = torch.empty_like(rows).numpy(), splits or ()
                columns = rows[0].numel()
                tersor.all_to_all(
                    transport, rows.numpy(), array, columns, sent=told, received=told, codec=codec
                )
                assert np.array_equal(array, found.numpy())
