"""What the back end encodes, and how; ranks make sure that they were told the same."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tersor._core import InvalidArgumentError, TransportError
from tersor._options import expect
from tersor.codec import Codec
from tersor.torch._src.process_group.connections import Members
from tersor.torch._src.process_group.rendezvous import Meeting

PASS = "pass"  # in place of a codec: handed on
VARIABLE = "TERSOR_BACKEND"
Choice = tuple[str, int]  # a codec, and from how many bytes on
Rule = tuple[str, str] | tuple[str, str, int]

_KEYS = ("codec", "min_bytes", "rules")
_BORDER = re.compile(rf",(?=\s*(?:{'|'.join(_KEYS)})=)")  # specs have commas, too


@dataclass(frozen=True)
class Configuration:
    """What is encoded, and how; equal on all ranks."""

    #: A pattern of calls, a codec and from how many bytes on; the first that fits counts.
    rules: tuple[tuple[str, str, int], ...]

    @property
    def least_bytes(self) -> int:
        """What is shorter is handed on by all rules."""
        return min(least for _, _, least in self.rules)

    def choice(self, call: str) -> Choice:
        """Of a call, such as ``"allreduce/f32/mesh_dp"``."""
        return next((codec, least) for rule, codec, least in self.rules if fnmatchcase(call, rule))

    def __str__(self) -> str:
        return "; ".join(f"{pattern} {codec} {least}" for pattern, codec, least in self.rules)


_configured: Configuration | None = None


def configure(
    codec: str = "int8", min_bytes: int = 1 << 20, rules: Iterable[Rule] = ()
) -> Configuration:
    """Says how groups that are made from now on encode, in place of ``TERSOR_BACKEND``.

    ``codec``: whose payloads can be added, without ``+ef``. ``min_bytes``: what is shorter is
    handed on. ``rules``: ``(pattern, codec)`` or ``(pattern, codec, min_bytes)``, shell style
    patterns of ``"collective/dtype/group"``, such as ``"reduce_scatter/bf16/mesh_dp"``: of
    ``allreduce``, ``reduce_scatter``, ``all_to_all``; ``f32``, ``bf16``, ``f16``; the group's
    description. The first that fits counts; codec ``"pass"`` hands on. Equal on all ranks. Raises
    InvalidArgumentError, TypeError for what is of another type.
    """
    global _configured
    _configured = _checked(codec, min_bytes, rules)
    return _configured


def in_force() -> Configuration:
    """What ``configure`` was told last, or the environment. Raises InvalidArgumentError."""
    return _configured or _of_text(os.environ.get(VARIABLE, ""))


def agree(members: Members, configuration: Configuration) -> None:
    """Raises where ranks are configured differently, or do not come; a collective call."""
    meeting = Meeting(members.store, members.rank, members.ranks)
    meeting.join(members.seconds)
    text, late = str(configuration), f" did not come within {members.seconds:g} s"
    if members.rank:
        meeting.set(f"of-{members.rank}", text)
        if meeting.get("agreed", members.seconds) is None:
            raise TransportError("rank 0" + late)
    for rank in range(1, 0 if members.rank else members.ranks):
        found = meeting.get(f"of-{rank}", members.seconds)
        if found != text:
            wrong = (
                f"rank {rank}" + late
                if found is None
                else (
                    f'the backend is configured as "{text}" on rank 0 and as "{found}" on rank '
                    f"{rank}: pass the same to configure(), or set {VARIABLE}, on all ranks"
                )
            )
            meeting.give_up(wrong)
            raise TransportError(wrong) if found is None else InvalidArgumentError(wrong)
    if not members.rank:
        meeting.set("agreed", text)


def _of_text(text: str) -> Configuration:
    """``codec=int8,min_bytes=1048576,rules=*/bf16/* bf16;*/*/mesh_tp pass 0``."""
    told = {"codec": "int8", "min_bytes": str(1 << 20), "rules": ""}
    for entry in filter(None, map(str.strip, _BORDER.split(text))):
        key, _, value = entry.partition("=")
        if key not in told:
            raise InvalidArgumentError(f"{VARIABLE} has {entry!r}; there are: {', '.join(_KEYS)}")
        told[key] = value
    rules = [_rule_of_text(rule) for rule in told["rules"].split(";") if rule.strip()]
    return _checked(told["codec"], _number(told["min_bytes"]), rules)


def _rule_of_text(text: str) -> Rule:
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
        found.append((pattern, _spec(spec), least))
    return Configuration(tuple(found))


def _spec(text: str) -> str:
    """In canonical form. Raises InvalidArgumentError for a codec that cannot go so."""
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
