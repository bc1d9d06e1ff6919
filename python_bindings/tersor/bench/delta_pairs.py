"""Pairs of bf16 weights: before and after a few steps of a warm optimizer, from trainings on a CPU.

A GPT learns the characters of a text with float32 weights. Steps at the small learning rates of
reinforcement learning follow. A pair has the weights before and after some of these steps, each
rounded to bf16 once, to the nearest value.
"""

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

import tersor.torch
from tersor.bench.errors import fail_if, import_package
from tersor.bench.models import Batch, GptShape, scores_of
from tersor.bench.records import Record
from tersor.bench.step_command import without_exchange
from tersor.bench.tasks import Share, TaskOptions, TextTask
from tersor.bench.world import single_rank_group

Weights = Mapping[str, Tensor]
# By optimizer: learning rates and numbers of steps, in the order of the training.
STEPS = {
    "adamw": [(1e-6, 1), (1.2e-6, 2), (1e-6, 4), (7e-6, 1), (8e-6, 3)],
    "muon": [(2e-6, 1), (1.2e-6, 4), (2e-6, 4), (4e-6, 4), (1.3e-5, 4)],
}
HEAD_WIDTH, CONTEXT = 64, 64
BASE, NEW, OTHER = ".base.safetensors", ".new.safetensors", "tensors.safetensors"
_FIELDS = "tersor.bench"  # in the metadata of a file


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two versions of a model. ``fields`` describes the training in records."""

    name: str
    base: Weights
    new: Weights
    fields: Record


def prepare(folder: pathlib.Path, chosen: argparse.Namespace) -> None:
    """Trains, and saves pairs and other tensors, unless the folder has a pair."""
    if any(folder.glob(f"*{BASE}")):
        return
    fail_if(chosen.width % HEAD_WIDTH, f"--width: give a multiple of {HEAD_WIDTH}")
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tensors: dict[str, Tensor] = {}
    with single_rank_group():
        for name, steps in STEPS.items():
            training = _Training(name, chosen)
            training.warm_up()
            tensors |= training.tensors()
            for rate, count in steps:
                training.save_pair(folder, rate, count)
    import_package("safetensors.torch").save_file(tensors, folder / OTHER)


def pairs(folder: pathlib.Path) -> Iterator[Pair]:
    for path in sorted(folder.glob(f"*{BASE}")):
        with import_package("safetensors").safe_open(path, "pt") as file:
            fields = json.loads((file.metadata() or {}).get(_FIELDS, "{}"))
        name = path.name.removesuffix(BASE)
        base, new = _read(path), _read(folder / (name + NEW))
        shapes = [{key: one.shape for key, one in weights.items()} for weights in (base, new)]
        fail_if(shapes[0] != shapes[1], f"{name}: the versions have different tensors")
        yield Pair(name, base, {key: new[key] for key in base}, fields)


def tensors(folder: pathlib.Path) -> Weights:
    """Reads the tensors for the codec entropy, if there are any."""
    path = folder / OTHER
    return _read(path) if path.exists() else {}


def _read(path: pathlib.Path) -> Weights:
    fail_if(not path.exists(), f"{path} is missing")
    found: dict[str, Tensor] = import_package("safetensors.torch").load_file(path)
    for name, one in found.items():
        fail_if(one.dtype != torch.bfloat16, f"{path}: {name} is not of bf16")
    return found


def flat(weights: Weights) -> Tensor:
    """All values as a tensor of one dimension."""
    return torch.cat([one.flatten() for one in weights.values()])


class _Training:
    """A training on one rank and one thread. Equal options give equal bits."""

    def __init__(self, name: str, chosen: argparse.Namespace) -> None:
        torch.manual_seed(chosen.seed)
        sizes = (None, 1, chosen.steps)  # batch, epochs, steps
        shape = GptShape(chosen.layers, chosen.width // HEAD_WIDTH, chosen.width, CONTEXT)
        options = TaskOptions(chosen.data, *sizes, torch.device("cpu"), ranks=1, shape=shape)
        self._task, self._name, self._seed = TextTask(options), name, chosen.seed
        self._model: Any = self._task.model()
        self._optimizer: Any = self._task.optimizer(self._model)
        if name == "muon":
            named = list(self._model.named_parameters())
            kind = tersor.torch.CompressedMuon  # in float32 on CPUs, unlike PyTorch's slow Muon
            self._optimizer = without_exchange(kind, named, momentum=0.95)
        self._done, self._loss = 0, 0.0

    def warm_up(self) -> None:
        """Trains with the task's schedule."""
        recipe = self._task.recipe
        for step in range(recipe.steps):
            self._step(recipe.learning_rate_at(step))
        print(f"{self._name}: loss {self._loss:.3f} after {recipe.steps} steps", flush=True)

    def save_pair(self, folder: pathlib.Path, rate: float, count: int) -> None:
        """Makes steps at a learning rate. Saves the weights before and after the steps."""
        fields = {
            "optimizer": self._name,
            "learning_rate": rate,
            "steps": count,
            "seed": self._seed,
            "warm_steps": self._task.recipe.steps,
            "loss": self._loss,
            "torch": torch.__version__,
        }
        for suffix, steps in ((BASE, 0), (NEW, count)):
            for _ in range(steps):
                self._step(rate)
            weights = {key: one.detach().bfloat16() for key, one in self._model.named_parameters()}
            path = folder / f"{self._name}-{rate:g}-x{count}{suffix}"
            metadata = {_FIELDS: json.dumps(fields)}
            import_package("safetensors.torch").save_file(weights, path, metadata)

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The weights, the gradients of the last step, and the states between the layers."""
        states = [self._model.embedding(self._batch()[0])]
        for block in self._model.blocks:
            states.append(block(states[-1]))
        parameters = list(self._model.parameters())
        kinds = {
            "weights": parameters,
            "activations": states[1:],
            "gradients": [one.grad for one in parameters],
        }
        return {
            f"{kind}, {self._name}": torch.cat([one.flatten() for one in tensors]).bfloat16()
            for kind, tensors in kinds.items()
        }

    def _step(self, rate: float) -> None:
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(*scores_of(self._model, self._batch()))
        loss.backward()  # type: ignore[no-untyped-call]
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._done, self._loss = self._done + 1, loss.item()

    def _batch(self) -> Batch:
        return self._task.batch(self._seed, self._done, Share(0, 1))
