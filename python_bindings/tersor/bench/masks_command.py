"""``masks``: the computation of a client in a secure sum, compared with Flower's SecAgg+.

The client hashes the round's parameters, encodes an update as integers, and adds its own mask and
one mask per neighbour. The time is CPU seconds of one thread, in turns with Flower's functions for
the same work (without a hash), at Flower's defaults. The agreement on keys is not measured.
"""

import argparse
import functools
import itertools
import os
import time
from collections.abc import Iterator

import flwr
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation import quantization, secaggplus_utils

from tersor.bench.records import Record, add, columns, compare_times, report, seconds_of
from tersor.federated.flower import masks
from tersor.federated.flower.secure_wire import SumFormat, round_digest
from tersor.federated.flower.wire import KEY

CLIP = 8.0  # Flower's, with 22 bits
FORMAT = SumFormat(8, 16, CLIP, 0, "")
THEIR_RANGE, THEIR_MODULUS = 1 << 22, 1 << 32
COLUMNS = columns(
    "CPU=cpu_seconds:s, Flower's=baseline_cpu_seconds:s, ratio=ratio:.2f, sent=payload_bytes:B, "
    "Flower's sent=baseline_bytes:B"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "mib", 16, "size of the float32 update in MiB")
    add(parser, "neighbours", 8, "neighbours of the client")
    add(parser, "turns", 7, "number of turns, of which the median counts")


def run(chosen: argparse.Namespace) -> None:
    report(chosen, _measure(chosen), COLUMNS)


def _measure(chosen: argparse.Namespace) -> Iterator[Record]:
    update = np.random.default_rng(0).standard_normal(chosen.mib << 18, np.float32)
    keys = [os.urandom(32) for _ in range(1 + chosen.neighbours)]
    fields = FORMAT.record() | {"run": "", "round": 1, "clients": len(keys), "cohort": b""}
    arrays = ArrayRecord({"weights": Array(update)})
    content = RecordDict({KEY: ConfigRecord(fields), "arrays": arrays})
    ours, theirs = functools.partial(_ours, content, update), functools.partial(_theirs, update)
    clock = functools.partial(seconds_of, clock=time.process_time)
    own_seconds, their_seconds, ratio = compare_times(
        lambda: ours(keys), lambda: theirs(keys), chosen.turns, clock
    )
    yield {
        "benchmark": "masks",
        "count": update.size,
        "neighbours": chosen.neighbours,
        "flower": flwr.__version__,
        "cpu_seconds": own_seconds,
        "baseline_cpu_seconds": their_seconds,
        "ratio": ratio,
        "payload_bytes": ours(keys[:1]),
        "baseline_bytes": theirs(keys[:1]),
    }


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
