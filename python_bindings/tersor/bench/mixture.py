"""A mixture of experts: a router sends each row of values to one of several pairs of layers."""

import torch
from torch import Tensor, nn

BALANCING_RATE = 0.001  # Wang et al.'s


class Carrier:
    """Brings rows to experts that ranks share: in order, as many on each. This is of one rank."""

    rank = 0
    ranks = 1

    def loads(self, counts: Tensor) -> Tensor:
        """This rank's rows for each expert (experts) to those of all ranks (ranks, experts)."""
        return counts[None]

    def carry(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """The rows that came, in the order of ranks; gradients go back. Of rows, rank r gets
        `sent[r]`, likewise in order."""
        return rows


class MixtureOfExperts(nn.Module):
    """Each row of values goes to the one expert that the router likes best (Fedus et al. 2021).

    There is no capacity: an expert takes all rows that come, or none. Those that get few become
    liked a little better in each step (Wang et al. 2024), so that the loss needs no other term.
    Where no gradients are asked for, this rank computes all experts, whose weights it must have.
    """

    likings: Tensor

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(feed_forward(width, hidden) for _ in range(experts))
        self.register_buffer("likings", torch.zeros(experts))
        self.carrier = Carrier()

    def forward(self, states: Tensor) -> Tensor:
        """(…, width) to the same shape."""
        rows = states.flatten(end_dim=-2)
        shares = self.router(rows).softmax(dim=1)
        chosen = (shares.detach() + self.likings).argmax(dim=1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(self.experts))
        made = self._compute(rows.index_select(0, order), counts).index_select(0, order.argsort())
        result: Tensor = (made * shares.gather(1, chosen[:, None])).view_as(states)
        return result

    def _compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Of rows in the order of their experts."""
        if not torch.is_grad_enabled():
            return _each(self.experts, rows, counts[None])
        carrier = self.carrier
        loads = carrier.loads(counts)
        of_all = loads.sum(dim=0)
        self.likings += BALANCING_RATE * (of_all.float().mean() - of_all).sign()
        by_rank = loads.view(carrier.ranks, carrier.ranks, -1)  # from, to, expert there
        sent = by_rank[carrier.rank].sum(dim=1).tolist()
        received = by_rank[:, carrier.rank].sum(dim=1).tolist()
        arrived = carrier.carry(rows, received, sent)
        made = _each(self.own_experts(), arrived, by_rank[:, carrier.rank])
        return carrier.carry(made, sent, received)

    def own_experts(self) -> nn.ModuleList:
        """Those of this rank."""
        return self.experts_of(self.carrier.rank)

    def experts_of(self, rank: int) -> nn.ModuleList:
        """Those of one of the ranks."""
        each = len(self.experts) // self.carrier.ranks
        return self.experts[rank * each : (rank + 1) * each]


def feed_forward(width: int, hidden: int) -> nn.Sequential:
    """Two linear layers of a transformer."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _each(experts: nn.ModuleList, rows: Tensor, counts: Tensor) -> Tensor:
    """Rows in the order of their senders, and of one sender of these experts, as in `counts`."""
    experts_of_rows = torch.arange(len(experts), device=rows.device).repeat(len(counts))
    order = experts_of_rows.repeat_interleave(counts.flatten()).argsort(stable=True)
    groups = torch.split(rows.index_select(0, order), counts.sum(dim=0).tolist())
    made = [expert(group) for expert, group in zip(experts, groups, strict=True)]
    return torch.cat(made).index_select(0, order.argsort())
