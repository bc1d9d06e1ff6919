"""DiLoCo and local SGD: ranks train alone, and average parameters every few steps."""

from tersor.torch._src.diloco.outer_optimizers import OuterOptimizer, averaging, nesterov
from tersor.torch._src.diloco.training import DiLoCo

__all__ = ["DiLoCo", "OuterOptimizer", "averaging", "nesterov"]
