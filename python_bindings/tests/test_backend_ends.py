"""The ends of groups of the backend and of processes, and PyTorch's search for the backend."""

from __future__ import annotations

import ctypes
import datetime
import importlib
import os
import pathlib
import signal
import sys
import threading

import pages
import pytest
import torch
import torch.distributed as dist
from backend_groups import COUNT, losses, model, on, outcomes, start, values
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor

pytestmark = pytest.mark.long  # how processes end, many of them

if torch.__version__ < (2, 15):  # type: ignore[operator]
    pytest.skip("PyTorch finds back ends from 2.15 on", allow_module_level=True)


def kill_rank_1(rank: int, count: int) -> None:
    """Kills the rank after the other ranks have received everything. Otherwise messages could be
    lost."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} is through", "")
    if rank == 1:
        store.wait([f"rank {one} is through" for one in range(count)])
        os.kill(os.getpid(), signal.SIGKILL)


def killed(rank: int, count: int) -> str:
    dist.all_reduce(values(rank))
    kill_rank_1(rank, count)
    with pytest.raises(tersor.TransportError) as caught:
        dist.all_reduce(values(rank))
    with pytest.raises(tersor.TransportError):
        dist.all_reduce(values(rank))
    return str(caught.value)


def test_error_names_killed_rank(tmp_path: pathlib.Path) -> None:
    found = outcomes(killed, 3, tmp_path)
    for one in (0, 2):
        assert found[one].error is None, found[one].traceback
        assert "rank 1" in found[one].value


def in_ddp(rank: int, count: int) -> str:
    trained = DistributedDataParallel(model())
    losses(trained, rank)
    kill_rank_1(rank, count)
    with pytest.raises(RuntimeError, match="TransportError") as caught:
        losses(trained, rank)
    return str(caught.value)


def test_ddp_error_names_killed_rank(tmp_path: pathlib.Path) -> None:
    found = outcomes(in_ddp, 2, tmp_path)
    assert found[0].error is None, found[0].traceback
    assert "rank 1" in found[0].value


def late(rank: int, count: int) -> str:
    dist.all_reduce(values(rank))
    dist.set_timeout(datetime.timedelta(seconds=1))
    if rank == 1:
        dist.distributed_c10d._get_default_store().get("rank 0 is through")
        return "no message from rank 1"
    with pytest.raises(tersor.TransportError) as caught:
        dist.all_reduce(values(rank))
    dist.distributed_c10d._get_default_store().set("rank 0 is through", "")
    return str(caught.value)


def test_timeout_names_late_rank(tmp_path: pathlib.Path) -> None:
    for outcome in outcomes(late, 2, tmp_path):
        assert outcome.error is None, outcome.traceback
        assert "no message from rank 1" in outcome.value


@on(2)
def test_abort_fails_pending_work(rank: int, count: int) -> None:
    work = dist.all_reduce(values(rank), async_op=True)
    assert work is not None
    work.wait()
    if rank == 1:
        dist.distributed_c10d._get_default_store().get("rank 0 waits")
        dist.distributed_c10d._abort_process_group()
        return
    work = dist.all_reduce(values(rank), async_op=True)
    assert work is not None
    dist.distributed_c10d._get_default_store().set("rank 0 waits", "")
    with pytest.raises(tersor.TransportError, match="aborted on this rank"):
        work.wait()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="aborted on this rank"):
        work.get_future().wait()


@on(2)
def test_abort_ends_a_pending_rendezvous(rank: int, count: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.get("rank 0 is through")
        return
    work = dist.all_reduce(values(rank), async_op=True)
    assert work is not None
    dist.distributed_c10d._abort_process_group()
    with pytest.raises(tersor.TransportError, match="aborted on this rank"):
        work.wait()
    store.set("rank 0 is through", "")


NOISE = ("terminate", "Fatal", "Traceback", "Exception", "nanobind", "Aborted")


def leaves(rank: int, count: int, meeting: str, how: str) -> None:
    start(rank, count, meeting)
    if how != "without a call":
        dist.all_reduce(values(rank))
        dist.all_reduce(torch.ones(3))
    dist.new_group([0, 1])
    if how == "destroys":
        dist.destroy_process_group()
    if how == "one ends early" and rank == 1:
        ctypes.pythonapi.Py_Exit(0)
    if how == "one ends early":
        with pytest.raises(tersor.TransportError, match="rank 1"):
            dist.all_reduce(values(rank))


@pytest.mark.parametrize("how", ["destroys", "leaves it", "without a call", "one ends early"])
def test_processes_exit_cleanly(how: str, tmp_path: pathlib.Path) -> None:
    for repeat in range(2):
        store = str(tmp_path / f"store-{repeat}")
        found = ranks.outcomes(leaves, 2, store, how, group=False, close=False, fresh=True)
        for rank, outcome in enumerate(found):
            assert outcome.error is None, outcome.traceback
            assert outcome.finished or (how == "one ends early" and rank == 1)
            assert outcome.exit_code == 0
            assert not any(word in outcome.output for word in NOISE), outcome.output


def starts_and_ends(rank: int, count: int, folder: str, times: int) -> tuple[int, int]:
    counts = []
    for number in range(times):
        start(rank, count, f"{folder}/{number}")
        dist.all_reduce(values(rank))
        dist.destroy_process_group()
        counts.append(len(os.listdir("/proc/self/fd")))
        assert threading.enumerate() == [threading.main_thread()]
    return counts[2], counts[-1]


def test_repeated_init_and_destroy_leak_no_threads_or_descriptors(tmp_path: pathlib.Path) -> None:
    for early, last in ranks.run(starts_and_ends_alone, 2, str(tmp_path), fresh=True):
        assert last <= early


def starts_and_ends_alone(rank: int, count: int, folder: str) -> tuple[int, int]:
    dist.destroy_process_group()
    return starts_and_ends(rank, count, folder, 20)


# On devices, and how PyTorch finds it.


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes a device for each rank")
@on(2)
def test_cuda_all_reduce(rank: int, count: int) -> None:
    torch.cuda.set_device(rank)
    wanted = (values(0) + values(1)).cuda()
    for _ in range(3):
        found = values(rank).cuda()
        work = dist.all_reduce(found, async_op=True)
        assert work is not None
        work.wait()
        assert torch.equal(found, wanted)
    short = torch.ones(3, device="cuda")
    dist.all_reduce(short)
    assert short.tolist() == [2, 2, 2]


def finds_it(rank: int, count: int, folder: str) -> str:
    sys.path.insert(0, folder)
    try:
        dist.init_process_group(
            "cpu:tersor,cuda:tersor", store=dist.HashStore(), rank=0, world_size=1
        )
        found = torch.ones(COUNT)
        dist.all_reduce(found)
        return str(dist.get_backend())
    finally:
        sys.path.remove(folder)
        dist.destroy_process_group()


def install(folder: pathlib.Path) -> None:
    """Writes the entry points of the installed package."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())
    group = "torch.distributed.backends"
    (points,) = project["project"]["entry-points"][group].items()
    information = folder / "tersor-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tersor\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{points[0]} = {points[1]}\n")


def test_pytorch_finds_the_backend_by_entry_point(tmp_path: pathlib.Path) -> None:
    install(tmp_path)
    (found,) = ranks.outcomes(finds_it, 1, str(tmp_path), group=False, fresh=True)
    assert found.error is None, found.traceback
    assert found.value == "cpu:tersor,cuda:tersor"


def test_documentation_example_runs(tmp_path: pathlib.Path) -> None:
    install(tmp_path)
    (program,) = pages.programs("docs/how-to/backend.md", "backend")
    (tmp_path / "train.py").write_text(program)
    printed, _ = pages.output_on_ranks(tmp_path / "train.py", folder=tmp_path)
    assert printed.split() == ["0.5", "0.5"]


def on_an_older_pytorch(rank: int, count: int) -> str:
    torch.__version__ = type(torch.__version__)("2.14.1")  # type: ignore[assignment]
    with pytest.raises(ImportError) as caught:
        importlib.import_module("tersor.torch.backend")
    return str(caught.value)


def test_older_pytorch_is_rejected() -> None:
    (found,) = ranks.outcomes(on_an_older_pytorch, 1, group=False, fresh=True)
    assert found.error is None, found.traceback
    assert "needs PyTorch 2.15 or newer, and this is 2.14.1" in found.value
