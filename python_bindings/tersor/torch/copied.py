"""What of a compressed DDP goes into its copies and files: nothing of ranks or residuals."""

from __future__ import annotations

from typing import Any

from tersor._core import InvalidArgument
from tersor.torch.scaler import LossScale


class CopiedHookState:
    """What a copied or loaded DDP has for a ``HookState``: DDP calls no hook of a copy.

    So its gradients travel uncompressed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for
            raise AttributeError(name)
        raise InvalidArgument(
            f"{name}: this was a HookState before it was copied or saved. Gradients of a copied "
            "model travel uncompressed until tersor.torch.compress(model); residuals are saved by "
            "the state_dict() of the handle"
        )


class ReadAhead:
    """Called before the model's forward pass; a copy of the model has nothing to read."""

    def __init__(self, loss_scale: LossScale | None = None) -> None:
        self._loss_scale = loss_scale

    def __call__(self, *_: object) -> None:
        if self._loss_scale is not None:
            self._loss_scale.read_ahead()

    def __reduce__(self) -> Any:
        return ReadAhead, ()
