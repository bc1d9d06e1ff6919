"""Versions sent from one rank: late and new ranks catch up."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy
import pytest
from delta_models import same, stepped, weights

import ranks as processes
import tersor
import tersor.local
from tersor import delta
from tersor.delta import _broadcast


def versions(count: int, values: int = 40_000) -> list[dict[str, Any]]:
    base = weights()
    base["big"] = numpy.random.default_rng(0).standard_normal(values).astype(numpy.float32)
    found = [base]
    for number in range(1, count):
        found.append(stepped(found[-1], number))
        found[-1]["big"][::40] += 1
    return found


def publisher_of(found: list[dict[str, Any]], **options: Any) -> delta.Publisher:
    publisher = delta.Publisher(None, **options)
    for version, one in enumerate(found):
        publisher.publish(version, one)
    return publisher


def follow(transport: tersor.Transport, root: int) -> None:
    """All ranks are up to date, late, or new, in all combinations that matter."""
    found = versions(6)
    publisher = publisher_of(found)
    for starts in ([5, 5, 5], [4, 4, 4], [3, 4, 5], [2, None, 3], [None] * 3, [99, 4, 0]):
        own = starts[transport.rank % 3]
        ours = {name: one.copy() for name, one in found[own if own in range(6) else 1].items()}
        ours = dict(reversed(ours.items()))  # another order
        source: Any = publisher if transport.rank == root else ours
        assert delta.broadcast_delta(transport, source, own, root=root, timeout=60.0) == 5
        assert same(found[5], ours) or transport.rank == root
    assert same(found[5], publisher.weights)


@pytest.mark.parametrize("root", [0, 2])
def test_late_and_new_ranks_catch_up(root: int) -> None:
    tersor.local.run(4, lambda transport: follow(transport, root))


def over_tcp(_rank: int, _ranks: int) -> None:
    import tersor.torch

    follow(tersor.torch.transport(), 1)


def test_ranks_over_tcp_catch_up() -> None:
    pytest.importorskip("torch")
    processes.run(over_tcp, 3)


def test_ranks_over_mpi_catch_up(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mpi4py", exc_type=ImportError)
    pytest.importorskip("tersor._mpi", exc_type=ImportError, reason="this build found no MPI")
    import shutil
    import subprocess
    import sys

    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    file, tests = tmp_path / "follow.py", pathlib.Path(__file__).parent
    lines = ["import sys", f"sys.path.insert(0, {str(tests)!r})", "from mpi4py import MPI"]
    lines += ["import tersor.mpi, test_delta_broadcast as tests"]
    file.write_text("\n".join([*lines, "tests.follow(tersor.mpi.transport(MPI.COMM_WORLD), 1)"]))
    command = [str(tests.parents[1] / "scripts" / "mpirun"), "3", sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def test_deltas_are_sent_instead_of_weights() -> None:
    found = versions(4)
    size = sum(one.nbytes for one in found[0].values())

    def rank(transport: tersor.Transport) -> list[int]:
        source: Any = publisher_of(found) if transport.rank == 0 else None
        sent = []
        for own in (3, 2, 1, None):
            before = transport.counters().sent_bytes
            ours = {name: one.copy() for name, one in found[own or 0].items()}
            delta.broadcast_delta(transport, source or ours, own)
            sent.append(transport.counters().sent_bytes - before)
        return sent

    nothing, one, two, everything = tersor.local.run(2, rank)[0]
    assert 0 < nothing < one < two < size / 4 < everything < size


def test_base_mismatch_changes_no_rank_and_the_next_call_succeeds() -> None:
    found = versions(3)

    def rank(transport: tersor.Transport) -> None:
        source: Any = publisher_of(found) if transport.rank == 0 else None
        ours = {name: one.copy() for name, one in found[1].items()}
        ours["steps"][2] += transport.rank == 2
        kept = {name: one.copy() for name, one in ours.items()}
        with pytest.raises(delta.BaseMismatchError, match='rank 2: delta: tensor "steps"'):
            delta.broadcast_delta(transport, source or ours, 1)
        assert same(ours, kept)
        delta.broadcast_delta(transport, source or ours, None if transport.rank == 2 else 1)
        assert transport.rank == 0 or same(ours, found[2])

    tersor.local.run(3, rank)


def test_model_and_root_mismatches_raise() -> None:
    found = versions(2)

    def rank(transport: tersor.Transport) -> None:
        publisher, ours = publisher_of(found), {name: one.copy() for name, one in found[0].items()}
        is_root = transport.rank == 0
        other = {**ours, "more": numpy.zeros(1)} if transport.rank == 2 else ours
        cases: list[tuple[Any, str]] = [
            (ours, "rank 0: only rank 0, the root, passes a Publisher"),
            (publisher, "rank 1: only rank 0, the root, passes a Publisher"),
            (delta.Publisher(None) if is_root else ours, "rank 0: publish a version before"),
            (publisher if is_root else other, "rank 2 has another model than rank 0"),
        ]
        for source, words in cases:
            with pytest.raises(tersor.InvalidArgumentError, match=words):
                delta.broadcast_delta(transport, source, 0)
        delta.broadcast_delta(transport, publisher if is_root else ours, 0)
        assert is_root or same(ours, found[1])

    tersor.local.run(3, rank)


def test_damaged_and_oversized_messages_raise_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = versions(3)
    damages: list[Any] = [
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data[:-16],
        lambda data: data[:8] + (1 << 62).to_bytes(8, "little") + data[16:],
        lambda data: data + bytes(32),
        lambda data: data * 2000,  # above the size of the weights
    ]
    real = _broadcast._plan
    for number, damage in enumerate(damages):

        def plan(*given: Any, damage: Any = damage) -> Any:
            data, links = real(*given)
            return data, {version: damage(one) for version, one in links.items()}

        monkeypatch.setattr(_broadcast, "_plan", plan)

        def rank(transport: tersor.Transport, number: int = number) -> None:
            source: Any = publisher_of(found) if transport.rank == 0 else None
            ours = {name: one.copy() for name, one in found[1].items()}
            kinds = (tersor.WireError, tersor.TransportError) if number == 4 else tersor.WireError
            with pytest.raises(kinds):
                delta.broadcast_delta(transport, source or ours, 1)
            assert same(ours, found[1])

        tersor.local.run(2, rank)


def test_weights_at_the_newest_version_are_verified() -> None:
    found = versions(2)

    def rank(transport: tersor.Transport) -> None:
        ours = {name: one.copy() for name, one in found[transport.rank % 2].items()}
        source: Any = publisher_of(found) if transport.rank == 0 else ours
        if transport.rank == 1:
            ours["steps"][0] += 1
        with pytest.raises(delta.BaseMismatchError, match='rank 1: tensor "steps" is not of'):
            delta.broadcast_delta(transport, source, 1 if transport.rank else None)

    tersor.local.run(2, rank)


def test_root_error_raises_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: Any) -> Any:
        raise MemoryError("no room for \udcff\x1f")

    monkeypatch.setattr(_broadcast, "_plan", plan)
    found = versions(2)

    def rank(transport: tersor.Transport) -> None:
        source: Any = publisher_of(found) if transport.rank == 0 else found[0]
        with pytest.raises(tersor.Error, match="rank 0: no room for"):
            delta.broadcast_delta(transport, source, 0 if transport.rank else None, timeout=20.0)

    tersor.local.run(2, rank)
