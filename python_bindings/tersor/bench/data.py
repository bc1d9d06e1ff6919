"""Real data to train on: Fashion-MNIST, and the King James Bible as bytes.

Both are Debian packages (dataset-fashion-mnist, bible-kjv-text). --data gives other folders
and files.
"""

import dataclasses
import gzip
import hashlib
import pathlib
import shutil
import subprocess
import zlib

import numpy as np
import numpy.typing as npt

from tersor.bench.errors import BenchmarkError, fail_if

FASHION_MNIST_FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
BIBLE_COMMAND = ("bible", "-f", "gen1:1-rev22:21")
VALIDATION_SHARE = 0.05  # of a text, its end
GZIP_SUFFIX = ".gz"
TEXT_REMEDY = "`python -m tersor.bench corpus FILE` makes a text"

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Images:
    """`pixels` (count, height, width) and `labels` (count), both bytes."""

    pixels: Bytes
    labels: Bytes


@dataclasses.dataclass(frozen=True)
class Text:
    """The bytes of a text as indices into ``alphabet``, the sorted bytes that the text has.
    ``sha256`` is of the whole text."""

    alphabet: bytes
    train: Bytes
    validation: Bytes
    sha256: str


def load_images(folder: pathlib.Path, part: str) -> Images:
    """Reads {part}-images-idx3-ubyte[.gz] and {part}-labels-idx1-ubyte[.gz]; `part`: train or t10k.

    Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) has 60,000 and 10,000 images of 28 x 28 pixels in
    ten classes. Raises BenchmarkError for a missing or damaged file.
    """
    pixels = _read_idx(folder / f"{part}-images-idx3-ubyte", dimensions=3)
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte", dimensions=1)
    text = f"{folder}: {len(pixels)} {part} images have {len(labels)} labels"
    fail_if(len(pixels) != len(labels), text)
    return Images(pixels, labels)


def _read_idx(path: pathlib.Path, dimensions: int) -> Bytes:
    """An array of bytes in the IDX format: a magic number, each extent in 4 bytes, the values."""
    file = path if path.exists() else path.with_name(path.name + GZIP_SUFFIX)
    remedy = "install the package dataset-fashion-mnist or give --data FOLDER"
    content = _read(file, f"{path}[.gz]", remedy)
    head_bytes = 4 + 4 * dimensions
    magic = bytes([0, 0, 8, dimensions])  # two zeros, "unsigned bytes", dimensions
    is_another = content[:4] != magic or len(content) < head_bytes
    fail_if(is_another, f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = [int(extent) for extent in np.frombuffer(content, ">u4", dimensions, offset=4)]
    is_damaged = len(content) - head_bytes != int(np.prod(shape))
    fail_if(is_damaged, f"{path} does not have {shape} values: the file is damaged")
    return np.frombuffer(content, np.uint8, offset=head_bytes).reshape(shape)


def _read(path: pathlib.Path, name: str, remedy: str) -> bytes:
    """The bytes of a file, which gzip may have compressed. ``name``: of the file in errors."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == GZIP_SUFFIX else content
    except (OSError, EOFError, zlib.error) as error:
        raise BenchmarkError(f"cannot read {name}: {error}; {remedy}") from error


def uneven_parts(labels: Bytes, ranks: int, concentration: float) -> list[Indices]:
    """The images of each rank: shares of each class by Dirichlet's distribution (Hsu, Qi and Brown
    2019, arXiv:1909.06335), with at least one image."""
    draw = np.random.default_rng(ranks)
    parts: list[list[Indices]] = [[] for _ in range(ranks)]
    for label in np.unique(labels):
        own = draw.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(draw.dirichlet([concentration] * ranks)[:-1]) * len(own)
        for part, indices in zip(parts, np.split(own, ends.astype(np.int64)), strict=True):
            part.append(indices)
    whole = [np.concatenate(part) for part in parts]
    return [part if len(part) else np.arange(1) for part in whole]


def load_text(path: pathlib.Path | None) -> Text:
    """The bytes of a file, which gzip may have compressed; by default the King James Bible. The
    last twentieth is for validation. Raises BenchmarkError without a text."""
    content = _read_bible() if path is None else _read(path, str(path), TEXT_REMEDY)
    characters = np.frombuffer(content, np.uint8)
    found = np.flatnonzero(np.bincount(characters, minlength=256))
    fail_if(len(found) < 2, f"the text has {len(found)} different bytes: give 2 or more")
    index_of = np.zeros(256, np.uint8)
    index_of[found] = np.arange(len(found))
    indices = index_of[characters]
    border = len(indices) - int(len(indices) * VALIDATION_SHARE)
    digest = hashlib.sha256(content).hexdigest()
    return Text(bytes(found.tolist()), indices[:border], indices[border:], digest)


def _read_bible() -> bytes:
    remedy = "install the packages bible-kjv and bible-kjv-text, or give --data FILE"
    fail_if(shutil.which(BIBLE_COMMAND[0]) is None, f"no program `bible`: {remedy}")
    return subprocess.run(BIBLE_COMMAND, capture_output=True, check=True).stdout
