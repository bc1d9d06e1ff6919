"""Writes the sources of the site: copies of docs/ and the generated pages of the reference.

Needs the tersor package and its compiled module.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import types

import command_line
import public

from tersor import Codec, CodecInfo, codecs

DOCS = public.ROOT / "docs"
KINDS = ("get-started", "how-to", "explain", "reference", "results", "systems", "inside")
SAMPLE = 1 << 20  # values
# Other projects document the members of these base classes.
FOREIGN_BASES = "object, Exception, BaseException, dict, tuple, Optimizer, Module, ProcessGroup, "
FOREIGN_BASES += "Backend, TrainerCallback, Enum, Protocol, Generic"
LINK = re.compile(r"(?<!!)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(?m)^((?:```|~~~).*\n)")


def write(folder: pathlib.Path) -> None:
    """Replaces the folder. Sphinx compares contents and builds only the changed pages."""
    shutil.rmtree(folder, ignore_errors=True)
    for kind in KINDS:
        for page in sorted(DOCS.glob(f"{kind}/**/*.md")):
            _copy(page, folder)
        for picture in DOCS.glob(f"{kind}/**/*.[ps][nv]g"):
            shutil.copy(picture, folder / picture.relative_to(DOCS))
    _copy(DOCS / "index.md", folder)
    for kind in ("figures", "pictures"):
        if (DOCS / kind).exists():
            shutil.copytree(DOCS / kind, folder / kind)
    for name, text in _reference().items():
        path = folder / "reference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _copy(page: pathlib.Path, folder: pathlib.Path) -> None:
    target = folder / page.relative_to(DOCS)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = _filled(page.read_text())
    if page == DOCS / "index.md":
        text = _with_all_pages(text)
    target.write_text(_with_links(text, page.parent, target.parent))


def _filled(text: str) -> str:
    for name, made in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in text:
            text = text.replace(marker, made())
    return text


def _with_all_pages(index: str) -> str:
    """Adds unlisted pages to the navigation, after the last listed page of the same folder."""
    lines = index.splitlines()
    for page in sorted(path for kind in KINDS for path in DOCS.glob(f"{kind}/*.md")):
        name = f"{page.parent.name}/{page.stem}"
        named = [i for i, line in enumerate(lines) if line.startswith(f"{page.parent.name}/")]
        if name not in lines and named:
            lines.insert(named[-1] + 1, name)
    return "\n".join(lines) + "\n"


def _with_links(text: str, old: pathlib.Path, new: pathlib.Path) -> str:
    """Turns links to files outside of the site into downloads, and links to folders into text."""

    def changed(match: re.Match[str]) -> str:
        label, target = match[1], match[2].partition("#")[0]
        path = (old / target).resolve() if target and ":" not in target else None
        is_page = path is not None and path.is_relative_to(DOCS) and path.suffix == ".md"
        if path is None or is_page or not path.exists():
            return match[0]
        if path.is_dir():
            return label
        return f"[{label}](path:{os.path.relpath(path, new)})"

    parts: list[str] = []
    code = False
    for part in FENCE.split(text):
        if FENCE.fullmatch(part):
            code = not code
        elif not code:
            part = LINK.sub(changed, part)
        parts.append(part)
    return "".join(parts)


def _reference() -> dict[str, str]:
    pages, homes = {}, {}
    for name in public.modules():
        pages[f"python/{name}.rst"] = _module_page(name, homes)
    for name, title, headers in public.HEADERS:
        pages[f"cpp/{name}.rst"] = _heading(title) + "".join(map(_header_text, headers))
    return pages


def _heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _module_page(name: str, homes: dict[object, str]) -> str:
    """The page of a module. ``homes`` maps each documented class and function to its module."""
    again: dict[str, str] = {}
    for member, value in public.members(public.imported(name)):
        if isinstance(value, (type, types.FunctionType)) and homes.setdefault(value, name) != name:
            again[member] = homes[value]
    options = f":members:\n   :inherited-members: {FOREIGN_BASES}\n   :member-order: groupwise"
    if again:
        options += f"\n   :exclude-members: {', '.join(again)}"
    also = "".join(f"- ``{member}``: see ``{home}``\n" for member, home in again.items())
    return _heading(name) + f".. automodule:: {name}\n   {options}\n\n{also}"


def _header_text(name: str) -> str:
    """The header's first comment, and the declarations."""
    lines = (public.ROOT / "include" / "tersor" / f"{name}.h").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    comment = "\n".join(line[2:].strip() for line in lines[:first]).replace("*", "\\*")
    comment = comment.replace("`", "``").replace("|", "\\|")
    include = f".. code-block:: c++\n\n   #include <tersor/{name}.h>\n\n"
    title = _heading(f"<tersor/{name}.h>", "-")
    return f"{title}{include}{comment}\n\n.. doxygenfile:: {name.rpartition('/')[2]}.h\n\n"


def codec_table() -> str:
    """A table of the registry."""
    rows = ["| codec | meaning | options (default) | bits per value | lossless |",
            "| --- | --- | --- | ---: | --- |"]  # fmt: skip
    for codec in codecs():
        options = "<br>".join(_option_text(option) for option in codec.options) or "none"
        lossless = "yes" if Codec(codec.name).lossless else "no"
        rows.append(
            f"| `{codec.name}` | {codec.summary} | {options} | {_bits(codec)} | {lossless} |"
        )
    return "\n".join(rows)


def _option_text(option: object) -> str:
    key, values, default = option.key, option.values, option.default  # type: ignore[attr-defined]
    return f"`{key}=` {values.replace('|', ' or ')} ({default})"


def _bits(codec: CodecInfo) -> str:
    """Bits per value for a matrix of f32 values, with headers; "see below" without frames."""
    side = int(SAMPLE**0.5)
    size = Codec(codec.name).max_payload_bytes((side, side))
    return f"{8 * size / SAMPLE:.2f}" if size else "see below"


def module_list() -> str:
    return _toctree(f"python/{name}" for name in public.modules())


def header_list() -> str:
    return _toctree(f"cpp/{name}" for name, _, _ in public.HEADERS)


def _toctree(pages: object) -> str:
    return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```"  # type: ignore[call-overload]


GENERATED = {
    "codecs": codec_table,
    "modules": module_list,
    "headers": header_list,
    "tersor-bench": command_line.of_program,
    "tersor.bench": command_line.of_module,
}
