"""The common protocol of all handles of ``tersor.torch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tersor import _core

if TYPE_CHECKING:
    from tersor.torch._src.checkpoint.residuals import Mode
    from tersor.torch._src.statistics.records import ParameterStatistics


@runtime_checkable
class Handle(Protocol):
    """The common interface of all handles. A handle compresses the gradients of a training.

    ``tersor.torch.compress`` returns a handle for DDP (``HookState``) and FSDP2
    (``ShardedHandle``). The optimizers ``DistributedOptimizer``, ``CompressedAdamW``,
    ``CompressedMuon`` and ``CompressedSGD`` are handles. ``isinstance(x, Handle)`` checks the names
    of all methods, without signatures.

    Example::

        def log(handle: tersor.torch.Handle) -> None:
            print(handle.table())
    """

    samples: float | None
    """The number of samples in this rank's next gradient, or None.

    Set ``samples`` before each step, on all ranks. The result is then the mean over the samples of
    all ranks. DDP, FSDP2 and ``DistributedOptimizer`` need ``weighted=True``."""

    def statistics(self, *, residual_norms: bool = False) -> list[ParameterStatistics]:
        """Returns the counts of this rank, one entry per parameter in the model's order.

        Args:
            residual_norms: True to read all residuals and measure their norms.
        """

    def reducer_statistics(self) -> Sequence[_core.ReducerStatistics]:
        """Returns the counts of each reducer, including the transport's headers.

        DDP and the optimizers have one reducer. FSDP2 has a reducer per module. On a 2-D mesh,
        FSDP2 has a second reducer per module. The sequence is empty before the first step of DDP
        and FSDP2.
        """

    def table(self) -> str:
        """Returns a line per parameter, and a total: bytes, ratio, errors, seconds, codec."""

    def explain(self) -> str:
        """Returns a line per parameter: the codec and the reason."""

    def state_dict(self, mode: Mode = "exact") -> dict[str, Any]:
        """Returns the state for a checkpoint, between two steps.

        Args:
            mode: ``"exact"`` has the residuals of each rank; the same number of ranks continues
                bit for bit. ``"portable"`` has the sum of the residuals over ranks, for any number
                of ranks, and is a collective call. ``DistributedOptimizer`` saves residuals only
                if ``mode`` is passed.
        """

    def load_state_dict(self, state: Any, /) -> None:
        """Loads the result of ``state_dict`` of either mode.

        Raises:
            InvalidArgumentError: The state is damaged or does not fit. Nothing was changed.
        """

    def discard_step(self) -> None:
        """Restores the residuals from before the last exchange, if no step used the result.

        Call ``discard_step`` on all ranks. ``transactional=True`` is required.
        """

    def reset(self) -> None:
        """Reconnects the ranks after a failed exchange. Residuals become zero.

        A collective call. Each rank must have received the error before.
        """

    def remove(self) -> None:
        """Sends gradients uncompressed from the next step on. Call ``remove`` on all ranks."""


if TYPE_CHECKING:  # the signatures of all handles match
    from tersor.torch._src.ddp.hook import HookState
    from tersor.torch._src.fsdp.handle import ShardedHandle
    from tersor.torch._src.optim.compressed import CompressedOptimizer
    from tersor.torch._src.optim.distributed import DistributedOptimizer

    def _handle(
        one: HookState | ShardedHandle | CompressedOptimizer | DistributedOptimizer,
    ) -> Handle:
        return one
