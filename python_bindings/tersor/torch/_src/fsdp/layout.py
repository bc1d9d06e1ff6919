"""The position of each parameter in the flat tensors of FSDP2's collectives.

A flat tensor has rank 0's shards of all parameters, then rank 1's shards, etc. FSDP2 cuts a
parameter along a dimension (default: 0) into a chunk per rank. Each chunk is padded with zeros
to the length of the first chunk.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from tersor import _core
from tersor._core import InvalidArgumentError
from tersor.torch import _compat
from tersor.torch._src.checkpoint.residuals import zeros


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of a message."""

    name: str  #: as in ``named_parameters()`` of the model, without prefixes of wrappers
    shape: torch.Size  #: of the whole parameter, without padding
    dimension: int  #: dimension of the cut
    shard_count: int  #: values per rank, padding included

    def cut(self) -> str:
        """Describes the shape and the cut: "64 x 128, cut along 0"."""
        return f"{' x '.join(map(str, self.shape))}, cut along {self.dimension}"

    def choice(self, options: _core.ReducerOptions, dtype: str) -> _core.CodecChoice:
        """The codec of the parameter."""
        return _core.choose_codec(options, self.name, list(self.shape), dtype)


class ModuleLayout(_compat.FsdpGroup):
    """The parameters of one ``FSDPModule``, in the order of its messages."""

    def __init__(self, module: FSDPModule, names: dict[int, str]) -> None:
        """``names`` has the names of the model's sharded parameters by ``id``."""
        super().__init__(module)
        self._names = {id(one): names[id(one.sharded_param)] for one in self._entries}

    def parameters(self, shard_count: int) -> list[ShardedParameter] | None:
        """Returns the parameters of the current message, which has ``shard_count`` values per rank.

        FSDP omits frozen parameters, and parameters without a gradient in this step. Returns None
        if PyTorch does not expose the message's parameters.
        """
        found = self._if_complete(self.expected(), shard_count)
        if found is None:
            entries = [one for one in _compat.fsdp_message() if id(one) in self._names]
            found = self._if_complete(list(map(self._describe, entries)), shard_count)
        return found

    def gathered(self, shard_count: int) -> list[ShardedParameter] | None:
        """Returns the parameters of an all-gather, or None if ``shard_count`` does not match."""
        return self._if_complete(list(map(self._describe, self._entries)), shard_count)

    def _if_complete(
        self, found: list[ShardedParameter], shard_count: int
    ) -> list[ShardedParameter] | None:
        complete = self.known and sum(one.shard_count for one in found) == shard_count
        return found if complete else None

    def expected(self, extra: Collection[str] = ()) -> list[ShardedParameter]:
        """Returns the trained parameters and the parameters named in ``extra``."""
        return [
            self._describe(one)
            for one in self._in_order()
            if one.sharded_param.requires_grad or self._names[id(one)] in extra
        ]

    def trained(self) -> list[tuple[str, Tensor]]:
        """Returns the names and the sharded parameters."""
        return [(self._names[id(one)], one.sharded_param) for one in self._entries]

    def _describe(self, entry: Any) -> ShardedParameter:
        name, shape = self._names[id(entry)], self._shape(entry)
        shard_count = entry.padded_sharded_param_size.numel()
        return ShardedParameter(name, shape, entry.fsdp_placement.dim, shard_count)


def refuse_meshes(name: str, module: FSDPModule) -> None:
    """Raises InvalidArgumentError if one reduce-scatter of one mesh cannot reduce the module."""
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


def to_flat(whole: Tensor, parameter: ShardedParameter, ranks: int) -> Tensor:
    """Arranges a tensor of the parameter's shape as ``ranks`` shards, padded with zeros.

    Returns:
        A new 1-D tensor of ``ranks * parameter.shard_count`` values.
    """
    flat = whole.new_zeros(ranks * parameter.shard_count)
    rows = torch.cat(torch.chunk(whole, ranks, dim=parameter.dimension), dim=0)
    flat[: whole.numel()] = rows.reshape(-1)
    return flat


def from_flat(flat: Tensor, parameter: ShardedParameter, ranks: int) -> Tensor:
    """Inverts :func:`to_flat`. Returns a view if the parameter is cut along dimension 0."""
    values = flat[: parameter.shape.numel()]
    if parameter.dimension == 0:
        return values.view(parameter.shape)
    cut = list(parameter.shape)
    cut[parameter.dimension] //= ranks  # PyTorch requires even shards for other dimensions
    return torch.cat(values.view(ranks, *cut).unbind(), dim=parameter.dimension)


@dataclass
class ResidualView:
    """The residual of one parameter, on the CPU.

    ``residual`` has one f32 value per value of the padded parameter, shard after shard. A
    hierarchical reducer has residuals of the shards that this rank encodes. Between replicas, the
    residual is of this rank's shard.
    """

    parameter: ShardedParameter
    codec: str  #: the codec of the residual
    ranks: int  #: number of ranks of the reducer
    rank: int  #: this rank's number in the reducer
    residual: Tensor
    longest: int  #: the maximum length of a residual on any rank
    step: int  #: step of the reducer
    shards: list[int]  #: the ranks of the shards; empty between replicas
    codec_may_change: bool = False  #: True if "auto" or a schedule chooses the codec
    unit: float = 1.0  #: factor from the sum of residuals over ranks to the gradient
    replica_unit: float = 1.0  #: factor from the sum of residuals over replicas to the gradient

    def padded(self) -> Tensor:
        """Returns a copy of the residual at its position in the padded parameter."""
        whole = zeros(self.ranks, self.parameter.shard_count)
        whole[self.shards] = self.residual.view(len(self.shards), -1)
        return whole.view(-1)

    def set_from(self, whole: Tensor) -> None:
        """Sets the residual to this rank's part of the padded parameter ``whole``."""
        part = whole.view(self.ranks, -1)[self.shards] * (self.ranks / len(self.shards))
        self.residual.copy_(part.view(-1))
