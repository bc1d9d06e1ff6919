"""A gradient scaler's loss scale, which residuals are in units of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


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
    """Follows a scaler from step to step.

    A scaler lowers its scale when it skipped a step because a gradient was not finite, and at no
    other time by itself. Gradients of a skipped step were sent nevertheless: what the residuals
    held of them is lost with it, unless the reducer is transactional.
    """

    def __init__(self, scaler: Scaler, transactional: bool) -> None:
        self._scaler = scaler
        self._transactional = transactional
        self._scale: float | None = None
        self.skipped_steps = 0

    def follow(self, residuals: Residuals) -> None:
        """Before a step: brings the residuals into its units, and takes back a skipped one."""
        scale, before = self._scaler.get_scale(), self._scale
        self._scale = scale
        if before is None or scale == before:
            return
        if scale < before:
            self._skipped(residuals)
        residuals.scale_residuals(scale / before)

    def state_dict(self) -> dict[str, Any]:
        """The scale that the residuals are in, and what was counted."""
        return {"loss_scale": self._scale, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there: the next step brings the residuals into its own units."""
        self._scale = state.get("loss_scale")
        self.skipped_steps = state.get("skipped_steps", 0)

    def _skipped(self, residuals: Residuals) -> None:
        self.skipped_steps += 1
        if self._transactional:
            residuals.discard_step()
