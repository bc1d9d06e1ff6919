"""Ways for rows to go to their experts and back: PyTorch's `all_to_all_single`, and ours.

What is no expert's is averaged by `DistributedDataParallel`, as f32, whatever the way.
"""

import abc
import typing

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.nn.parallel import DistributedDataParallel

import tersor.torch
from tersor.bench import hooks, split_hooks
from tersor.bench.errors import BenchmarkError
from tersor.bench.mixture import Carrier, MixtureOfExperts
from tersor.bench.split_hooks import CASTS, SplitHook, Waits
from tersor.bench.timing import Mark, Span, mark_of
from tersor.bench.traffic import Traffic
from tersor.torch._src.process_group import connections


class Rows(Carrier, abc.ABC):
    """Between all ranks, each of which waits for what comes."""

    def __init__(self, waits: Waits) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._waits = waits

    def loads(self, counts: Tensor) -> Tensor:
        gathered = counts.new_empty(self.ranks * len(counts))
        self._waits.begin()
        dist.all_gather_into_tensor(gathered, counts)
        self._waits.end()
        return gathered.view(self.ranks, -1)

    def carry(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        if rows.requires_grad:  # in the backward pass the end comes first
            rows.register_hook(self._waits.end)  # type: ignore[no-untyped-call]
        self._waits.begin()
        arrived = self._send(rows, received, sent)
        self._waits.end()
        if arrived.requires_grad:
            arrived.register_hook(self._waits.begin)  # type: ignore[no-untyped-call]
        return arrived

    @abc.abstractmethod
    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """As `carry`."""

    @abc.abstractmethod
    def sent_bytes(self) -> float:
        """By this rank, until now."""

    def close(self) -> None:
        """Ends what was made to send."""


class PlainRows(Rows):
    """PyTorch's, of values that are cast."""

    def __init__(self, dtype: torch.dtype, waits: Waits) -> None:
        super().__init__(waits)
        self._dtype = dtype
        self._group = typing.cast(dist.ProcessGroup, dist.group.WORLD)
        self._sent_count = 0

    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ways = (sent, received) if rows.requires_grad else (sent,)
        others = sum(sum(way) - way[self.rank] for way in ways)
        self._sent_count += others * rows.shape[1]
        cast = rows.to(self._dtype)
        coming = all_to_all_single_autograd(cast, received, sent, self._group)
        arrived: Tensor = wait_tensor(coming)  # type: ignore[no-untyped-call]
        return arrived.to(rows.dtype)

    def sent_bytes(self) -> float:
        return self._sent_count * self._dtype.itemsize


class EncodedRows(Rows):
    """Ours, over connections of their own, whose bytes nobody else's are among."""

    def __init__(self, name: str, waits: Waits, device: torch.device) -> None:
        super().__init__(waits)
        self._codecs = split_hooks.codecs_of(name)
        self._workspace = tersor.Workspace()
        self._group = typing.cast(dist.ProcessGroup, dist.new_group())
        self._transport = connections.transport(self._group, device)

    def _send(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        codec, backward_codec = self._codecs
        return tersor.torch.all_to_all_single(
            rows.new_empty((sum(received), *rows.shape[1:])), rows, received, sent, codec=codec,
            backward_codec=backward_codec, process_group=self._group, workspace=self._workspace,
        )  # fmt: skip

    def sent_bytes(self) -> float:
        return self._transport.counters().sent_bytes

    def close(self) -> None:
        connections.close(self._group)
        dist.destroy_process_group(self._group)


class ExpertHook(SplitHook):
    """The experts of all mixtures in a model, spread over the ranks; rows go in one of the ways."""

    def __init__(self, module: nn.Module, name: str) -> None:
        split_hooks.check(name)
        device = next(module.parameters()).device
        waits = Waits(mark_of(device))
        dtype = CASTS.get(name)
        self._rows = EncodedRows(name, waits, device) if dtype is None else PlainRows(dtype, waits)
        self._mixtures = [one for one in module.modules() if isinstance(one, MixtureOfExperts)]
        for mixture in self._mixtures:
            check_ranks(len(mixture.experts), self._rows.ranks)
            mixture.carrier = self._rows
            for parameter in mixture.own_experts().parameters():
                parameter.register_hook(self._mean)  # type: ignore[no-untyped-call]
        super().__init__(_distribute_the_rest(module), name, waits)

    def _mean(self, gradient: Tensor) -> Tensor:
        """An expert has the sum over the ranks whose rows came."""
        return gradient / self._rows.ranks

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
    """Raises BenchmarkError where ranks cannot have equally many experts."""
    if experts % ranks:
        raise BenchmarkError(f"{experts} experts are not a multiple of {ranks} ranks")


def _distribute_the_rest(module: nn.Module) -> DistributedDataParallel:
    """All ranks have the same likings, since they count all rows alike."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    own = [name for name, _ in tensors if ".experts." in f".{name}" or name.endswith("likings")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
        module, own
    )
    return hooks.distributed(module)
