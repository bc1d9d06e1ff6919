"""How ranks of a process group meet, or do not: stores old and new, addresses right and wrong."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch.distributed as dist

import ranks
import tersor
from tersor._core import TcpTransport
from tersor.torch._compat import Store
from tersor.torch._src.process_group.rendezvous import Rendezvous

PATIENCE_SECONDS = 60.0


def total(transport: tersor.Transport) -> float:
    values = np.full(10, transport.rank + 1, dtype=np.float32)
    tersor.allreduce(transport, values, codec="none", timeout=PATIENCE_SECONDS)
    return float(values[0])


def met(store: Store, rank: int, count: int, seconds: float = PATIENCE_SECONDS) -> float:
    """Returns the sum of all ranks' numbers plus 1, after the rendezvous."""
    meeting = Rendezvous(store, rank, count)
    try:
        meeting.join(seconds)
        transport = TcpTransport(meeting, rank, count, "127.0.0.1", seconds)
    except tersor.TransportError as error:
        meeting.report_failure(str(error))
        raise
    found = total(transport)
    transport.close()
    return found


def at_once(*calls: Callable[[], float]) -> list[Future[float]]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(call) for call in calls]


def test_store_can_be_reused() -> None:
    store = dist.HashStore()
    for _ in range(3):
        found = at_once(*(functools.partial(met, store, rank, 3) for rank in range(3)))
        assert [one.result() for one in found] == [6.0] * 3


def test_store_can_be_reused_with_other_world_sizes() -> None:
    store = dist.HashStore()
    for count in (4, 2, 3):
        calls = [functools.partial(met, store, rank, count) for rank in range(count)]
        found = at_once(*calls)
        assert [one.result() for one in found] == [count * (count + 1) / 2] * count


def test_stale_rendezvous_calls_are_ignored() -> None:
    store = dist.HashStore()
    with pytest.raises(tersor.TransportError, match="rank 0 missed the rendezvous"):
        met(store, 1, 2, seconds=0.1)
    store.set("tersor/call-1", "tersor/of-a-rank-that-was-killed")

    def late() -> float:
        time.sleep(0.5)  # rank 0 has answered the old call
        return met(store, 1, 2)

    found = at_once(lambda: met(store, 0, 2), late)
    assert [one.result() for one in found] == [3.0, 3.0]


def test_rendezvous_timeout_names_the_missing_rank_on_all_ranks() -> None:
    store = dist.HashStore()
    found = at_once(lambda: met(store, 0, 3, seconds=1.0), lambda: met(store, 2, 3))
    for one in found:
        assert isinstance(one.exception(), tersor.TransportError)
        assert "rank 1 missed the rendezvous" in str(one.exception())
    assert "rank 0 gave up the rendezvous" in str(found[1].exception())


class Recorded:
    """A store with a record of all values."""

    def __init__(self) -> None:
        self._store = dist.HashStore()
        self.left: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.left[key] = value
        self._store.set(key, value)

    def remaining(self) -> dict[str, str]:
        return {key: value for key, value in self.left.items() if self._store.check([key])}

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_rendezvous_removes_secrets_from_the_store() -> None:
    for count in (1, 2, 4):
        store = Recorded()
        found = at_once(*(functools.partial(met, store, rank, count) for rank in range(count)))
        assert [one.result() for one in found] == [count * (count + 1) / 2] * count
        assert any(key.endswith("/table") for key in store.left) == (count > 1)
        assert sorted(store.remaining()) == [f"tersor/call-{rank}" for rank in range(1, count)]
        assert store._store.num_keys() == count - 1


class Plain:
    """A store without counters and without removal of keys."""

    def __init__(self) -> None:
        store = dist.HashStore()
        self.set, self.get, self.check = store.set, store.get, store.check

    def add(self, key: str, amount: int) -> int:
        raise NotImplementedError

    def delete_key(self, key: str) -> bool:
        raise RuntimeError("deleteKey not implemented for this store")


def test_rendezvous_works_in_a_store_without_key_removal() -> None:
    store = Plain()
    for _ in range(2):
        found = at_once(*(functools.partial(met, store, rank, 3) for rank in range(3)))
        assert [one.result() for one in found] == [6.0] * 3


def completed(rank: int, count: int) -> list[str]:
    """Returns the results of ranks with equal or different secrets and protections."""
    import tersor.torch._src.process_group.connections as group

    found = []
    secret, other = "5" * 64, "6" * 64
    for chosen in (
        [{"TERSOR_SECRET": secret, "TERSOR_TCP_PROTECT": "encrypt"}] * 2,
        [{"TERSOR_SECRET": "a phrase of theirs", "TERSOR_TCP_PROTECT": "authenticate"}] * 2,
        [{"TERSOR_SECRET": secret}, {}],
        [{"TERSOR_SECRET": secret}, {"TERSOR_SECRET": other}],
        [{}, {"TERSOR_TCP_PROTECT": "authenticate"}],
    ):
        dist.barrier()
        with variables(**chosen[rank]):
            try:
                found.append(str(total(group.transport())))
            except tersor.TransportError as error:
                found.append(str(error))
            group.close()
    for wrong, said in (
        ({"TERSOR_SECRET": "short"}, "the secret has 5 bytes"),
        ({"TERSOR_TCP_PROTECT": "all"}, "encrypt"),
    ):
        dist.barrier()
        with variables(**wrong), pytest.raises(tersor.InvalidArgumentError, match=said):
            group.transport()
    return found


def test_ranks_connect_only_with_equal_secrets_and_protection() -> None:
    for found in ranks.run(completed, 2):
        assert found[:2] == ["3.0", "3.0"]
        assert "rank" in found[2]
        assert "rank" in found[3]
        assert "rank" in found[4]
        assert "TERSOR_SECRET" in found[2]
        assert "TERSOR_SECRET" in found[3]
        assert "TERSOR_TCP_PROTECT" in found[4]


@contextlib.contextmanager
def variables(**values: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def at_no_address(rank: int, count: int, wrong: int, variable: str, address: str) -> str:
    import tersor.torch._src.process_group.connections as group
    from tersor.torch._src.process_group import rendezvous

    rendezvous._ANSWER_SECONDS = PATIENCE_SECONDS
    dist.barrier()  # so that all come at once
    wishes = {variable: address} if rank == wrong else {}
    with variables(**wishes), pytest.raises(tersor.TransportError) as caught:
        group.transport()
    dist.barrier()
    total(group.transport())  # the next meeting is not disturbed
    return str(caught.value)


@pytest.mark.parametrize("variable", ["TERSOR_TCP_ADDRESS", "GLOO_SOCKET_IFNAME"])
@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("address", ["nosuchlink0", "192.0.2.77"])  # the other one is nobody's
def test_invalid_address_is_reported_on_all_ranks(wrong: int, variable: str, address: str) -> None:
    said = ranks.run(at_no_address, 2, wrong, variable, address)
    assert f"{variable} is {address}: give an active interface" in said[wrong]
    assert f"rank {wrong} gave up the rendezvous" in said[1 - wrong]
    assert address in said[1 - wrong]


def at_addresses(rank: int, count: int) -> list[float]:
    import tersor.torch._src.process_group.connections as group

    found = []
    for chosen in (
        {"GLOO_SOCKET_IFNAME": "lo, nosuchlink0"},
        {"TERSOR_TCP_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "nosuchlink0"},
        {"TERSOR_TCP_ADDRESS": "localhost"},
    ):
        with variables(**chosen):
            found.append(total(group.transport()))
            group.close()
    return found


def test_addresses_may_be_interfaces_host_names_or_ips() -> None:
    assert ranks.run(at_addresses, 2) == [[3.0] * 3] * 2


def interrupted(rank: int, count: int, waiting: int) -> float:
    import tersor.torch._src.process_group.connections as group

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    if rank == waiting:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            group.transport()
    dist.barrier()
    return total(group.transport())


@pytest.mark.parametrize("waiting", [0, pytest.param(1, marks=pytest.mark.long)])
def test_ctrl_c_interrupts_the_rendezvous(waiting: int) -> None:
    assert ranks.run(interrupted, 2, waiting, fresh=True) == [3.0, 3.0]


def groups_at_once(rank: int, count: int) -> list[float]:
    import tersor.torch._src.process_group.connections as group

    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([1, 2])]
    own = [one for one in pairs if one != dist.GroupMember.NON_GROUP_MEMBER]
    transports = [group.transport(one) for one in own] + [group.transport()]
    assert len(set(map(id, transports))) == len(transports)
    found = at_once(*(functools.partial(total, of) for of in transports))
    return [one.result() for one in found]


def test_overlapping_groups_work_concurrently() -> None:
    assert ranks.run(groups_at_once, 3) == [[3.0, 3.0, 6.0], [3.0, 3.0, 3.0, 6.0], [3.0, 6.0]]


def of_a_part_alone(rank: int, count: int) -> list[float]:
    import tersor.torch._src.process_group.connections as group

    if rank == 1:
        return []
    made = [dist.new_group([0, 2], use_local_synchronization=True) for _ in range(2)]
    return [total(group.transport(one)) for one in made]


def test_subgroup_forms_without_the_other_ranks() -> None:
    assert ranks.run(of_a_part_alone, 3) == [[3.0, 3.0], [], [3.0, 3.0]]


def of_another_backend(rank: int, count: int) -> float:
    import torch.testing._internal.distributed.fake_pg  # that is all it takes to register it

    import tersor.torch._src.process_group.connections as group

    assert torch.testing._internal.distributed.fake_pg is not None
    return total(group.transport(dist.new_group(backend="fake")))


def test_transport_is_independent_of_the_group_backend() -> None:
    assert ranks.run(of_another_backend, 2) == [3.0, 3.0]


def worlds_of_one_store(rank: int, count: int, path: str) -> list[float]:
    import torch.testing._internal.distributed.fake_pg

    import tersor.torch._src.process_group.connections as group

    assert torch.testing._internal.distributed.fake_pg is not None
    store, found = dist.FileStore(path, count), []
    dist.destroy_process_group()
    for _ in range(3):  # gloo itself would read what its first world left
        dist.init_process_group("fake", store=store, rank=rank, world_size=count)
        found.append(total(group.transport()))
        dist.destroy_process_group()
    return found


def test_successive_process_groups_may_share_a_store(tmp_path: pathlib.Path) -> None:
    assert ranks.run(worlds_of_one_store, 2, str(tmp_path / "store")) == [[3.0] * 3] * 2


class Storeless:
    """A group without a store, as PyTorch reports the group."""

    def get_group_store(self) -> None:
        return None


def test_group_without_a_store_is_rejected() -> None:
    from tersor.torch._src.process_group import connections as group

    with pytest.raises(tersor.InvalidArgumentError, match="no store"):
        group._store_of(Storeless())  # type: ignore[arg-type]


class BytesStore(dict[str, bytes]):
    """Returns bytes, like PyTorch's stores."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str, seconds: float) -> bytes | None:  # type: ignore[override]
        until = time.monotonic() + seconds
        while key not in self and time.monotonic() < until:
            time.sleep(0.01)
        return super().get(key)


def test_a_store_may_return_bytes() -> None:
    store = BytesStore()

    def meet(rank: int) -> float:
        return total(TcpTransport(store, rank, 2, "127.0.0.1", PATIENCE_SECONDS))

    found = at_once(*(functools.partial(meet, rank) for rank in range(2)))
    assert [one.result() for one in found] == [3.0] * 2
