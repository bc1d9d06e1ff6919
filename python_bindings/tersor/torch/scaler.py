"""A gradient scaler's loss scale, which residuals are in units of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from tersor._options import described


class Scaler(Protocol):
    """What is needed of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """The scale of the next loss."""


class Residuals(Protocol):
    """What is needed of whoever keeps residuals."""

    def scale_residuals(self, factor: float) -> None:
        """Multiplies them."""

    def discard_step(self) -> None:
        """Brings back those from before the last step."""


class LossScale:
    """Follows a scaler from step to step; where there is none, nothing changes.

    A scaler lowers its scale when it skipped a step because a gradient was not finite, and at no
    other time by itself. Gradients of a skipped step were sent nevertheless: what the residuals
    held of them is lost with it, unless the reducer is transactional.
    """

    def __init__(self, scaler: Scaler | None, transactional: bool) -> None:
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise TypeError(f"scaler is the training's GradScaler, not {described(scaler)}")
        self.scaler = scaler
        self._transactional = transactional
        self._scale: float | None = None
        self._coming: _HostCopy | None = None
        self._discarded = False
        self.skipped_steps = 0

    def read_ahead(self) -> None:
        """Where a forward pass begins on a GPU: ``follow`` then waits for what was queued by now.

        That is the scaler's last update. ``get_scale`` waits for all that is queued when it is
        called: the forward pass and what there is of the backward pass.
        """
        if not getattr(self.scaler, "is_enabled", lambda: True)():
            return  # it has no tensor then, and its scale is 1
        scale = getattr(self.scaler, "_get_scale_async", lambda: None)()
        if isinstance(scale, Tensor) and scale.is_cuda:
            self._coming = _HostCopy(scale)

    def follow(self, residuals: Residuals) -> None:
        """Before a step: brings the residuals into its units, and takes back a skipped one."""
        if self.scaler is None:
            return
        coming, self._coming = self._coming, None
        scale = self.scaler.get_scale() if coming is None else coming.wait()
        before, self._scale = self._scale, scale
        discarded, self._discarded = self._discarded, False
        if before is None or scale == before:
            return
        if scale < before:
            self.skipped_steps += 1
            if self._transactional and not discarded:
                residuals.discard_step()
                self._discarded = False
        residuals.scale_residuals(scale / before)

    def discarded(self) -> None:
        """The trainer took the last step back by himself: it is not taken back again."""
        self._discarded = True

    def state_dict(self) -> dict[str, Any]:
        """The scale that the residuals are in, and what was counted."""
        if self.scaler is None:
            return {}
        return {"loss_scale": self._scale, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there: the next step brings the residuals into its own units."""
        if self.scaler is not None:
            self._scale = state.get("loss_scale")
            self.skipped_steps = state.get("skipped_steps", 0)


class _HostCopy:
    """A number on its way from a GPU, as its current stream has it."""

    def __init__(self, number: Tensor) -> None:
        self._number = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
        self._number.copy_(number, non_blocking=True)
        self._done = torch.cuda.current_stream(number.device).record_event()

    def wait(self) -> float:
        self._done.synchronize()
        return float(self._number)
