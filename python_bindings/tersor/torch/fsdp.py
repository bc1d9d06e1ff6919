"""Compressed gradients, and weights on request, after ``fully_shard``."""

from tersor.reducer import ShardedOptions
from tersor.torch._src.fsdp.compression import compress
from tersor.torch._src.fsdp.handle import ShardedHandle

__all__ = ["ShardedHandle", "ShardedOptions", "compress"]
