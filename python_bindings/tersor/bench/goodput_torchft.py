"""torchft's DiLoCo, for ``goodput``."""

import argparse
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SECONDS = timedelta(seconds=60)


def lighthouse() -> Any:
    """By which replicas find each other."""
    from torchft.coordination import LighthouseServer

    return LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=5000
    )


def managed(
    model: nn.Module, inner: torch.optim.Optimizer, rank: int, chosen: argparse.Namespace
) -> tuple[Any, Any]:
    """A replica's manager, and what trains as a context."""
    import torchft
    from torchft.local_sgd import DiLoCo

    from tersor.torch.ft import ProcessGroupTersor

    group = ProcessGroupTersor(
        torchft.ProcessGroupGloo(timeout=SECONDS), chosen.codec, timeout=SECONDS
    )
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    manager = torchft.Manager(
        pg=group,
        min_replica_size=1,
        use_async_quorum=False,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"replica_{rank}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=SECONDS,
        quorum_timeout=SECONDS,
        hostname="127.0.0.1",
    )
    manager.store = store  # lives as long
    group.follow(manager)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    return manager, DiLoCo(
        manager, [model], inner, outer, sync_every=chosen.every, pin_memory=False
    )
