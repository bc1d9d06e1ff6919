"""Every use of PyTorch's private API, each with the reason.

``scripts/test-python`` tests PyTorch 2.11.0 and 2.15.0. A use without a release works in both.
"""

from __future__ import annotations

import copy
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d as _c10d
from torch._C._distributed_c10d import PrefixStore as PrefixStore  # without types elsewhere
from torch._C._distributed_c10d import Store as Store
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

# The state of an optimizer is a tree of any containers. PyTorch has no public walk over trees.
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

from tersor._core import InvalidArgumentError
from tersor._renamed import stack_level

# torch.optim has no public update of many tensors in one call.
foreach_add = torch._foreach_add
foreach_add_ = torch._foreach_add_
foreach_addcdiv_ = torch._foreach_addcdiv_
foreach_addcmul_ = torch._foreach_addcmul_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_div_ = torch._foreach_div_
foreach_lerp = torch._foreach_lerp
foreach_lerp_ = torch._foreach_lerp_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_sqrt = torch._foreach_sqrt
foreach_sqrt_ = torch._foreach_sqrt_
#: ``torch.compiler.disable`` imports Dynamo (1.6 s) where a function is defined, this at a call.
uncompiled_function = torch._compile._disable_dynamo
#: One pass over many gradients, which GradScaler uses. ``isfinite`` reads each tensor twice.
find_non_finite_ = torch._amp_foreach_non_finite_check_and_unscale_


def warn(text: str) -> None:
    """Warns of the first caller outside of Tersor and PyTorch, whose wrappers add frames."""
    warnings.warn(text, stacklevel=stack_level(*torch.__path__))


# Wrappers and modules

#: What torch.compile and activation checkpointing add to the names of parameters.
WRAPPER_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that torch.compile has wrapped. PyTorch has no public accessor."""
    found: nn.Module = getattr(model, "_orig_mod", model)
    return found


def bf16_is_fast_on_cpu() -> bool:
    """Whether this CPU has instructions for bfloat16 products. PyTorch has no public function."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def version(tensor: Tensor) -> int:
    """The number of writes to the tensor. PyTorch documents the counter only in its notes."""
    return tensor._version


def has_memory_alone(tensor: Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether ``tensor`` alone uses ``storage``, so that two tensors may exchange memory. PyTorch
    has no public counter of users. False in releases without the private counters."""
    uses_of_storage = getattr(torch._C, "_storage_Use_Count", None)
    uses_of_tensor = getattr(tensor, "_use_count", None)
    if uses_of_storage is None or uses_of_tensor is None:
        return False
    # The tensor and ``storage`` use the storage, the parameter and Python use the tensor.
    return bool(uses_of_storage(storage._cdata) <= 2 and uses_of_tensor() <= 2)


def live_modules() -> list[nn.Module]:
    """All modules of the process, because an optimizer knows no model.

    PyTorch's hook for registered parameters misses models from before the import, and models made
    by ``copy.deepcopy`` or ``torch.load``.
    """
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]


def caller_variables(matches: Callable[[FrameType], bool]) -> Mapping[str, Any]:
    """The variables of the nearest caller that fits. Empty if no caller fits. For values that a
    library passes to no hook and keeps in no object."""
    frame = inspect.currentframe()
    while frame is not None and not matches(frame):
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters registered in this module. ``named_parameters`` takes too long per step."""
    return module._parameters


def queue_callback(callback: Callable[[], None]) -> None:
    """Has autograd call ``callback`` when the backward pass ends, as DDP and FSDP do. RuntimeError
    outside of a pass. PyTorch has no public hook for the end of a pass."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def scale_tensor(scaler: Any) -> Tensor:
    """The scale on its device. ``GradScaler.get_scale`` waits for the device."""
    found: Tensor = scaler._get_scale_async()
    return found


def found_infinities(scaler: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Per device, whether gradients were not finite. ``GradScaler.step`` reports no result."""
    return list(scaler._found_inf_per_device(optimizer).values())


# DistributedDataParallel

_ddps = weakref.WeakSet[DistributedDataParallel]()
_registrations = 0


def _on_registration(module: nn.Module, name: str, one: Tensor | nn.Module | None) -> None:
    """DDP registers the wrapped model, which a public hook for all modules reports."""
    global _registrations
    _registrations += 1
    if isinstance(module, DistributedDataParallel):
        _ddps.add(module)


nn.modules.module.register_module_module_registration_hook(_on_registration)
nn.modules.module.register_module_parameter_registration_hook(_on_registration)


def registrations() -> int:
    """The number of registered modules and parameters. A new count needs a look at the models."""
    return _registrations


def ddp_with_hook(state: object) -> DistributedDataParallel | None:
    """The DDP whose hook has this state. PyTorch passes a hook the state and the bucket alone.
    Finds models made after the import of ``tersor.torch``."""
    hooks = {ddp: ddp.__dict__.get("_comm_hooks", ()) for ddp in list(_ddps)}
    return next((ddp for ddp, own in hooks.items() if any(state is one for _, one in own)), None)


def remove_hook(ddp: DistributedDataParallel, state: object) -> None:
    """Takes a refused hook off DDP's list. DDP extends the list before the refusal."""
    ddp._comm_hooks[:] = [one for one in ddp._comm_hooks if one[1] is not state]


def check_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """DDP's check of a hook, for a hook that another hook calls."""
    ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]


def divides_by_remaining_ranks(ddp: DistributedDataParallel) -> bool:
    """Whether ``join(divide_by_initial_world_size=False)`` is active. Hooks cannot see it."""
    return ddp._join_config.enable and not getattr(ddp, "_divide_by_initial_world_size", True)


def delayed_parameters(ddp: DistributedDataParallel) -> set[int]:
    """The ids of ``delay_all_reduce_named_params``. DDP has no public accessor."""
    return {id(one) for one in getattr(ddp, "_delay_all_reduce_params", ())}


def steps_in_backward(parameter: nn.Parameter) -> bool:
    """Whether an optimizer steps in the backward pass. Only this attribute shows the optimizer."""
    return hasattr(parameter, "_in_backward_optimizers")


def calls_comm_hook() -> bool:
    """Whether the compiler leaves DDP's communication hook in place."""
    return bool(torch._dynamo.config.optimize_ddp != "python_reducer")


# Process groups

#: The options of a group's calls, and the argument of a backend's constructor.
CALL_OPTIONS = (_c10d.AllreduceOptions, _c10d.ReduceScatterOptions, _c10d.AllToAllOptions)
BackendOptions: Any = _c10d._DistributedBackendOptions


def device_types(group: dist.ProcessGroup) -> list[torch.device]:
    """The devices that a group has backends for."""
    found: Any = group
    return list(found._device_types)


def timeouts_of(group: Any) -> list[timedelta]:
    """The time limit of each of the group's backends. A group has no public time limit."""
    backends = [group._get_backend(device) for device in device_types(group)]
    options: list[Any] = [getattr(one, "options", None) for one in backends]
    return [one._timeout for one in options if hasattr(one, "_timeout")]


def make_backend(name: str, settings: Any, options: object) -> Any:
    """Another backend for the same ranks, as by ``init_process_group``. PyTorch 2.15."""
    dist.Backend._ensure_backend_registered(name)
    return dist.Backend._plugins[name.upper()].creator_fn(settings, options)


def set_backends(group: dist.ProcessGroup, kind: Any, backends: Sequence[Any]) -> None:
    """Gives a group its backends, as ``init_process_group`` does: gloo first, a device's last."""
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backends[0])
    group._register_backend(torch.device("cuda"), kind, backends[-1])


def set_name(group: Any, name: str, description: str) -> None:
    """Names a group, as ``new_group`` does."""
    group._set_group_name(name)
    group._set_group_desc(description)


def is_coalescing(group: dist.ProcessGroup) -> bool:
    """Whether PyTorch coalesces the group's calls. Coalescing waits for NCCL's calls alone."""
    return group in dist.distributed_c10d._world.pg_coalesce_state


def nested_state(flat: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dict of a distributed checkpoint. PyTorch has no public loader for a part."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    return unflatten_state_dict(dict(flat), dict(paths))


# FSDP2

Collective = Literal["reduce-scatter", "all-gather"]


class FsdpGroup:
    """The parameters of one ``FSDPModule`` as FSDP2 keeps them, an ``FSDPParamGroup``.

    A custom reduce-scatter receives one flat tensor. Only FSDP knows the parameters' positions in
    the tensor. If PyTorch does not show the positions, ``known`` is False and a message is one
    tensor. The group keeps the model alive, so this class has a weak reference.
    """

    def __init__(self, module: FSDPModule) -> None:
        groups = fsdp_groups(module)
        self._find = weakref.ref(groups[0]) if len(groups) == 1 else None

    @property
    def _group(self) -> Any:
        return self._find and self._find()

    @property
    def _entries(self) -> Any:
        return getattr(self._group, "fsdp_params", ())

    @property
    def _mesh(self) -> Any:
        return getattr(self._group, "mesh_info", None)

    @property
    def known(self) -> bool:
        """Whether PyTorch shows the positions. Raises InvalidArgumentError if the model is gone."""
        if self._find is not None and self._group is None:
            raise InvalidArgumentError(
                "the model that was compressed is gone: keep it with its handle"
            )
        return self._find is not None

    @property
    def mesh_ranks(self) -> frozenset[int]:
        mesh = self._mesh
        return frozenset(mesh.mesh.mesh.flatten().tolist() if mesh else ())

    @property
    def ranks(self) -> int:
        """The number of ranks with shards of a parameter."""
        return int(getattr(self._mesh, "shard_mesh_size", 1))

    @property
    def scatter_group(self) -> dist.ProcessGroup:
        """The group of the reduce-scatter. From 2.15 on the all-gather may have another group."""
        shards: dist.ProcessGroup = self._mesh.shard_process_group
        return getattr(self._group, "_reduce_scatter_process_group", shards)

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The group that all-reduces shards between replicas."""
        return getattr(self._mesh, "replicate_process_group", None)

    @property
    def device(self) -> torch.device:
        return getattr(self._group, "device", torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The expected dtype of the reduction; the first step may show another dtype."""
        if not (entries := self._entries):
            return torch.float32
        policy = getattr(entries[0], "mp_policy", None)
        requested = policy and (policy.reduce_dtype or policy.param_dtype)
        found: torch.dtype = requested or entries[0].sharded_param.dtype
        return found

    def averages(self, *, replicas: bool) -> bool:
        """Whether FSDP asks for means, of shards or of ``replicas``, instead of sums."""
        forced = getattr(self._group, "force_sum_reduction_for_comms", False)
        if forced or self.dtype not in (torch.float32, torch.bfloat16):
            return False
        shards, others = self.scatter_group.size(), self.replicas
        factor = getattr(self._group, "gradient_divide_factor", None)
        if factor is None:
            return shards * (1 if others is None else others.size()) > 1
        return not replicas and bool(factor == shards)

    def units(self, dtype: torch.dtype) -> tuple[float, float]:
        """The factors from sums of inputs to the gradient: of all ranks', and of replicas'. FSDP
        divides gradients of other dtypes than f32 and bf16 before and after the reduction."""
        factor, others = getattr(self._group, "gradient_divide_factor", None), self.replicas
        replicas = 1 if others is None else others.size()
        total, before = factor or self.ranks * replicas, 1
        divides = dtype not in (torch.float32, torch.bfloat16)
        while divides and total % before == 0 and total / before > before:
            before *= 2
        unit = before / total
        if divides or getattr(self._group, "force_sum_reduction_for_comms", False):
            return unit, unit
        return unit, 1 / replicas if factor is None else 1.0

    def replace_replicas(self, group: dist.ProcessGroup) -> None:
        """Lets FSDP all-reduce by this group of the same ranks. FSDP has no public setter."""
        # Other modules may have the same object, and it stands for other ways to gather weights.
        if self._group is not None:
            self._group.mesh_info = info = copy.copy(self._mesh)
            info.replicate_process_group = group

    def prefetch_weights(self, wanted: bool) -> bool:
        """Overlaps the module's all-gather of weights with the backward pass, or stops overlapping.

        FSDP asks for the next module's weights early. On a CPU FSDP then waits for the weights by
        default; on a device FSDP's streams overlap. Returns True if the setting changed.
        """
        if self.device.type != "cpu" or getattr(self._group, "unshard_async_op", wanted) == wanted:
            return False
        self._group.unshard_async_op = wanted
        return True

    def makes_only_views(self, dtype: torch.dtype) -> bool:
        """Whether FSDP only makes views of this module's results. Such results may arrive after the
        last collective returned, until the pass ends."""
        group = self._group
        if group is None or dtype not in (torch.float32, torch.bfloat16):  # f16 is divided after
            return False
        if group._all_reduce_hook or getattr(group, "force_sum_reduction_for_comms", False):
            return False
        trained = (one for one in self._entries if one.sharded_param.requires_grad)
        return all(_takes_view(one, dtype) for one in trained)

    def _in_order(self) -> list[Any]:
        """The parameters in a message's order. FSDP of 2.15 sorts by dtype at the first step."""
        entries = self._entries
        order = getattr(self._group, "_reduce_scatter_param_indices", None)
        return [entries[index] for index in order or range(len(entries))]

    @staticmethod
    def _shape(entry: Any) -> Any:
        return entry._orig_size


def fsdp_groups(module: FSDPModule) -> list[Any]:
    """FSDP's groups of parameters: ``_fsdp_param_group`` up to 2.12, ``_fsdp_param_groups`` from
    2.13 on. Empty if PyTorch keeps them elsewhere."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    only = getattr(state, "_fsdp_param_group", None)
    return [] if only is None else [only]


def fsdp_message() -> Iterable[Any]:
    """The parameters of the present message, read from the frame of FSDP's ``foreach_reduce``. FSDP
    keeps these parameters nowhere else. Empty if another function sends the message."""
    found = caller_variables(lambda frame: frame.f_code.co_name == "foreach_reduce")
    params: Sequence[Any] = found.get("fsdp_params", ())
    return params


def fsdp_exchanges(module: FSDPModule, collective: Collective) -> list[Any]:
    """The present implementation of the module's collective. FSDP has a public setter alone."""
    attribute = f"_{collective.replace('-', '_')}_comm"
    found = [getattr(group, attribute, None) for group in fsdp_groups(module)]
    return [one for one in found if one is not None]


def observe_passes(module: FSDPModule, on_begin: Callable[[], None]) -> Callable[[], None] | None:
    """Calls ``on_begin`` whenever FSDP registers a callback for the end of a pass.

    Any module may be the first of a pass, so every module needs the call. Returns a function that
    undoes the call; None if PyTorch lacks the method.
    """
    state, name = module._get_fsdp_state(), "_register_root_post_backward_final_callback"
    register, context = getattr(state, name, None), getattr(state, "_state_ctx", None)
    if register is None or not hasattr(context, "post_backward_final_callback_queued"):
        return None

    def registered() -> None:
        before = state._state_ctx.post_backward_final_callback_queued
        register()
        if not before:
            on_begin()

    setattr(state, name, registered)
    kept = weakref.ref(state)
    return lambda: None if (alive := kept()) is None else delattr(alive, name)


def _takes_view(entry: Any, dtype: torch.dtype) -> bool:
    """Whether FSDP makes the gradient a view of a result of this dtype, without reading values."""
    parameter = entry.sharded_param
    return (
        dtype == (getattr(entry, "sharded_grad_dtype", None) or entry.orig_dtype)
        and parameter.grad is None
        and not entry.offload_to_cpu
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )
