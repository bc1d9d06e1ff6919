"""Step time and bytes of a DDP training without and with Tersor, over an emulated slow link.

torchrun --nproc-per-node 2 examples/ddp.py [--rate 50e6] [--codec int8] [--steps 20]
"""

import argparse
import statistics
import time

import slow_link
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tersor.torch

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=50e6, help="bits per second; 0: no limit")
parser.add_argument("--codec", default="int8")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()


def train(codec: str | None) -> tuple[float, float, float]:
    """Returns the median seconds and the sent bytes per step, and the last loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    if codec:
        handle = tersor.torch.compress(model, codec=codec)  # the only change

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + dist.get_rank())
    times = []
    for step in range(2 + arguments.steps):
        if step == 2 and arguments.rate:  # after two steps, all connections are open
            slow_link.limit(arguments.rate)
        start = time.perf_counter()
        inputs = torch.randn(64, 64)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times[2:])
    ranks, values = dist.get_world_size(), sum(p.numel() for p in model.parameters())
    sent = 2 * (ranks - 1) / ranks * 4 * values  # of an all-reduce of float32
    if codec:
        sent = handle.totals().sent_bytes / (2 + arguments.steps)
    return seconds, sent, loss.item()


torch.set_num_threads(1)
dist.init_process_group("gloo")  # "nccl" with GPUs
times = []
for codec in (None, arguments.codec):
    seconds, sent, loss = train(codec)
    times.append(seconds)
    if dist.get_rank() == 0:
        name = f"with {codec}:" if codec else "without Tersor:"
        figures = f"{1000 * seconds:6.0f} ms and {sent / 1024:6.0f} KiB per step, loss {loss:.2f}"
        print(f"{name:16}{figures}")
if dist.get_rank() == 0:
    print(f"a step is {times[0] / times[1]:.1f}x as fast")
dist.destroy_process_group()
