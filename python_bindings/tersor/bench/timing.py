"""Clocks: of the host, and of a CUDA device, where work is queued and done later."""

import time
import typing
from collections.abc import Callable

import torch
from torch import nn


class Mark(typing.Protocol):
    """A point in time."""

    def seconds_until(self, later: typing.Any) -> float:
        """To a mark of the same kind. May wait until that has come."""


class HostMark:
    """Now."""

    def __init__(self) -> None:
        self._seconds = time.perf_counter()

    def seconds_until(self, later: "HostMark") -> float:
        """Of this host's clock."""
        return later._seconds - self._seconds


class DeviceMark:
    """When the device has done what is queued on the current stream now."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def seconds_until(self, later: "DeviceMark") -> float:
        """Waits until the device has come to `later`."""
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000


MarkKind = Callable[[], Mark]
Span = tuple[Mark, Mark]  # from, until


def mark_of(device: torch.device) -> MarkKind:
    """The kind of mark that tells when work on this device was done."""
    return DeviceMark if device.type == "cuda" else HostMark


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
