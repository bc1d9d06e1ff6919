"""Residuals in checkpoints, over real processes: the same run goes on, other ranks lose nothing."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import DeviceMesh

import ranks
import tersor
import tersor.local
from tersor._core import ReducerState
from tersor.reducer import GradientReducer
from tersor.torch import load_checkpoint, transport
from tersor.torch._src.checkpoint.residuals import (
    Mode,
    load_reducer,
    move_residuals,
    own_row,
    save_reducer,
    stack_rows,
)

SHAPES = {"body.weight": (90, 70), "body.bias": (90,), "head.weight": (50, 90)}
CODECS = ["int8+ef", "topk:density=0.05+ef", "int4:rounding=stochastic+ef", "lowrank+ef"]


class Run:
    """One rank's training: a reducer, and gradients of step and rank."""

    def __init__(self, codec: str, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> None:
        self.reducer = GradientReducer(transport(), rules=[("*.bias", "bf16"), ("*", codec)])
        self.shapes = shapes
        for name, shape in shapes.items():
            self.reducer.add(name, torch.zeros(shape))

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        return save_reducer(self.reducer, dist.group.WORLD, mode)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        load_reducer(self.reducer, dist.group.WORLD, state)

    def step(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * dist.get_rank() + number)
        gradients = [torch.randn(shape, generator=generator) for shape in self.shapes.values()]
        for name, gradient in zip(self.shapes, gradients, strict=True):
            self.reducer.ready(name, gradient)
        self.reducer.wait()
        return torch.cat([gradient.flatten() for gradient in gradients])

    def steps(self, numbers: range) -> list[torch.Tensor]:
        return [self.step(number) for number in numbers]


def finished(result: Any) -> Any:
    """Waits until no rank needs another rank, then returns the result."""
    dist.barrier()
    return result


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def train_and_save(rank: int, count: int, codec: str, folder: str) -> list[torch.Tensor]:
    """Makes three steps, a checkpoint of each kind, and three more steps. Returns the later
    results."""
    run = Run(codec)
    run.steps(range(3))
    torch.save({"tersor": run.state_dict()}, f"{folder}/rank{rank}.pt")
    dcp.save({"tersor": run}, checkpoint_id=f"{folder}/exact")
    state = run.state_dict(mode="portable")
    if rank == 0:
        torch.save({"tersor": state}, f"{folder}/portable.pt")
    dcp.save({"tersor": state, "step": torch.tensor(3)}, checkpoint_id=f"{folder}/portable")
    return finished(run.steps(range(3, 6)))


def resume_exactly(rank: int, count: int, codec: str, folder: str) -> list[list[torch.Tensor]]:
    """Returns the results of three steps after each kind of loading."""
    results = []
    for way in ("torch.load", "dcp.load", "load_checkpoint"):
        run = Run(codec)
        if way == "torch.load":
            saved = torch.load(f"{folder}/rank{rank}.pt", weights_only=True)
            run.load_state_dict(saved["tersor"])
        elif way == "dcp.load":
            dcp.load({"tersor": run}, checkpoint_id=f"{folder}/exact")
        else:
            load_checkpoint(run, f"{folder}/exact")
        results.append(run.steps(range(3, 6)))
    return finished(results)


@pytest.mark.parametrize("codec", CODECS)
def test_run_resumes_bit_for_bit(codec: str, tmp_path: pathlib.Path) -> None:
    wanted = ranks.run(train_and_save, 3, codec, str(tmp_path))
    found = ranks.run(resume_exactly, 3, codec, str(tmp_path))
    for of_rank, wanted_of_rank in zip(found, wanted, strict=True):
        assert [equal(way, wanted_of_rank) for way in of_rank] == [True, True, True]


def train_with_saving(rank: int, count: int, codec: str) -> list[list[torch.Tensor]]:
    quiet, saving = Run(codec), Run(codec)
    wanted, found = [], []
    for number in range(4):
        wanted.append(quiet.step(number))
        found.append(saving.step(number))
        saving.state_dict()
        saving.state_dict(mode="portable")
    return finished([wanted, found])


def test_saving_does_not_change_results() -> None:
    for wanted, found in ranks.run(train_with_saving, 2, "int8:rounding=stochastic+ef"):
        assert equal(found, wanted)


def resume_elsewhere(rank: int, count: int, codec: str, folder: str) -> list[dict[str, Any]]:
    """The exact state of each new rank after each way of loading the sum."""
    states = []
    for way in ("torch.load", "load_checkpoint"):
        run = Run(codec)
        if way == "torch.load":
            run.load_state_dict(torch.load(f"{folder}/portable.pt", weights_only=True)["tersor"])
        else:
            load_checkpoint(run, f"{folder}/portable")
        state = run.state_dict()
        residuals = {name: row.to_local()[0] for name, row in state["residuals"].items()}
        owned = sum(float(row.to_local().abs().sum()) for row in state["owners"].values())
        states.append({"residuals": residuals, "owned": owned, "step": state["step"]})
        run.step(3)
    return finished(states)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_portable_state_loads_on_any_number_of_ranks(count: int, tmp_path: pathlib.Path) -> None:
    ranks.run(train_and_save, 3, "int8+ef", str(tmp_path))
    sums = torch.load(tmp_path / "portable.pt", weights_only=True)["tersor"]["residuals"]
    assert sums.keys() == {"body.weight", "head.weight"}
    for states in ranks.run(resume_elsewhere, count, "int8+ef", str(tmp_path)):
        for state in states:
            assert (state["owned"], state["step"]) == (0, 3)
            for name, whole in sums.items():  # a mean of 3 ranks would still have added a third
                torch.testing.assert_close(state["residuals"][name], whole / 3)


def exact_sums(rank: int, count: int, codec: str) -> list[dict[str, torch.Tensor]]:
    """Returns the residuals of the portable state, and the sums of all ranks' exact residuals."""
    run = Run(codec)
    run.steps(range(2))
    exact, portable = run.state_dict(), run.state_dict(mode="portable")
    sums = {}
    for name, row in exact["residuals"].items():
        sums[name] = row.to_local()[0].clone()
        dist.all_reduce(sums[name])
    return finished([portable["residuals"], sums])


def test_portable_residuals_are_the_sum_of_exact_residuals() -> None:
    for portable, sums in ranks.run(exact_sums, 3, "topk:density=0.05+ef"):
        for name, wanted in sums.items():
            torch.testing.assert_close(portable[name], wanted)


def load_nothing(rank: int, count: int, codec: str, folder: str) -> list[list[str]]:
    """Returns the warnings after a checkpoint without residuals, and True if residuals are zero."""
    run = Run(codec)
    run.steps(range(2))
    dcp.save({"model": torch.zeros(3)}, checkpoint_id=folder)
    found = []
    for load in (lambda: run.load_state_dict(None), lambda: load_checkpoint(run, folder)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load()
        found.append([str(one.message) for one in caught if "residual" in str(one.message)])
    norms = run.reducer.residual_norms()
    assert norms == [0, 0, 0]
    return finished(found)


def test_missing_residuals_start_at_zero_with_one_warning(
    tmp_path: pathlib.Path,
) -> None:
    text = "the checkpoint holds no residuals: those of 2 parameters start at zero"
    for found in ranks.run(load_nothing, 2, "int8+ef", str(tmp_path / "with")):
        assert found == [[text], [text]]
    for found in ranks.run(load_nothing, 2, "int8", str(tmp_path / "without")):
        assert found == [[], []]  # there is nothing that could start at zero


def refusals(rank: int, count: int, folder: str) -> dict[str, str]:
    """Returns the error for each state that does not fit. The runs continue."""
    run = Run("int8+ef")
    run.steps(range(2))
    before = run.state_dict()

    def refusal(state: Mapping[str, Any]) -> str:
        with pytest.raises(tersor.InvalidArgumentError) as caught:
            run.load_state_dict(state)
        return str(caught.value)

    wider = Run("int8+ef", {**SHAPES, "head.weight": (50, 91)})
    fewer = Run("int8+ef", {"body.weight": (90, 70)})
    cut = {name: value for name, value in before.items() if name != "codecs"}
    without = {**before, "residuals": {}}
    torch.save(before, f"{folder}/rank{rank}.pt")
    dist.barrier()
    other = torch.load(f"{folder}/rank{1 - rank}.pt", weights_only=True)
    found = {
        "codec": refusal(Run("int4+ef").state_dict()),
        "count": refusal(wider.state_dict()),
        "model": refusal(fewer.state_dict()),
        "rank": refusal(other),
        "version": refusal({**before, "version": 99}),
        "cut": refusal(cut),
        "without": refusal(without),
    }
    with pytest.raises(tersor.InvalidArgumentError, match="exact, portable"):
        run.state_dict(mode="whole")  # type: ignore[arg-type]
    after = run.state_dict()
    assert torch.equal(after["places"].to_local(), before["places"].to_local())
    for name, row in before["residuals"].items():
        assert torch.equal(after["residuals"][name].to_local(), row.to_local())
    return finished(found)


def test_mismatched_states_are_rejected_and_change_nothing(tmp_path: pathlib.Path) -> None:
    for rank, found in enumerate(ranks.run(refusals, 2, str(tmp_path))):
        assert '"body.weight" used codec int4+ef' in found["codec"]
        assert '"head.weight" with 4550 values' in found["count"]
        assert '"body.bias"' in found["model"]
        assert f"rank {1 - rank} of 2, this is rank {rank} of 2" in found["rank"]
        assert "version 99" in found["version"]
        assert found["cut"] == "the state has no entry 'codecs'"
        assert found["without"] == "the state has no entry 'body.weight'"


def refused_by_other_ranks(rank: int, count: int, folder: str) -> str:
    with pytest.raises(tersor.InvalidArgumentError) as caught:
        load_checkpoint(Run("int8+ef"), f"{folder}/exact")
    return finished(str(caught.value))


def test_exact_checkpoint_rejects_another_rank_count(tmp_path: pathlib.Path) -> None:
    ranks.run(train_and_save, 3, "int8+ef", str(tmp_path))
    for message in ranks.run(refused_by_other_ranks, 2, str(tmp_path)):
        assert "exact state of 3 ranks, but there are 2" in message
        assert 'mode="portable"' in message


def resume_from_one_file(rank: int, count: int, codec: str, path: str) -> list[torch.Tensor]:
    run = Run(codec)
    run.load_state_dict(torch.load(path, weights_only=True)["tersor"])
    return finished(run.steps(range(3, 6)))


def test_training_resumes_from_a_sharded_checkpoint_merged_into_one_file(
    tmp_path: pathlib.Path,
) -> None:
    wanted = ranks.run(train_and_save, 2, "int8+ef", str(tmp_path))
    dcp_to_torch_save(tmp_path / "exact", tmp_path / "one.pt")
    found = ranks.run(resume_from_one_file, 2, "int8+ef", str(tmp_path / "one.pt"))
    assert all(equal(one, other) for one, other in zip(found, wanted, strict=True))


class Owned:
    """A handle of some ranks. Each rank saves a separate number."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.mesh = DeviceMesh.from_group(group, "cpu")
        self.loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"places": stack_rows(torch.tensor([dist.get_rank()]), self.mesh)}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        self.loaded = state


def loads_with_a_part(rank: int, count: int, folder: str) -> int:
    """Returns the loaded value of each member. The first rank is no member."""
    part = dist.new_group([1, 2])
    found = rank
    if rank > 0:
        handle = Owned(part)
        dcp.save({"tersor": handle.state_dict()}, checkpoint_id=folder, process_group=part)
        load_checkpoint(handle, folder, process_group=part)
        assert handle.loaded is not None
        found = int(own_row(handle.loaded["places"], rank - 1))
    return finished(found)


def test_subgroup_loads_its_checkpoint(tmp_path: pathlib.Path) -> None:
    assert ranks.run(loads_with_a_part, 3, str(tmp_path)) == [0, 1, 2]


SCHEDULE = [("*", "bf16", 0), ("*", "lowrank:rank=1+ef", 1)]


def reducer_of(transport: tersor.Transport, names: str) -> GradientReducer:
    reducer = GradientReducer(transport, rules=SCHEDULE)
    for name in names:
        reducer.add(name, np.zeros((80, 90), np.float32))
    return reducer


def test_moved_residuals_keep_scheduled_codec_and_memory() -> None:
    """Codec and memory are of the former reducer. A new reducer would begin with the first
    phase."""

    def move(transport: tersor.Transport) -> None:
        before, after = reducer_of(transport, "b"), reducer_of(transport, "ab")
        generator = np.random.default_rng(transport.rank)
        for _ in range(3):
            before.ready("b", generator.standard_normal((80, 90)).astype(np.float32))
            before.wait()
        move_residuals(before, after)
        (was,) = ReducerState.read(before.save_state()).parameters
        _, found = ReducerState.read(after.save_state()).parameters
        assert found.codec == was.codec == "lowrank:rank=1+ef"
        assert np.any(was.memory)
        np.testing.assert_array_equal(found.memory, was.memory)

    tersor.local.run(2, move)
