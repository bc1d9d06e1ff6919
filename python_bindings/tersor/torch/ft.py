"""Compressed gradients under torchft, where replicas may fail and rejoin.

::

    group = tersor.torch.ft.ProcessGroupTersor(torchft.ProcessGroupGloo(), codec="int8+ef")
    manager = torchft.Manager(pg=group, …)
    group.follow(manager)

torchft decides which replicas take part and whether a step counts. The Manager,
DistributedDataParallel, LocalSGD and DiLoCo of torchft accept the process group.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import Work

from tersor._options import expect, needs

with needs("torchft", "tersor.torch.ft needs it: pip install torchft"):
    from torchft.process_group import ProcessGroup, ProcessGroupWrapper, create_store_client

from tersor import collectives
from tersor._core import Error, InvalidArgumentError, TransportError
from tersor._renamed import deprecated
from tersor.codec import Codec
from tersor.torch._src.backend.calls import Call, Executor, Kwargs, reduction_of
from tersor.torch._src.ft.residuals import Positions, World
from tersor.torch._src.parameters.selection import is_supported
from tersor.torch._src.process_group.connections import Members

__all__ = ["ProcessGroupTersor"]
__dir__ = __all__.copy

_version = importlib.metadata.version("torchft")
if tuple(map(int, _version.split(".")[:2])) < (0, 2):
    raise InvalidArgumentError(
        f"tersor.torch.ft needs torchft 0.2 or newer, and this is {_version}"
    )

_FRAGMENT = "StreamingDiLoCoFragment_"  # as torchft's DiLoCo calls each to the manager


class _Call(Call):
    """torchft's DDP reads errors from the future. An error from ``wait`` would end the training."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        with contextlib.suppress(Error):
            return super().wait(timeout)
        return False


class ProcessGroupTersor(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may be missing
    """A process group of torchft that compresses the all-reduces of another group.

    Sums and means of float32, bfloat16 and float16 with ``min_count`` values or more are sent over
    TCP connections that each quorum renews. The other group does everything else, and all calls of
    a single replica. With ``+ef``, a residual belongs to the position of a tensor in the step. A
    discarded step leaves the residuals unchanged. A restarted replica starts with zero residuals.

    Args:
        inner: The other process group of torchft.
        codec: Spec of the codec, equal on all replicas.
        min_count: Tensors with fewer values are not compressed.
        timeout: Seconds for each call and for the rendezvous.

    Attributes:
        gradient_bytes: Uncompressed bytes of the compressed tensors, over all finished quorums.
        sent_bytes: Bytes that this replica sent for these tensors.

    Raises:
        InvalidArgumentError: No all-reduce supports the codec.
        TypeError: ``inner`` is not a process group of torchft.

    Example:
        >>> group = ProcessGroupTersor(torchft.ProcessGroupGloo(), codec="int8+ef")
        >>> manager = torchft.Manager(pg=group, min_replica_size=1)
    """

    def __init__(
        self,
        inner: ProcessGroup,
        codec: str = "int8+ef",
        *,
        min_count: int = 4096,
        timeout: float | timedelta = 60.0,
    ) -> None:
        wanted = "inner must be a process group of torchft, such as ProcessGroupGloo()"
        expect(inner, ProcessGroup, wanted)
        if isinstance(timeout, timedelta):
            deprecated("ProcessGroupTersor(timeout=timedelta)", "use seconds")
            timeout = timeout.total_seconds()
        expect(timeout, (int, float), "timeout must be a number of seconds")
        super().__init__(timedelta(seconds=timeout), inner)
        checked = Codec(codec)
        self._codec, self._algorithm = checked.spec, "two-shot"
        if not checked.supports("two-shot"):
            checked.require("one-shot")
            self._algorithm = "one-shot"
        self._min_count = min_count
        self._executor: Executor | None = None
        self._world = World(0, 1, 0)
        self._positions: Positions | None = None
        self._error: BaseException | None = None
        self.gradient_bytes = self.sent_bytes = 0

    def follow(self, manager: Any, fragments: int = 1) -> None:
        """Reads the step numbers of torchft's Manager. Codecs with ``+ef`` need this call.

        Call once, before the first step.

        Args:
            manager: torchft's Manager.
            fragments: Number of fragments of torchft's DiLoCo. Each fragment has its own residuals.

        Raises:
            InvalidArgumentError: In the first call of a step, if DiLoCo has another number of
                fragments.

        Example:
            >>> group.follow(manager, fragments=4)
        """
        options = {"codec": self._codec, "algorithm": self._algorithm}

        def step() -> int:
            states = getattr(manager, "_user_state_dicts", ())
            found = sum(key.startswith(_FRAGMENT) for key in states)
            if found not in (0, fragments):
                raise InvalidArgumentError(
                    f"DiLoCo has {found} fragments: call follow(manager, fragments={found})"
                )
            return int(manager.current_step())

        self._positions = positions = Positions(options, fragments, step)
        manager.register_state_dict_fn("tersor", lambda _: positions.clear(), lambda: {})

    def configure(
        self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any, **named: Any
    ) -> None:
        """Connects the replicas of a quorum. torchft's Manager makes this call.

        Args:
            store_addr: Address and prefix of the quorum's store.
            replica_id: Name of this replica.
            rank: Rank of this replica in the quorum.
            world_size: Number of replicas in the quorum.
            more: Further arguments of torchft, passed on.
            named: Further arguments of torchft, passed on.

        Raises:
            TransportError: A replica missed the rendezvous; the message has the rank.

        Example:
            >>> group.configure("host:29500/quorum", "replica_0", rank=0, world_size=2)
        """
        self._end("a new quorum was called")
        self._error, self._world = None, World(rank, world_size, self._world.quorum + 1)
        super().configure(store_addr, replica_id, rank, world_size, *more, **named)
        if world_size == 1:
            return
        store = create_store_client(f"{store_addr}/tersor", timeout=self._timeout)
        seconds = self._timeout.total_seconds()
        executor = Executor(Members(store, rank, world_size, seconds, nccl=False))
        executor.connect()
        self._executor = executor

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduces one tensor over the replicas of the quorum, in place.

        Args:
            tensors: The tensor. A list of several tensors is not compressed.
            opts: A reduction of torch.distributed, or its options.

        Returns:
            The work. The work's future and :meth:`errored` report errors.

        Raises:
            TransportError: An earlier call of the quorum failed, or there is no quorum yet.
            InvalidArgumentError: The codec has ``+ef``, and :meth:`follow` was not called.

        Example:
            >>> work = group.allreduce([gradient], torch.distributed.ReduceOp.AVG)
            >>> work.wait()
        """
        reduction = reduction_of(getattr(opts, "reduceOp", opts))
        encoded = reduction is not None and len(tensors) == 1 and is_supported(tensors[0])
        if self._world.ranks == 1 or not encoded or tensors[0].numel() < self._min_count:
            plain: Work = super().allreduce(tensors, opts)
            return plain
        if self._executor is None or self._failure() is not None:
            raise self._failure() or TransportError("the replicas are not connected: no quorum yet")
        kwargs: Kwargs = {"codec": self._codec, "algorithm": self._algorithm}
        kwargs |= {"reduction": reduction, "timeout": self._timeout.total_seconds()}
        if self._codec.endswith("+ef"):
            kwargs["feedback"] = self._followed().take(tensors[0], self._world, str(reduction))
        return self._executor.submit(_Call(collectives.allreduce, tensors[0], [], kwargs))

    def _followed(self) -> Positions:
        if self._positions is None:
            raise InvalidArgumentError(
                f'codec "{self._codec}" needs to know committed steps: call follow(manager) once'
            )
        return self._positions

    def errored(self) -> BaseException | None:
        """Returns the error that ended a call of this quorum, or None.

        torchft calls once at the end of each step.

        Example:
            >>> error = group.errored()
        """
        if self._positions is not None:
            self._positions.end_step()
        return self._failure() or self.parent.errored()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the residuals of this replica, for its own checkpoint.

        Call between steps.

        Example:
            >>> torch.save(group.state_dict(), path)
        """
        return {} if self._positions is None else self._positions.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Loads residuals, after :meth:`follow` and before the first step.

        Args:
            state: The result of ``state_dict()`` on this replica.

        Raises:
            InvalidArgumentError: The state is damaged or not finite, or :meth:`follow` was not
                called. Nothing changed.

        Example:
            >>> group.load_state_dict(torch.load(path))
        """
        self._followed().load_state_dict(state)

    def abort(self, *more: Any, **named: Any) -> None:
        """Ends the calls in progress with TransportError on all replicas.

        Args:
            more: Arguments of torchft, passed on.
            named: Arguments of torchft, passed on.

        Example:
            >>> group.abort()
        """
        self._error = TransportError("the process group was aborted")
        self._end(str(self._error))
        self.parent.abort(*more, **named)

    def shutdown(self) -> None:
        """Closes all connections.

        Example:
            >>> group.shutdown()
        """
        self._end("the process group was shut down")
        self.parent.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of later calls.

        Args:
            timeout: The time limit, as torchft passes it.

        Example:
            >>> group.set_timeout(datetime.timedelta(seconds=60))
        """
        super().set_timeout(timeout)
        self.parent.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802  # torchft's name
        """Returns the name, such as ``"tersor-torchft-gloo"``.

        Example:
            >>> name = group.getBackendName()
        """
        return f"tersor-{self.parent.getBackendName()}"

    def _failure(self) -> BaseException | None:
        return self._error or (None if self._executor is None else self._executor.error)

    def _end(self, reason: str) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.leave(reason)
            self.gradient_bytes += executor.gradient_bytes
            self.sent_bytes += executor.sent_bytes
