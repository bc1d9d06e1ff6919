#!/usr/bin/env python3
"""Turns the JSON records of tersor-bench into one self-contained page, SVG files and text tables.

    tersor_report.py FILE.json... -o DIR       write DIR/index.html and DIR/*.svg, print their paths
    tersor_report.py FILE.json... --text       print the tables
    tersor_report.py FILE.json... --verdict    print the sentences without the tables
    tersor_report.py FILE.json... --picture P  write one picture for a README: of the training, of
                                               trainings with several learning rates, of the
                                               codecs' errors, or of an allocation (the first
                                               kind with records)
    tersor_report.py --check -o DIR            only check that a report could be written there

bench/records.md explains the records. Bad input and unwritable folders print one
line; status 2.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True  # the folder may be a source tree

import records

try:
    import allocate_section
    import allreduce_section
    import backward_section
    import codecs_section
    import errors_section
    import loss_figure
    import page
    import palette
    import predict_section
    import summary
    import train_figures
    import train_section
    from matplotlib.figure import Figure
except ImportError as error:
    advice = f"apt-get install python3-matplotlib ({sys.executable} does not find it)"
    print(f"tersor_report: {error}: {advice}", file=sys.stderr)
    sys.exit(2)

KINDS = (
    train_section,
    backward_section,
    allreduce_section,
    predict_section,
    codecs_section,
    errors_section,
    allocate_section,
)
PICTURE_DOTS_PER_INCH = 200  # shown at 1,200 px, sharp on dense screens


def main() -> int:
    options = _options()
    try:
        _run(options)
    except (records.ReportError, OSError) as error:
        print(f"tersor_report: {error}", file=sys.stderr)
        return 2
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tersor_report",
        description="Page, pictures and tables from tersor-bench's JSON records.",
    )
    add, path = parser.add_argument, pathlib.Path
    add("files", nargs="*", type=path, metavar="FILE.json", help="records, in any mixture")
    text = "where index.html and SVGs go"
    add("-o", "--output", type=path, metavar="DIR", help=text)
    add("--text", action="store_true", help="print the tables")
    add("--verdict", action="store_true", help="print the sentences")
    text = "write one picture for a README"
    add("--picture", type=path, metavar="FILE.png", help=text)
    add("--check", action="store_true", help="only check that DIR can be written")
    options = parser.parse_args()
    if options.check and options.output is None:
        parser.error("--check needs -o DIR")
    if not options.check and not options.files:
        parser.error("no FILE.json given")
    if not (options.output or options.text or options.verdict or options.picture):
        parser.error("nothing to do: give -o DIR, --text, --verdict or --picture FILE.png")
    return options


def _run(options: argparse.Namespace) -> None:
    """Checks all permissions before reading or drawing."""
    if options.output:
        check_folder(options.output)
    if options.check:
        return
    if options.picture:
        check_folder(options.picture.parent)
    found = records.load(options.files)
    colours = palette.Palette({record.codec for record in found})
    sections = _sections(found)
    if options.text:
        print(page.as_text(sections))
    if options.verdict:
        print(page.sentences(sections))
    if options.output:
        facts = _provenance(found, options.files)
        for path in page.write(options.output, sections, colours, facts):
            print(path)
    if options.picture:
        picture = _picture(found, colours)
        picture.savefig(options.picture, format="png", dpi=PICTURE_DOTS_PER_INCH)
        print(options.picture)


def check_folder(folder: pathlib.Path) -> None:
    """Makes the folder if missing, and tries to write a file. Raises ReportError on failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise records.ReportError(f"cannot write to {folder}: {error.strerror}") from error


def _sections(found: list[records.Record]) -> list[page.Section]:
    sections: list[page.Section] = []
    for kind in KINDS:
        of_kind = kind.sections(found)
        parts = page.numbered([section.parts for section in of_kind])
        sections += [dataclasses.replace(one, parts=own) for one, own in zip(of_kind, parts)]
    return sections


def _provenance(found: list[records.Record], files: list[pathlib.Path]) -> list[str]:
    """The origin of the records, as far as known."""
    lines = []
    for field, word in (("machine", "Machine"), ("date", "Measured"), ("commit", "Commit")):
        values = sorted({getattr(record, field) for record in found} - {None})
        lines += [f"{word}: {_listed(values)}"] if values else []
    return [*lines, f"{len(found)} records from {', '.join(path.name for path in files)}"]


def _listed(values: list[str]) -> str:
    """Lists times; shortens many times to the first and the last."""
    return ", ".join(values) if len(values) < 3 else f"{values[0]} to {values[-1]}"


def _picture(found: list[records.Record], colours: palette.Palette) -> Figure:
    trainings = summary.trainings(found)
    errors = errors_section.losses(found)
    chosen = allocate_section.allocations(found)
    if len(trainings) == 1:
        return train_figures.accuracy_time(trainings[0], colours)
    if trainings and summary.differ_in_rate_alone(trainings):
        return loss_figure.draw(trainings, colours)
    if not trainings and len(errors) == 1:
        return errors_section.draw(*errors.popitem(), colours)
    if not (trainings or errors) and len(chosen) == 1:
        return allocate_section.draw(chosen[0], colours)
    raise records.ReportError(
        "--picture needs train records of one setting (ranks and link), or of several learning "
        "rates, else errors of one dtype and data, else allocations of one data; found "
        f"{len(trainings)}, {len(errors)} and {len(chosen)}"
    )


if __name__ == "__main__":
    sys.exit(main())
