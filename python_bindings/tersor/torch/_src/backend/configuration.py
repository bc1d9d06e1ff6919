"""The codecs of the backend, and the check that all ranks have the same configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tersor._core import Error, InvalidArgumentError, TransportError
from tersor._options import expect
from tersor._renamed import deprecated
from tersor.codec import Codec
from tersor.torch._src.process_group.connections import Members
from tersor.torch._src.process_group.rendezvous import Rendezvous

PASS = "pass"  # instead of a codec: the call is passed on
VARIABLE = "TERSOR_BACKEND"
Rule = tuple[str, str] | tuple[str, str, int]

_KEYS = ("codec", "min_bytes", "rules")
_SEPARATOR = re.compile(rf",(?=\s*(?:{'|'.join(_KEYS)})=)")  # specs contain commas too


@dataclass(frozen=True)
class Configuration:
    """The codecs of the backend, equal on all ranks; :func:`configure` makes one.

    Attributes:
        rules: Pairs of a pattern and a codec, with the minimum of bytes. The first match counts.

    Example:
        >>> configure(codec="int8").min_bytes
        1048576
    """

    rules: tuple[tuple[str, str, int], ...]

    @property
    def min_bytes(self) -> int:
        """The smallest minimum of all rules, in bytes. Shorter calls are passed on."""
        return min(least for _, _, least in self.rules)

    def choice(self, call: str) -> tuple[str, int]:
        """Returns the codec and the minimum of bytes of a call.

        Args:
            call: The collective, dtype and process group, such as ``"all_reduce/f32/mesh_dp"``.

        Example:
            >>> configure(codec="int8").choice("all_reduce/f32/mesh_dp")
            ('int8', 1048576)
        """
        names = (call, call.replace("all_reduce/", "allreduce/"))  # the last release's name
        return next(
            (codec, least)
            for rule, codec, least in self.rules
            if any(fnmatchcase(name, rule) for name in names)
        )

    def __str__(self) -> str:
        return "; ".join(f"{pattern} {codec} {least}" for pattern, codec, least in self.rules)


_configured: Configuration | None = None


def configure(
    codec: str = "int8", min_bytes: int = 1 << 20, rules: Iterable[Rule] = ()
) -> Configuration:
    """Sets the codecs of process groups that are made later. Overrides ``TERSOR_BACKEND``.

    Pass equal arguments on all ranks.

    Args:
        codec: Spec of a codec that supports two-shot, without ``+ef``.
        min_bytes: Calls with fewer bytes are passed on.
        rules: ``(pattern, codec)`` or ``(pattern, codec, min_bytes)``. A pattern is a shell-style
            pattern of ``"collective/dtype/group"``, such as ``"reduce_scatter/bf16/mesh_dp"``. The
            collective is ``all_reduce``, ``reduce_scatter`` or ``all_to_all``; the dtype is
            ``f32``, ``bf16`` or ``f16``; the group is the description of the process group. The
            first match counts. Codec ``"pass"`` passes a call on.

    Returns:
        The configuration.

    Raises:
        InvalidArgumentError: A codec or a minimum is invalid.
        TypeError: A value has the wrong type.

    Example:
        >>> configure(codec="int8", rules=[("*/*/mesh_tp", "pass")])
        >>> torch.distributed.init_process_group("tersor")
    """
    global _configured
    _configured = _checked(codec, min_bytes, rules)
    return _configured


def current_configuration() -> Configuration:
    """Returns the last :func:`configure`, or else the environment's configuration. Raises
    InvalidArgumentError if ``TERSOR_BACKEND`` is invalid."""
    return _configured or _parse(os.environ.get(VARIABLE, ""))


def agree(members: Members, configuration: Configuration) -> None:
    """Compares the configurations of all ranks. A collective call. Raises InvalidArgumentError if
    two ranks have different configurations, and TransportError if a rank missed the rendezvous."""
    rendezvous = Rendezvous(members.store, members.rank, members.ranks)
    rendezvous.join(members.seconds)
    text, late = str(configuration), f" missed the rendezvous within {members.seconds:g} s"
    if members.rank:
        rendezvous.set(f"of-{members.rank}", text)
        if rendezvous.get("agreed", members.seconds) is None:
            raise TransportError("rank 0" + late)
    for rank in range(1, 0 if members.rank else members.ranks):
        found = rendezvous.get(f"of-{rank}", members.seconds)
        if found == text:
            continue
        error: Error = TransportError(f"rank {rank}" + late)
        if found is not None:
            error = InvalidArgumentError(
                f'the backend is configured as "{text}" on rank 0 and as "{found}" on rank {rank}: '
                f"pass the same to configure(), or set {VARIABLE}, on all ranks"
            )
        rendezvous.report_failure(str(error))
        raise error
    if not members.rank:
        rendezvous.set("agreed", text)


def _parse(text: str) -> Configuration:
    """Parses ``codec=int8,min_bytes=1048576,rules=*/bf16/* bf16;*/*/mesh_tp pass 0``."""
    values = {"codec": "int8", "min_bytes": str(1 << 20), "rules": ""}
    for entry in filter(None, map(str.strip, _SEPARATOR.split(text))):
        key, _, value = entry.partition("=")
        if key not in values:
            raise InvalidArgumentError(
                f"{VARIABLE} has {entry!r}; the keys are: {', '.join(_KEYS)}"
            )
        values[key] = value
    rules = [_parse_rule(rule) for rule in values["rules"].split(";") if rule.strip()]
    return _checked(values["codec"], _number(values["min_bytes"]), rules)


def _parse_rule(text: str) -> Rule:
    words = text.split()
    if len(words) not in (2, 3):
        raise InvalidArgumentError(
            f"{VARIABLE}: a rule must be a pattern and a codec, not {text!r}"
        )
    return (words[0], words[1]) if len(words) == 2 else (words[0], words[1], _number(words[2]))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgumentError(f"{VARIABLE}: {text!r} is not a number of bytes")
    return int(text)


def _checked(codec: str, min_bytes: int, rules: Iterable[Rule]) -> Configuration:
    found = []
    for rule in (*rules, ("*", codec)):
        pattern, spec, least = (*rule, min_bytes)[:3]
        expect(pattern, str, "the pattern of a rule must be a string")
        expect(spec, str, 'codec must be a string, such as "int8"')
        expect(least, int, "min_bytes must be an integer")
        if least < 0:
            raise InvalidArgumentError(f"min_bytes is {least}: give 0 or more")
        if pattern.startswith("allreduce"):
            deprecated('the collective "allreduce" of a rule', 'use "all_reduce"')
        found.append((pattern, _spec(spec), least))
    return Configuration(tuple(found))


def _spec(text: str) -> str:
    """Returns the canonical spec. Raises InvalidArgumentError without support for two-shot."""
    if text == PASS:
        return text
    codec = Codec(text)
    if codec.has_feedback:
        raise InvalidArgumentError(
            f"{text}: the backend cannot keep residuals, because it does not know parameter names: "
            f"use {text.removesuffix('+ef')!r}, or tersor.torch.compress"
        )
    codec.require("two-shot")
    return codec.spec
