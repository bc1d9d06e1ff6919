"""Ways to exchange gradients in FSDP2: PyTorch's own, and Tersor's.

``none`` is FSDP2 itself. ``torch:ahead`` prefetches weights, as Tersor does. ``torch:bf16`` and
``torch:fp16`` are a ``MixedPrecisionPolicy`` with this ``reduce_dtype``. Any other word is a codec,
also ``tersor:none``.
"""

from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tersor.bench.errors import fail_if
from tersor.bench.hook_kinds import ComputedHook, CountedHook, Hook
from tersor.bench.hooks import TERSOR, TORCH
from tersor.bench.measures import parameter_count, ring_bytes
from tersor.bench.split_hooks import CASTS
from tersor.torch import fsdp

REDUCE_DTYPES = {**CASTS, TORCH + "ahead": torch.float32}
SUMMARY = (
    "none (FSDP2 itself), torch:ahead (with prefetched weights), "
    "torch:bf16 and torch:fp16 (its MixedPrecisionPolicy(reduce_dtype=…)), or a codec of Tersor"
)


def check(name: str) -> None:
    """Raises BenchmarkError for an unknown way. Codecs are checked at their first use."""
    is_wrong = name.startswith(TORCH) and name not in REDUCE_DTYPES
    fail_if(is_wrong, f'no "{name}" with fsdp; there are: {SUMMARY}')


def attach(chain: nn.Sequential, name: str, weights: str | None = None) -> Hook:
    """Shards each layer, then the chain, with this way for gradients. ``weights``: a codec for the
    all-gathers, if gradients have a codec of Tersor."""
    check(name)
    dtype = REDUCE_DTYPES.get(name)
    kind, ranks = next(chain.parameters()).device.type, dist.get_world_size()
    mesh, policy = init_device_mesh(kind, (ranks,)), MixedPrecisionPolicy(reduce_dtype=dtype)
    for module in (*chain, chain):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    if dtype is None:
        handle = fsdp.compress(chain, codec=name.removeprefix(TERSOR), weights_codec=weights)
        return CountedHook(chain, handle, handle.remove)
    if name == TORCH + "ahead":
        cast(FSDPModule, chain)._set_unshard_async_op(True)
    whole = ring_bytes(parameter_count(chain) * dtype.itemsize, ranks)
    # gloo's reduce-scatter is an all-reduce of which a part stays.
    step_bytes = whole if dist.get_backend() == "gloo" else whole / 2
    return ComputedHook(chain, lambda steps: steps * step_bytes)
