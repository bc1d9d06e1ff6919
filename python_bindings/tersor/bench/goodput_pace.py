"""A rank of ``goodput``: what its steps are, when it stalls, and where it tells of what went in."""

import argparse
import pathlib
import random
import time
from typing import Any

import torch
from torch import nn

POLL_SECONDS = 0.005
WIDTH = 64


def times(chosen: argparse.Namespace, kind: str, rank: int) -> list[float]:
    """Of a rank's "stall"s or "death"s: seconds since the start, until the end. A server lives."""
    if kind == "death" and rank == 0 and chosen.ways[0] == "server":
        return []
    mean, drawn = getattr(chosen, f"{kind}_every"), random.Random(f"{chosen.seed} {kind} {rank}")
    found, at = [], 0.0
    while mean and (at := at + drawn.expovariate(1 / mean)) < chosen.seconds:
        found.append(at)
    return found


class Pace:
    """What a rank's inner step is, and where it tells of the steps that all have."""

    def __init__(self, chosen: argparse.Namespace, rank: int) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        )
        self.inner: Any = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._folder, self.rank = pathlib.Path(chosen.folder), rank
        self._step, self._stall = chosen.step, chosen.stall
        self._stalls = times(chosen, "stall", rank)
        self._start = 0.0

    def run_by(self, model: nn.Module, inner: Any) -> None:
        """The model and its optimizer, wrapped."""
        self.model, self.inner = model, inner

    def begin(self) -> None:
        """Waits until all are there, if they were not yet; who comes back goes on from now."""
        (self._folder / f"ready.{self.rank}").touch()
        while not (go := self._folder / "go").exists():
            time.sleep(POLL_SECONDS)
        self._start = float(go.read_text())
        self._stalls = [at for at in self._stalls if self._start + at > time.time()]
        self._counted = (self._folder / f"counted.{self.rank}").open("a")

    def backward(self) -> None:
        """Of one batch, after the time that a step takes, and the stalls that have begun."""
        self.inner.zero_grad()
        time.sleep(self._step)
        while self._stalls and (late := time.time() - self._start - self._stalls[0]) >= 0:
            time.sleep(max(0.0, self._stall - late))
            del self._stalls[0]
        inputs = torch.randn(16, WIDTH)
        (self.model(inputs) - inputs.sin()).square().mean().backward()

    def count(self, steps: int) -> None:
        """So many more are in the weights that ranks have in common."""
        self._counted.write(f"{time.time() - self._start} {steps}\n")
        self._counted.flush()


def counted(folder: pathlib.Path, rank: int) -> list[tuple[float, int]]:
    """When since the start, and how many, as the rank told."""
    told = folder / f"counted.{rank}"
    lines = told.read_text().splitlines() if told.exists() else []
    pairs = (line.split() for line in lines)
    return [(float(at), int(steps)) for at, steps in (one for one in pairs if len(one) == 2)]
