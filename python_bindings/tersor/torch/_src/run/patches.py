"""Compresses models when a program makes the models, for ``python -m tersor.torch.run``.

``DistributedDataParallel`` has one communication hook, and Tersor registers it in the constructor.
If the program registers another hook later, Tersor's hook only calls the program's hook.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tersor import Codec, _core, collectives
from tersor._core import InvalidArgumentError
from tersor._options import fill
from tersor.arrays import dtype_text
from tersor.reducer import ReducerOptions
from tersor.torch import _compat
from tersor.torch._src.ddp import hook as ddp
from tersor.torch._src.ddp.hook import HookState
from tersor.torch._src.fsdp import compression as fsdp
from tersor.torch._src.fsdp.handle import ShardedHandle
from tersor.torch._src.gradients.loss_scale import record_results
from tersor.torch._src.gradients.low_bit_adam import has_feedback
from tersor.torch._src.parameters.selection import DTYPES, Unsupported, inner_module
from tersor.torch._src.process_group.connections import seconds_of, transport

MIN_BYTES = 1 << 20  # of a counted all-reduce
_OWN_HOOK = "the script registers a communication hook of its own"
_OWN_CALL = "the script calls tersor.torch.compress itself"
_LIBRARIES = ("torch", "tersor")

Handle = HookState | ShardedHandle


@dataclass(frozen=True)
class Planned:
    """The planned bytes of one parameter, per rank and step, without message headers.

    ``sent_bytes`` is None with ``"auto"``, because only a run decides. With a schedule,
    ``sent_bytes`` is of the first step.
    """

    name: str
    codec: str
    sent_bytes: float | None
    uncompressed_bytes: float


Plan = tuple[Iterable[Planned], list[dist.ProcessGroup]]
"""The plan of each parameter, and the process groups of the exchanges in a fixed order."""


@dataclass
class Record:
    """A model of the program."""

    name: str
    wrapper: str
    handle: Handle | None = None  #: if the model is compressed
    reason: str = ""  #: otherwise, the reason
    plan: list[Planned] = field(default_factory=list)  #: with --dry
    scalars: Mapping[str, float] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Ends the compression of the model."""
        self.reason, self.plan, handle = reason, [], self.handle
        self.handle = None
        if isinstance(handle, HookState):
            handle.close()
        elif handle is not None:
            handle.remove()
        print_message(f"{self.name} ({self.wrapper}) is left alone: {reason}")

    def count(self) -> Mapping[str, float]:
        """Returns ``handle.scalars()``, also after the end of the handle."""
        if self.handle is not None:
            self.scalars = self.handle.scalars()
        return self.scalars

    def end(self) -> None:
        """Runs when Python frees the model."""
        self.count()
        self.handle = None


class Constructors:
    """Compresses every model of DistributedDataParallel and ``fully_shard``."""

    def __init__(
        self, options: ReducerOptions, unsupported: Unsupported = "warn", *, dry: bool = False
    ) -> None:
        self.models: list[Record] = []  #: in the order of construction
        #: Calls and bytes of large ``dist.all_reduce`` calls of floats, by file and line.
        self.all_reduces: dict[str, tuple[int, int]] = {}
        self.rank = rank()
        self.dry = dry
        self._options, self._unsupported = options, unsupported
        self._scaler = ScalerProxy() if has_feedback(options) else None
        self._records = weakref.WeakKeyDictionary[nn.Module, Record]()
        self._pending = weakref.WeakKeyDictionary[nn.Module, Any]()  # for the first forward pass
        self._compress_sharded = fsdp.compress

    def install(self) -> None:
        """Patches PyTorch in all loaded and later modules. The patches are permanent."""
        methods: list[tuple[Any, str, Callable[..., Any]]] = [
            (DistributedDataParallel, "__init__", self._make_ddp),
            (DistributedDataParallel, "register_comm_hook", self._register),
            (FSDPModule, "unshard", self._unshard),
        ]
        if self._scaler is not None:
            methods.append((torch.amp.GradScaler, "__init__", self._scaler.make))
        for owner, name, replacement in methods:
            setattr(owner, name, _wrapped(getattr(owner, name), replacement))
        functions: dict[Any, Callable[..., Any]] = {
            fully_shard: self._shard,
            fsdp.compress: self._on_own_compress,
            dist.all_reduce: self._all_reduce,
        }
        replace({one: _wrapped(one, replacement) for one, replacement in functions.items()})

    def finish(self) -> list[Record]:
        """Returns all models at the end of the program."""
        for root in list(self._pending):
            self._remove_pending(root)
            self._add(root, "fully_shard").reason = "its forward pass was never called"
        return self.models

    def _add(self, model: nn.Module, wrapper: str) -> Record:
        self.rank = rank()
        self._records[model] = record = Record(type(inner_module(model)).__name__, wrapper)
        self.models.append(record)
        return record

    def _compress(
        self, record: Record, model: Any, plan: Callable[..., Plan], compress: Callable[..., Handle]
    ) -> None:
        """Compresses a model, or plans with --dry, or leaves a refused model uncompressed."""
        try:
            planned, groups = plan(model, self._options)
            if not self.dry:
                for group in groups:
                    transport(group)  # refuses a group without a store
        except InvalidArgumentError as refusal:
            return record.skip(str(refusal))
        if self.dry:
            record.plan = list(planned)
            return None
        for group in groups:
            check_same_options(group, repr((self._options, self._unsupported)))
        options = {**self._options, "scaler": self._scaler, "unsupported": self._unsupported}
        record.handle = compress(model, **options)
        weakref.finalize(model, record.end).atexit = False
        return None

    def _make_ddp(self, construct: Any, model: Any, *arguments: Any, **options: Any) -> None:
        construct(model, *arguments, **options)
        record = self._add(model, "DistributedDataParallel")
        self._compress(record, model, plan_of_ddp, ddp.compress)

    def _register(self, register: Any, model: Any, state: Any, hook: Any) -> None:
        """Registers Tersor's hook. Tersor's hook calls a later hook of the program."""
        record = self._records.get(model)
        if record is not None and isinstance(record.handle, HookState):
            _compat.check_hook(model, hook)
            record.handle.instead = functools.partial(hook, state)
        else:  # Tersor's hook, or a model without Tersor's hook
            register(model, state, hook)
        if record is not None and (record.handle is not None or record.plan):
            record.skip(_OWN_CALL if isinstance(state, HookState) else _OWN_HOOK)

    def _shard(self, shard: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        """Shards, then waits for the first forward pass of the outermost sharded module."""
        found = shard(module, *arguments, **options)
        for one in module if isinstance(module, list | tuple) else [module]:
            for inner in one.modules():
                self._remove_pending(inner)
            use = torch.compiler.disable(lambda used, _: self._on_use(used))  # type: ignore[no-untyped-call]
            # Run this hook first, because FSDP's own hook unshards the parameters.
            self._pending[one] = one.register_forward_pre_hook(use, prepend=True)
        return found

    def _remove_pending(self, module: nn.Module) -> bool:
        """Returns True if the module waited for its first forward pass."""
        if (hook := self._pending.pop(module, None)) is not None:
            hook.remove()
        return hook is not None

    def _unshard(self, unshard: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        self._on_use(module)
        return unshard(module, *arguments, **options)

    def _on_use(self, module: nn.Module) -> None:
        """Compresses a model at the first use of any module of the model."""
        for root in list(self._pending):
            if any(one is module for one in root.modules()) and self._remove_pending(root):
                record = self._add(root, "fully_shard")
                self._compress(record, root, plan_of_shards, self._compress_sharded)

    def _on_own_compress(self, compress: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        """Ends this compression of a model if the program itself compresses the model."""
        for one in model.modules() if isinstance(model, nn.Module) else ():
            if self._remove_pending(one):
                self._add(one, "fully_shard").skip(_OWN_CALL)
            elif (record := self._records.get(one)) is not None and not record.reason:
                record.skip(_OWN_CALL)
        return compress(model, *arguments, **options)

    def _all_reduce(self, all_reduce: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        """Counts the calls of the program, without the calls of PyTorch and Tersor."""
        is_large = isinstance(tensor, torch.Tensor) and tensor.nbytes >= MIN_BYTES
        if not torch.compiler.is_compiling() and is_large and tensor.is_floating_point():
            caller = sys._getframe(2)  # the program's line is in no argument
            if caller.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
                line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                calls, size = self.all_reduces.get(line, (0, 0))
                self.all_reduces[line] = (calls + 1, size + tensor.nbytes)
        return all_reduce(tensor, *arguments, **options)


class ScalerProxy:
    """The ``GradScaler`` of the program. The program may make the scaler after the model."""

    def __init__(self) -> None:
        self._scalers = weakref.WeakSet[Any]()

    def make(self, construct: Any, scaler: Any, *arguments: Any, **options: Any) -> None:
        """Replaces the constructor of ``GradScaler``."""
        construct(scaler, *arguments, **options)
        if scaler.is_enabled():
            self._scalers.add(scaler)
            record_results(scaler)

    @property
    def program_scaler(self) -> Any:
        """The only scaler, or None before the first scaler."""
        if len(self._scalers) > 1:
            gc.collect()  # a recorded scaler is part of a reference cycle
        alive = list(self._scalers)
        if len(alive) > 1:
            raise InvalidArgumentError(
                f"the script has {len(alive)} GradScalers, but residuals follow only one: call "
                "tersor.torch.compress(model, scaler=...) in the script, or use a codec without +ef"
            )
        return alive[0] if alive else None

    def get_scale(self) -> float:
        """Returns the scaler's scale, or 1 without a scaler."""
        return 1.0 if (scaler := self.program_scaler) is None else float(scaler.get_scale())


def _wrapped(function: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return replacement(function, *arguments, **options)

    return wrapper


def replace(functions: Mapping[Any, Any]) -> None:
    """Replaces functions in all loaded modules."""
    by_id = {id(one): other for one, other in functions.items()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])


def check_same_options(group: dist.ProcessGroup, text: str) -> None:
    """Compares the options of all ranks. A collective call. Raises InvalidArgumentError if two
    ranks were started with different options."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    ranks = transport(group).channel()  # on the host, because the program may have set no device
    texts = collectives.gather_texts(ranks, digest + text, seconds_of(group))
    for number, other in enumerate(texts):
        if other != texts[0]:
            wrong, first = (one[len(digest) :] for one in (other, texts[0]))
            raise InvalidArgumentError(
                f"rank {number} was started with {wrong}, rank 0 with {first}: give all ranks the "
                "same --codec, --rules and --unsupported"
            )


def rank() -> int:
    """Returns this process's rank, or 0 if the rank is unknown."""
    text = os.environ.get("RANK", "")
    return dist.get_rank() if dist.is_initialized() else int(text) if text.isdigit() else 0


def print_message(text: str) -> None:
    """Prints a message on rank 0."""
    if rank() == 0:
        print(f"tersor: {text}", file=sys.stderr, flush=True)


def plan_of_ddp(model: DistributedDataParallel, options: ReducerOptions) -> Plan:
    """Plans all-reduces: a rank sends all parts of a gradient twice, except the rank's own part."""
    core_options, group = fill(_core.ReducerOptions(), options), model.process_group
    share = 2 * (group.size() - 1) / group.size()

    def planned(name: str, one: torch.Tensor) -> Planned:
        choice = _core.choose_codec(core_options, name, list(one.shape), dtype_text(one.dtype))
        return _planned(name, choice, one, share)

    return itertools.starmap(planned, ddp.compressible(model).items()), [group]


def plan_of_shards(model: nn.Module, options: ReducerOptions) -> Plan:
    """Plans reduce-scatters: a rank sends all parts once, except the rank's own part."""
    _, _, exchanges = fsdp.prepared(model, options)
    layouts = [one.layout for one in exchanges.values() if one.layout.known]
    groups = [group for one in layouts for group in (one.scatter_group, one.replicas) if group]

    def planned() -> Iterator[Planned]:
        for each in exchanges.values():
            share = (each.layout.ranks - 1) / each.layout.ranks
            for one, choice in each.expected():
                like = torch.empty(one.shape, dtype=each.layout.dtype, device="meta")
                yield _planned(one.name, choice, like, share)

    return planned(), list(dict.fromkeys(groups))


def _planned(name: str, choice: _core.CodecChoice, like: torch.Tensor, share: float) -> Planned:
    codec, sent = choice.phases[0][1] if choice.phases else choice.codec, None
    if like.dtype not in DTYPES:
        return Planned(name, f"as it is ({like.dtype})", share * like.nbytes, share * like.nbytes)
    if codec != "auto":
        sent = share * Codec(codec).max_payload_bytes(tuple(like.shape), like.dtype)
    return Planned(name, f"{choice.codec} ({choice.reason})", sent, share * like.nbytes)
