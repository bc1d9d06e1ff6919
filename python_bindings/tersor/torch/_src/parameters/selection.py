"""The selection of compressed parameters, and the names of parameters."""

from __future__ import annotations

import math
import re
import warnings
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.torch import _compat
from tersor.torch._src.gradients.sample_weights import Samples, scale
from tersor.torch._src.parameters.memory_order import as_contiguous
from tersor.torch._src.parameters.replaced import Registered

Unsupported = Literal["warn", "error"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of gradients
_SPARSE_MODULES = (nn.Embedding, nn.EmbeddingBag)

Named = TypeVar("Named")


def is_supported(gradient: Tensor) -> bool:
    """True if codecs support gradients like ``gradient``: dense float32, bfloat16 or float16."""
    return gradient.layout == torch.strided and gradient.dtype in DTYPES


def store(own: Tensor, values: Tensor) -> None:
    """Copies decoded values. Finite values stay finite in float16: at most 65504."""
    if own.dtype == torch.float16:
        most = torch.finfo(torch.float16).max
        values = torch.where(values.isfinite(), values.clamp(-most, most), values)
    own.copy_(values)


def restore_overflow(sums: Tensor | None) -> None:
    """Replaces the limits of decoded float16 sums by infinities, which loss scalers look for."""
    if sums is not None and sums.dtype == torch.float16:
        most = torch.finfo(torch.float16).max
        with torch.inference_mode():
            sums.masked_fill_(sums >= most, math.inf).masked_fill_(sums <= -most, -math.inf)


def inner_module(model: nn.Module) -> nn.Module:
    """Returns the module inside torch.compile and DistributedDataParallel."""
    uncompiled = _compat.uncompiled(model)
    return uncompiled.module if isinstance(uncompiled, DistributedDataParallel) else uncompiled


def split_parameters(
    module: nn.Module, ignored: Iterable[str] = ()
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Returns trained and frozen parameters by name, without prefixes of wrappers."""
    left_out = set(ignored)
    named = {name: one for name, one in module.named_parameters() if name not in left_out}
    trained = {name: one for name, one in named.items() if one.requires_grad}
    frozen = {name: one for name, one in named.items() if name not in trained}
    return unwrapped(trained), unwrapped(frozen)


def every_parameter(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns all parameters by name, without prefixes of wrappers."""
    return unwrapped(dict(model.named_parameters()))


def unwrapped(named: Mapping[str, Named]) -> dict[str, Named]:
    """Removes the prefixes of PyTorch's wrappers from names, and keeps the order.

    Rules and checkpoints then fit a model with and without wrappers. Names that would become equal
    do not change.
    """
    plain = {
        name: ".".join(part for part in name.split(".") if part not in _compat.WRAPPER_NAMES)
        for name in named
    }
    uses = Counter(plain.values())
    return {plain[name] if uses[plain[name]] == 1 else name: one for name, one in named.items()}


class OptimizedParameters:
    """The parameters of an optimizer by name, in the order of the names."""

    def __init__(
        self, optimizer: Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
    ) -> None:
        """Keeps no reference to the optimizer, which may own this object. ``named_parameters``:
        names of at least all trained parameters; default: the names of the groups, or
        ``"parameter.0"``, …."""
        self._optimizer = weakref.ref(optimizer)
        self._named = _by_id(named_parameters or ())
        self.all: dict[str, Tensor] = {}  #: trained and frozen parameters
        #: Exchanged parameters, equal on all ranks. Initially the trained parameters.
        self.exchanged: dict[str, Tensor] = {}
        self._replaced: dict[str, Tensor] = {}
        self._order: list[int] = []
        if named_parameters is not None:
            self._check_names()
        self.sync_groups()
        self.exchanged = {name: one for name, one in self.all.items() if one.requires_grad}

    def with_gradients(self) -> dict[str, bool]:
        """Returns by name of all parameters, including new ones, if this rank has a gradient.
        Raises InvalidArgumentError if a parameter was replaced or cast in a model."""
        self.sync_groups()
        remedy = "make the optimizer after that, or put the new parameter into its param_groups"
        self._registered.check(remedy)
        return {name: one.grad is not None for name, one in self.all.items()}

    def sync_groups(self) -> None:
        """Follows additions and replacements in the optimizer's groups. A replacement without a
        name takes the name of the replaced tensor."""
        own = {id(one): one for one in self._tensors()}
        if own.keys() == {id(one) for one in self.all.values()}:
            return
        in_groups = {  # names that the program passed to the optimizer
            id(one): name
            for group in self._groups()
            for one, name in zip(group["params"], group.get("param_names", ()), strict=False)
        }
        before = self._order if len(self._order) == len(own) else []
        for index, (key, one) in enumerate(own.items()):
            name = f"parameter.{index}"
            if before and before[index] not in own:
                name = self._named[before[index]][0]
            self._named.setdefault(key, (in_groups.get(key, name), one))
        self._order = list(own)
        named = {name: one for key, (name, one) in self._named.items() if key in own}
        if len(named) < len(own):
            raise InvalidArgumentError("two parameters of the optimizer have one name")
        every = unwrapped(named)
        for name, former in self.exchanged.items():
            one = every.get(name, former)
            if (one.shape, one.dtype, one.device) != (former.shape, former.dtype, former.device):
                raise InvalidArgumentError(
                    f"{name} was replaced in param_groups by a parameter of another shape, type or "
                    "device: make a new optimizer"
                )
            if one is not former:
                self._replaced[name] = former
        self.all, self._registered = every, Registered(every)
        self.exchanged = {name: every.get(name, one) for name, one in self.exchanged.items()}

    def pop_replaced(self) -> dict[str, Tensor]:
        """Returns the tensors that were replaced in the groups since the last call."""
        replaced, self._replaced = self._replaced, {}
        return replaced

    def extended(self, newcomers: Collection[str]) -> dict[str, Tensor]:
        """Returns ``exchanged`` with the newcomers, in the order of the names."""
        exchanged = {*self.exchanged, *newcomers}
        return {name: one for name, one in self.all.items() if name in exchanged}

    def _tensors(self) -> list[Tensor]:
        return [one for group in self._groups() for one in group["params"]]

    def _groups(self) -> list[dict[str, Any]]:
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer.param_groups

    def _check_names(self) -> None:
        wanted = {id(one) for one in self._tensors() if one.requires_grad}
        if found := wanted - self._named.keys():
            raise InvalidArgumentError(
                f"the optimizer has {len(wanted)} parameters, but named_parameters has names for "
                f"{len(wanted) - len(found)} of them: pass model.named_parameters() of the same "
                "model"
            )


def _by_id(named: Iterable[tuple[str, Tensor]]) -> dict[int, tuple[str, Tensor]]:
    found: dict[int, tuple[str, Tensor]] = {}
    names: set[str] = set()
    for pair in named:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                "named_parameters must be model.named_parameters(), pairs of a name and a "
                f"parameter, not {described(pair)}"
            )
        name, parameter = pair
        if name in names:
            raise InvalidArgumentError(f"two parameters are called {name!r} in named_parameters")
        names.add(name)
        found.setdefault(id(parameter), (name, parameter))
    return found


def only_device(parameters: Mapping[str, Tensor]) -> torch.device:
    """Returns the device of the parameters. Raises InvalidArgumentError for 0 or 2 devices."""
    devices = {one.device for one in parameters.values()}
    if not devices:
        raise InvalidArgumentError("there is no gradient to compress")
    if len(devices) > 1:
        listed = ", ".join(sorted(str(one) for one in devices))
        raise InvalidArgumentError(
            f"the parameters are on several devices: {listed}; use one device"
        )
    return devices.pop()


def shards_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns this rank's shard of each parameter, detached."""
    return {name: local_shard(one.detach()) for name, one in parameters.items()}


def local_shard(values: Tensor) -> Tensor:
    """Returns this rank's shard of a sharded tensor, otherwise the tensor itself."""
    return values.to_local() if isinstance(values, DTensor) else values


def reduce_uncompressed(
    gradient: Tensor | None, group: dist.ProcessGroup | None, samples: Samples
) -> None:
    """Reduces a gradient over PyTorch's group to a mean or sum, like DistributedDataParallel."""
    assert gradient is not None  # checked by the caller
    with as_contiguous(local_shard(gradient)) as values:
        scale(values, samples.share(values, group))
        dist.all_reduce(values, group=group)


def reasons_of(parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns why each unsupported parameter is unsupported."""
    return {name: reason_of(one) for name, one in parameters.items() if not is_supported(one)}


def refuse_unsupported(parameters: Mapping[str, Tensor], kind: str) -> None:
    """Raises InvalidArgumentError with the names of unsupported parameters."""
    if refused := reasons_of(parameters):
        raise InvalidArgumentError(
            f"{kind} supports float32, bfloat16 and float16 parameters, not {_listed(refused)}"
        )


def refreshed(model: nn.Module, known: Mapping[str, Tensor], kind: str) -> dict[str, nn.Parameter]:
    """Returns the model's current parameters by the names in ``known``. Raises
    InvalidArgumentError, which names the parameter, if a parameter is gone, has another shape or
    device, or has an unsupported type."""
    current = every_parameter(model)
    for name, before in known.items():
        now = current.get(name)
        if now is None or (now.shape, now.device) != (before.shape, before.device):
            raise InvalidArgumentError(
                f"{name}: the model has no such parameter of {tuple(before.shape)} on "
                f"{before.device} any more: make a new {kind}"
            )
    found = {name: current[name] for name in known}
    refuse_unsupported(found, kind)
    return found


def is_sharded_over(ranks: Collection[int], tensor: Tensor) -> bool:
    """True if one of ``ranks`` has another shard of the tensor."""
    if not isinstance(tensor, DTensor):
        return False
    return not set(tensor.device_mesh.mesh.flatten().tolist()).isdisjoint(ranks)


def refuse_sharded(parameters: Mapping[str, Tensor], group: dist.ProcessGroup, hint: str) -> None:
    """Raises InvalidArgumentError if ranks of the group have different shards. ``hint`` is the
    alternative in the message."""
    others = set(dist.get_process_group_ranks(group)) - {dist.get_rank()}
    for name, one in parameters.items():
        if is_sharded_over(others, one):
            raise InvalidArgumentError(
                f"{name} is sharded over ranks of the group, so the ranks have different values: "
                "shard over other ranks than those of process_group= (e.g. within a host), or "
                f"{hint}"
            )


def refuse_elastic_shards(options: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raises InvalidArgumentError for ``elastic=True`` with sharded parameters."""
    sharded = [name for name, one in parameters.items() if isinstance(one, DTensor)]
    if options.get("elastic") and sharded:
        raise InvalidArgumentError(
            f"elastic=True: {sharded[0]} is sharded, and a lost rank takes its shards with it; "
            "use whole parameters, or torchft around your training"
        )


def unsupported_parameters(module: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the unsupported parameters, with the reason of each."""
    embeddings = [one for one in module.modules() if isinstance(one, _SPARSE_MODULES)]
    sparse = {id(one.weight) for one in embeddings if one.sparse}
    found = {name: "sparse" for name, one in parameters.items() if id(one) in sparse}
    found = {**reasons_of(parameters), **found}
    return {name: found[name] for name in parameters if name in found}


def reason_of(gradient: Tensor) -> str:
    """Returns the reason why codecs do not support ``gradient``, for messages."""
    if gradient.layout != torch.strided:
        return "sparse"
    return str(gradient.dtype).removeprefix("torch.")


def report_unsupported(
    found: Mapping[str, str], how: Unsupported, group: dist.ProcessGroup | None
) -> None:
    """Lists uncompressed parameters with their reasons: a warning on rank 0, or an error."""
    if not found:
        return
    listed = _listed(found)
    if how == "error":
        raise InvalidArgumentError(
            f"these gradients cannot be compressed: {listed}; tersor supports dense gradients of "
            'float32, bfloat16 and float16. With unsupported="warn" tersor sends them uncompressed'
        )
    if dist.get_rank(group) == 0:
        # A caller's stack level would name a file of PyTorch, which calls the hook.
        warnings.warn(f"tersor sends these gradients uncompressed: {listed}", stacklevel=1)


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({reason})" for name, reason in found.items())


class Names:
    """The names of parameters. Keeps the parameters alive."""

    def __init__(
        self,
        named: Mapping[str, nn.Parameter] | None = None,
        frozen: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        pairs = (named or {}).items()
        self._known: dict[int, tuple[str, Tensor]] = {id(one): (name, one) for name, one in pairs}
        self._frozen = {id(one): name for name, one in (frozen or {}).items()}
        self.complete = named is not None  #: True if all names were given

    @staticmethod
    def numbered(parameters: Iterable[Tensor]) -> Names:
        """Returns names in the order of the model."""
        names = Names()
        names.of(parameters)
        return names

    def of(self, parameters: Iterable[Tensor]) -> list[str]:
        """Returns the names. Without given names, parameters are numbered as they appear."""
        return [self._name(parameter) for parameter in parameters]

    def in_order(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Returns the parameters with these names, in the order of the model."""
        wanted = set(names)
        return {name: one for name, one in self._known.values() if name in wanted}

    def _name(self, parameter: Tensor) -> str:
        if self.complete and id(parameter) in self._frozen:
            raise InvalidArgumentError(
                f"{self._frozen[id(parameter)]} was frozen between DistributedDataParallel and "
                "compress(), but DDP reduces its gradient: freeze before both or after both"
            )
        if self.complete and id(parameter) not in self._known:
            raise InvalidArgumentError(
                f"DDP reduces a parameter of shape {tuple(parameter.shape)} that is not in the "
                "model passed to tersor: pass the model that DDP wraps and trains"
            )
        numbered = (f"parameter.{len(self._known)}", parameter)
        return self._known.setdefault(id(parameter), numbered)[0]


def literal_pattern(name: str) -> str:
    """Returns a rule's pattern that matches only ``name``."""
    return re.sub(r"([\\*?\[])", r"\\\1", name)
