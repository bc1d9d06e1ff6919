"""One colour and one marker per codec, equal in all pictures, and the two themes of all pictures.

Hues are Okabe and Ito's colour-blind-safe set, shifted where black or yellow would vanish on one
background. Members of a family (int8, int8+ef) share a hue with different lightness. Markers
distinguish all codecs without colour. Unlisted specs take the spare colours in order of name.
"""

import dataclasses
import math
import types


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


#: (light, dark). `quiet` is for secondary text and bars, `box` for the background of a list.
COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "quiet": ("#57606a", "#9aa4af"),
    "grid": ("#d9dee4", "#30363d"),
    "box": ("#eef3f8", "#1c2733"),
    "grey": ("#6a737d", "#9aa4af"),
    "blue": ("#0067a5", "#58b0f0"),
    "orange": ("#b85000", "#f59a4c"),
    "green": ("#00795a", "#3fc79f"),
    "purple": ("#a23e7c", "#e08fc0"),
    "yellow": ("#8a6d00", "#e3c04a"),
}
#: The colours of the page and of its pictures in the light theme.
LIGHT = types.SimpleNamespace(
    **{name: COLOURS[name][0] for name in ("paper", "ink", "quiet", "grid", "box")}
)


def css() -> str:
    """The variables of both themes, for the page and for each picture."""
    light, dark = (
        " ".join(f"--{name}: {COLOURS[name][theme]};" for name in vars(LIGHT)) for theme in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def family(spec: str) -> str:
    return spec.split(":")[0].split("+")[0]


def in_order(specs: set[str]) -> list[str]:
    """Sorts as in STYLES.

    A family's unlisted members follow the listed members, then other families.
    """
    known = list(STYLES)
    families = {family(spec): known.index(spec) for spec in reversed(known)}

    def key(spec: str) -> tuple[float, float, str]:
        place = known.index(spec) if spec in known else math.inf
        return families.get(family(spec), math.inf), place, spec

    return sorted(specs, key=key)


class Palette:
    """Styles for the codecs of all records of a report, so pictures agree."""

    def __init__(self, specs: set[str]) -> None:
        self._styles = dict(STYLES)
        for i, spec in enumerate(one for one in in_order(specs) if one not in STYLES):
            turn, place = divmod(i, len(SPARE))  # repeated colours have another marker
            marker = SPARE[(place + turn) % len(SPARE)].marker
            self._styles[spec] = Style(SPARE[place].colour, marker)

    def __getitem__(self, spec: str) -> Style:
        return self._styles[spec]
