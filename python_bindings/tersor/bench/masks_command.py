"""``masks``: what a client of a secure sum computes, beside Flower's own SecAgg+.

The weights of the round are hashed, an update becomes whole numbers, and gets its own mask and one
for each neighbour: CPU seconds of one thread, in turns with Flower's functions for the same (which
hash nothing), at Flower's defaults. Keys are agreed on before.
"""

import argparse
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable

import flwr
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation import quantization, secaggplus_utils

from tersor import _text
from tersor.bench.errors import BenchmarkError
from tersor.bench.records import Record, RecordFile, add_option
from tersor.federated.flower import masks
from tersor.federated.flower.secure_wire import SumFormat, round_digest
from tersor.federated.flower.wire import KEY

CLIP = 8.0  # Flower's, with 22 bits
FORMAT = SumFormat(8, 16, CLIP, 0, "")
THEIR_RANGE, THEIR_MODULUS = 1 << 22, 1 << 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--mib", type=int, default=16, help="of the update, f32 (16)")
    parser.add_argument("--neighbours", type=int, default=8, help="(8)")
    parser.add_argument("--turns", type=int, default=7, help="of which the median counts (7)")
    add_option(parser)


def run(chosen: argparse.Namespace) -> int:
    """Times both. Returns the exit status."""
    if min(chosen.mib, chosen.neighbours, chosen.turns) < 1:
        raise BenchmarkError("--mib, --neighbours and --turns: give 1 or more")
    records = RecordFile(chosen.json)
    update = np.random.default_rng(0).standard_normal(chosen.mib << 18, np.float32)
    keys = [os.urandom(32) for _ in range(1 + chosen.neighbours)]
    told = FORMAT.record() | {"run": "", "round": 1, "clients": len(keys), "cohort": b""}
    arrays = ArrayRecord({"weights": Array(update)})
    ours_of = functools.partial(_ours, RecordDict({KEY: ConfigRecord(told), "arrays": arrays}))
    turns = [
        (_seconds(ours_of, update, keys), _seconds(_theirs, update, keys))
        for _ in range(1 + chosen.turns)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*turns[1:], strict=True))
    own_bytes, their_bytes = ours_of(update, keys[:1]), _theirs(update, keys[:1])
    record: Record = {
        "benchmark": "masks",
        "count": update.size,
        "neighbours": chosen.neighbours,
        "flower": flwr.__version__,
        "cpu_seconds": ours,
        "baseline_cpu_seconds": theirs,
        "ratio": statistics.median(one / other for one, other in turns[1:]),
        "payload_bytes": own_bytes,
        "baseline_bytes": their_bytes,
    }
    records.add(record)
    rows = [
        ["tersor.federated.flower", _text.seconds(ours), _text.byte_count(own_bytes)],
        ["Flower", _text.seconds(theirs), _text.byte_count(their_bytes)],
    ]
    print(_text.table(["masks of", "CPU", "sent"], rows))
    print(f"{record['ratio']:.2f} of Flower's")
    return 0


def _ours(content: RecordDict, update: np.ndarray, keys: list[bytes]) -> int:
    round_digest(content, len(keys))
    sums = FORMAT.encode([update], 1)
    for place, key in enumerate(keys):
        masks.apply_mask(sums.parts, key, -1 if place % 2 else 1)
    return sums.data.nbytes


def _theirs(update: np.ndarray, keys: list[bytes]) -> int:
    parts = quantization.quantize([update], CLIP, THEIR_RANGE)
    signs = itertools.cycle([arithmetic.parameters_addition, arithmetic.parameters_subtraction])
    for key, apply in zip(keys, signs, strict=False):
        mask = secaggplus_utils.pseudo_rand_gen(key, THEIR_MODULUS, [update.shape])
        parts = apply(parts, mask)
    return int(arithmetic.parameters_mod(parts, THEIR_MODULUS)[0].nbytes)


def _seconds(
    call: Callable[[np.ndarray, list[bytes]], int], update: np.ndarray, keys: list[bytes]
) -> float:
    start = time.process_time()
    call(update, keys)
    return time.process_time() - start
