"""Groups of the backend ``tersor`` of torch.distributed on several processes, for tests."""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ranks

SECONDS = 120.0
COUNT = 3000


def start(rank: int, count: int, meeting: str, **options: Any) -> None:
    """Initialises torch.distributed with the configured backend. Default: encode from 4 KiB on by
    ``none``."""
    from tersor.torch import backend

    torch.set_num_threads(1)
    backend.register()
    backend.configure(**{"codec": "none", "min_bytes": 4096, **options})
    limit = datetime.timedelta(seconds=SECONDS)
    place = {"init_method": f"file://{meeting}", "rank": rank, "world_size": count}
    dist.init_process_group("tersor", timeout=limit, **place)  # type: ignore[arg-type]


def _begun(
    rank: int, count: int, meeting: str, body: tuple[str, str], options: dict[str, Any]
) -> Any:
    start(rank, count, meeting, **options)
    try:
        module, name = body
        return inspect.unwrap(getattr(importlib.import_module(module), name))(rank, count)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def outcomes(
    body: Callable[[int, int], Any], count: int, folder: pathlib.Path, **options: Any
) -> list[ranks.Outcome]:
    """Returns the outcomes of a function of rank and ranks on ``count`` processes.

    ``options``: of ``configure``.
    """
    name = (body.__module__, body.__name__)
    for attempt in range(3):
        arguments = (str(folder / f"store-{attempt}"), name, options)
        found = ranks.outcomes(_begun, count, *arguments, group=False, attempts=1)
        if not any(one.unconnected for one in found):
            break
    return found


def on(count: int, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a test of a function of rank and ranks, with the backend as the default group."""

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(tmp_path: pathlib.Path) -> None:
            for outcome in outcomes(function, count, tmp_path, **options):
                assert outcome.error is None, outcome.traceback
                assert outcome.finished

        parameter = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
        return test

    return decorate


def values(rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns the values of a rank."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator).to(dtype)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 8))


def losses(trained: nn.Module, rank: int) -> list[float]:
    """Of five steps."""
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + rank)
    found = []
    for _ in range(5):
        inputs = torch.randn(16, 32, generator=generator)
        loss = nn.functional.cross_entropy(trained(inputs), inputs[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
