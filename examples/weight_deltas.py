"""Weight deltas: a policy learns on rank 0. Ranks 1 and 2 serve each version with the same bits.

torchrun --nproc-per-node 3 examples/weight_deltas.py [--versions 8] [--steps 10]
Needs: pip install "tersor[delta]"

Ranks 1 and 2 have two copies of the policy. One copy follows a folder, the other copy uses TCP.
"""

import argparse
import copy
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tersor.delta
import tersor.torch

parser = argparse.ArgumentParser()
parser.add_argument("--versions", type=int, default=8)
parser.add_argument("--steps", type=int, default=10, help="training steps per version")
arguments = parser.parse_args()


def rewards(states: Tensor, actions: Tensor) -> Tensor:
    """Returns 1 for each right action: the place of the largest of the state's first ten values."""
    return (actions == states[:, :10].argmax(1)).float()


def learn(policy: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    states = torch.randn(512, 64)
    chosen = torch.distributions.Categorical(logits=policy(states))
    actions = chosen.sample()
    reward = rewards(states, actions)
    optimizer.zero_grad()
    (-chosen.log_prob(actions) * (reward - reward.mean())).mean().backward()  # REINFORCE
    optimizer.step()


def bits(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).view(torch.uint8)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, transport = dist.get_rank(), tersor.torch.transport()
policy = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
by_folder, by_tcp = (copy.deepcopy(policy).bfloat16() for _ in range(2))  # served weights
states = torch.randn(1000, 64)
own_folder = tempfile.TemporaryDirectory()  # removed at the end of the process
folder = [own_folder.name]
dist.broadcast_object_list(folder)  # of rank 0
publisher, tcp_publisher = tersor.delta.Publisher(folder[0]), tersor.delta.Publisher(None)
receiver, version = tersor.delta.Receiver(folder[0]), None
size = sum(2 * one.numel() for one in policy.parameters())  # of the served weights

for number in range(1, arguments.versions + 1):
    if rank == 0:
        for _ in range(arguments.steps):
            learn(policy, optimizer)
        by_folder = by_tcp = copy.deepcopy(policy).bfloat16()
        manifest = publisher.publish(number, by_folder.state_dict())
        tcp_publisher.publish(number, by_tcp.state_dict())
        reward = rewards(states, by_folder(states.bfloat16()).argmax(1)).mean()
        sent = sum(one["bytes"] for one in manifest["tensors"]) if number > 1 else size
        print(f"version {number}: reward {reward:.2f}, {sent / 1024:.1f} of {size / 1024:.1f} KiB")
    dist.barrier()  # the folder has the version
    if rank != 0:
        receiver.update(by_folder.state_dict())
    source = tcp_publisher if rank == 0 else by_tcp.state_dict()
    version = tersor.delta.broadcast_delta(transport, source, version)
    expected = bits(by_folder)
    dist.broadcast(expected, 0)
    assert all(torch.equal(bits(one), expected) for one in (by_folder, by_tcp))
dist.destroy_process_group()
