"""The style of the project's pictures: paper, ink, and a hue for each codec.

Hues are Okabe and Ito's colour-blind-safe set, shifted if black or yellow would vanish on paper.
"""

from __future__ import annotations

from typing import Any

INK = "#1f2328"
PAPER = "#ffffff"
GRID = "#d9dee4"
MUTED = "#57606a"  # secondary text and bars

_CODECS = {
    "none": "#868686", "bf16": "#2f7fc1", "f16": "#66b8e8", "int8": "#e39a00", "int8+ef": "#a86f00",
    "int4": "#74cbb0", "int4+ef": "#009b72", "topk": "#f0986a", "topk+ef": "#d2540a",
}  # fmt: skip
_OTHER = "#8f6fd1"

STYLE: Any = {
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.titlecolor": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER, "font.family": "DejaVu Sans", "font.size": 11,
    "axes.titlesize": 11.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": MUTED, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8,
    "legend.frameon": False, "text.parse_math": False,  # names may contain dollar signs
}  # fmt: skip
"""matplotlib's settings."""


def colour(spec: str) -> str:
    """The codec's colour. Options do not change the colour. Error feedback darkens the colour."""
    family = spec.split(":")[0].split("+")[0]
    feedback = "+ef" if spec.endswith("+ef") else ""
    return _CODECS.get(family + feedback) or _CODECS.get(family, _OTHER)


def tint(shade: str, share: float = 0.35) -> str:
    """Mixes ``share`` of a colour with paper. Colours are #rrggbb."""
    channels = zip(bytes.fromhex(shade[1:]), bytes.fromhex(PAPER[1:]), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in channels)
