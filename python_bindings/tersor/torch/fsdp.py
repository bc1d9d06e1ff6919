"""Compressed gradients, and weights on request, of models that went through ``fully_shard``."""

from tersor.reducer import ShardedOptions
from tersor.torch._src.fsdp.handle import ShardedHandle, compress

__all__ = ["ShardedHandle", "ShardedOptions", "compress"]
