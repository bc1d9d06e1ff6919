"""Models compressed where a program makes them: what ``python -m tersor.torch.run`` puts in place.

``DistributedDataParallel`` has one communication hook, and ours is registered when it is made. A
program that registers one later has it take the place of ours.
"""

# DDP looks at the annotations of hand_on themselves, so their evaluation is not postponed here.
import functools
import hashlib
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # where it is documented
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tersor import collectives
from tersor._core import InvalidArgument
from tersor.reducer import ReducerOptions
from tersor.torch import ddp, fsdp
from tersor.torch.adam_warning import has_feedback
from tersor.torch.copied import CopiedHookState
from tersor.torch.ddp import HookState
from tersor.torch.fsdp import ShardedHandle
from tersor.torch.group import seconds_of, transport
from tersor.torch.parameters import Unsupported
from tersor.torch.planned import Planned, planned_of_ddp, planned_of_shards

LEAST_BYTES = 1 << 20  # of an all-reduce that is counted
_TEXT_BYTES = 512  # of options that ranks compare
_OWN_HOOK = "the script registers a communication hook of its own"
_OWN_CALL = "the script calls tersor.torch.compress itself"

Handle = HookState | ShardedHandle


class Place:
    """The one communication hook that a DDP takes: it hands on to the last that was registered."""

    def __init__(self, state: Any, hook: Callable[..., Any]) -> None:
        self.state, self.hook = state, hook

    def __reduce_ex__(self, protocol: object) -> Any:
        """As of a ``HookState``: DDP calls no hook of a copy."""
        return CopiedHookState, ()


def hand_on(place: Place, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook that DDP calls."""
    found: torch.futures.Future[torch.Tensor] = place.hook(place.state, bucket)
    return found


@dataclass
class Seen:
    """A model that the program made.

    Attributes:
        handle: where it is compressed.
        reason: why not, where it is not.
        plan: how its gradients would travel, where nothing is to change.
    """

    name: str
    way: str
    handle: Handle | None = None
    reason: str = ""
    plan: list[Planned] = field(default_factory=list)
    place: Place | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)

    def leave(self, reason: str) -> None:
        """It is left alone from now on."""
        self.reason, self.plan, handle = reason, [], self.handle
        self.handle = None
        if isinstance(handle, HookState):
            handle.close()
        elif handle is not None:
            handle.remove()
        say(f"{self.name} ({self.way}) is left alone: {reason}")

    def count(self) -> Mapping[str, float]:
        """What was sent until now, as ``handle.scalars()``."""
        if self.handle is not None:
            self.scalars = self.handle.scalars()
        return self.scalars

    def end(self) -> None:
        """The model is gone."""
        self.count()
        self.handle = self.place = None


class Constructors:
    """Has every model compressed that DistributedDataParallel or ``fully_shard`` is called for.

    Attributes:
        models: those that were made, in order.
        all_reduces: calls and bytes of large ``dist.all_reduce`` of floats, by file and line.
    """

    def __init__(
        self, options: ReducerOptions, unsupported: Unsupported = "warn", *, dry: bool = False
    ) -> None:
        self.models: list[Seen] = []
        self.all_reduces: dict[str, list[int]] = {}
        self.rank = rank()
        self.dry = dry
        self._options, self._unsupported = options, unsupported
        self._scaler = Scalers() if has_feedback(options) else None
        self._of_ddp = weakref.WeakKeyDictionary[nn.Module, Seen]()
        self._sharded = weakref.WeakKeyDictionary[nn.Module, Seen]()
        self._waiting = weakref.WeakKeyDictionary[nn.Module, Any]()  # until the first forward pass
        self._compress_sharded = fsdp.compress

    def install(self) -> None:
        """From now on, in all modules that are or will be loaded; not to be undone."""
        if self._scaler is not None:
            _wrap(torch.amp.GradScaler, "__init__", self._scaler.made)
        _wrap(DistributedDataParallel, "__init__", self._made_ddp)
        _wrap(DistributedDataParallel, "register_comm_hook", self._registered)
        _wrap(FSDPModule, "unshard", self._unsharding)
        replace(
            {
                fully_shard: self._sharding(fully_shard),
                fsdp.compress: self._giving_way(fsdp.compress),
                dist.all_reduce: self._counting(dist.all_reduce),
            }
        )

    def _seen(self, model: nn.Module, way: str) -> Seen:
        self.rank = rank()
        self.models.append(Seen(type(model).__name__, way))
        return self.models[-1]

    def _compress_options(self) -> dict[str, Any]:
        return {**self._options, "scaler": self._scaler, "unsupported": self._unsupported}

    def _made_ddp(self, construct: Any, model: Any, *arguments: Any, **options: Any) -> None:
        construct(model, *arguments, **options)
        seen = self._seen(model.module, "DistributedDataParallel")
        self._of_ddp[model] = seen
        try:
            parameters = ddp.compressible(model)
        except InvalidArgument as refusal:
            return seen.leave(str(refusal))
        if self.dry:
            seen.plan = planned_of_ddp(parameters, self._options, model.process_group)
            return None
        agree(model.process_group, repr((self._options, self._unsupported)))
        seen.place = Place(None, ddp.hook)  # register_comm_hook fills it
        seen.handle = ddp.compress(model, **self._compress_options())
        weakref.finalize(model, seen.end).atexit = False
        return None

    def _registered(self, register: Any, model: Any, state: Any, hook: Any) -> None:
        """A hook comes: ours, which stands at its place then, or the program's."""
        seen = self._of_ddp.get(model)
        if seen is None or seen.reason:
            register(model, state, hook)
            return
        if seen.place is not None and seen.handle is None:
            seen.place.state, seen.place.hook = state, hook
            register(model, seen.place, hand_on)
            return
        if seen.place is None:  # nothing was to change
            register(model, state, hook)
        else:
            model._check_comm_hook(hook)
            seen.place.state, seen.place.hook = state, hook
        seen.leave(_OWN_CALL if isinstance(state, HookState) else _OWN_HOOK)

    def finish(self) -> list[Seen]:
        """All models, in the end."""
        for root in list(self._waiting):
            self._waiting.pop(root).remove()
            self._seen(root, "fully_shard").reason = "its forward pass was never called"
        return self.models

    def _sharding(self, shard: Any) -> Any:
        @functools.wraps(shard)
        def fully_shard(module: Any, *args: Any, **options: Any) -> Any:
            found = shard(module, *args, **options)
            for one in module if isinstance(module, list | tuple) else [module]:
                self._await(one)
            return found

        return fully_shard

    def _await(self, module: nn.Module) -> None:
        """It is the outermost one so far."""
        for inner in module.modules():
            if (hook := self._waiting.pop(inner, None)) is not None:
                hook.remove()
        before = torch.compiler.disable(lambda one, _: self._first_use(one))  # type: ignore[no-untyped-call]
        # Before FSDP's own, which has the parameters unsharded.
        self._waiting[module] = module.register_forward_pre_hook(before, prepend=True)

    def _unsharding(self, unshard: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        self._first_use(module)
        return unshard(module, *arguments, **options)

    def _first_use(self, module: nn.Module) -> None:
        for root in list(self._waiting):
            if any(one is module for one in root.modules()):
                self._waiting.pop(root).remove()
                self._take_sharded(root)

    def _take_sharded(self, model: nn.Module) -> None:
        seen = self._sharded[model] = self._seen(model, "fully_shard")
        try:
            _, _, exchanges = fsdp.prepared(model, self._options)  # type: ignore[arg-type]
        except InvalidArgument as refusal:
            return seen.leave(str(refusal))
        if self.dry:
            seen.plan = planned_of_shards(exchanges.values())
            return None
        known = [one for one in exchanges.values() if one.layout.known]
        groups = [group for one in known for group in (one.group, one.layout.replicas) if group]
        for group in dict.fromkeys(groups):  # in one order on all ranks
            agree(group, repr((self._options, self._unsupported)))
        seen.handle = self._compress_sharded(model, **self._compress_options())
        seen.handle._loss_scale.follow(seen.handle)  # its own hook comes too late for this pass
        return None

    def _giving_way(self, compress: Callable[..., ShardedHandle]) -> Callable[..., ShardedHandle]:
        """Of a model that the program compresses itself ours goes first."""

        @functools.wraps(compress)
        def wrapper(model: nn.Module, **options: Any) -> ShardedHandle:
            for one in model.modules() if isinstance(model, nn.Module) else ():
                if (hook := self._waiting.pop(one, None)) is not None:
                    hook.remove()
                    self._seen(one, "fully_shard").leave(_OWN_CALL)
                elif (seen := self._sharded.get(one)) is not None and not seen.reason:
                    seen.leave(_OWN_CALL)
            return compress(model, **options)

        return wrapper

    def _counting(self, all_reduce: Any) -> Any:
        @functools.wraps(all_reduce)
        def wrapper(tensor: Any, *args: Any, **options: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._count(tensor, sys._getframe(1))
            return all_reduce(tensor, *args, **options)

        return wrapper

    def _count(self, tensor: Any, caller: Any) -> None:
        """What the program itself calls, not PyTorch or Tersor."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return
        from_outside = caller.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES
        if from_outside and tensor.nbytes >= LEAST_BYTES:
            line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            counted = self.all_reduces.setdefault(line, [0, 0])
            counted[0] += 1
            counted[1] += tensor.nbytes


_LIBRARIES = ("torch", "tersor")


class Scalers:
    """The program's ``GradScaler``, which may be made after the model."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def made(self, construct: Any, scaler: Any, *arguments: Any, **options: Any) -> None:
        """Called in place of a constructor."""
        construct(scaler, *arguments, **options)
        if scaler.is_enabled():
            self._made.append(weakref.ref(scaler))

    def __getattr__(self, name: str) -> Any:
        """Of the one there is; without, of one that scales nothing."""
        alive = [one for reference in self._made if (one := reference()) is not None]
        if len(alive) > 1:
            raise InvalidArgument(
                f"the script has {len(alive)} GradScalers, and residuals follow one: call "
                "tersor.torch.compress(model, scaler=...) in it, or take a codec without +ef"
            )
        return getattr(alive[0] if alive else torch.amp.GradScaler(enabled=False), name)


def _wrap(of: Any, name: str, instead: Callable[..., Any]) -> None:
    """Has ``instead(method, object, …)`` called for a method, in the class itself."""
    method = getattr(of, name)

    @functools.wraps(method)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return instead(method, *arguments, **options)

    setattr(of, name, wrapper)


def replace(functions: Mapping[Any, Any]) -> None:
    """Puts other functions into the places of these, in all modules that hold them."""
    by_id = {id(one): other for one, other in functions.items()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])


def agree(group: dist.ProcessGroup, text: str) -> None:
    """Raises InvalidArgument where ranks were started with other options; a collective call."""
    said = hashlib.sha256(text.encode()).hexdigest().encode() + text.encode()
    own = torch.frombuffer(bytearray(said[:_TEXT_BYTES].ljust(_TEXT_BYTES)), dtype=torch.uint8)
    ranks = transport(group).channel()
    every = torch.empty(ranks.ranks, _TEXT_BYTES, device="cpu")
    collectives.allgather(
        ranks, own.float(), every.view(-1), codec="none", timeout=seconds_of(group)
    )
    told = [bytes(one.byte().tolist()).decode(errors="replace").rstrip() for one in every]
    for number, other in enumerate(told):
        if other != told[0]:
            raise InvalidArgument(
                f"rank {number} was started with {other[64:]}, rank 0 with {told[0][64:]}: give "
                "all ranks the same --codec, --rules and --unsupported"
            )


def rank() -> int:
    """This process's number, as far as is known."""
    told = os.environ.get("RANK", "")
    return dist.get_rank() if dist.is_initialized() else int(told) if told.isdigit() else 0


def say(text: str) -> None:
    """To people, by rank 0."""
    if rank() == 0:
        print(f"tersor: {text}", file=sys.stderr, flush=True)
