"""``python -m tersor.delta``: makes, applies, verifies and describes deltas."""

from __future__ import annotations

import argparse
import contextlib
import functools
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tersor import _text
from tersor._core import Error, InvalidArgumentError, WireError
from tersor.delta import _files
from tersor.delta._files import versions_in
from tersor.delta._memory import Delta, encode
from tersor.delta._receiver import Receiver
from tersor.delta._transaction import parts_of, write

Item = TypeVar("Item")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status: 1 after an error."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (Error, OSError, ImportError) as error:
        print(f"tersor.delta: {_printable(str(error))}", file=sys.stderr)
        return 1


def _printable(text: str) -> str:
    """Returns a text of a file without characters that change a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _parser() -> argparse.ArgumentParser:
    about = "Makes, applies, verifies and describes deltas of weights in safetensors files."
    parser = argparse.ArgumentParser("python -m tersor.delta", description=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one_file = "a file of deltas, or a Publisher's folder"

    def command(name: str, run: Any, text: str, *names: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=text, description=text)
        for one in names:
            kind = {"delta": one_file, "out": "the file to write"}.get(one, "a safetensors file")
            subparser.add_argument(one, type=pathlib.Path, metavar=one.upper(), help=kind)
        subparser.set_defaults(run=run)
        return subparser

    text = "write the deltas from the weights BASE to the weights NEW"
    make = command("make", _make, text, "base", "new", "out")
    classes = "number of classes of exponents (default: auto, the fewest bytes)"
    make.add_argument("--classes", choices=("auto", "1", "2", "4"), default="auto", help=classes)
    text = "write the weights after the deltas; OUT may be BASE"
    apply = command("apply", _apply, text, "base", "delta", "out")
    text = "of a folder: the version of BASE (default: unknown, so a full copy is read)"
    apply.add_argument("--base-version", type=int, metavar="N", help=text)
    text = "of a folder: the version of OUT (default: the newest)"
    apply.add_argument("--version", type=int, metavar="N", help=text)
    for one in (make, apply):
        text = "number of threads (default: 0, one per core)"
        one.add_argument("--threads", type=int, default=0, metavar="N", help=text)
    command("verify", _verify, "read all bytes and compare the checksums", "delta")
    command("info", _info, "print the tensors of a file, or the versions in a folder", "delta")
    return parser


def _bar(items: Iterable[Item], text: str) -> Iterable[Item]:
    """Shows the progress if stderr is a terminal and tqdm is installed."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        items = tqdm(items, text, disable=None)
    return items


def _make(options: argparse.Namespace) -> int:
    classes: Any = options.classes if options.classes == "auto" else int(options.classes)
    with _files.open_weights(options.base) as base, _files.open_weights(options.new) as new:
        names, others = list(base.keys()), set(new.keys())
        if different := sorted(set(names) ^ others):
            raise InvalidArgumentError(f'tensor "{different[0]}" is missing in one of the files')

        def delta_of(name: str) -> Delta:
            old_tensors, new_tensors = ({name: file.get_tensor(name)} for file in (base, new))
            return encode(old_tensors, new_tensors, classes, threads=options.threads)

        _files.write_frames(options.out, map(delta_of, _bar(names, "make")))
    sizes = [path.stat().st_size for path in (options.out, options.new)]
    share = _text.percent(sizes[0] / sizes[1])
    print(f"{options.out}: {_text.byte_count(sizes[0])}, {share} of {options.new}")
    return 0


def _apply(options: argparse.Namespace) -> int:
    with _files.open_weights(options.base) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights, metadata = _files.copies_of(found), file.metadata()
    bar = functools.partial(_bar, text="apply")
    if options.delta.is_dir():
        receiver = Receiver(options.delta, version=options.base_version, threads=options.threads)
        version = receiver.update(weights, options.version, progress=bar)
        print(f"{options.out}: version {version}")
    else:
        deltas = list(_files.read_frames(options.delta))
        write(lambda: parts_of(weights, deltas, options.threads), False, None, 0.0, "", bar)
    _files.save_weights(options.out, weights, metadata)
    return 0


def _verify(options: argparse.Namespace) -> int:
    if not options.delta.is_dir():
        count = sum(1 for _ in _bar(_files.read_frames(options.delta), "verify"))
        if count == 0:
            raise WireError(f"{options.delta}: there are no deltas")
        print(f"{options.delta}: {count} deltas, no damage")
        return 0
    damaged, before = 0, dict[int, dict[str, str]]()
    versions = versions_in(options.delta)
    for version in _bar(versions, "verify"):
        try:
            if version == versions[-1]:  # raises if no full copy leads to the newest version
                Receiver(options.delta)._path(version)
            with _files.FullCopies(options.delta) as copies:
                before[version] = _verify_version(options.delta, version, before, copies)
        except (Error, OSError) as error:
            damaged += 1
            print(f"version {version}: {_printable(str(error))}", file=sys.stderr)
    print(f"{options.delta}: {len(before)} versions without damage, {damaged} with damage")
    return 1 if damaged or not before else 0


def _verify_version(
    folder: pathlib.Path,
    version: int,
    before: Mapping[int, Mapping[str, str]],
    copies: _files.FullCopies,
) -> dict[str, str]:
    """Returns the checksum of each tensor of a version."""
    manifest = _files.read_manifest(folder, version)
    bases = before.get(manifest["base_version"], {})
    found = {}
    for entry in manifest["tensors"]:
        key = f"{entry['name']} {entry['slice']}"
        found[key] = entry["checksum"]
        if manifest["base_version"] is not None:
            _files.read_delta(folder, manifest, entry)
            if bases and bases.get(key) != entry["base_checksum"]:
                raise WireError(f"{key} has another base than version {manifest['base_version']}")
        if entry["full"]:
            copies.read(entry, 0)
    return found


def _info(options: argparse.Namespace) -> int:
    if options.delta.is_dir():
        rows = [_version_row(options.delta, version) for version in versions_in(options.delta)]
        print(_text.table(("version", "base", "tensors", "changed", "deltas", "full copy"), rows))
        return 0
    entries = [one for delta in _files.read_frames(options.delta) for one in delta.entries()]
    rows = [
        (
            _printable(one.name),
            one.dtype,
            str(one.changed),
            _text.byte_count(one.bytes),
            str(list(one.shape)),
        )
        for one in entries
    ]
    print(_text.table(("tensor", "dtype", "changed", "size", "shape"), rows))
    return 0


def _version_row(folder: pathlib.Path, version: int) -> tuple[str, ...]:
    manifest = _files.read_manifest(folder, version)
    entries = manifest["tensors"]
    full = {folder / one["full"] for one in entries if one["full"]}
    return (
        str(version),
        _text.ABSENT if manifest["base_version"] is None else str(manifest["base_version"]),
        str(len(entries)),
        str(sum(one.get("changed", 0) for one in entries)),
        _text.byte_count(sum(one["bytes"] for one in entries)),
        _text.byte_count(sum(one.stat().st_size for one in full) or None),
    )


if __name__ == "__main__":
    sys.exit(main())
