"""What of a compressed DDP goes into its copies and files: nothing of ranks or residuals."""

from __future__ import annotations

from typing import Any

from tersor._core import InvalidArgumentError


class CopiedHookState:
    """What a copied or loaded DDP has for a ``HookState``: DDP calls no hook of a copy.

    So its gradients travel uncompressed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for
            raise AttributeError(name)
        raise InvalidArgumentError(
            f"{name}: this was a HookState before it was copied or saved. Gradients of a copied "
            "model are sent uncompressed until tersor.torch.compress(model); residuals are saved "
            "by the state_dict() of the handle"
        )
