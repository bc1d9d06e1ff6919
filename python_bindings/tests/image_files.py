"""Image files for the benchmark."""

from __future__ import annotations

import pathlib
import struct

import numpy as np


def write_idx(path: pathlib.Path, values: np.ndarray) -> None:
    head = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    path.write_bytes(head + values.astype(np.uint8).tobytes())
