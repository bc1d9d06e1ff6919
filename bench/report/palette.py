"""One colour and one marker per codec, equal in all pictures, and the two themes of the page.

Hues are Okabe and Ito's colour-blind-safe set, shifted where black or yellow would vanish on one
background. Members of a family (int8, int8+ef) share a hue with different lightness. Markers
distinguish all codecs without colour. Unlisted specs take the spare colours in order of name.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Style:
    colour: str
    marker: str


STYLES = {
    "none": Style("#868686", "o"),
    "bf16": Style("#2f7fc1", "s"),
    "f16": Style("#66b8e8", "p"),
    "int8": Style("#e39a00", "D"),
    "int8+ef": Style("#a86f00", "d"),
    "int8:rounding=stochastic": Style("#f0bf5a", "h"),
    "int4": Style("#74cbb0", "^"),
    "int4+ef": Style("#009b72", "v"),
    "int4:rounding=stochastic": Style("#5a8f3c", "<"),
    "topk:density=0.01": Style("#f0986a", "X"),
    "topk:density=0.01+ef": Style("#d2540a", "P"),
    "topk:density=0.001": Style("#d08ad0", "8"),
    "topk:density=0.001+ef": Style("#a8429c", "*"),
}
SPARE = (
    Style("#8f6fd1", ">"),
    Style("#7a5c3e", "H"),
    Style("#c23b5e", "o"),
    Style("#3fa7a7", "s"),
    Style("#a3a021", "D"),
    Style("#5566cc", "^"),
    Style("#d97fa3", "X"),
    Style("#4f7f4f", "P"),
)


@dataclasses.dataclass(frozen=True)
class Theme:
    ink: str
    paper: str
    grid: str
    quiet: str  # secondary text and bars
    wash: str  # the background of a row or list


LIGHT = Theme(ink="#1f2328", paper="#ffffff", grid="#d9dee4", quiet="#6a737d", wash="#f6f8fa")
DARK = Theme(ink="#e6edf3", paper="#161b22", grid="#333b45", quiet="#9aa4af", wash="#1d242d")


def css() -> str:
    """The variables of both themes, for the page and for each picture."""
    light, dark = (
        " ".join(f"--{name}: {colour};" for name, colour in dataclasses.asdict(theme).items())
        for theme in (LIGHT, DARK)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def family(spec: str) -> str:
    return spec.split(":")[0].split("+")[0]


def in_order(specs: set[str]) -> list[str]:
    """Sorts as in STYLES.

    A family's unlisted members follow the listed members, then other families.
    """
    families = list(dict.fromkeys(family(spec) for spec in STYLES))
    known = list(STYLES)

    def key(spec: str) -> tuple[int, int, str]:
        group = families.index(family(spec)) if family(spec) in families else len(families)
        return group, known.index(spec) if spec in known else len(known), spec

    return sorted(specs, key=key)


def _spare(i: int) -> Style:
    """Repeated colours have another marker."""
    turn, place = divmod(i, len(SPARE))
    return Style(SPARE[place].colour, SPARE[(place + turn) % len(SPARE)].marker)


class Palette:
    """A theme, and styles for the codecs of all records of a report, so pictures agree."""

    theme = LIGHT

    def __init__(self, specs: set[str]) -> None:
        unlisted = [spec for spec in in_order(specs) if spec not in STYLES]
        spare = {spec: _spare(i) for i, spec in enumerate(unlisted)}
        self._styles = {**STYLES, **spare}

    def __getitem__(self, spec: str) -> Style:
        return self._styles[spec]
