"""A backend of torch.distributed for models on several meshes and for plain calls.

::

    torch.distributed.init_process_group("tersor")  # or "cpu:tersor,cuda:tersor"

From a minimum size on, the backend encodes sums and means of ``all_reduce`` and ``reduce_scatter``
(both forms), and ``all_to_all_single``, of float32, bfloat16 and float16. Tersor sends these calls
over separate connections. The backend passes all other calls on to gloo, or to NCCL for device
memory. The backend knows no parameter names and therefore has no error feedback. Use ``int8``, or
``bf16`` with float32 sums.

PyTorch 2.15 finds the backend through the entry point of the installed package.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp, Work

from tersor import _core, collectives
from tersor.arrays import dtype_text
from tersor.torch import _compat
from tersor.torch._src.backend.calls import Call, Executor, Kwargs, reduction_of
from tersor.torch._src.backend.configuration import PASS, agree, current_configuration
from tersor.torch._src.parameters.selection import DTYPES
from tersor.torch._src.process_group.connections import Members, nccl_usable, seconds_of

if torch.__version__ < (2, 15):  # type: ignore[operator]  # PyTorch compares it so
    raise ImportError(
        f"the backend needs PyTorch 2.15 or newer, and this is {torch.__version__}: use "
        "tersor.torch.compress, or the collectives of tersor.torch"
    )

# With splits, no rank knows the bytes of other ranks, but all ranks have rows of one length.
_MIN_ROW_BYTES = 1024


def _with_all_arguments(method: Callable[..., Work]) -> Callable[..., Work]:
    """PyTorch adds the missing arguments of a direct call, and then calls again."""

    @functools.wraps(method)
    def call(self: TersorGroup, *arguments: Any, **keywords: Any) -> Any:
        if keywords or not isinstance(arguments[-1], _compat.CALL_OPTIONS):
            return getattr(dist.ProcessGroup, method.__name__)(self, *arguments, **keywords)
        return method(self, *arguments)

    return call


class TersorGroup(dist.ProcessGroup):
    """A process group of the backend ``tersor``; torch.distributed makes the groups.

    Encoded calls return works whose ``wait`` raises TransportError, WireError or CudaError. After
    an error, all encoded calls of the group raise the error; destroy the group and make a new one.
    Making a group is a collective call.

    Args:
        made: The ``_DistributedBackendOptions`` of torch.distributed.
        options: NCCL's options.

    Raises:
        InvalidArgumentError: Two ranks have different configurations.
        TransportError: A rank missed the rendezvous.

    Example:
        >>> torch.distributed.init_process_group("tersor")
        >>> torch.distributed.all_reduce(gradient)
    """

    def __init__(self, made: Any, options: object = None) -> None:
        store, rank, ranks = made.store, made.group_rank, made.group_size
        super().__init__(store, rank, ranks)
        self._configuration = current_configuration()
        self._min_bytes = self._configuration.min_bytes if ranks > 1 else math.inf
        nccl, seconds = nccl_usable(), made.timeout.total_seconds() or math.inf
        members = Members(store.clone(), rank, ranks, seconds, nccl and _core.has_nccl())
        agree(members, self._configuration)
        self._executor = Executor(members)
        gloo = _make_inner("gloo", made, None)
        self._inners = [gloo, _make_inner("nccl", made, options)] if nccl else [gloo]
        kinds = dist.ProcessGroup.BackendType
        kind = kinds.NCCL if nccl else kinds.GLOO
        self._plain: dist.ProcessGroup = made.process_group
        for group in (self, self._plain):
            _compat.set_backends(group, kind, self._inners)
        self._leave = weakref.finalize(self, _end, self._inners, self._executor.leave, os.getpid())

    @_with_all_arguments
    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        """Reduces as torch.distributed does, encoded if the configuration selects the call.

        Args:
            tensors: One tensor; several tensors are passed on.
            options: Options of torch.distributed, with the reduction.

        Returns:
            The work.

        Raises:
            TransportError: The group was shut down or aborted.

        Example::

            torch.distributed.all_reduce(gradient)
        """
        kwargs = self._call_kwargs("all_reduce", tensors[0], _bytes(tensors[0]), options)
        if kwargs is None or len(tensors) != 1:
            return self._plain.allreduce(tensors, options)
        return self._executor.submit(Call(collectives.allreduce, tensors[0], [], kwargs))

    @_with_all_arguments
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any
    ) -> Work:
        """Reduces and scatters lists of tensors; as :meth:`allreduce`.

        Args:
            outputs: One tensor for this rank's shard.
            inputs: A list with one tensor per rank. Tensors of different sizes are passed on.
            options: As in :meth:`allreduce`.

        Returns:
            The work.

        Raises:
            TransportError: As :meth:`allreduce`.

        Example::

            torch.distributed.reduce_scatter(shard, shards)
        """
        output, parts = outputs[0], inputs[0]
        fits = [one.dtype == output.dtype and one.numel() == output.numel() for one in parts]
        kwargs = self._call_kwargs("reduce_scatter", output, len(parts) * _bytes(output), options)
        if kwargs is None or len(outputs) != 1 or not all(fits) or len(fits) != self.size():
            return self._plain.reduce_scatter(outputs, inputs, options)
        return self._executor.submit(Call(collectives.reduce_scatter, output, parts, kwargs))

    @_with_all_arguments
    def reduce_scatter_single(self, output: Tensor, input: Tensor, options: Any) -> Work:
        """Reduces and scatters one tensor; as :meth:`allreduce`.

        Args:
            output: This rank's shard.
            input: Ranks x ``output.numel()`` values.
            options: As in :meth:`allreduce`.

        Returns:
            The work.

        Raises:
            TransportError: As :meth:`allreduce`.

        Example::

            torch.distributed.reduce_scatter_tensor(shard, gradient)
        """
        kwargs = self._call_kwargs("reduce_scatter", input, _bytes(input), options)
        fits = input.numel() == self.size() * output.numel() and input.dtype == output.dtype
        if kwargs is None or not fits:
            return self._plain.reduce_scatter_single(output, input, options)
        return self._executor.submit(Call(collectives.reduce_scatter, output, [input], kwargs))

    @_with_all_arguments
    def all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], options: Any
    ) -> Work:
        """Sends rows to ranks; with splits, rows of 1 KiB or more are encoded.

        Args:
            output: The rows from all ranks.
            input: The rows for all ranks.
            received: Number of rows from each rank; empty: equal numbers.
            sent: Number of rows for each rank; empty: equal numbers.
            options: As in :meth:`allreduce`.

        Returns:
            The work.

        Raises:
            TransportError: As :meth:`allreduce`.

        Example::

            torch.distributed.all_to_all_single(output, rows)
        """
        rows = input if input.numel() else output  # a rank without rows may give torch.empty(0)
        columns = math.prod(rows.shape[1:]) if rows.dim() else 0
        bytes: float = _bytes(input)
        if received or sent:
            bytes = math.inf if columns * input.element_size() >= _MIN_ROW_BYTES else 0
        kwargs = self._call_kwargs("all_to_all", input, bytes, options)
        if kwargs is None or not _rows_fit((output, received), (input, sent), columns, self.size()):
            return self._plain.all_to_all_single(output, input, received, sent, options)
        kwargs = {**kwargs, "columns": columns, "sent": sent, "received": received}
        return self._executor.submit(Call(collectives.all_to_all, output, [input], kwargs))

    def _call_kwargs(self, kind: str, like: Tensor, bytes: float, options: Any) -> Kwargs | None:
        """Returns the options of an encoded call, or None to pass the call on."""
        if bytes < self._min_bytes or like.dtype not in DTYPES:
            return None
        reduction = reduction_of(getattr(options, "reduceOp", ReduceOp.SUM))
        call = f"{kind}/{dtype_text(like.dtype)}/{self.group_desc}"
        codec, least = self._configuration.choice(call)
        coalesced = _compat.is_coalescing(self)
        if reduction is None or codec == PASS or bytes < least or coalesced:
            return None
        seconds = options.timeout.total_seconds()
        limit = seconds if seconds > 0 else seconds_of(self)
        return {"codec": codec, "reduction": reduction, "timeout": limit}

    def split_group(self, ranks: list[int], **options: Any) -> TersorGroup | None:  # type: ignore[override]
        """Makes a process group of some ranks, for all devices.

        Args:
            ranks: Ranks of this group.
            options: The other arguments of ``torch.distributed.split_group``.

        Returns:
            The new group, or None on other ranks.

        Raises:
            tersor.Error: As the class.

        Example::

            torch.distributed.new_group([0, 1])
        """
        if self.rank() not in ranks:
            return None
        name, own = options["group_name"], dist.get_process_group_ranks(self)
        config = _compat.BackendOptions()
        config.store = _compat.PrefixStore(f"{name}/", self.get_group_store().clone())
        config.group_rank, config.group_size = ranks.index(self.rank()), len(ranks)
        config.timeout, config.group_id = options["timeout"], name
        config.process_group = dist.ProcessGroup(config.store, config.group_rank, config.group_size)
        config.global_ranks_in_group = [own[rank] for rank in ranks]
        part = TersorGroup(config, options["opts"])
        _compat.set_name(part, name, options["group_desc"] or f"{self.group_desc}:split")
        return part

    def shutdown(self) -> None:
        """Finishes the queued calls, then closes all connections.

        Example::

            torch.distributed.destroy_process_group()
        """
        if self._leave.detach() is not None:
            _end(self._inners, self._executor.finish)

    def abort(self) -> None:
        """Ends the calls in progress on all ranks with TransportError.

        Example::

            torch.distributed.group.WORLD.abort()
        """
        if self._leave.detach() is not None:
            for inner in self._inners:
                inner.abort()
            _end(self._inners, self._executor.abort)


def _forwarded(name: str) -> Callable[..., Work]:
    """Calls the plain group, because PyTorch's own forwarding holds the interpreter lock."""

    def call(self: TersorGroup, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self._plain, name)(*arguments, **keywords)

    return call


for _name in (
    "all_gather_single", "all_gather_single_coalesced", "allgather", "allreduce_coalesced",
    "alltoall", "barrier", "broadcast", "gather", "recv", "recv_anysource", "reduce",
    "reduce_scatter_single_coalesced", "scatter", "send",
):  # fmt: skip
    setattr(TersorGroup, _name, _forwarded(_name))


def _make_inner(name: str, settings: Any, options: object) -> Any:
    """Makes gloo or NCCL; changes ``settings``."""
    settings.store = _compat.PrefixStore(name, settings.store)
    settings.split_from = None
    return _compat.make_backend(name, settings, options)


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes if tensor.layout == torch.strided else -1  # below every minimum


def _rows_fit(
    output: tuple[Tensor, list[int]], input: tuple[Tensor, list[int]], columns: int, ranks: int
) -> bool:
    """True if both tensors have whole rows of one length and dtype that match the splits."""
    if columns == 0 or output[0].dtype != input[0].dtype:
        return False
    for values, splits in (output, input):
        rows, rest = divmod(values.numel(), columns)
        if rest or (rows != sum(splits) if splits else rows % ranks):
            return False
    return bool(output[1] or input[1]) or output[0].numel() == input[0].numel()


def _end(inners: list[Any], end_calls: Callable[[], None], process: int | None = None) -> None:
    """Shuts gloo down first, because destroying a working gloo group aborts the process."""
    if process not in (None, os.getpid()):
        return  # a fork has none of the threads
    with contextlib.ExitStack() as ends:
        for inner in inners:
            ends.callback(inner.shutdown)
        end_calls()


def register() -> None:
    """Registers the backend ``tersor`` with torch.distributed; the entry point makes this call.

    Example:
        >>> tersor.torch.backend.register()
        >>> torch.distributed.init_process_group("tersor")
    """
    dist.Backend.register_backend("tersor", TersorGroup, extended_api=True, devices=["cpu", "cuda"])
