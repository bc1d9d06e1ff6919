"""What the options of optimizers that exchange may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tersor import Codec
from tersor._core import InvalidArgument
from tersor.reducer import ReducerOptions
from tersor.torch.samples import refuse_weighted

DEFAULT_CODEC = "hadamard:bits=1+ef"


def check_group(group: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for options that no optimizer takes."""
    for name in ("lr", "eps", "weight_decay"):
        if name in group and not group[name] >= 0:
            raise InvalidArgument(f"{name}={group[name]}: 0 or more")
    if not 0 <= group.get("momentum", 0) < 1:
        raise InvalidArgument(f"momentum={group['momentum']}: at least 0 and below 1")
    if group.get("ns_steps", 1) < 1:
        raise InvalidArgument(f"ns_steps={group['ns_steps']}: 1 or more")
    betas = group.get("betas", (0, 0))
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidArgument(f"betas={betas}: two numbers, each at least 0 and below 1")


def with_default_codec(options: ReducerOptions, who: str) -> ReducerOptions:
    """With the default codec. Raises InvalidArgument for what has no meaning here."""
    found = cast(ReducerOptions, {"codec": DEFAULT_CODEC, **options})
    rules = list(found.get("rules", ()))
    codecs = [rule[1] for rule in rules] or [found["codec"]]
    if "auto" in codecs:
        raise InvalidArgument(f'codec="auto" is for gradients: give {who} a codec by name')
    if not any(Codec(codec).has_feedback for codec in codecs):
        listed = ", ".join(codecs)
        raise InvalidArgument(
            f"{listed}: {who} is for codecs with error feedback: add +ef, or average gradients for "
            "an ordinary optimizer (tersor.torch.compress, DistributedOptimizer)"
        )
    refuse_weighted(options, who, "needs no option: set samples before step(), on all ranks")
    if (reduction := found.get("reduction", "mean")) != "mean":
        raise InvalidArgument(f"reduction={reduction!r}: {who} takes the mean")
    return {**found, "rules": rules}


def check_schedule(options: ReducerOptions, dense_steps: int) -> None:
    """Raises InvalidArgument for first steps that are none, or that rules say, too."""
    if dense_steps < 0:
        raise InvalidArgument(f"dense_steps={dense_steps}: 0 or more")
    if any(len(rule) > 2 for rule in options.get("rules", ())):
        raise InvalidArgument("dense_steps= and rules with steps: say all of it by rules")
