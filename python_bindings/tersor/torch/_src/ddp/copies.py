"""The state of the hook in copies and files of a compressed DDP model."""

from __future__ import annotations

from typing import Any

from tersor._core import InvalidArgumentError


class CopiedHookState:
    """Replaces ``HookState`` in a copied or loaded DDP model, which has no ranks or residuals. DDP
    calls no hook of a copy, and gradients of the copy are sent uncompressed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own protocols
            raise AttributeError(name)
        raise InvalidArgumentError(
            f"{name}: this was a HookState before it was copied or saved. Gradients of a copied "
            "model are sent uncompressed until tersor.torch.compress(model); residuals are saved "
            "by the state_dict() of the handle"
        )
