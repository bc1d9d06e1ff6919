"""Clocks: of the host, and of a CUDA device, where work is queued and done later."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Mark:
    """A point in time: now, or on a CUDA device when that has done what is queued on the current
    stream now."""

    def __init__(self, device: torch.device) -> None:
        self._seconds = time.perf_counter()
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def seconds_until(self, later: "Mark") -> float:
        """To a mark of the same device. Waits until that has come."""
        if self._event is None:
            return later._seconds - self._seconds
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000


MarkKind = Callable[[], Mark]
Span = tuple[Mark, Mark]  # from, until


def mark_of(device: torch.device) -> MarkKind:
    """Marks when work on this device was done."""
    return functools.partial(Mark, device)


class LastGradient:
    """Marks when the last gradient of a backward pass was computed: what comes after is waiting.

    Works alike whatever the hook: it listens to the parameters, not to DDP.
    """

    def __init__(self, model: nn.Module, kind: MarkKind) -> None:
        self._kind = kind
        self.mark = kind()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._note
            )

    def _note(self, _: torch.Tensor) -> None:
        self.mark = self._kind()
