"""The ways of ``goodput``."""

import argparse
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tersor
import tersor.torch
from tersor.bench import goodput_torchft
from tersor.bench.goodput_pace import Pace


def ddp(pace: Pace, chosen: argparse.Namespace) -> None:
    """An exchange of gradients in each step."""
    optimizer = tersor.torch.DistributedOptimizer(
        pace.inner,
        pace.model.named_parameters(),
        codec=chosen.codec,
        elastic=True,
        min_ranks=1,
    )
    pace.begin()
    while True:
        pace.backward()
        try:
            optimizer.step()
        except tersor.RanksLostError:
            optimizer.resume()
        else:
            pace.count(1)


def diloco(pace: Pace, chosen: argparse.Namespace, grace: float | None) -> None:
    """An exchange every so many steps."""
    outer = tersor.torch.DiLoCo(
        pace.model,
        sync_every=chosen.every,
        straggler_timeout=grace,
        codec=chosen.codec,
        elastic=True,
        on_loss="continue",
        min_ranks=1,
    )
    pace.begin()
    while True:
        pace.backward()
        pace.inner.step()
        held = outer.held_steps + 1
        changed = outer.step()
        if grace is not None and outer.held_steps < held:
            pace.count(held - outer.held_steps)
        elif grace is None and changed:
            pace.count(chosen.every)


def server(pace: Pace, chosen: argparse.Namespace) -> None:
    """By a parameter server on rank 0, which works as the others do."""
    told: Any = {
        "staleness": chosen.staleness,
        "push": chosen.codec,
        "workers": range(chosen.ranks),
    }
    own = None
    if pace.rank == 0:
        own = tersor.torch.ParameterServer(
            pace.model, lambda parts: torch.optim.SGD(parts, lr=0.01), **told
        )
    client = tersor.torch.ParameterClient(pace.model, server=own, **told)
    pace.begin()
    while True:
        client.pull()
        pace.backward()
        client.push()
        pace.count(1)


WAYS: dict[str, Callable[[Pace, Any], None]] = {
    "ddp": ddp,
    "diloco": functools.partial(diloco, grace=None),
    "diloco+grace": lambda pace, chosen: diloco(pace, chosen, chosen.grace),
    "server": server,
    "torchft-ddp": goodput_torchft.ddp,
    "torchft-diloco": goodput_torchft.diloco,
}


def train(chosen: argparse.Namespace, rank: int) -> None:
    """Until this process is killed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of ranks that are lost, which is what is measured
    WAYS[chosen.ways[0]](Pace(chosen, rank), chosen)
