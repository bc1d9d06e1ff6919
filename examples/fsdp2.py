"""FSDP2: Tersor compresses the reduce-scatter of gradients and, on request, the all-gather.

torchrun --nproc-per-node 2 examples/fsdp2.py [--codec int8] [--weights int8] [--steps 20]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tersor.torch

parser = argparse.ArgumentParser()
parser.add_argument("--codec", default="int8", help="codec of the gradients")
parser.add_argument("--weights", default="int8", help="codec of the weights, or none")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")  # "nccl" with GPUs
mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # "cuda" with GPUs
torch.manual_seed(0)
layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
model = nn.Sequential(*layers)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
weights = None if arguments.weights == "none" else arguments.weights
handle = tersor.torch.compress(model, codec=arguments.codec, weights_codec=weights)

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(1 + dist.get_rank())
for step in range(1, arguments.steps + 1):
    inputs = torch.randn(64, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step in (1, arguments.steps):
        print(f"step {step}: loss {loss.item():.2f}")

totals = handle.totals()
if dist.get_rank() == 0:
    sent, instead = totals.sent_bytes, totals.uncompressed_bytes
    print(f"gradients: sent {sent / 1024:.0f} KiB instead of {instead / 1024:.0f} KiB")
dist.destroy_process_group()
