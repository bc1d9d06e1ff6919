"""Weight deltas: the difference between two versions of a model's weights.

A trainer sends a delta to inference engines that have the version before. The engines get every
bit of the new version, also of NaNs and signed zeros. ``docs/how-to/weight-deltas.md`` has
examples. ``docs/reference/delta-format.md`` describes the bytes.
"""

from __future__ import annotations

from tersor._core import BaseMismatchError
from tersor.delta._broadcast import broadcast_delta
from tersor.delta._changes import changes
from tersor.delta._memory import Delta, Entry, check, encode
from tersor.delta._publisher import Publisher
from tersor.delta._receiver import Receiver
from tersor.delta._transaction import apply

__all__ = [
    "BaseMismatchError", "Delta", "Entry", "Publisher", "Receiver", "apply", "broadcast_delta",
    "changes", "check", "encode",
]  # fmt: skip
__dir__ = __all__.copy

BaseMismatchError.__module__ = __name__
