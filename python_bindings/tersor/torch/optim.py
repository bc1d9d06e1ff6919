"""Optimizers over ranks: compressed AdamW, Muon and SGD, and a wrapper for any other optimizer."""

from tersor.reducer import OptimizerOptions
from tersor.torch._src.optim.adamw import CompressedAdamW
from tersor.torch._src.optim.distributed import DistributedOptimizer
from tersor.torch._src.optim.muon import CompressedMuon
from tersor.torch._src.optim.sgd import CompressedSGD

__all__ = [
    "CompressedAdamW", "CompressedMuon", "CompressedSGD", "DistributedOptimizer",
    "OptimizerOptions",
]  # fmt: skip
