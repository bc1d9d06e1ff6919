"""Encoded gradients under torchft, where replicas may die, and come back.

::

    group = tersor.torch.ft.ProcessGroupTersor(torchft.ProcessGroupGloo(), codec="int8+ef")
    manager = torchft.Manager(pg=group, …)
    group.follow(manager)

torchft says who is there and whether a step counts; its Manager, DistributedDataParallel, LocalSGD
and DiLoCo take the group as any other.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from datetime import timedelta
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.distributed import ReduceOp, Work

try:
    from torchft.process_group import ProcessGroup, ProcessGroupWrapper, create_store_client
except ModuleNotFoundError as error:
    if error.name != "torchft":
        raise
    needed = "tersor.torch.ft needs it: pip install torchft"
    raise ModuleNotFoundError(needed, name="torchft") from error

from tersor import _core, collectives
from tersor._core import Error, InvalidArgumentError, TransportError
from tersor._options import expect
from tersor.codec import Codec
from tersor.torch._src.backend.calls import Call, Caller
from tersor.torch._src.ft.residuals import Places, World
from tersor.torch._src.parameters.selection import DTYPES
from tersor.torch._src.process_group.connections import Members

__all__ = ["ProcessGroupTersor"]

_version = importlib.metadata.version("torchft")
if tuple(map(int, _version.split(".")[:2])) < (0, 2):
    raise InvalidArgumentError(
        f"tersor.torch.ft needs torchft 0.2 or newer, and this is {_version}"
    )

_REDUCTIONS = ((ReduceOp.SUM, "sum"), (ReduceOp.AVG, "mean"))
_FRAGMENT = "StreamingDiLoCoFragment_"  # as torchft's DiLoCo calls each to the manager


class _Call(Call):
    """torchft's DDP takes an error from the future alone: one out of ``wait`` ends the training."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        with contextlib.suppress(Error):
            return super().wait(timeout)
        return False


class ProcessGroupTersor(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may be missing
    """Another group of torchft's, whose all-reduces of floats are encoded.

    Sums and means of float32, bfloat16 and float16, of ``min_count`` values and more, go over TCP,
    which the replicas of a quorum connect anew; all else, and a replica that is alone, by the other
    group. With ``+ef`` what was not sent is kept for each tensor of a step, and goes with the next;
    a void step leaves it as it was, and a replica that comes back owes nothing.

    Attributes:
        gradient_bytes: of tensors that were encoded, in quorums that are over.
        sent_bytes: of them, by this replica.
    """

    def __init__(
        self,
        inner: ProcessGroup,
        codec: str = "int8+ef",
        *,
        min_count: int = 4096,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """``codec``: equal on all replicas. ``timeout``: of each call, and of meeting. Raises
        InvalidArgumentError for a codec that no all-reduce takes, TypeError for what is no
        group."""
        expect(
            inner,
            ProcessGroup,
            "inner must be a process group of torchft, such as ProcessGroupGloo()",
        )
        super().__init__(timeout, inner)
        self._codec, self._algorithm = _way(codec)
        self._min_count = min_count
        self._caller: Caller | None = None
        self._world = World(0, 1, 0)
        self._places: Places | None = None
        self._error: BaseException | None = None
        self.gradient_bytes = self.sent_bytes = 0

    def follow(self, manager: Any, fragments: int = 1) -> None:
        """Learns of steps from torchft's Manager, once, before the first: needed with ``+ef``.

        ``fragments``: of torchft's DiLoCo, how many it was given: so many steps have tensors of
        their own. Raises InvalidArgumentError where it has others.
        """
        own = {"codec": self._codec, "algorithm": self._algorithm}

        def step() -> int:
            found = sum(
                key.startswith(_FRAGMENT) for key in getattr(manager, "_user_state_dicts", ())
            )
            if found not in (0, fragments):
                raise InvalidArgumentError(
                    f"DiLoCo has {found} fragments: call follow(manager, fragments={found})"
                )
            return int(manager.current_step())

        self._places = places = Places(own, fragments, step)
        manager.register_state_dict_fn("tersor", lambda _: places.forget(), lambda: {})

    def configure(
        self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any, **named: Any
    ) -> None:
        """Connects the replicas of a quorum, as torchft's Manager asks. Raises TransportError with
        the rank that does not come."""
        self._end("a new quorum was called")
        self._error, self._world = None, World(rank, world_size, self._world.quorum + 1)
        super().configure(store_addr, replica_id, rank, world_size, *more, **named)
        if world_size == 1:
            return
        store = create_store_client(f"{store_addr}/tersor", timeout=self._timeout)
        seconds = self._timeout.total_seconds()
        caller = Caller(Members(store, rank, world_size, seconds, nccl=False))
        caller.connect()
        self._caller = caller

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """As torch.distributed's. An error is told by the work's future, and by ``errored``."""
        asked = getattr(opts, "reduceOp", opts)
        reduction = next((word for op, word in _REDUCTIONS if asked == op), None)
        encoded = reduction is not None and len(tensors) == 1 and self._takes(tensors[0])
        if self._world.ranks == 1 or not encoded:
            plain: Work = super().allreduce(tensors, opts)
            return plain
        if self._caller is None or self._failure() is not None:
            raise self._failure() or TransportError("the replicas are not connected: no quorum yet")
        way = {
            "codec": self._codec,
            "algorithm": self._algorithm,
            "reduction": reduction,
            "timeout": self._timeout.total_seconds(),
        }
        if self._codec.endswith("+ef"):
            way["feedback"] = self._followed().take(tensors[0], self._world, str(reduction))
        return self._caller.take(_Call(collectives.allreduce, tensors[0], [], way))

    def _takes(self, tensor: Tensor) -> bool:
        return (
            tensor.dtype in DTYPES
            and tensor.layout == torch.strided
            and tensor.numel() >= self._min_count
        )

    def _followed(self) -> Places:
        if self._places is None:
            raise InvalidArgumentError(
                f'codec "{self._codec}" needs to know committed steps: call follow(manager) once'
            )
        return self._places

    def errored(self) -> BaseException | None:
        """What ended a call of this quorum. torchft asks once, at the end of each step."""
        if self._places is not None:
            self._places.end_step()
        return self._failure() or self.parent.errored()

    def state_dict(self) -> dict[str, Tensor]:
        """What this replica owes by error feedback, for its own checkpoint, between two steps."""
        return {} if self._places is None else self._places.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Brings it back, after ``follow`` and before the first step."""
        self._followed().load_state_dict(state)

    def abort(self, *more: Any, **named: Any) -> None:
        """Ends what is under way, on all replicas, with TransportError."""
        self._error = TransportError("the process group was aborted")
        self._end(str(self._error))
        self.parent.abort(*more, **named)

    def shutdown(self) -> None:
        """Ends all connections."""
        self._end("the process group was shut down")
        self.parent.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self.parent.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802  # torchft's
        return f"tersor-{self.parent.getBackendName()}"

    def _failure(self) -> BaseException | None:
        return self._error or (None if self._caller is None else self._caller.error)

    def _end(self, why: str) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.leave(why)
            self.gradient_bytes += caller.gradient_bytes
            self.sent_bytes += caller.sent_bytes


def _way(codec: str) -> tuple[str, str]:
    """The spec, and the algorithm that it goes by on any number of ranks."""
    spec = Codec(codec).spec
    alone = _core.InProcessWorld(1).transport(0)
    told: dict[str, Any] = {"codec": spec.removesuffix("+ef"), "algorithm": "two-shot"}
    try:
        collectives.allreduce(alone, numpy.zeros(1, numpy.float32), **told)
    except InvalidArgumentError:
        told["algorithm"] = "one-shot"
        collectives.allreduce(alone, numpy.zeros(1, numpy.float32), **told)
    return spec, told["algorithm"]
