"""What is trained: two small convolutional networks, and a GPT, also with experts or in stages."""

import dataclasses

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tersor.bench.mixture import MixtureOfExperts, feed_forward

Batch = tuple[Tensor, Tensor]  # what a model sees, and the classes that it should say


def convolutional_net(classes: int) -> nn.Sequential:
    """Two convolutions and two linear layers for images (batch, 1, 28, 28): 409,034 parameters.

    Nearly all of its bytes are ready early in the backward pass, since the linear layers come last
    in the network: they can travel while the convolutions are differentiated.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )


def normalised_net(classes: int) -> nn.Sequential:
    """Four convolutions for images (batch, 1, 28, 28), a group norm (Wu and He 2018) behind each,
    and the mean over what is left of the image: 98,938 parameters.

    No matrix holds most of them, as in `convolutional_net`, and the norms' are vectors.
    """
    return nn.Sequential(
        *_convolution(1, 16, kernel=5, stride=2),
        *_convolution(16, 32, kernel=3, stride=2),
        *_convolution(32, 64, kernel=3, stride=1),
        *_convolution(64, 128, kernel=3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def _convolution(channels: int, outputs: int, *, kernel: int, stride: int) -> list[nn.Module]:
    padding = kernel // 2
    convolution = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=False)
    return [convolution, nn.GroupNorm(8, outputs), nn.ReLU()]


@dataclasses.dataclass(frozen=True)
class GptShape:
    """How large a GPT is; `context` is the characters that it looks back on."""

    layers: int
    heads: int
    width: int
    context: int
    experts: int = 0  # of a mixture in each layer; 0: none


class Block(nn.Module):
    """A pre-norm transformer block: attention to what came before, then two linear layers, or a
    mixture of experts that are two each."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        sizes = (shape.width, 4 * shape.width)
        self.expansion = nn.Sequential(
            nn.LayerNorm(shape.width),
            MixtureOfExperts(*sizes, shape.experts) if shape.experts else feed_forward(*sizes),
        )

    def forward(self, states: Tensor) -> Tensor:
        """(batch, context, width) to the same shape."""
        states = states + self._attend(self.attention_norm(states))
        result: Tensor = states + self.expansion(states)
        return result

    def _attend(self, states: Tensor) -> Tensor:
        batch, context, width = states.shape
        by_head = (batch, context, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(states).view(by_head).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, context, width))
        return result


class Embedding(nn.Module):
    """Characters and their places."""

    def __init__(self, characters: int, shape: GptShape) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)

    def forward(self, indices: Tensor) -> Tensor:
        """(batch, context) to (batch, context, width)."""
        places = torch.arange(indices.shape[1], device=indices.device)
        states: Tensor = self.characters(indices) + self.positions(places)
        return states


class Gpt(nn.Module):
    """A decoder-only transformer (Radford et al. 2018) that predicts each next character."""

    def __init__(self, characters: int, shape: GptShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(characters, shape)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.scores = nn.Sequential(
            nn.LayerNorm(shape.width), nn.Linear(shape.width, characters, bias=False)
        )
        self.apply(_initialise)

    def forward(self, indices: Tensor) -> Tensor:
        """Characters (batch, context) to scores of the next one (batch, context, characters)."""
        scores: Tensor = self.scores(self.blocks(self.embedding(indices)))
        return scores


class GptStage(nn.Module):
    """A part of a GPT, whose parameters it shares: one of several with equally many blocks, which
    hand on states of a dtype."""

    def __init__(self, gpt: Gpt, index: int, stages: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        count = len(gpt.blocks) // stages
        self._is_first, self._is_last = index == 0, index == stages - 1
        layers: list[nn.Module] = list(gpt.blocks)[index * count : (index + 1) * count]
        layers += [gpt.scores] if self._is_last else []
        self.layers = nn.Sequential(*([gpt.embedding] if self._is_first else []), *layers)

    def forward(self, states: Tensor) -> Tensor:
        """Characters or the former stage's states to states, of the last one scores."""
        with autocast(states):
            made: Tensor = self.layers(states if self._is_first else states.float())
        return made.float() if self._is_last else made.to(self._dtype)


def autocast(values: Tensor) -> torch.autocast:
    """On a GPU arithmetic is of bf16."""
    kind = values.device.type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def scores_of(model: nn.Module, batch: Batch) -> Batch:
    """Scores (values, classes) and the right classes (values)."""
    inputs, classes = batch
    with autocast(inputs):
        scores = model(inputs)
    return scores.float().flatten(end_dim=-2), classes.flatten()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
