"""A stream beside the trainer's, on which a reducer takes gradients and gives results."""

from __future__ import annotations

import torch

from tersor.reducer import ReducerOptions


class SideStream:
    """Of one device. There is none, and nothing to do, for host memory, or where the caller chose
    a stream for the reducer.

    Memory that was handed over is the reducer's between ``take_over`` and ``give_back``: it is
    neither freed nor written in between.
    """

    def __init__(self, device: torch.device, chosen: ReducerOptions) -> None:
        self.options = chosen  #: for the reducer
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and "stream" not in chosen:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.options = {**chosen, "stream": self._stream}

    def take_over(self) -> None:
        """What follows on the stream waits for what the caller's current stream has queued."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def give_back(self) -> None:
        """What follows on the caller's current stream waits for what this one has queued."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
