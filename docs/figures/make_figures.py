#!/usr/bin/env python3
"""Writes the SVG figures of this folder and docs/results from bench/results. Needs Python only.

usage: make_figures.py           writes all files
       make_figures.py --check   compares the files with the figures; status 1 if a file differs
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "report"))

import charts  # noqa: E402
import diagrams  # noqa: E402
import results_page  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
FIGURES = {
    "how-it-works": diagrams.how_it_works,
    "two-shot": diagrams.two_shot,
    "link-speed": charts.link_speed,
    "step-time": charts.step_time,
    "loss": charts.loss,
    "errors": charts.errors,
}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__, file=sys.stderr)
        return 2
    texts = {FOLDER / f"{name}.svg": draw().svg() for name, draw in FIGURES.items()}
    texts |= {FOLDER.parent / "results" / name: text for name, text in results_page.pages().items()}
    different = []
    for file, text in texts.items():
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            different.append(file.name)
    if different:
        print(f"make_figures: {', '.join(different)}: run docs/figures/make_figures.py")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
