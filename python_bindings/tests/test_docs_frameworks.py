"""The programs of docs/how-to/trainer.md run as shown, if their frameworks are installed."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest
from pages import SOURCES, programs, surroundings

import ranks

torch = pytest.importorskip("torch")

TRAINERS = "docs/how-to/trainer.md"
NO_CODE = "docs/how-to/without-code-changes.md"
RANKS = 2


GUIDES = ["how-to/ddp", "how-to/fsdp2", "how-to/trainer", "systems/horovod", "systems/tensorflow"]


@pytest.mark.parametrize("page", GUIDES)
def test_the_page_lists_the_uncompressed_values(page: str) -> None:
    assert "Not compressed: " in (SOURCES / "docs" / f"{page}.md").read_text()


def result(model: Any, handle: Any) -> tuple[list[Any], float]:
    """The weights, and how many times fewer bytes were sent."""
    totals = handle.totals()
    ratio = totals.uncompressed_bytes / totals.sent_bytes
    return [one.detach() for one in model.parameters()], ratio


def run_transformers(rank: int, count: int, folder: str) -> tuple[list[Any], float]:
    import hugging_face
    from transformers import TrainingArguments

    options = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "max_steps": 3}
    with hugging_face.started(rank, count):
        found = {
            **surroundings(rank, folder),
            "arguments": TrainingArguments(folder, **options),
            "dataset": hugging_face.data(),
            "network": hugging_face.Network,
        }
        exec(programs(TRAINERS, "transformers")[0], found)
        return result(found["trainer"].model, found["callback"].handle)


def run_accelerate(rank: int, count: int, folder: str) -> tuple[list[Any], float]:
    import hugging_face

    with hugging_face.started(rank, count):
        found = surroundings(rank, folder)
        exec(programs(TRAINERS, "accelerate")[0], found)
        return result(found["model"], found["handle"])


def fit(task: Any, batches: list[Any], folder: str, strategy: Any) -> None:
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=strategy,
        max_epochs=1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))


def run_lightning(rank: int, count: int, folder: str) -> tuple[list[Any], float]:
    ranks.environment(rank, count)
    found = surroundings(rank, folder)
    exec(programs(TRAINERS, "lightning")[0], found)
    task = found["Task"]()
    fit(task, found["batches"], folder, "ddp")
    return result(task, task.handle)


def run_lightning_strategy(rank: int, count: int, folder: str) -> tuple[list[Any], float]:
    """Runs the line for GPUs. Lightning only checks the type of the device."""
    from lightning.pytorch.strategies import DDPStrategy

    import tersor.torch

    ranks.environment(rank, count)
    found = surroundings(rank, folder)
    exec(programs(TRAINERS, "lightning")[0], found)
    task = type("Task", (found["Task"],), {"on_train_start": lambda self: None})()
    state = tersor.torch.HookState(task, codec="int8")
    strategy = DDPStrategy(ddp_comm_state=state, ddp_comm_hook=tersor.torch.hook)
    register = strategy._register_ddp_hooks
    gpu = mock.patch.object(DDPStrategy, "root_device", mock.Mock(type="cuda"))

    def registered() -> None:
        with gpu:
            register()

    strategy._register_ddp_hooks = registered
    fit(task, found["batches"], folder, strategy)
    return result(task, state)


def needs(package: str) -> Any:
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"{package} is not installed")


def check(body: Any, folder: pathlib.Path) -> None:
    (first, ratio), (second, _) = ranks.run(body, RANKS, str(folder), fresh=True)
    assert all(map(torch.equal, first, second))
    assert ratio > 3.5


@pytest.mark.long
@needs("transformers")
def test_the_program_for_transformers_runs(tmp_path: pathlib.Path) -> None:
    check(run_transformers, tmp_path)


@pytest.mark.long
@needs("accelerate")
def test_the_program_for_accelerate_runs(tmp_path: pathlib.Path) -> None:
    check(run_accelerate, tmp_path)


LAUNCHED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 64)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    accelerator.backward(model(torch.ones(4, 64)).square().mean())
    optimizer.step()
accelerator.end_training()
"""


@pytest.mark.long
@needs("accelerate")
def test_the_command_for_accelerate_runs(tmp_path: pathlib.Path) -> None:
    text = (SOURCES / NO_CODE).read_text()
    (command,) = re.findall(r"^accelerate launch .*$", text, re.MULTILINE)
    # Without an option for GPUs, accelerate starts a single process on CPUs.
    launch = f"-m accelerate.commands.launch --multi_gpu --num_processes {RANKS} --num_machines 1"
    launch += " --main_process_port 0 --mixed_precision no --dynamo_backend no"
    words = command.replace("accelerate launch", launch, 1).split()
    (tmp_path / "train.py").write_text(LAUNCHED)
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tersor: 1 model was seen") == 1
    assert "in 3 steps" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("body", [run_lightning, run_lightning_strategy])
@needs("lightning")
def test_the_program_for_lightning_runs(body: Any, tmp_path: pathlib.Path) -> None:
    check(body, tmp_path)
