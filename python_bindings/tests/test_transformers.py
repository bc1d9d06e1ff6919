"""Hugging Face's Trainer with TersorCallback: messages, checkpoints, logs and errors."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from hugging_face import LAST, SAVED, Killer, Run, train
from transformers import TrainerCallback

import ranks
import tersor

pytestmark = pytest.mark.long
ranks.preload("transformers.trainer", "tersor.integrations.transformers")

CHECKPOINT = f"checkpoint-{SAVED}"


def losses(logs: list[dict[str, float]]) -> list[float]:
    return [one["loss"] for one in logs]


def refusal(count: int, run: Run) -> list[str]:
    """Returns the error of each rank. All ranks raise before the first step."""
    found = [one.error for one in ranks.outcomes(train, count, run)]
    assert all(isinstance(one, tersor.InvalidArgumentError) for one in found), found
    return [str(one) for one in found]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The checkpoint of a run of two ranks."""
    folder = tmp_path_factory.mktemp("saved")
    ranks.run(train, 2, Run(str(folder), arguments={"max_steps": SAVED}))
    return folder / CHECKPOINT


@pytest.mark.parametrize(("sharded", "scaled"), [(False, False), (False, True), (True, False)])
def test_killed_run_resumes_bit_for_bit(
    sharded: bool, scaled: bool, tmp_path: pathlib.Path
) -> None:
    whole = Run(str(tmp_path / "whole"), sharded=sharded, scaled=scaled)
    cut = Run(str(tmp_path / "cut"), sharded=sharded, scaled=scaled, callbacks=[Killer()])
    again = Run(str(tmp_path / "cut"), sharded=sharded, scaled=scaled, resume=True)
    # New processes, because PyTorch remembers the shards of a process with another rank.
    wanted = ranks.run(train, 2, whole, fresh=True)
    assert not any(one.finished for one in ranks.outcomes(train, 2, cut, fresh=True))
    for (logs, weights), (whole_logs, whole_weights) in zip(
        ranks.run(train, 2, again, fresh=True), wanted, strict=True
    ):
        assert len(whole_logs) == LAST
        assert losses(logs)[SAVED:] == losses(whole_logs)[SAVED:]
        assert all(map(torch.equal, weights, whole_weights))
    state = torch.load(tmp_path / "cut" / CHECKPOINT / "tersor_rank1.pt", weights_only=True)
    assert state["ranks"] == 2
    assert state.get("loss_scale") == (2.0**9 if scaled else None)


def test_checkpoint_without_files_is_rejected_or_starts_at_zero(
    saved: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bare = tmp_path / CHECKPOINT
    shutil.copytree(saved, bare, ignore=shutil.ignore_patterns("tersor*"))
    for message in refusal(2, Run(str(tmp_path), resume=str(bare))):
        assert f"{bare} has no file of rank 0" in message
        assert "start_at_zero=True" in message
    shutil.copy(saved / "tersor_rank0.pt", bare)  # as of a run that ended while it saved
    run = Run(str(tmp_path), resume=str(bare), options={"start_at_zero": True})
    for message in refusal(2, run):
        assert "no file of rank 1" in message
    (bare / "tersor_rank0.pt").unlink()
    from_zero = ranks.run(train, 2, run)
    on = ranks.run(train, 2, Run(str(tmp_path), resume=str(saved)))
    assert losses(from_zero[0][0])[SAVED] == losses(on[0][0])[SAVED]  # before anything was sent
    assert losses(from_zero[0][0])[SAVED + 1 :] != losses(on[0][0])[SAVED + 1 :]


def test_mismatched_checkpoints_are_rejected_by_name(
    saved: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for message in refusal(2, Run(str(tmp_path), codec="int8+ef", resume=str(saved))):
        assert "int4+ef" in message
        assert "int8+ef" in message
        assert str(saved) in message
    for message in refusal(3, Run(str(tmp_path), resume=str(saved))):
        assert "no file of rank 2" in message
        assert "as many ranks" in message
    damaged = tmp_path / CHECKPOINT
    shutil.copytree(saved, damaged)
    (damaged / "tersor_rank1.pt").write_bytes(b"half of it")
    run = Run(str(tmp_path), resume=str(damaged), options={"start_at_zero": True})
    for message in refusal(2, run):
        assert "tersor_rank1.pt cannot be read" in message


def test_only_portable_states_resume_on_fewer_ranks(
    tmp_path: pathlib.Path,
) -> None:
    for state in ("exact", "portable"):
        folder = tmp_path / state
        save = Run(str(folder), options={"mode": state}, arguments={"max_steps": SAVED})
        ranks.run(train, 3, save)
        on = Run(str(folder), resume=True, options={"mode": state})
        if state == "exact":
            for message in refusal(2, on):
                assert "of 3" in message
                assert "portable" in message
        else:
            assert [one.name for one in (folder / CHECKPOINT).glob("tersor*")] == ["tersor.pt"]
            assert len(ranks.run(train, 2, on)[0][0]) == LAST


class Listener(TrainerCallback):
    """Checks logs, before the callback that adds the scalars."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        assert ("loss" in logs) == ("tersor/sent_bytes" in logs), logs


def test_logs_of_all_ranks_contain_the_scalars(tmp_path: pathlib.Path) -> None:
    for logs, _ in ranks.run(train, 2, Run(str(tmp_path), callbacks=[Listener()])):
        assert [one["tersor/steps"] for one in logs] == list(range(1, LAST + 1))
        assert all(one["tersor/ratio"] > 5 for one in logs)


def test_already_compressed_model_is_rejected(tmp_path: pathlib.Path) -> None:
    for message in refusal(2, Run(str(tmp_path), twice=True)):
        assert "this DistributedDataParallel has a communication hook" in message


def alone(rank: int, count: int, run: Run) -> bool:
    with pytest.warns(UserWarning, match="one process sends no gradients"):
        logs, _ = train(rank, count, run)
    return "tersor/steps" in logs[0]


def test_single_process_warns_and_does_nothing(tmp_path: pathlib.Path) -> None:
    assert ranks.run(alone, 1, Run(str(tmp_path))) == [False]


def test_invalid_options_raise() -> None:
    from tersor.integrations.transformers import TersorCallback

    with pytest.raises(tersor.InvalidArgumentError, match="exact, portable"):
        TersorCallback(mode="whole")  # type: ignore[arg-type]
