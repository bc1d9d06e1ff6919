"""The codecs with frames. The transport adds the values of all other codecs."""

from __future__ import annotations

import numpy

import tersor


def sends_frames(name: str) -> bool:
    try:
        tersor.Codec(name).encode(numpy.zeros(1, numpy.float32))
    except tersor.InvalidArgumentError:
        return False
    return True


FRAMED = [codec.name for codec in tersor.codecs() if sends_frames(codec.name)]
