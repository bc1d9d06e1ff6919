"""``masks``: the computation of a client in a secure sum, compared with Flower's SecAgg+.

The client hashes the round's parameters, encodes an update as integers, and adds its own mask and
one mask per neighbour. The time is CPU seconds of one thread, in turns with Flower's functions for
the same work (without a hash), at Flower's defaults. The agreement on keys is not measured.
"""

import argparse
import functools
import itertools
import os
import statistics
import time

import flwr
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation import quantization, secaggplus_utils

from tersor import _text
from tersor.bench.records import Record, RecordFile, add, seconds_of
from tersor.federated.flower import masks
from tersor.federated.flower.secure_wire import SumFormat, round_digest
from tersor.federated.flower.wire import KEY

CLIP = 8.0  # Flower's, with 22 bits
FORMAT = SumFormat(8, 16, CLIP, 0, "")
THEIR_RANGE, THEIR_MODULUS = 1 << 22, 1 << 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command line."""
    add(parser, "mib", 16, "size of the float32 update in MiB")
    add(parser, "neighbours", 8, "neighbours of the client")
    add(parser, "turns", 7, "number of turns, of which the median counts")


def run(chosen: argparse.Namespace) -> None:
    """Times both."""
    records = RecordFile(chosen.json)
    update = np.random.default_rng(0).standard_normal(chosen.mib << 18, np.float32)
    keys = [os.urandom(32) for _ in range(1 + chosen.neighbours)]
    fields = FORMAT.record() | {"run": "", "round": 1, "clients": len(keys), "cohort": b""}
    arrays = ArrayRecord({"weights": Array(update)})
    ours = functools.partial(
        _ours, RecordDict({KEY: ConfigRecord(fields), "arrays": arrays}), update
    )
    theirs = functools.partial(_theirs, update)
    turns = [
        tuple(seconds_of(lambda: one(keys), time.process_time) for one in (ours, theirs))  # noqa: B023
        for _ in range(1 + chosen.turns)
    ][1:]
    own_seconds, their_seconds = (statistics.median(one) for one in zip(*turns, strict=True))
    own_bytes, their_bytes = ours(keys[:1]), theirs(keys[:1])
    record: Record = {
        "benchmark": "masks",
        "count": update.size,
        "neighbours": chosen.neighbours,
        "flower": flwr.__version__,
        "cpu_seconds": own_seconds,
        "baseline_cpu_seconds": their_seconds,
        "ratio": statistics.median(one / other for one, other in turns),
        "payload_bytes": own_bytes,
        "baseline_bytes": their_bytes,
    }
    records.add(record)
    rows = [
        ["tersor.federated.flower", _text.seconds(own_seconds), _text.byte_count(own_bytes)],
        ["Flower", _text.seconds(their_seconds), _text.byte_count(their_bytes)],
    ]
    print(_text.table(["masks of", "CPU", "sent"], rows))
    print(f"{record['ratio']:.2f} of Flower's")


def _ours(content: RecordDict, update: np.ndarray, keys: list[bytes]) -> int:
    round_digest(content, len(keys))
    sums = FORMAT.encode([update], 1)
    for index, key in enumerate(keys):
        masks.apply_mask(sums.parts, key, -1 if index % 2 else 1)
    return sums.data.nbytes


def _theirs(update: np.ndarray, keys: list[bytes]) -> int:
    parts = quantization.quantize([update], CLIP, THEIR_RANGE)
    signs = itertools.cycle([arithmetic.parameters_addition, arithmetic.parameters_subtraction])
    for key, apply in zip(keys, signs, strict=False):
        mask = secaggplus_utils.pseudo_rand_gen(key, THEIR_MODULUS, [update.shape])
        parts = apply(parts, mask)
    return int(arithmetic.parameters_mod(parts, THEIR_MODULUS)[0].nbytes)
