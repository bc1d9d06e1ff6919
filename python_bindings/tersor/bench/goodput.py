"""A rank of ``goodput``: steps, stalls, the record of common steps, and the ways to exchange."""

import argparse
import functools
import pathlib
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tersor
import tersor.torch
from tersor.bench import torchft_ways

POLL_SECONDS = 0.005
WIDTH = 64


def failures(chosen: argparse.Namespace, kind: str, rank: int) -> list[float]:
    """The times of a rank's stalls or deaths (``kind``), in seconds since the start. A server does
    not die."""
    if kind == "death" and rank == 0 and chosen.ways[0] == "server":
        return []
    mean, drawn = getattr(chosen, f"{kind}_every"), random.Random(f"{chosen.seed} {kind} {rank}")
    found, at = [], 0.0
    while mean and (at := at + drawn.expovariate(1 / mean)) < chosen.seconds:
        found.append(at)
    return found


class Pace:
    """The model, the inner optimizer and the clock of a rank."""

    def __init__(self, chosen: argparse.Namespace, rank: int) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        self.model: nn.Module = nn.Sequential(*layers)
        self.inner: Any = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._folder, self.rank = pathlib.Path(chosen.folder), rank
        self._step, self._stall = chosen.step, chosen.stall
        self._stalls = failures(chosen, "stall", rank)
        self._start = 0.0

    def begin(self) -> None:
        """Waits until all ranks have started. A restarted rank skips earlier stalls."""
        (self._folder / f"ready.{self.rank}").touch()
        while not (go := self._folder / "go").exists():
            time.sleep(POLL_SECONDS)
        self._start = float(go.read_text())
        self._stalls = [at for at in self._stalls if self._start + at > time.time()]
        self._counts = (self._folder / f"counted.{self.rank}").open("a")

    def backward(self) -> None:
        """The backward pass of one batch, after the duration of a step and of due stalls."""
        self.inner.zero_grad()
        time.sleep(self._step)
        while self._stalls and (late := time.time() - self._start - self._stalls[0]) >= 0:
            time.sleep(max(0.0, self._stall - late))
            del self._stalls[0]
        inputs = torch.randn(16, WIDTH)
        (self.model(inputs) - inputs.sin()).square().mean().backward()

    def count(self, steps: int) -> None:
        """Records steps added to the common weights."""
        self._counts.write(f"{time.time() - self._start} {steps}\n")
        self._counts.flush()


def read_counts(folder: pathlib.Path, rank: int) -> list[tuple[float, int]]:
    """The records of a rank: seconds since the start, and steps."""
    path = folder / f"counted.{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split() for line in lines)
    return [(float(at), int(steps)) for at, steps in (one for one in pairs if len(one) == 2)]


def ddp(pace: Pace, chosen: argparse.Namespace) -> None:
    """Trains with an exchange of gradients in each step."""
    options: Any = {"codec": chosen.codec, "elastic": True, "min_ranks": 1}
    named = pace.model.named_parameters()
    optimizer = tersor.torch.DistributedOptimizer(pace.inner, named, **options)
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
    """Trains with an exchange every few steps."""
    options: Any = {"codec": chosen.codec, "elastic": True, "min_ranks": 1, "on_loss": "continue"}
    options |= {"sync_every": chosen.every, "straggler_timeout": grace}
    outer = tersor.torch.DiLoCo(pace.model, **options)
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
    """Trains with a parameter server on rank 0. Rank 0 also trains."""
    workers = range(chosen.ranks)
    options: Any = {"staleness": chosen.staleness, "push": chosen.codec, "workers": workers}
    own = None
    if pace.rank == 0:
        sgd = functools.partial(torch.optim.SGD, lr=0.01)
        own = tersor.torch.ParameterServer(pace.model, sgd, **options)
    client = tersor.torch.ParameterClient(pace.model, server=own, **options)
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
    "torchft-ddp": torchft_ways.ddp,
    "torchft-diloco": torchft_ways.diloco,
}


def train(chosen: argparse.Namespace, rank: int) -> None:
    """Trains until this process is killed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # about lost ranks, because the losses are intended
    WAYS[chosen.ways[0]](Pace(chosen, rank), chosen)
