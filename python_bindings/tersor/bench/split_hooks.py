"""Exchanges activations and gradients of activations in models split over ranks.

``none`` sends float32 values with PyTorch. ``torch:bf16`` and ``torch:fp16`` cast the values before
sending. Any other name is a codec, including ``tersor:none``. A second codec after a slash is for
gradients: ``int8/bf16``. Experts exchange rows with `all_to_all_single`, pipelines with
`torch.distributed.pipelining`.
"""

import abc
import typing
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench import hooks
from tersor.bench.errors import fail_if, stateless_codec
from tersor.bench.hook_kinds import WaitingHook, Waits
from tersor.bench.hooks import TERSOR, TORCH
from tersor.bench.measures import Mark, Span, Traffic
from tersor.bench.models import Batch, Gpt, GptStage, MixtureOfExperts, RowExchange
from tersor.torch._src.process_group import connections

CASTS = {"none": torch.float32, TORCH + "bf16": torch.bfloat16, TORCH + "fp16": torch.float16}
DEFAULT = ["none", TORCH + "bf16", "bf16", "int8"]
SUMMARY = (
    "none (float32 by PyTorch), torch:bf16, torch:fp16 (cast before), or a codec of Tersor "
    "without +ef; CODEC/CODEC: another codec for gradients"
)
HELP = f"For activations, between experts or stages: {SUMMARY}; default: {' '.join(DEFAULT)}"
MICROBATCHES = 4  # per step of a pipeline


def check(name: str) -> None:
    """Raises BenchmarkError for an unknown name."""
    if name in CASTS:
        return
    fail_if(name.startswith(TORCH), f'no "{name}" for activations; there are: {SUMMARY}')
    for codec in codecs_of(name):
        stateless_codec(codec)


def codecs_of(name: str) -> tuple[str, str]:
    """The codecs of activations and of gradients."""
    codec, _, backward = name.removeprefix(TERSOR).partition("/")
    return codec, backward or codec


class SplitHook(WaitingHook):
    """A model split over ranks. Each rank trains a part."""

    def __init__(self, model: nn.Module, name: str) -> None:
        check(name)
        super().__init__(model)
        self.bytes_are = "computed" if name in CASTS else "counted"

    @abc.abstractmethod
    def owners(self) -> list[tuple[nn.Module, int]]:
        """Each part with a single training rank, and this rank."""

    @torch.no_grad()
    def gather(self, what: Literal["data", "grad"] = "data") -> None:
        for part, owner in self.owners():
            for parameter in part.parameters():
                if getattr(parameter, what) is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.broadcast(getattr(parameter, what), src=owner)


class Rows(RowExchange, abc.ABC):
    """Exchanges rows between all ranks. Each rank waits for the received rows."""

    def __init__(self, waits: Waits) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._waits = waits

    def loads(self, counts: Tensor) -> Tensor:
        gathered = counts.new_empty(self.ranks * len(counts))
        self._waits.during(lambda: dist.all_gather_into_tensor(gathered, counts))
        return gathered.view(self.ranks, -1)

    def send_rows(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        if rows.requires_grad:  # the backward pass runs in reverse order
            rows.register_hook(self._waits.end)  # type: ignore[no-untyped-call]
        result: Tensor = self._waits.during(lambda: self._send(rows, received, sent))
        if result.requires_grad:
            result.register_hook(self._waits.begin)  # type: ignore[no-untyped-call]
        return result

    @abc.abstractmethod
    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """See `send_rows`."""

    @abc.abstractmethod
    def sent_bytes(self) -> float:
        """The bytes sent by this rank."""

    def close(self) -> None:
        """Ends the connections."""


class PlainRows(Rows):
    """Sends rows with PyTorch, cast to a dtype."""

    def __init__(self, name: str, waits: Waits) -> None:
        super().__init__(waits)
        self._dtype, self._sent_count = CASTS[name], 0
        self._group = typing.cast(dist.ProcessGroup, dist.group.WORLD)

    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        splits = (sent, received) if rows.requires_grad else (sent,)
        others = sum(sum(split) - split[self.rank] for split in splits)
        self._sent_count += others * rows.shape[1]
        cast = rows.to(self._dtype)
        pending = all_to_all_single_autograd(cast, received, sent, self._group)
        result: Tensor = wait_tensor(pending)  # type: ignore[no-untyped-call]
        return result.to(rows.dtype)

    def sent_bytes(self) -> float:
        return self._sent_count * self._dtype.itemsize


class EncodedRows(Rows):
    """Sends rows with Tersor over separate connections, to count only the rows' bytes."""

    def __init__(self, name: str, waits: Waits) -> None:
        super().__init__(waits)
        self._codecs = codecs_of(name)
        self._workspace = tersor.Workspace()
        self._group = typing.cast(dist.ProcessGroup, dist.new_group())
        self._transport = connections.transport(self._group, waits.device)

    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        codec, backward_codec = self._codecs
        return tersor.torch.all_to_all_single(
            rows.new_empty((sum(received), *rows.shape[1:])), rows, received, sent, codec=codec,
            backward_codec=backward_codec, process_group=self._group, workspace=self._workspace,
        )  # fmt: skip

    def sent_bytes(self) -> float:
        return float(self._transport.counters().sent_bytes)

    def close(self) -> None:
        connections.close(self._group)
        dist.destroy_process_group(self._group)


class ExpertHook(SplitHook):
    """A model with experts spread over the ranks. DDP averages the rest in float32."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self._rows = (PlainRows if name in CASTS else EncodedRows)(name, self.waits)
        self._mixtures = [one for one in module.modules() if isinstance(one, MixtureOfExperts)]
        for mixture in self._mixtures:
            check_ranks(len(mixture.experts), self._rows.ranks)
            mixture.exchange = self._rows
            experts = mixture.experts_of(self._rows.rank)
            for parameter in experts.parameters():  # the sum over the rows' ranks
                parameter.register_hook(lambda one: one / self._rows.ranks)  # type: ignore[no-untyped-call]
        # DDP averages neither the experts nor the routers' biases, which are equal on all ranks.
        tensors = [*module.named_parameters(), *module.named_buffers()]
        own = [name for name, _ in tensors if ".experts." in f".{name}" or name.endswith("likings")]
        kind: Any = DistributedDataParallel
        kind._set_params_and_buffers_to_ignore_for_model(module, own)
        self.model = hooks.distributed(module)

    def owners(self) -> list[tuple[nn.Module, int]]:
        ranks = range(self._rows.ranks)
        return [(mixture.experts_of(rank), rank) for mixture in self._mixtures for rank in ranks]

    def total(self, steps: int) -> Traffic:
        return Traffic(self._rows.sent_bytes())

    def close(self) -> None:
        self._rows.close()

    def exposed(self, computed: Mark, reduced: Mark) -> list[Span]:
        return [*super().exposed(computed, reduced), (computed, reduced)]


def check_ranks(experts: int, ranks: int) -> None:
    """Raises BenchmarkError if ranks cannot have equal numbers of experts."""
    fail_if(experts % ranks, f"{experts} experts are not a multiple of {ranks} ranks")


class StageHook(SplitHook):
    """A GPT with a stage on each rank and a 1F1B schedule."""

    def __init__(self, gpt: Gpt, name: str) -> None:
        super().__init__(gpt, name)
        self._rank, ranks = dist.get_rank(), dist.get_world_size()
        self._dtype = CASTS.get(name, torch.float32)
        self._parts = [GptStage(gpt, index, ranks, self._dtype) for index in range(ranks)]
        self._stage = PipelineStage(self._parts[self._rank], self._rank, ranks, self.waits.device)
        for method in ("forward_one_chunk", "backward_one_chunk"):
            setattr(self._stage, method, self._working(getattr(self._stage, method)))
        self._handle = None
        if name not in CASTS:
            self._handle = tersor.torch.pipeline.compress(self._stage, *codecs_of(name))
        self._schedule = Schedule1F1B(self._stage, MICROBATCHES, loss_fn=self._working(_loss))
        self._width, self._sent_count = gpt.shape.width, 0

    def _working(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Counts ``compute`` as computation. The rest of a step is waiting."""

        def computed(*arguments: Any, **keywords: Any) -> Any:
            self.waits.end()
            result = compute(*arguments, **keywords)
            self.waits.begin()
            return result

        return computed

    def run_backward(self, batch: Batch) -> Tensor:
        """The loss times the number of ranks on the last rank, 0 on all other ranks. The mean over
        ranks is the loss."""
        inputs, classes = batch
        losses: list[Tensor] = []
        given = (inputs,) if self._stage.is_first else ()
        wanted: Any = {"target": classes, "losses": losses} if self._stage.is_last else {}
        self.waits.during(lambda: self._schedule.step(*given, **wanted))
        neighbours = (not self._stage.is_first) + (not self._stage.is_last)
        self._sent_count += neighbours * inputs.numel() * self._width
        share = len(self._parts) / MICROBATCHES
        return share * sum((loss.detach() for loss in losses), inputs.new_zeros(()))

    def owners(self) -> list[tuple[nn.Module, int]]:
        return [(part, rank) for rank, part in enumerate(self._parts)]

    def total(self, steps: int) -> Traffic:
        if self._handle is not None:
            return Traffic(self._handle.sent_bytes)
        return Traffic(self._sent_count * self._dtype.itemsize)


def _loss(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(end_dim=-2), classes.flatten())
