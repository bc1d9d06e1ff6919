"""A back end of torch.distributed, for what no hook reaches: several meshes, plain calls.

::

    torch.distributed.init_process_group("tersor")  # or "cpu:tersor,cuda:tersor"

``all_reduce`` and ``reduce_scatter`` (both forms) of sums and means, and ``all_to_all_single``, of
float32, bfloat16 and float16 from a size on are encoded, and go over connections of Tersor's own.
Everything else is handed on to gloo, what lies on a device to NCCL. A back end hears no
parameters' names, so that it has no error feedback: take ``int8``, or ``bf16``, summed in float32.

PyTorch 2.15 finds it by the entry point of the installed package.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp, Work

from tersor import _core, collectives
from tersor._core import InvalidArgument
from tersor.torch.backend_calls import Call, Caller, Way, mend_handles
from tersor.torch.backend_configuration import (
    PASS,
    Choice,
    Configuration,
    agree,
    configure,
    in_force,
)
from tersor.torch.group import Members, nccl_is_there
from tersor.torch.layout import straightened
from tersor.torch.parameters import DTYPES

__all__ = ["Configuration", "TersorBackend", "configure", "register"]

if torch.__version__ < (2, 15):  # type: ignore[operator]  # PyTorch compares it so
    raise InvalidArgument(
        f"the back end needs PyTorch 2.15 or newer, and this is {torch.__version__}: use "
        "tersor.torch.compress, or the collectives of tersor.torch"
    )

# With splits no rank knows how many bytes the others have, but all have rows of one length.
_LEAST_ROW_BYTES = 1024
_REDUCTIONS = ((ReduceOp.SUM, "sum"), (ReduceOp.AVG, "mean"))
_DTYPE_WORDS = dict(zip(DTYPES, ("f32", "bf16", "f16"), strict=True))


class TersorBackend(c10d.Backend):
    """What torch.distributed makes for each group; nobody else needs to.

    Works raise TransportError, WireError or CudaError from ``wait``; after one the group's encoded
    calls all do, until it is destroyed and made anew. Making it is collective; raises
    InvalidArgument or TransportError, with both named, where ranks are configured differently.
    """

    def __init__(self, made: Any, options: object = None) -> None:
        """``made``: a ``_DistributedBackendOptions``; ``options``: of NCCL."""
        super().__init__(made.group_rank, made.group_size)
        store, rank, ranks = made.store, made.group_rank, made.group_size
        self._name = made.group_id
        self._global_ranks = made.global_ranks_in_group or list(range(ranks))
        self._options = c10d.Backend.Options("tersor", made.timeout)
        self._configuration = in_force() if ranks > 1 else Configuration((("*", PASS, 0),))
        self._choices: dict[tuple[str, torch.dtype], Choice] = {}
        self._coalesced: list[Work] | None = None
        members = Members(
            store.clone(), rank, ranks, self._seconds(), _core.has_nccl() and nccl_is_there()
        )
        agree(members, self._configuration)
        self._inners = _inners(made, options)
        self._only = self._inners["cpu"] if len(self._distinct()) == 1 else None
        self._least = self._configuration.least_bytes if ranks > 1 else math.inf
        self._least_count = self._least / torch.float32.itemsize
        self._caller = Caller(members)
        self._leave = weakref.finalize(
            self, _end, self._distinct(), self._caller.leave, os.getpid()
        )

    # What is encoded.

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        """As torch.distributed's; encoded where the configuration says so, and so the next ones."""
        tensor = tensors[0]
        short_enough = tensor.numel() < self._least_count and self._coalesced is None
        if short_enough and self._only is not None:
            short: Work = self._only.allreduce(tensors, options)  # what is short is to be quick
            return short
        way = self._way("allreduce", tensor, _bytes(tensor), options)
        if way is None or len(tensors) != 1:
            return self._hand_on("allreduce", tensors, options)

        def make(caller: Caller) -> None:
            with straightened(tensor.detach()) as values:
                caller.run(collectives.allreduce, (values,), values.numel(), way)

        return self._caller.take(Call(make, tensors))

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any
    ) -> Work:
        """``inputs``: of each rank as many values, or all of them are handed on."""
        output, parts = outputs[0], inputs[0]
        like = [one.dtype == output.dtype and one.numel() == output.numel() for one in parts]
        bytes = len(parts) * _bytes(output)
        way = self._way("reduce_scatter", output, bytes, options)
        if way is None or len(outputs) != 1 or not all(like) or len(like) != self.size():
            return self._hand_on("reduce_scatter", outputs, inputs, options)
        return self._scatter(output, parts, way)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, options: Any) -> Work:
        """``input``: ranks times as many values as ``output``."""
        way = self._way("reduce_scatter", input, _bytes(input), options)
        fits = input.numel() == self.size() * output.numel() and input.dtype == output.dtype
        if way is None or not fits:
            return self._hand_on("reduce_scatter_single", output, input, options)
        return self._scatter(output, [input], way)

    def _scatter(self, output: Tensor, inputs: list[Tensor], way: Way) -> Work:
        def make(caller: Caller) -> None:
            values = _apart(inputs, output)
            with straightened(output.detach()) as shard:
                caller.run(collectives.reduce_scatter, (values, shard), values.numel(), way)

        return self._caller.take(Call(make, [output], inputs))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        received: list[int],
        sent: list[int],
        options: Any,
    ) -> Work:
        """With splits, which other ranks do not know, rows from 1 KiB on are encoded."""
        columns = math.prod(input.shape[1:]) if input.dim() else 0
        bytes: float = _bytes(input)
        if received or sent:
            bytes = math.inf if columns * input.element_size() >= _LEAST_ROW_BYTES else 0
        way = self._way("all_to_all", input, bytes, options)
        if way is None or not _rows_fit((output, received), (input, sent), columns, self.size()):
            return self._hand_on("all_to_all_single", output, input, received, sent, options)
        way = {**way, "sent": sent, "received": received}
        way.pop("reduction")

        def make(caller: Caller) -> None:
            values = _apart([input], output)
            with straightened(output.detach()) as rows:
                caller.run(collectives.all_to_all, (values, rows, columns), columns, way)

        return self._caller.take(Call(make, [output], [input]))

    def _way(self, kind: str, like: Tensor, bytes: float, options: Any) -> Way | None:
        """The options of a call that is encoded; None: it is handed on."""
        if bytes < self._least or like.dtype not in _DTYPE_WORDS or self._coalesced is not None:
            return None
        asked = getattr(options, "reduceOp", ReduceOp.SUM)
        reduction = next((word for op, word in _REDUCTIONS if asked == op), None)
        codec, least = self._choice(kind, like.dtype)
        if reduction is None or codec == PASS or bytes < least:
            return None
        seconds = options.timeout.total_seconds()
        limit = seconds if seconds > 0 else self._seconds()
        return {"codec": codec, "reduction": reduction, "timeout": limit}

    def _choice(self, kind: str, dtype: torch.dtype) -> Choice:
        if (kind, dtype) not in self._choices:
            known = c10d._is_process_group_registered(self._name)
            group = c10d._resolve_process_group(self._name).group_desc if known else ""
            call = f"{kind}/{_DTYPE_WORDS[dtype]}/{group}"
            self._choices[kind, dtype] = self._configuration.choice(call)
        return self._choices[kind, dtype]

    # What is handed on.

    def _hand_on(self, name: str, *arguments: Any) -> Work:
        place = "cpu" if self._only is not None else _place(arguments)
        work: Work = getattr(self._inners[place], name)(*arguments)
        if self._coalesced is not None and self._inners[place] is not self._inners["cuda"]:
            self._coalesced.append(work)
        return work

    def barrier(self, options: Any) -> Work:
        """On the device that the options say; ``options``: of PyTorch."""
        place = "cpu" if options.device is None else options.device.type
        work: Work = self._inners[place].barrier(options)
        return work

    def start_coalescing(self) -> None:
        """Until its end nothing is encoded."""
        self._inners["cuda"]._start_coalescing()
        self._coalesced = []

    def end_coalescing(self) -> Work:
        """What was handed on to gloo since is waited for, too."""
        works, self._coalesced = self._coalesced or [], None
        last: Work | None = self._inners["cuda"]._end_coalescing()
        if last is not None and not works:
            return last
        both = works if last is None else [*works, last]
        return c10d.PythonCallbackWork(lambda _: all(work.wait() for work in both))

    # What PyTorch asks of every back end.

    def getBackendName(self) -> str:  # noqa: N802  # as PyTorch looks for it
        return "tersor"

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return bool(self._inners["cuda"].supports_coalescing)

    def split(self, store: Any, ranks: list[int], options: Any) -> TersorBackend:
        """A part of the ranks. Raises InvalidArgument on a rank of no part."""
        if self.rank() not in ranks:
            raise InvalidArgument(
                f"rank {self.rank()} is in none of split_group's parts, which PyTorch does not "
                "tell back ends in Python: name all ranks, or use new_group"
            )
        made = c10d._DistributedBackendOptions()
        made.store = store.clone()
        made.group_rank, made.group_size = ranks.index(self.rank()), len(ranks)
        made.timeout, made.group_id = options._timeout, options.group_name
        made.global_ranks_in_group = [self._global_ranks[rank] for rank in ranks]
        return TersorBackend(made)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing: no communicator is split."""

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        self._inners[device.type if device else "cuda"].eager_connect_single_device(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """For the calls that follow."""
        self._options._timeout = timeout
        for inner in self._distinct():
            inner.set_timeout(timeout)

    def get_error(self) -> Any:
        errors = [inner.get_error() for inner in self._distinct()]
        return next((one for one in errors if one != c10d.ErrorType.SUCCESS), errors[0])

    def shutdown(self) -> None:
        """Makes what is queued, then ends all connections."""
        if self._leave.detach() is not None:
            _end(self._distinct(), self._caller.finish)

    def abort(self) -> None:
        """Ends what is under way, on all ranks, with TransportError."""
        if self._leave.detach() is not None:
            for inner in self._distinct():
                inner.abort()
            _end(self._distinct(), self._caller.abort)

    def _distinct(self) -> list[Any]:
        gloo, other = self._inners["cpu"], self._inners["cuda"]
        return [gloo] if other is gloo else [gloo, other]

    def _seconds(self) -> float:
        return float(self._options._timeout.total_seconds()) or math.inf


def _handed_on(name: str) -> Callable[..., Work]:
    def call(self: TersorBackend, *arguments: Any) -> Work:
        return self._hand_on(name, *arguments)

    return call


for _name in (
    "all_gather_single", "all_gather_single_coalesced", "allgather", "allgather_coalesced",
    "allreduce_coalesced", "allreduce_sparse", "alltoall", "broadcast", "gather", "recv",
    "recv_anysource", "reduce", "reduce_scatter_single_coalesced", "scatter", "send",
):  # fmt: skip
    setattr(TersorBackend, _name, _handed_on(_name))


def _inners(made: Any, options: object) -> dict[str, Any]:
    """For each type of device what is handed on to."""
    store, made.split_from = made.store, None
    gloo = _inner("gloo", made, store, None)
    return {
        "cpu": gloo,
        "cuda": _inner("nccl", made, store, options) if nccl_is_there() else gloo,
    }


def _inner(name: str, made: Any, store: Any, options: object) -> Any:
    dist.Backend._ensure_backend_registered(name)
    made.store = c10d.PrefixStore(name, store)
    return dist.Backend._plugins[name.upper()].creator_fn(made, options)


def _place(arguments: Any) -> str:
    """The type of the device of the first tensor; lists may be empty."""
    for one in arguments:
        if isinstance(one, Tensor):
            return one.device.type
        if isinstance(one, list | tuple) and one and (found := _place(one)):
            return found
    return ""


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes if tensor.layout == torch.strided else 0


def _apart(inputs: list[Tensor], output: Tensor) -> Tensor:
    """Contiguous values of all inputs, which do not share the output's memory."""
    if len(inputs) > 1:
        return torch.cat([one.detach().reshape(-1) for one in inputs])
    values = inputs[0].detach().contiguous()
    shared = values.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return values.clone() if shared else values


def _rows_fit(
    output: tuple[Tensor, list[int]], input: tuple[Tensor, list[int]], columns: int, ranks: int
) -> bool:
    """Whether both have whole rows, of one length and dtype, as their splits say."""
    if columns == 0 or output[0].dtype != input[0].dtype:
        return False
    for values, splits in (output, input):
        rows, rest = divmod(values.numel(), columns)
        if rest or (rows != sum(splits) if splits else rows % ranks):
            return False
    return bool(output[1] or input[1]) or output[0].numel() == input[0].numel()


def _end(inners: list[Any], caller: Callable[[], None], process: int | None = None) -> None:
    """What gloo still works for when it is let go ends the process by an abort."""
    if process not in (None, os.getpid()):
        return  # a fork has none of the threads
    with contextlib.ExitStack() as ends:
        for inner in inners:
            ends.callback(inner.shutdown)
        caller()


def register() -> None:
    """Makes the back end known to torch.distributed; the entry point calls this."""
    mend_handles()
    dist.Backend.register_backend(
        "tersor", TersorBackend, extended_api=True, devices=["cpu", "cuda"]
    )
