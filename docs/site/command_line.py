"""The help texts of tersor-bench and of python -m tersor.bench, as Markdown.

docs/site/tersor-bench.txt has the texts of tersor-bench for builds without the program.
scripts/docs --record writes the file.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import unittest.mock

import public

RECORDED = public.ROOT / "docs" / "site" / "tersor-bench.txt"
HEAD = "$ tersor-bench"
PRESETS = ("release", "demo", "quick")


def program() -> pathlib.Path | None:
    """The newest built tersor-bench."""
    paths = [public.ROOT / "build" / preset / "bin" / "tersor-bench" for preset in PRESETS]
    found = [path for path in paths if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def of_program() -> str:
    """From the program, or from the committed text where no program was built."""
    built = program()
    return _markdown(texts_of(built) if built else recorded())


def of_module() -> str:
    """The help texts of python -m tersor.bench, from the parser."""
    from tersor.bench.__main__ import _parser

    with unittest.mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
        parser = _parser()
        commands = parser._subparsers._group_actions[0].choices  # type: ignore[union-attr]
        texts = {"": parser.format_help()}
        texts |= {name: command.format_help() for name, command in commands.items()}  # type: ignore[union-attr]
    return _markdown(texts, "python -m tersor.bench")


def texts_of(built: pathlib.Path) -> dict[str, str]:
    """The help texts by command; the text of the program itself first."""
    whole = _help(built)
    commands = re.findall(r"^  ([a-z]+)  ", whole.partition("Subcommands:")[2], re.MULTILINE)
    return {"": whole} | {name: _help(built, name) for name in commands}


def recorded() -> dict[str, str]:
    parts = re.split(rf"(?m)^{re.escape(HEAD)} ?(.*) --help\n", RECORDED.read_text())
    return dict(zip(parts[1::2], (text.strip("\n") for text in parts[2::2]), strict=True))


def record(built: pathlib.Path) -> None:
    blocks = (f"{_call(HEAD, name)} --help\n{text}\n" for name, text in texts_of(built).items())
    RECORDED.write_text("\n".join(blocks))


def difference() -> str | None:
    """None if the committed text is the program's; otherwise the commands with another text."""
    built = program()
    if built is None:
        return None
    texts, known = texts_of(built), recorded()
    names = [name for name in {**texts, **known} if texts.get(name) != known.get(name)]
    return ", ".join(_call("tersor-bench", name) for name in names) or None


def _help(built: pathlib.Path, *words: str) -> str:
    done = subprocess.run([built, *words, "--help"], capture_output=True, text=True, check=True)
    lines = (_with_sorted_options(line.rstrip()) for line in done.stdout.strip("\n").splitlines())
    return "\n".join(lines)


def _with_sorted_options(line: str) -> str:
    """Sorts the options that an option needs or excludes: CLI11 orders the options by address."""
    options = r"(?<=s: )--\S+(?: --\S+)+"
    return re.sub(options, lambda found: " ".join(sorted(found[0].split())), line)


def _call(program_name: str, command: str) -> str:
    return f"{program_name} {command}".strip()


def _markdown(texts: dict[str, str], name: str = "tersor-bench") -> str:
    blocks = (f"### `{_call(name, command)}`\n\n```text\n{text.strip()}\n```\n"
              for command, text in texts.items())  # fmt: skip
    return "\n".join(blocks)
