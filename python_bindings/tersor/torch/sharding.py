"""Where each parameter lies in what FSDP2 hands to its collectives.

PyTorch tells a custom reduce-scatter no more than one flat tensor. Which values of it belong to
which parameter only FSDP's own bookkeeping knows, and its names changed: ``_fsdp_param_group`` up
to PyTorch 2.12, ``_fsdp_param_groups`` from 2.13 on. This is the one file that reads it. Where it
is not as expected there are no borders, and a message is one tensor; nor is it known where FSDP
ends a backward pass, if there are others within.

The flat tensor is rank-major: rank r's shards of all parameters, then rank r + 1's. A parameter is
cut along one dimension (0, unless ``fully_shard`` was told otherwise) into as many chunks as there
are ranks, each padded with zeros to the length of the first.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from tersor._core import InvalidArgument
from tersor.torch.checkpoint import zeros

Collective = Literal["reduce-scatter", "all-gather"]


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of a message."""

    name: str  #: as in ``named_parameters()`` of the model, without what wrappers add
    shape: torch.Size  #: of the whole parameter, without padding
    dimension: int  #: along which it is cut
    shard_count: int  #: values that each rank has of it, padding included


class ModuleLayout:
    """The parameters of one ``FSDPModule``, in the order in which its messages hold them."""

    def __init__(self, module: FSDPModule, names: dict[int, str]) -> None:
        """``names``: of the model's parameters, by ``id``, while they are sharded."""
        groups = _groups(module)
        self._find = weakref.ref(groups[0]) if len(groups) == 1 else None
        self._names = {id(one): names[id(one.sharded_param)] for one in self._entries}

    @property
    def _group(self) -> Any:
        """FSDP's, whose life is that of the model: whoever keeps this does not keep the model."""
        return self._find and self._find()

    @property
    def _entries(self) -> Sequence[Any]:
        found: Sequence[Any] = getattr(self._group, "fsdp_params", ())
        return found

    @property
    def _mesh(self) -> Any:
        return getattr(self._group, "mesh_info", None)

    @property
    def known(self) -> bool:
        """Whether PyTorch shows the borders at all. Raises InvalidArgument without the model."""
        if self._find is not None and self._group is None:
            raise InvalidArgument("the model that was compressed is gone: keep it with its handle")
        return self._find is not None

    @property
    def mesh_ranks(self) -> frozenset[int]:
        """Those of the mesh that the module was given."""
        mesh = self._mesh
        return frozenset(mesh.mesh.mesh.flatten().tolist() if mesh else ())

    @property
    def ranks(self) -> int:
        """Among how many a parameter is sharded."""
        return int(getattr(self._mesh, "shard_mesh_size", 1))

    @property
    def scatter_group(self) -> dist.ProcessGroup:
        """Among whose ranks parameters are sharded: that which gradients go through, which may be
        another than weights do from 2.15 on."""
        shards: dist.ProcessGroup = self._mesh.shard_process_group
        return getattr(self._group, "_reduce_scatter_process_group", shards)

    def averages(self, *, replicas: bool) -> bool:
        """Whether FSDP will ask for means, of shards or of ``replicas``; else it asks for sums."""
        forced = getattr(self._group, "force_sum_reduction_for_comms", False)
        if forced or self.dtype not in (torch.float32, torch.bfloat16):
            return False
        shards, others = self.scatter_group.size(), self.replicas
        factor = getattr(self._group, "gradient_divide_factor", None)
        if factor is None:
            return shards * (1 if others is None else others.size()) > 1
        return not replicas and bool(factor == shards)

    @property
    def dtype(self) -> torch.dtype:
        """In which gradients will be reduced, as far as can be told before the first step."""
        if not (entries := self._entries):
            return torch.float32
        policy = getattr(entries[0], "mp_policy", None)
        asked = policy and (policy.reduce_dtype or policy.param_dtype)
        found: torch.dtype = asked or entries[0].sharded_param.dtype
        return found

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """Among whose ranks shards are all-reduced, where there are replicas."""
        return getattr(self._mesh, "replicate_process_group", None)

    def replace_replicas(self, group: dist.ProcessGroup) -> None:
        """Lets FSDP all-reduce by this group, of the same ranks."""
        # Other modules may have the same object, and it stands for other ways to gather weights.
        if self._group is not None:
            self._group.mesh_info = info = copy.copy(self._mesh)
            info.replicate_process_group = group

    def gather_ahead(self, wanted: bool) -> bool:
        """Lets the module's all-gather of weights travel while the backward pass computes, or not.

        FSDP asks for the next module's weights before it needs them; on a host it waits for them
        all the same, unless told otherwise. On a device its streams see to that. Returns whether
        this changed anything.
        """
        if self.device.type != "cpu" or getattr(self._group, "unshard_async_op", wanted) == wanted:
            return False
        self._group.unshard_async_op = wanted
        return True

    def leaves_views(self, dtype: torch.dtype) -> bool:
        """Whether FSDP will do no more to this module's results than make views of them.

        Then they may come after the last collective returned, until the backward pass is over.
        """
        group = self._group
        if group is None or dtype not in (torch.float32, torch.bfloat16):  # f16 is divided after
            return False
        if group._all_reduce_hook or getattr(group, "force_sum_reduction_for_comms", False):
            return False
        trained = (one for one in self._entries if one.sharded_param.requires_grad)
        return all(_takes_view(one, dtype) for one in trained)

    @property
    def device(self) -> torch.device:
        """Where gradients lie."""
        return getattr(self._group, "device", torch.device("cpu"))

    def parameters(self, shard_count: int) -> list[ShardedParameter] | None:
        """Those of the message under way, of which each rank keeps ``shard_count`` values.

        FSDP leaves out parameters that want no gradient, and parameters without gradient in this
        step. None if PyTorch does not show which parameters the message has.
        """
        found = self._if_whole(self.expected(), shard_count)
        if found is None:
            entries = [one for one in _message_entries() if id(one) in self._names]
            found = self._if_whole(list(map(self._describe, entries)), shard_count)
        return found

    def gathered(self, shard_count: int) -> list[ShardedParameter] | None:
        """Those of an all-gather of ``shard_count`` values of each rank; None: other values."""
        return self._if_whole(list(map(self._describe, self._entries)), shard_count)

    def _if_whole(
        self, found: list[ShardedParameter], shard_count: int
    ) -> list[ShardedParameter] | None:
        whole = self.known and sum(one.shard_count for one in found) == shard_count
        return found if whole else None

    def expected(self, also: Collection[str] = ()) -> list[ShardedParameter]:
        """Those of a message in which all have gradients that want one; and ``also`` these."""
        return [
            self._describe(one)
            for one in self._in_order()
            if one.sharded_param.requires_grad or self._names[id(one)] in also
        ]

    def trained(self) -> list[tuple[str, torch.Tensor]]:
        """The sharded parameters, with their names."""
        return [(self._names[id(one)], one.sharded_param) for one in self._entries]

    def _in_order(self) -> list[Any]:
        """The entries. From 2.15 on they are sorted by dtype at the first step."""
        entries = self._entries
        order = getattr(self._group, "_reduce_scatter_param_indices", None)
        return [entries[index] for index in order or range(len(entries))]

    def _describe(self, entry: Any) -> ShardedParameter:
        return ShardedParameter(
            name=self._names[id(entry)],
            shape=entry._orig_size,
            dimension=entry.fsdp_placement.dim,
            shard_count=entry.padded_sharded_param_size.numel(),
        )


def _message_entries() -> Sequence[Any]:
    """The parameters of the message under way: an argument of the function of FSDP that sends it.

    FSDP keeps these parameters nowhere else. Empty if another function sends the message.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "foreach_reduce":
        frame = frame.f_back
    found: Sequence[Any] = frame.f_locals.get("fsdp_params", ()) if frame is not None else ()
    return found


def exchanges_of(module: FSDPModule, collective: Collective) -> list[Any]:
    """What does the module's collective now; empty where PyTorch does not show it."""
    attribute = f"_{collective.replace('-', '_')}_comm"
    found = [getattr(group, attribute, None) for group in _groups(module)]
    return [one for one in found if one is not None]


def follow_passes(module: FSDPModule, began: Callable[[], None]) -> Callable[[], None] | None:
    """Has ``began`` called wherever FSDP asks autograd to be called at the end of a pass.

    Any module may be the first of a pass, so this is for all. Returns what undoes it; None where
    PyTorch does not show it.
    """
    state, name = module._get_fsdp_state(), "_register_root_post_backward_final_callback"
    register, context = getattr(state, name, None), getattr(state, "_state_ctx", None)
    if register is None or not hasattr(context, "post_backward_final_callback_queued"):
        return None

    def registered() -> None:
        before = state._state_ctx.post_backward_final_callback_queued
        register()
        if not before:
            began()

    setattr(state, name, registered)
    kept = weakref.ref(state)
    return lambda: None if (alive := kept()) is None else delattr(alive, name)


def _groups(module: FSDPModule) -> list[Any]:
    """FSDP's own groups of parameters; none where PyTorch keeps them elsewhere."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    only = getattr(state, "_fsdp_param_group", None)
    return [] if only is None else [only]


def refuse_meshes(name: str, module: FSDPModule) -> None:
    """Raises InvalidArgument for a module whose gradients no reduce-scatter of one mesh takes."""
    groups = _groups(module)
    backend = (
        'or use the backend, which encodes without feedback: init_process_group("tersor"), '
        "PyTorch 2.15 or newer"
    )
    if len(groups) > 1:
        raise InvalidArgument(
            f"module {name} has parameters on {len(groups)} meshes (shard_placement_fn): call "
            "fully_shard on those of each mesh as a module of their own, experts for one; "
            + backend
        )
    if any(not hasattr(one.mesh_info, "shard_mesh_size") for one in groups):
        raise InvalidArgument(
            f"module {name} went through replicate(), whose all-reduce cannot be encoded: use "
            "DistributedDataParallel; or fully_shard on a mesh of (ranks, 1), of names "
            f'("replicate", "shard"), which replicates, too; {backend}'
        )


def _takes_view(entry: Any, dtype: torch.dtype) -> bool:
    """Whether the gradient will be a view of a result of this dtype, at which nobody looks yet."""
    parameter = entry.sharded_param
    wanted = getattr(entry, "sharded_grad_dtype", None) or entry.orig_dtype
    return (
        wanted == dtype
        and parameter.grad is None
        and not entry.offload_to_cpu
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def to_flat(whole: torch.Tensor, parameter: ShardedParameter, ranks: int) -> torch.Tensor:
    """A parameter-shaped tensor as the ``ranks`` shards of a message, padded with zeros.

    Returns:
        A new 1-D tensor of ``ranks * parameter.shard_count`` values.
    """
    flat = whole.new_zeros(ranks * parameter.shard_count)
    rows = torch.cat(torch.chunk(whole, ranks, dim=parameter.dimension), dim=0)
    flat[: whole.numel()] = rows.reshape(-1)
    return flat


def from_flat(flat: torch.Tensor, parameter: ShardedParameter, ranks: int) -> torch.Tensor:
    """What :func:`to_flat` does, undone: a view where the parameter is cut along dimension 0."""
    values = flat[: parameter.shape.numel()]
    if parameter.dimension == 0:
        return values.view(parameter.shape)
    cut = list(parameter.shape)
    cut[parameter.dimension] //= ranks  # PyTorch asks for even shards here
    return torch.cat(values.view(ranks, *cut).unbind(), dim=parameter.dimension)


@dataclass
class Kept:
    """What error feedback keeps of one parameter, on the host.

    ``residual``: f32, a value for each of the padded parameter, shard after shard; by hosts, of
    those shards that this rank encodes; between replicas, what it keeps of its shard.
    """

    parameter: ShardedParameter
    codec: str  #: whose errors these are
    ranks: int  #: of the reducer
    rank: int  #: this one's number among them
    residual: torch.Tensor
    longest: int  #: values of the longest of any rank
    step: int  #: of the reducer
    shards: list[int]  #: of which ranks these are; none between replicas
    codec_may_change: bool = False  #: by "auto" or a schedule, since a state was saved

    def spread(self) -> torch.Tensor:
        """The residual at its place in the padded parameter; a copy."""
        whole = zeros(self.ranks, self.parameter.shard_count)
        whole[self.shards] = self.residual.view(len(self.shards), -1)
        return whole.view(-1)

    def take(self, whole: torch.Tensor) -> None:
        """Keeps its part of what all ranks would keep of the padded parameter, were they alike."""
        part = whole.view(self.ranks, -1)[self.shards] * (self.ranks / len(self.shards))
        self.residual.copy_(part.view(-1))
