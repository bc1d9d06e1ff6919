"""A task is a model, its data and its training recipe."""

import dataclasses
import functools
import hashlib
import math
import pathlib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tersor.bench import data, hooks, split_hooks
from tersor.bench.errors import fail_if
from tersor.bench.hook_kinds import Hook
from tersor.bench.models import GPT_SIZES, Batch, Gpt, GptShape, convolutional_net, normalised_net

RATE = 2e-3  # of a GPT of width 128; other rates follow width^(-2/3)
MAX_READS = 8  # of each byte of a text
TEST_WINDOWS = 512  # of a text: enough to resolve 0.1 %
WARMUP_SHARE = 0.1  # of all steps


@dataclasses.dataclass(frozen=True)
class Share:
    """This rank's part of each global batch."""

    rank: int
    ranks: int


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Length and learning rate of a training. `batch` is the number of samples of one rank in a
    step."""

    batch: int
    epochs: int
    steps: int  # an epoch
    learning_rate: float  # the highest

    def learning_rate_at(self, step: int) -> float:
        """A linear warm-up, then half a cosine to 0 (Loshchilov and Hutter 2017)."""
        steps = self.epochs * self.steps
        warmup = WARMUP_SHARE * steps
        if step + 0.5 < warmup:
            return self.learning_rate * (step + 0.5) / warmup
        done = (step + 0.5 - warmup) / (steps - warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class Task:
    """A model with its data. Batches are equal for all hooks of one seed."""

    name: typing.ClassVar[str]
    splits: typing.ClassVar[bool] = False  # True if the model is split over the ranks
    same_batches: typing.ClassVar[bool] = False  # True if all ranks read the same batches
    recipe: Recipe
    fields: Mapping[str, Any] = types.MappingProxyType({})  # of the data, for the records

    def attach(self, model: nn.Module, hook: str) -> Hook:
        """The model on all ranks with a hook."""
        return hooks.attach(model, hook)


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """The options of the command line; None is the task's own choice."""

    source: pathlib.Path | None
    batch: int | None
    epochs: int | None
    steps: int | None
    device: torch.device
    ranks: int
    ranks_here: int = 1  # on this host
    rate: float = 1.0  # times the task's own learning rate
    uneven: float | None = None  # the concentration of classes on ranks; None: equal
    shape: GptShape | None = None  # of a GPT, with the learning rate of the width 128
    size: str | None = None  # of GPT_SIZES


@functools.lru_cache(maxsize=1)
def _order(seed: int, epoch: int, count: int) -> data.Indices:
    return np.random.default_rng([seed, epoch]).permutation(count)


class ImageTask(Task):
    """Fashion-MNIST, or other images in the same four files."""

    name = "cnn"
    net = staticmethod(convolutional_net)
    learning_rate = 0.1
    momentum = 0.5
    epochs = 3

    def __init__(self, options: TaskOptions) -> None:
        folder = options.source or data.FASHION_MNIST_FOLDER
        self._device = options.device
        self._train = data.load_images(folder, "train")
        self.fields = {"data_sha256": hashlib.sha256(self._train.pixels.tobytes()).hexdigest()[:16]}
        self._test = data.load_images(folder, "t10k")
        self._mean, self._deviation = self._train.pixels.mean(), self._train.pixels.std()
        batch = options.batch or 64
        whole_pass = len(self._train.labels) // (batch * options.ranks)
        epochs, steps = options.epochs or self.epochs, options.steps or whole_pass
        self.recipe = Recipe(batch, epochs, steps, self.learning_rate * options.rate)
        text = f"the images suffice for {whole_pass} steps per epoch: give fewer --steps"
        fail_if(not 0 < self.recipe.steps <= whole_pass, text)
        self._parts: list[data.Indices] | None = None
        if options.uneven is not None:
            self._parts = data.uneven_parts(self._train.labels, options.ranks, options.uneven)

    def model(self) -> nn.Module:
        return self.net(classes=int(self._train.labels.max()) + 1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), momentum=self.momentum)

    def batch(self, seed: int, step: int, share: Share) -> Batch:
        epoch, step_of_epoch = divmod(step, self.recipe.steps)
        if self._parts is not None:
            own = self._parts[share.rank]
            order = _order(seed * share.ranks + share.rank, epoch, len(own))
            indices = np.arange(self.recipe.batch) + step_of_epoch * self.recipe.batch
            return self._to_tensors(self._train, own[order[indices % len(own)]])
        order = _order(seed, epoch, len(self._train.labels))
        first = (step_of_epoch * share.ranks + share.rank) * self.recipe.batch
        return self._to_tensors(self._train, order[first : first + self.recipe.batch])

    def test_batches(self, share: Share) -> Iterator[Batch]:
        own = np.arange(share.rank, len(self._test.labels), share.ranks)
        for first in range(0, len(own), 500):
            yield self._to_tensors(self._test, own[first : first + 500])

    def _to_tensors(self, images: data.Images, chosen: data.Indices) -> Batch:
        pixels = torch.from_numpy(images.pixels[chosen]).unsqueeze(1).float()
        labels = torch.from_numpy(images.labels[chosen]).long()
        standardised = (pixels - self._mean) / self._deviation
        return standardised.to(self._device), labels.to(self._device)


class NormalisedImageTask(ImageTask):
    """The same images, a net with norms, and the usual momentum."""

    name = "convnet"
    net = staticmethod(normalised_net)
    learning_rate = 0.05
    momentum = 0.9
    epochs = 2


class TextTask(Task):
    """Characters of a text, in windows at random positions."""

    name = "gpt"
    experts = 0

    def __init__(self, options: TaskOptions) -> None:
        fail_if(options.uneven is not None, "--uneven is for images, which have classes")
        on_gpu = options.device.type == "cuda"
        self._device = options.device
        size = options.size or ("86m" if on_gpu else "0.8m")
        shape = options.shape or GPT_SIZES[size]
        self._shape = dataclasses.replace(shape, experts=self.experts)
        self._text = data.load_text(options.source)
        is_short = len(self._text.validation) <= self._shape.context + TEST_WINDOWS
        text = f"the text is too short: {len(self._text.train)} characters; {data.TEXT_REMEDY}"
        fail_if(is_short, text)
        batch = options.batch or (32 if on_gpu else 16)
        rate = options.rate * (RATE if options.shape else RATE * (128 / shape.width) ** (2 / 3))
        self.recipe = Recipe(batch, options.epochs or 5, options.steps or 100, rate)
        read = self.recipe.epochs * self.recipe.steps * batch * shape.context
        read *= 1 if self.same_batches else options.ranks
        text = f"the training reads {read:,} characters, and the text has {len(self._text.train):,}"
        text += f": give --data with {read // MAX_READS:,} or more characters; {data.TEXT_REMEDY}"
        fail_if(read > MAX_READS * len(self._text.train), text)
        if on_gpu and not self.splits:
            memory = torch.cuda.get_device_properties(options.device).total_memory
            sharing = math.ceil(options.ranks_here / torch.cuda.device_count())
            check_memory(shape.step_bytes(batch), sharing, memory)
        self.fields = {"size": size, "data_sha256": self._text.sha256[:16]}

    def model(self) -> nn.Module:
        return Gpt(len(self._text.alphabet), self._shape)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)

    def batch(self, seed: int, step: int, share: Share) -> Batch:
        draw = np.random.default_rng([seed, step, share.rank])
        last = len(self._text.train) - self._shape.context
        return self._windows(self._text.train, draw.integers(0, last, self.recipe.batch))

    def test_batches(self, share: Share) -> Iterator[Batch]:
        last = len(self._text.validation) - self._shape.context - 1
        starts = np.linspace(0, last, TEST_WINDOWS).astype(np.int64)[share.rank :: share.ranks]
        for first in range(0, len(starts), 64):
            yield self._windows(self._text.validation, starts[first : first + 64])

    def _windows(self, characters: data.Bytes, starts: data.Indices) -> Batch:
        positions = starts[:, None] + np.arange(self._shape.context + 1)
        windows = torch.from_numpy(characters[positions]).long().to(self._device)
        return windows[:, :-1], windows[:, 1:]


def check_memory(needed: int, ranks: int, available: int) -> None:
    """Raises BenchmarkError if the ranks of a GPU need more than its memory. In bytes. ``needed``
    is of a rank, without a GiB for PyTorch and NCCL."""
    needed += 2**30
    text = f"a step needs about {needed / 2**30:.1f} GiB on each rank, and {ranks} ranks share "
    text += f"{available / 2**30:.1f} GiB: give a smaller --batch or --size, or fewer --ranks"
    fail_if(needed * ranks > available, text)


class ExpertTask(TextTask):
    """The same GPT with experts in each layer, spread over the ranks."""

    name = "moe"
    splits = True
    experts = 8

    def __init__(self, options: TaskOptions) -> None:
        split_hooks.check_ranks(self.experts, options.ranks)
        super().__init__(options)

    def attach(self, model: nn.Module, hook: str) -> Hook:
        return split_hooks.ExpertHook(model, hook)


class StageTask(TextTask):
    """The same GPT with a stage on each rank. All ranks see the same batches."""

    name = "pipeline"
    splits = True
    same_batches = True

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        layers, ranks, batch = self._shape.layers, options.ranks, self.recipe.batch
        count = split_hooks.MICROBATCHES
        fail_if(layers % ranks, f"{layers} layers are not a multiple of {ranks} stages")
        fail_if(batch % count, f"a batch of {batch} is not a multiple of {count} microbatches")

    def attach(self, model: nn.Module, hook: str) -> Hook:
        return split_hooks.StageHook(typing.cast(Gpt, model), hook)

    def batch(self, seed: int, step: int, share: Share) -> Batch:
        return super().batch(seed, step, Share(0, 1))


AnyTask = ImageTask | TextTask
_KINDS = (ImageTask, NormalisedImageTask, TextTask, ExpertTask, StageTask)
TASKS: dict[str, type[AnyTask]] = {task.name: task for task in _KINDS}
