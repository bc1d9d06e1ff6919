"""DiLoCo: each rank trains alone, and the ranks exchange their progress every few steps.

torchrun --nproc-per-node 2 examples/diloco.py [--every 10] [--codec int4+ef] [--steps 60]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

import tersor.torch

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=10, help="inner steps per exchange")
parser.add_argument("--codec", default="int4+ef")
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")  # "nccl" with GPUs; the model is not in DistributedDataParallel
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
outer = tersor.torch.DiLoCo(model, codec=arguments.codec, sync_every=arguments.every)

torch.manual_seed(1 + dist.get_rank())
for step in range(1, arguments.steps + 1):
    inputs = torch.randn(64, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    inner.zero_grad()
    loss.backward()
    inner.step()
    outer.step()  # every tenth call exchanges
    if dist.get_rank() == 0 and step in (1, arguments.steps):
        print(f"step {step}: loss {loss.item():.2f}")
outer.synchronize()  # all ranks end with the same weights

if dist.get_rank() == 0:
    sent = outer.totals().sent_bytes / arguments.steps
    instead = sum(4 * p.numel() for p in model.parameters())
    print(f"sent {sent / 1024:.1f} KiB per step instead of {instead / 1024:.1f} KiB")
dist.destroy_process_group()
