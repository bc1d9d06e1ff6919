"""``delta``: sizes of weight deltas from real trainings, or with ``--speed`` the speeds.

If ``--pairs`` has no pair, the command first trains a GPT with AdamW and with Muon. Tersor and
other codings encode each pair of versions, and every bit must come back. The codec ``entropy``
encodes weights, gradients and activations. To measure other models, put NAME.base.safetensors and
NAME.new.safetensors with bf16 weights into the folder.

``--speed`` times calls on one thread with repeated pairs. The baseline takes turns: a copy of both
versions for encode, and of one version for other calls.
"""

import argparse
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import tersor
from tersor import delta
from tersor.arrays import empty_bytes
from tersor.bench import delta_pairs
from tersor.bench.delta_pairs import Pair
from tersor.bench.delta_peers import PEERS
from tersor.bench.errors import fail_if, import_package
from tersor.bench.records import Record, add, columns, compare_times, save, table

CLASSES: tuple[Any, ...] = (1, 2, 4, "auto")
SIZE_COLUMNS = columns(
    "pair=data, changed=changed_share:.2%, tensors=tensors, coding=codec, bytes=payload_bytes:B, "
    "per change=bytes_per_change:.3f"
)
CODEC_COLUMNS = columns("values=data, codec=codec, bits per value=bits_per_value:.2f")
SPEED_COLUMNS = columns(
    "values=data, codec=codec, operation=operation, time=seconds:s, copies=copies:.2f, "
    "GB/s=gigabytes_per_second:.1f"
)
Action = Callable[[], object]
Actions = dict[str, tuple[Action, str, Action]]  # by operation: action, name and action of a copy


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "folder of pairs to read, or to write after the training; default: a temporary folder"
    add(parser, "pairs", None, text, pathlib.Path, metavar="FOLDER")
    text = "text for the training; default: Debian's package"
    add(parser, "data", None, text, pathlib.Path, metavar="FILE")
    add(parser, "steps", 200, "steps of the training before the first pair")
    add(parser, "layers", 4, "layers of the GPT")
    add(parser, "width", 384, "width of the GPT, a multiple of 64")
    add(parser, "seed", 1, "seed of the training")
    parser.add_argument("--speed", action="store_true", help="measure times instead of sizes")
    add(parser, "mib", 64, "with --speed: size of the weights in MiB")
    add(parser, "repetitions", 11, "with --speed: measurements, of which the median counts")


def run(chosen: argparse.Namespace) -> None:
    load = os.getloadavg()[0]
    import_package("zstandard")  # before a training
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.pairs or pathlib.Path(temporary)
        delta_pairs.prepare(folder, chosen)
        records = save(chosen, _speeds(folder, chosen, load) if chosen.speed else _sizes(folder))
    tables = (
        ("bytes_per_change", SIZE_COLUMNS),
        ("bits_per_value", CODEC_COLUMNS),
        ("copies", SPEED_COLUMNS),
    )
    for field, heads in tables:
        if found := [one for one in records if field in one]:
            print(table(heads, found), flush=True)


def _sizes(folder: pathlib.Path) -> Iterator[Record]:
    for pair in delta_pairs.pairs(folder):
        yield from _sizes_of(pair)
    codec = tersor.Codec("entropy")
    for name, values in delta_pairs.tensors(folder).items():
        payload, decoded = codec.encode(values), torch.empty_like(values)
        codec.decode(payload, out=decoded)
        _check(f"{name}, entropy", values, decoded)
        yield {
            **_fields(name, "entropy", values),
            "payload_bytes": len(payload),
            "bits_per_value": 8 * len(payload) / values.numel(),
        }


def _sizes_of(pair: Pair) -> Iterator[Record]:
    base, new = delta_pairs.flat(pair.base), delta_pairs.flat(pair.new)
    changed = int((base.view(torch.int16) != new.view(torch.int16)).sum())
    fail_if(not changed, f"{pair.name}: both versions are equal")

    def record(codec: str, size: int, tensors: int = 1) -> Record:
        return {
            **_fields(pair.name, codec, base),
            "tensors": tensors,
            "changed": changed,
            "changed_share": changed / base.numel(),
            "payload_bytes": size,
            "bytes_per_change": size / changed,
            **pair.fields,
        }

    versions = ({"weights": base}, {"weights": new}), (pair.base, pair.new)
    for (old, other), classes in itertools.product(versions, CLASSES):
        encoded = delta.encode(old, other, classes)
        applied = {name: one.clone() for name, one in old.items()}
        delta.apply(applied, encoded)
        for name, one in applied.items():
            _check(f"{pair.name}, {name}", other[name], one)
        yield record(f"delta:classes={classes}", len(encoded.data), len(old))
    bits = [one.view(torch.uint16).numpy() for one in (base, new)]
    for codec, (encode, decode) in PEERS.items():
        data = encode(*bits)
        decoded = torch.from_numpy(decode(bits[0], data)).view(torch.bfloat16)
        _check(f"{pair.name}, {codec}", new, decoded)
        yield {**record(codec, len(data)), "zstandard": import_package("zstandard").__version__}


def _speeds(folder: pathlib.Path, chosen: argparse.Namespace, load: float) -> Iterator[Record]:
    def measure(fields: Record, actions: Actions) -> Iterator[Record]:
        for operation, (action, baseline, copy) in actions.items():
            seconds, baseline_seconds, copies = compare_times(action, copy, chosen.repetitions)
            yield {
                **fields,
                "operation": operation,
                "isa": tersor.build_info().instruction_set,
                "threads": 1,
                "load": load,
                "seconds": seconds,
                "baseline": baseline,
                "baseline_seconds": baseline_seconds,
                "copies": copies,
                "gigabytes_per_second": 2 * fields["count"] / seconds / 1e9,
            }

    for pair in delta_pairs.pairs(folder):
        base, new = (_repeated(delta_pairs.flat(one), chosen.mib) for one in (pair.base, pair.new))
        share = float((base.view(torch.int16) != new.view(torch.int16)).float().mean())
        for classes in CLASSES[:-1]:
            fields = {
                **_fields(pair.name, f"delta:classes={classes}", base),
                "changed_share": share,
            }
            yield from measure(fields, _delta_actions(base, new, classes))
    for name, values in delta_pairs.tensors(folder).items():
        values = _repeated(values, chosen.mib)
        yield from measure(_fields(name, "entropy", values), _codec_actions(values))


def _delta_actions(base: Tensor, new: Tensor, classes: Any) -> Actions:
    old, other, weights = {"": base}, {"": new}, {"": base.clone()}
    deltas = [delta.encode(old, other, classes), delta.encode(other, old, classes)]
    turns = itertools.cycle(deltas)  # there and back
    for expected in (new, base):
        delta.apply(weights, next(turns))
        _check("delta", expected, weights[""])
    one = torch.empty_like(base), torch.empty_like(base)
    copy = "copy", lambda: one[0].copy_(base)
    both = "copy of both", lambda: (one[0].copy_(base), one[1].copy_(new))
    return {
        "encode": (lambda: delta.encode(old, other, classes), *both),
        "check, trusted base": (lambda: delta.check(old, deltas[0], trust_base=True), *copy),
        "apply, trusted base": (lambda: delta.apply(weights, next(turns), trust_base=True), *copy),
        "apply": (lambda: delta.apply(weights, next(turns)), *copy),
    }


def _codec_actions(values: Tensor) -> Actions:
    codec = tersor.Codec("entropy", threads=1)
    frame = empty_bytes(codec.max_payload_bytes(values), values)
    payload, decoded = codec.encode(values, out=frame), torch.empty_like(values)
    codec.decode(payload, out=decoded)
    _check("entropy", values, decoded)
    copy = "copy", lambda: decoded.copy_(values)
    return {
        "encode": (lambda: codec.encode(values, out=frame), *copy),
        "decode": (lambda: codec.decode(payload, out=decoded), *copy),
    }


def _repeated(values: Tensor, mib: int) -> Tensor:
    """The values again and again, in so many MiB."""
    count = mib * 2**19
    return values.repeat(-(-count // values.numel()))[:count].clone()


def _fields(data: str, codec: str, values: Tensor) -> Record:
    return {
        "benchmark": "delta",
        "codec": codec,
        "data": data,
        "dtype": "bf16",
        "count": values.numel(),
    }


def _check(what: str, expected: Tensor, found: Tensor) -> None:
    same = torch.equal(expected.view(torch.int16), found.view(torch.int16))
    fail_if(not same, f"{what}: other values came back")
