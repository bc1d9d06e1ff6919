"""Other codings of weight deltas: encode and decode, over arrays of 16-bit patterns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tersor.bench.errors import import_package

Bits = npt.NDArray[np.uint16]
_LEVEL = 1  # of zstd
_LONGEST = 65_535  # gap


def _packed(*parts: Any) -> bytes:
    data = b"".join(one.tobytes() for one in parts)
    packed: bytes = import_package("zstandard").ZstdCompressor(level=_LEVEL).compress(data)
    return packed


def _unpacked(data: bytes) -> Bits:
    return np.frombuffer(import_package("zstandard").ZstdDecompressor().decompress(data), np.uint16)


def encode_gaps(base: Bits, new: Bits) -> bytes:
    """A gap of 16 bits and the XOR of old and new per change. An XOR of 0 divides a longer gap."""
    places = np.flatnonzero(base != new)
    gaps = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(gaps // (_LONGEST + 1) + 1) - 1
    entries = int(ends[-1]) + 1 if len(ends) else 0
    lists = np.full(entries, _LONGEST, np.uint16), np.zeros(entries, np.uint16)
    lists[0][ends], lists[1][ends] = gaps % (_LONGEST + 1), base[places] ^ new[places]
    return _packed(*lists)


def decode_gaps(base: Bits, data: bytes) -> Bits:
    """The inverse of ``encode_gaps``."""
    gaps, changes = _unpacked(data).reshape(2, -1)
    new: Bits = base.copy()
    new[np.cumsum(gaps.astype(np.int64) + 1) - 1] ^= changes
    return new


def encode_list(base: Bits, new: Bits) -> bytes:
    """An index of 32 bits and the new value per change."""
    places = np.flatnonzero(base != new)
    return places.astype(np.int32).tobytes() + new[places].tobytes()


def decode_list(base: Bits, data: bytes) -> Bits:
    """The inverse of ``encode_list``."""
    count = len(data) // 6
    new: Bits = base.copy()
    values = np.frombuffer(data, np.uint16, offset=4 * count)
    new[np.frombuffer(data, np.int32, count)] = values
    return new


Coding = tuple[Callable[[Bits, Bits], bytes], Callable[[Bits, bytes], Bits]]
PEERS: dict[str, Coding] = {
    "16-bit gaps + XOR, zstd-1": (encode_gaps, decode_gaps),
    "dense XOR, zstd-1": (
        lambda base, new: _packed(base ^ new),
        lambda base, data: base ^ _unpacked(data),
    ),
    "index + value": (encode_list, decode_list),
}
