"""The sent bytes of a handle equal the bytes that the kernel sent for this process."""

from __future__ import annotations

import os
import socket
import stat
import struct

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks
import tersor.torch
from tersor.torch._src.process_group import connections as group

STEPS = 4
INPUTS, OUTPUTS = 1024, 2048
BYTES_ACKED = 120  # where the kernel's struct tcp_info has tcpi_bytes_acked, a u64


def sent_by_sockets() -> int:
    """Returns the acknowledged bytes on all TCP sockets of this process, without headers of TCP and
    IP."""
    return sum(_acknowledged(int(name)) for name in os.listdir("/proc/self/fd"))


def _acknowledged(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED + 8)
    except OSError:  # closed meanwhile, or no TCP
        return 0
    return int(struct.unpack_from("=Q", info, BYTES_ACKED)[0])


def train(rank: int, count: int, codec: str) -> dict[str, float]:
    """Returns the counts of the handle and of the kernel, after the first steps."""
    model = DistributedDataParallel(torch.nn.Linear(INPUTS, OUTPUTS, bias=False))
    handle = tersor.torch.compress(model, codec=codec)

    def step() -> None:
        model(torch.randn(4, INPUTS)).square().sum().backward()

    for _ in range(3):  # until buckets are rebuilt and their order is learnt
        step()
    dist.barrier()
    told, really = handle.totals(), sent_by_sockets()
    for _ in range(STEPS):
        step()
    dist.barrier()  # all of it has left
    after = handle.totals()
    really = sent_by_sockets() - really
    dist.barrier()
    group.close()
    return {
        "told": after.sent_bytes - told.sent_bytes,
        "uncompressed": after.uncompressed_bytes - told.uncompressed_bytes,
        "really": really,
        "steps": after.steps - told.steps,
    }


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("codec", ["none", "int8", "int4"])
def test_sent_bytes_match_the_kernel_counters(count: int, codec: str) -> None:
    everywhere = ranks.run(train, count, codec)
    for of_rank in everywhere:
        assert of_rank["steps"] == STEPS
        assert of_rank["uncompressed"] == 2 * (count - 1) / count * 4 * INPUTS * OUTPUTS * STEPS
    told = sum(of_rank["told"] for of_rank in everywhere)
    really = sum(of_rank["really"] for of_rank in everywhere)
    uncompressed = sum(of_rank["uncompressed"] for of_rank in everywhere)
    assert really == pytest.approx(told, rel=0.03)  # the last acknowledgements may be on their way
    payload = tersor.Codec(codec).max_payload_bytes(INPUTS * OUTPUTS)
    assert uncompressed / really == pytest.approx(4 * INPUTS * OUTPUTS / payload, rel=0.03)
