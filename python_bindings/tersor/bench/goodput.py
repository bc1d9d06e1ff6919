"""A rank of ``goodput``: it trains by one way, stalls as drawn, and counts steps that went in."""

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

POLL_SECONDS = 0.005
WIDTH = 64


def times(chosen: argparse.Namespace, kind: str, rank: int) -> list[float]:
    """Of a rank's "stall"s or "death"s: seconds since the start, until the end."""
    mean, drawn = getattr(chosen, f"{kind}_every"), random.Random(f"{chosen.seed} {kind} {rank}")
    found, at = [], 0.0
    while mean and (at := at + drawn.expovariate(1 / mean)) < chosen.seconds:
        found.append(at)
    return found


class Pace:
    """What a rank's inner step is, and where it tells of the steps that all have."""

    def __init__(self, chosen: argparse.Namespace, rank: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._folder, self.rank = pathlib.Path(chosen.folder), rank
        self._step, self._stall = chosen.step, chosen.stall
        self._stalls = times(chosen, "stall", rank)
        self._counted = self._folder / f"counted.{rank}"
        self._total = int(self._counted.read_text()) if self._counted.exists() else 0
        self._start = 0.0

    def begin(self) -> None:
        """Waits until all are there, if they were not yet; who comes back goes on from now."""
        (self._folder / f"ready.{self.rank}").touch()
        while not (go := self._folder / "go").exists():
            time.sleep(POLL_SECONDS)
        self._start = float(go.read_text())
        self._stalls = [at for at in self._stalls if self._start + at > time.time()]

    def backward(self) -> None:
        """Of one batch, after the time that a step takes, and the stalls that have begun."""
        time.sleep(self._step)
        while self._stalls and (late := time.time() - self._start - self._stalls[0]) >= 0:
            time.sleep(max(0.0, self._stall - late))
            del self._stalls[0]
        inputs = torch.randn(16, WIDTH)
        self.inner.zero_grad()
        (self.model(inputs) - inputs.sin()).square().mean().backward()

    def count(self, steps: int) -> None:
        """So many more are in the weights that ranks have in common."""
        self._total += steps
        written = self._counted.with_suffix(f".{self.rank}.new")
        written.write_text(str(self._total))
        written.rename(self._counted)


def ddp(pace: Pace, chosen: argparse.Namespace) -> None:
    """An exchange of gradients in each step."""
    optimizer = tersor.torch.DistributedOptimizer(
        pace.inner,
        pace.model.named_parameters(),
        codec=chosen.codec,
        elastic=True,
        least_ranks=1,
    )
    pace.begin()
    while True:
        pace.backward()
        try:
            optimizer.step()
        except tersor.RanksLost:
            optimizer.resume()
        else:
            pace.count(1)


def diloco(pace: Pace, chosen: argparse.Namespace, grace: float | None) -> None:
    """An exchange every so many steps."""
    outer = tersor.torch.DiLoCo(
        pace.model,
        every=chosen.every,
        grace=grace,
        codec=chosen.codec,
        elastic=True,
        on_loss="go on",
        least_ranks=1,
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


WAYS: dict[str, Callable[[Pace, Any], None]] = {
    "ddp": ddp,
    "diloco": functools.partial(diloco, grace=None),
    "diloco+grace": lambda pace, chosen: diloco(pace, chosen, chosen.grace),
}


def train(chosen: argparse.Namespace, rank: int) -> None:
    """Until this process is killed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of ranks that are lost, which is what is measured
    WAYS[chosen.ways[0]](Pace(chosen, rank), chosen)
