"""A small training with Hugging Face's Trainer, for tests, on the ranks of ``ranks``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from ranks import environment
from tersor.integrations.transformers import TersorCallback

SAVED, LAST = 4, 8  # steps before the checkpoint from which others go on, and all of them


class Network(nn.Module):
    """A network with noise in each step. A continued run must restore the random state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 96), nn.Dropout(0.1), nn.Tanh(), nn.Linear(96, 64)]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(inputs) - labels).square().mean()}


class Killer(TrainerCallback):
    """Ends the process as a power cut does, two steps after the checkpoint."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == SAVED + 2:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass
class Run:
    """The options of a run. Unset options have the values of the other runs."""

    folder: str
    codec: str = "int4+ef"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    resume: bool | str = False
    callbacks: list[TrainerCallback] = dataclasses.field(default_factory=list)
    sharded: bool = False
    scaled: bool = False
    twice: bool = False  # the user compresses what the trainer wraps, too


def make_trainer(run: Run) -> Trainer:
    options = {
        "max_steps": LAST,
        "save_steps": SAVED,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "max_grad_norm": 0.0,
        **run.arguments,
    }
    if run.sharded:
        sharding = {"version": 2, "auto_wrap_policy": "NO_WRAP"}
        options |= {"fsdp": "full_shard", "fsdp_config": sharding}
    arguments = TrainingArguments(run.folder, **options)
    if run.sharded and arguments.world_size > 1:
        # Accelerate shards on GPUs only; all that follows works on hosts, too.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    callbacks = [*run.callbacks, TersorCallback(codec=run.codec, **run.options)]
    trainer = Trainer(Network(), arguments, train_dataset=data(), callbacks=callbacks)
    if run.scaled:  # as fp16 makes it on a GPU
        trainer.accelerator.scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**8, growth_interval=3
        )
    return trainer


def data() -> list[dict[str, Tensor]]:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    return [{"inputs": one, "labels": one.flip(0)} for one in values]


@contextlib.contextmanager
def started(rank: int, count: int) -> Iterator[None]:
    """Starts a rank like torchrun, and clears the state of accelerate at the end."""
    environment(rank, count)
    try:
        yield
    finally:
        for one in (AcceleratorState, GradientState, PartialState):
            one._reset_state()


def train(rank: int, count: int, run: Run) -> tuple[list[dict[str, float]], list[Tensor]]:
    """The logs of each step, and the weights at the end."""
    with started(rank, count):
        trainer = make_trainer(run)
        if run.twice:
            trainer.train()
            trainer.add_callback(TersorCallback(codec="int8"))
        trainer.train(resume_from_checkpoint=run.resume)
        weights = [
            getattr(one, "full_tensor", lambda one=one: one)().detach()
            for one in trainer.model.parameters()
        ]
        return [one for one in trainer.state.log_history if "loss" in one], weights
