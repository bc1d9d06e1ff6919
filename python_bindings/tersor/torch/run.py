"""Runs a training script unchanged, with compressed gradients::

    torchrun --nproc-per-node 2 -m tersor.torch.run --codec int8 train.py --epochs 3

tersor.torch.compress compresses models of DistributedDataParallel and fully_shard (FSDP2). All
other messages of the script stay uncompressed. At the end, rank 0 reports the sent bytes.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import re
import runpy
import sys
import textwrap
from typing import Any

from tersor import _core, _text
from tersor._core import InvalidArgumentError
from tersor._options import fill
from tersor.torch._src.run.patches import Constructors, Planned, Record

__all__ = ["main"]
__dir__ = __all__.copy

_PROGRAM = "tersor.torch.run"
_RULES = """a file with one rule per line: `pattern codec [from_step]`, such as `*.bias bf16` or
`* int8+ef 100`; a pattern is a shell pattern of parameter names; the first match counts; --codec
applies to all other parameters; lines that start with # are comments"""


def main(arguments: list[str] | None = None) -> int:
    """Runs a script.

    Args:
        arguments: Command line. Default: ``sys.argv``.

    Returns:
        0, or 2 after a wrong option or with a missing script.

    Raises:
        SystemExit: The command line is invalid, or the script exits.

    Example:
        >>> main(["--codec", "int8", "train.py"])
    """
    options = _parser().parse_args(arguments)
    try:
        _check_script(options.script, options.module)
        _check_report(options.report)
        rules = _reducer_options(options.codec, options.rules)
        constructors = Constructors(rules, options.unsupported, dry=options.dry)
    except (InvalidArgumentError, OSError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    constructors.install()
    atexit.register(_end, constructors, os.getpid(), options.report)
    _run(options.script, options.arguments, options.module)
    return 0


def _parser() -> argparse.ArgumentParser:
    kind = argparse.RawDescriptionHelpFormatter
    program = f"python -m {_PROGRAM}"
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=kind)
    add = parser.add_argument
    add("--codec", metavar="SPEC", help="such as int8, int4+ef or auto; default bf16")
    add("--rules", metavar="FILE", help=_RULES)
    plain = "for gradients that no codec supports (float64, sparse): send uncompressed, or fail"
    add("--unsupported", choices=["warn", "error"], default="warn", help=plain)
    add("--report", metavar="FILE", help="a plot of the sent bytes: .png, .svg or .pdf")
    add("--dry", action="store_true", help="change nothing; report the planned bytes at the end")
    add("-m", "--module", action="store_true", help="the script is a module name, as in python -m")
    add("script", help="the training script, followed by the script's arguments")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    return parser


def _check_script(script: str, is_module: bool) -> None:
    found, kind = os.path.exists(script), "file"
    if is_module:
        found, kind = False, "module"
        with contextlib.suppress(ImportError, ValueError):
            found = importlib.util.find_spec(script) is not None
    if not found:
        raise InvalidArgumentError(
            f"there is no {kind} {script!r}: give the script's path, or -m and a module's name, "
            "after the options of this program"
        )


def _check_report(path: str | None) -> None:
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("--report draws with matplotlib: pip install matplotlib")
    if not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise InvalidArgumentError(f"--report {path}: its folder does not exist or is not writable")


def _reducer_options(codec: str | None, file: str | None) -> Any:
    """Returns options of compress(). Raises InvalidArgumentError for a wrong codec or rule."""
    default = ("*", codec or "bf16")
    _check_rules([default])
    if file is None:
        return {"codec": default[1]}
    rules = read_rules(file) + ([] if codec is None else [default])
    _check_rules([*rules, ("any", "bf16")])
    return {"rules": rules}


def read_rules(path: str) -> list[Any]:
    """Reads a file of rules.

    Args:
        path: The file.

    Returns:
        Triples of a pattern, a codec and the first step.

    Raises:
        InvalidArgumentError: A line is not a rule; the message has the number of the line.
        OSError: The file cannot be read.
    """
    rules: list[Any] = []
    with open(path, "rb") as file:
        try:
            text = file.read().decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{path} is not UTF-8 text: {error}") from None
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and not line.startswith("#"):
            try:
                rules.append(_rule(line))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{path}:{number}: {line!r}: {error}") from None
    if not rules:
        raise InvalidArgumentError(
            f"{path} has no rule: write lines of `pattern codec [from_step]`"
        )
    return rules


def _rule(line: str) -> Any:
    if (found := re.fullmatch(r"(\S+)\s+(\S+)(?:\s+(\d{1,18}))?", line)) is None:
        raise InvalidArgumentError("a rule is `pattern codec [from_step]`, the step an integer")
    pattern, codec, step = found.groups("0")
    _check_rules([("*", codec)])
    return (pattern, codec, int(step))


def _check_rules(rules: list[Any]) -> None:
    _core.choose_codec(fill(_core.ReducerOptions(), {"rules": rules}), "any", [1], "f32")


def _run(script: str, arguments: list[str], is_module: bool) -> None:
    sys.argv = [script, *arguments]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")


def _end(constructors: Constructors, process: int, report: str | None) -> None:
    if constructors.rank != 0 or os.getpid() != process:
        return
    print(summary(constructors), file=sys.stderr, flush=True)
    handles = [one.handle for one in constructors.models if one.handle is not None]
    for number, handle in enumerate(handles if report else (), 1):
        stem, ending = os.path.splitext(str(report))
        handle.report(str(report) if number == 1 else f"{stem}.{number}{ending}")


def summary(constructors: Constructors) -> str:
    """Returns the report: the models of the script, and uncompressed all-reduces."""
    count = len(constructors.finish())
    lines = [f"tersor: {count} model{' was' if count == 1 else 's were'} seen"]
    if not count:
        lines[0] += (
            ": this process called neither DistributedDataParallel nor fully_shard (processes that "
            "a script starts by itself are not seen: start it by torchrun)"
        )
    lines += [f"  {one.name} ({one.wrapper}): {_describe(one)}" for one in constructors.models]
    for place, (calls, size) in constructors.all_reduces.items():
        lines.append(
            f"  dist.all_reduce at {place}: {calls} calls, {_text.byte_count(size)}, as they are "
            "(tersor.torch.all_reduce would encode them)"
        )
    return "\n".join(lines)


def _describe(record: Record) -> str:
    if record.reason:
        return f"left alone: {record.reason}"
    if record.plan:
        return _planned(record.plan)
    found = record.count()
    if not (steps := found.get("tersor/steps")):
        return "compressed, but no backward pass came to its end"
    sent, uncompressed = found["tersor/sent_bytes"], found["tersor/uncompressed_bytes"]
    return (
        f"sent {_text.byte_count(sent)} a step instead of {_text.byte_count(uncompressed)} "
        f"({_text.ratio(found.get('tersor/ratio'))} less), {_text.byte_count(steps * sent)} in "
        f"{steps:.0f} step{'' if steps == 1 else 's'}"
    )


def _planned(plan: list[Planned]) -> str:
    known = [one.sent_bytes for one in plan if one.sent_bytes is not None]
    auto = "" if len(known) == len(plan) else ", and what auto makes of the others"
    whole = _text.byte_count(sum(one.uncompressed_bytes for one in plan))
    sent = [_text.byte_count(one.sent_bytes) for one in plan]
    uncompressed = [_text.byte_count(one.uncompressed_bytes) for one in plan]
    rows = [[one.name, *own, one.codec] for one, *own in zip(plan, sent, uncompressed, strict=True)]
    table = _text.table(["parameter", "sent", "instead of", "codec"], rows)
    head = f"would send about {_text.byte_count(sum(known))}{auto} a step instead of {whole}"
    return f"{head}\n{textwrap.indent(table, '    ')}"


if __name__ == "__main__":
    sys.exit(main())
