"""What error feedback keeps of sharded parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from tersor.torch.checkpoint import zeros
from tersor.torch.sharding import ShardedParameter


@dataclass
class Kept:
    """What error feedback keeps of one parameter, on the host.

    Attributes:
        codec: whose errors these are.
        ranks: of the reducer.
        rank: this one's number among them.
        residual: f32, a value for each of the padded parameter, shard after shard; by hosts, of
            those shards that this rank encodes; between replicas, what it keeps of its shard.
        shards: of which ranks these are; none between replicas.
        longest: values of the longest of any rank.
        step: of the reducer.
        codec_may_change: "auto" or a schedule may have chosen another when a state was saved.
    """

    parameter: ShardedParameter
    codec: str
    ranks: int
    rank: int
    residual: Tensor
    longest: int
    step: int
    shards: list[int]
    codec_may_change: bool = False

    def spread(self) -> Tensor:
        """The residual at its place in the padded parameter; a copy."""
        whole = zeros(self.ranks, self.parameter.shard_count)
        whole[self.shards] = self.residual.view(len(self.shards), -1)
        return whole.view(-1)

    def take(self, whole: Tensor) -> None:
        """Keeps its part of what all ranks would keep of the padded parameter, were they alike."""
        part = whole.view(self.ranks, -1)[self.shards] * (self.ranks / len(self.shards))
        self.residual.copy_(part.view(-1))


def residual_count(one: ShardedParameter, replicas: dist.ProcessGroup | None) -> int:
    """How many values a rank keeps between replicas, at most."""
    return 0 if replicas is None else one.shard_count + -(-one.shard_count // replicas.size())
