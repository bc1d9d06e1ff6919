"""A replica of a training under torchft, for tests: ``… TRAINER NAME STEPS WORDS``.

``WORDS``: a dictionary of optional entries: ``codec`` (default: torchft's own gloo), ``fragments``
(of DiLoCo), ``dies`` (the step at which the replica kills the process, once three replicas are
there), ``after`` (the replica waits for this file), ``until`` (a file with the last step, which the
replica with ``after`` writes once all replicas are there). Prints the weights and more as JSON.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchft
from torch import nn
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.optim import OptimizerWrapper

from tersor.torch.ft import ProcessGroupTersor

SECONDS = timedelta(seconds=120)
FRAGMENTS = 2
LEAST_STEPS = 100  # enough to learn, even if all replicas join after few steps


class Data:
    """Batches of a fixed function, different for each replica and step."""

    def __init__(self, name: str) -> None:
        self._seed = int(name)
        generator = torch.Generator().manual_seed(0)
        self._truth = torch.randn(64, 64, generator=generator) / 8

    def loss(self, model: nn.Module, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self._seed + step)
        inputs = torch.randn(32, 64, generator=generator)
        return (model(inputs) - inputs @ self._truth).square().mean()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    parts = (nn.Linear(64, 128), nn.Linear(128, 64))  # of 8,256 and 8,320 values in one bucket
    return nn.Sequential(*(nn.Sequential(part) for part in parts))


def made_manager(name: str, words: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    inner = torchft.ProcessGroupGloo(timeout=SECONDS)
    codec = words.get("codec")
    seconds = SECONDS.total_seconds()
    group = inner if codec is None else ProcessGroupTersor(inner, codec, timeout=seconds)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=group,
        min_replica_size=words.get("least", 1),
        replica_id=f"replica_{name}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=SECONDS,
        quorum_timeout=SECONDS,
        hostname="127.0.0.1",
        **more,
    )
    manager.store = store  # lives as long
    if codec is not None:
        group.follow(manager, words.get("fragments", 1))
    return manager, group


def goes_on(manager: Any, steps: int, words: dict[str, Any]) -> bool:
    """Before each step."""
    step, all_there = manager.current_step(), manager.num_participants() == 3
    if all_there and step >= words.get("dies", math.inf):
        os.kill(os.getpid(), signal.SIGKILL)
    if "until" in words:
        last = pathlib.Path(words["until"])
        if "after" in words and all_there and not last.exists():
            last.with_suffix(".new").write_text(str(max(step + 10, LEAST_STEPS)))
            last.with_suffix(".new").rename(last)
        return not last.exists() or step < int(last.read_text())
    return step < steps


def train_ddp(name: str, steps: int, words: dict[str, Any]) -> Any:
    model, data = network(), Data(name)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    def save() -> Any:
        return {"model": model.state_dict(), "inner": inner.state_dict()}

    manager, group = made_manager(name, words, load_state_dict=load, state_dict=save)
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = OptimizerWrapper(manager, inner)
    loss = torch.zeros(())
    while goes_on(manager, steps, words):
        optimizer.zero_grad()
        loss = data.loss(wrapped, manager.current_step())
        loss.backward()
        optimizer.step()
    return manager, group, model, loss


def train_local(name: str, steps: int, words: dict[str, Any]) -> Any:
    """Trains with LocalSGD or DiLoCo."""
    model, data = network(), Data(name)
    inner = torch.optim.SGD(model.parameters(), lr=0.3)
    manager, group = made_manager(
        name,
        words,
        use_async_quorum=False,
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=model.state_dict,
    )
    if words["trainer"] == "local":
        around: Any = LocalSGD(manager, model, inner, sync_every=4)
    else:
        outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.5) for part in model]
        around = DiLoCo(manager, list(model), inner, outer, sync_every=8, pin_memory=False)
    loss, step = torch.zeros(()), 0
    with around:
        while goes_on(manager, steps, words):
            loss = data.loss(model, step)
            inner.zero_grad()
            loss.backward()
            inner.step()
            step += 1
    return manager, group, model, loss


def main(trainer: str, name: str, steps: str, words: str) -> None:
    told = {"trainer": trainer, **json.loads(words)}
    while "after" in told and not pathlib.Path(told["after"]).exists():
        time.sleep(0.01)
    train = train_ddp if trainer == "ddp" else train_local
    manager, group, model, loss = train(name, int(steps), told)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    found = {"weights": weights.double().tolist(), "loss": loss.item()}
    if isinstance(group, ProcessGroupTersor):
        found["owed"] = sorted(group.state_dict())
        group.shutdown()
        found["bytes"] = [group.gradient_bytes, group.sent_bytes]
    print(json.dumps(found), flush=True)
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
