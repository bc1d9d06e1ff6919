"""The trained models: two convolutional networks, and a GPT, also with experts or in stages."""

import dataclasses

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]  # inputs, and the right classes


def convolutional_net(classes: int) -> nn.Sequential:
    """Two convolutions and two linear layers for images (batch, 1, 28, 28): 409,034 parameters.

    Nearly all gradient bytes are ready early in the backward pass, because the linear layers come
    last. The bytes can be sent during the backward pass of the convolutions.
    """
    layers: list[nn.Module] = []
    for channels, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(32 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, classes)]
    return nn.Sequential(*layers)


def normalised_net(classes: int) -> nn.Sequential:
    """Four convolutions for images (batch, 1, 28, 28), a group norm (Wu and He 2018) after each,
    and a mean over the image: 98,938 parameters.

    No matrix has most of the parameters, unlike in `convolutional_net`; the norms have vectors.
    """
    layers: list[nn.Module] = []
    for channels, outputs, kernel, stride in (
        (1, 16, 5, 2), (16, 32, 3, 2), (32, 64, 3, 1), (64, 128, 3, 2)
    ):  # fmt: skip
        one = nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=False)
        layers += [one, nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


BALANCING_RATE = 0.001  # Wang et al.'s


class RowExchange:
    """Brings rows to the experts of all ranks, in order. This base class is for one rank."""

    rank = 0
    ranks = 1

    def loads(self, counts: Tensor) -> Tensor:
        """This rank's rows for each expert (experts) to those of all ranks (ranks, experts)."""
        return counts[None]

    def send_rows(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """Sends `sent[r]` rows to each rank r, in order. Returns the received rows in rank order.
        Gradients return the same way."""
        return rows


class MixtureOfExperts(nn.Module):
    """A router sends each row to the expert with the highest score (Fedus et al. 2021).

    Experts have no capacity limit. Experts with few rows get a higher bias in each step (Wang et
    al. 2024), so the loss needs no other term. Without gradients, this rank computes all experts,
    and must have their weights.
    """

    likings: Tensor

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(feed_forward(width, hidden) for _ in range(experts))
        self.register_buffer("likings", torch.zeros(experts))
        self.exchange = RowExchange()

    def forward(self, states: Tensor) -> Tensor:
        """(…, width) to the same shape."""
        rows = states.flatten(end_dim=-2)
        shares = self.router(rows).softmax(dim=1)
        chosen = (shares.detach() + self.likings).argmax(dim=1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(self.experts))
        mixed = self._compute(rows.index_select(0, order), counts).index_select(0, order.argsort())
        result: Tensor = (mixed * shares.gather(1, chosen[:, None])).view_as(states)
        return result

    def _compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The results of rows that are sorted by expert."""
        if not torch.is_grad_enabled():
            return _apply_experts(self.experts, rows, counts[None])
        exchange = self.exchange
        loads = exchange.loads(counts)
        totals = loads.sum(dim=0)
        self.likings += BALANCING_RATE * (totals.float().mean() - totals).sign()
        by_rank = loads.view(exchange.ranks, exchange.ranks, -1)  # from, to, expert there
        sent = by_rank[exchange.rank].sum(dim=1).tolist()
        received = by_rank[:, exchange.rank].sum(dim=1).tolist()
        inputs = exchange.send_rows(rows, received, sent)
        outputs = _apply_experts(self.experts_of(exchange.rank), inputs, by_rank[:, exchange.rank])
        return exchange.send_rows(outputs, sent, received)

    def experts_of(self, rank: int) -> nn.ModuleList:
        count = len(self.experts) // self.exchange.ranks
        return self.experts[rank * count : (rank + 1) * count]


def feed_forward(width: int, hidden: int) -> nn.Sequential:
    """Two linear layers of a transformer."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _apply_experts(experts: nn.ModuleList, rows: Tensor, counts: Tensor) -> Tensor:
    """Rows sorted by sender, then by expert, as `counts` has them."""
    experts_of_rows = torch.arange(len(experts), device=rows.device).repeat(len(counts))
    order = experts_of_rows.repeat_interleave(counts.flatten()).argsort(stable=True)
    groups = torch.split(rows.index_select(0, order), counts.sum(dim=0).tolist())
    outputs = [expert(group) for expert, group in zip(experts, groups, strict=True)]
    return torch.cat(outputs).index_select(0, order.argsort())


@dataclasses.dataclass(frozen=True)
class GptShape:
    """The size of a GPT. `context` is the number of characters that the GPT reads."""

    layers: int
    heads: int
    width: int
    context: int
    experts: int = 0  # of a mixture in each layer; 0: none

    def step_bytes(self, batch: int) -> int:
        """An estimate of the memory of a training step. A parameter takes 26 bytes: value,
        gradient, momentum, variance, residual, a bucket's copy, and a cast to bf16. A token takes
        34 bytes per layer and width (Korthikanti et al. 2022, without attention scores)."""
        parameters = 12 * self.layers * self.width**2
        return 26 * parameters + 34 * self.layers * self.width * self.context * batch


GPT_SIZES = {
    "0.2m": GptShape(layers=4, heads=2, width=64, context=64),
    "0.8m": GptShape(layers=4, heads=4, width=128, context=64),
    "6m": GptShape(layers=8, heads=8, width=256, context=64),
    "12m": GptShape(layers=7, heads=6, width=384, context=64),
    "86m": GptShape(layers=12, heads=12, width=768, context=512),
    "124m": GptShape(layers=16, heads=10, width=800, context=512),
}  # by the number of parameters


class Block(nn.Module):
    """A pre-norm transformer block: causal attention, then two linear layers or a mixture of
    experts."""

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
        states = states + self._attention(self.attention_norm(states))
        result: Tensor = states + self.expansion(states)
        return result

    def _attention(self, states: Tensor) -> Tensor:
        batch, context, width = states.shape
        by_head = (batch, context, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(states).view(by_head).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, context, width))
        return result


class Embedding(nn.Module):
    """Embeds characters and positions."""

    def __init__(self, characters: int, shape: GptShape) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)

    def forward(self, indices: Tensor) -> Tensor:
        """(batch, context) to (batch, context, width)."""
        positions = torch.arange(indices.shape[1], device=indices.device)
        states: Tensor = self.characters(indices) + self.positions(positions)
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
    """A part of a GPT with its parameters. All parts have the same number of blocks, and pass on
    states of a dtype."""

    def __init__(self, gpt: Gpt, index: int, stages: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        count = len(gpt.blocks) // stages
        self._is_first, self._is_last = index == 0, index == stages - 1
        layers: list[nn.Module] = list(gpt.blocks)[index * count : (index + 1) * count]
        layers += [gpt.scores] if self._is_last else []
        self.layers = nn.Sequential(*([gpt.embedding] if self._is_first else []), *layers)

    def forward(self, states: Tensor) -> Tensor:
        """Characters or the previous stage's states to states; in the last stage to scores."""
        with autocast(states):
            outputs: Tensor = self.layers(states if self._is_first else states.float())
        return outputs.float() if self._is_last else outputs.to(self._dtype)


def autocast(values: Tensor) -> torch.autocast:
    """bf16 arithmetic on GPUs."""
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
