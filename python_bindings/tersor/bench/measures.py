"""Clocks of the host and of CUDA devices, and counts of sent bytes."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tersor.bench.records import Record


class Mark:
    """A point in time: now or, on a CUDA device, the completion of the current stream's work."""

    def __init__(self, device: torch.device) -> None:
        self._seconds = time.perf_counter()
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def seconds_until(self, later: "Mark") -> float:
        """The seconds until a later mark of the same device. Waits for the later mark."""
        if self._event is None:
            return later._seconds - self._seconds
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000


MarkKind = Callable[[], Mark]
Span = tuple[Mark, Mark]  # from, until


def mark_of(device: torch.device) -> MarkKind:
    """A function for marking the current point in time of a device."""
    return functools.partial(Mark, device)


def seconds_in(spans: Iterable[Span]) -> float:
    return sum(start.seconds_until(end) for start, end in spans)


class LastGradient:
    """Marks the time of the last gradient of a backward pass. The rest of the pass is waiting. The
    parameters' own hooks set the mark, independently of the benchmarked hook."""

    def __init__(self, model: nn.Module, kind: MarkKind) -> None:
        self._kind = kind
        self.mark = kind()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, _: torch.Tensor) -> None:
        self.mark = self._kind()


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The sent bytes of a rank, and the seconds of each part. None: not reported by PyTorch."""

    sent_bytes: float | None
    encode_seconds: float | None = None
    wire_seconds: float | None = None
    decode_seconds: float | None = None

    def since(self, before: "Traffic") -> "Traffic":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before), strict=True)
        return Traffic(*(None if now is None else now - (earlier or 0) for now, earlier in pairs))

    def fields(self) -> Record:
        fields = dict(vars(self))
        return {"wire_bytes": fields.pop("sent_bytes"), **fields}


def ring_bytes(reduced_bytes: float, ranks: int) -> float:
    """The bytes sent by each rank in a ring all-reduce (Patarasuk and Yuan 2009)."""
    return 2 * (ranks - 1) / ranks * reduced_bytes


class Sender:
    """Collectives of PyTorch. Each call counts the bytes that this rank sends of its payload, along
    a ring."""

    def __init__(self, during: Callable[[Callable[[], Any]], Any] = lambda call: call()) -> None:
        """``during`` makes each call."""
        self.sent_bytes = 0.0
        self.ranks, self._during = dist.get_world_size(), during

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks, in place."""
        self.sent_bytes += ring_bytes(values.nbytes, self.ranks)
        self._during(lambda: dist.all_reduce(values))
        return values.div_(self.ranks)

    def all_gather(self, own: Tensor) -> Tensor:
        """The values of all ranks: (ranks, …)."""
        own, all_values = own.contiguous(), own.new_empty(self.ranks * own.numel())
        self.sent_bytes += own.nbytes * (self.ranks - 1)
        self._during(lambda: dist.all_gather_into_tensor(all_values, own.flatten()))
        return all_values.view(self.ranks, *own.shape)

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Sends row r to rank r. Returns a row of each rank."""
        received = torch.empty_like(rows)
        self.sent_bytes += rows.nbytes / self.ranks * (self.ranks - 1)
        self._during(lambda: dist.all_to_all_single(received, rows))
        return received


def parameter_count(model: nn.Module) -> int:
    """The number of values of all trained parameters."""
    return sum(values.numel() for values in model.parameters() if values.requires_grad)
