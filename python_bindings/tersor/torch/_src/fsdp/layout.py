"""Where each parameter lies in what FSDP2 hands to its collectives.

The flat tensor is rank-major: rank r's shards of all parameters, then rank r + 1's. A parameter is
cut along one dimension (0, unless ``fully_shard`` was told otherwise) into as many chunks as there
are ranks, each padded with zeros to the length of the first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import zeros


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of a message."""

    name: str  #: as in ``named_parameters()`` of the model, without what wrappers add
    shape: torch.Size  #: of the whole parameter, without padding
    dimension: int  #: along which it is cut
    shard_count: int  #: values that each rank has of it, padding included


class ModuleLayout(_compat.FsdpGroup):
    """The parameters of one ``FSDPModule``, in the order in which its messages hold them."""

    def __init__(self, module: FSDPModule, names: dict[int, str]) -> None:
        """``names``: of the model's parameters, by ``id``, while they are sharded."""
        super().__init__(module)
        self._names = {id(one): names[id(one.sharded_param)] for one in self._entries}

    def parameters(self, shard_count: int) -> list[ShardedParameter] | None:
        """Those of the message under way, of which each rank keeps ``shard_count`` values.

        FSDP leaves out parameters that want no gradient, and parameters without gradient in this
        step. None if PyTorch does not show which parameters the message has.
        """
        found = self._if_whole(self.expected(), shard_count)
        if found is None:
            entries = [one for one in _compat.fsdp_message() if id(one) in self._names]
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

    def _describe(self, entry: Any) -> ShardedParameter:
        return ShardedParameter(
            name=self._names[id(entry)],
            shape=self._shape(entry),
            dimension=entry.fsdp_placement.dim,
            shard_count=entry.padded_sharded_param_size.numel(),
        )


def refuse_meshes(name: str, module: FSDPModule) -> None:
    """Raises InvalidArgumentError for a module whose gradients no reduce-scatter of one mesh
    takes."""
    groups = _compat.fsdp_groups(module)
    backend = (
        'or use the backend, which encodes without feedback: init_process_group("tersor"), '
        "PyTorch 2.15 or newer"
    )
    if len(groups) > 1:
        raise InvalidArgumentError(
            f"module {name} has parameters on {len(groups)} meshes (shard_placement_fn): call "
            "fully_shard on those of each mesh as a module of their own, experts for one; "
            + backend
        )
    if any(not hasattr(one.mesh_info, "shard_mesh_size") for one in groups):
        raise InvalidArgumentError(
            f"module {name} went through replicate(), whose all-reduce cannot be encoded: use "
            "DistributedDataParallel; or fully_shard on a mesh of (ranks, 1), of names "
            f'("replicate", "shard"), which replicates, too; {backend}'
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
