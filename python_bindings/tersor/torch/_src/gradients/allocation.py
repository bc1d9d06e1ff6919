"""Rules by parameter for a budget of bits, from the gradients that a model has.

The problem of L-GreCo (Markov, Alimohammadi, Frantar and Alistarh 2022, arXiv:2210.17357).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tersor import _core
from tersor._core import AllocationParameter, InvalidArgumentError
from tersor._options import expect
from tersor.torch._src.parameters.selection import is_supported, split_parameters, wrapped_in

Rules = list[tuple[str, str]]

Measured = dict[str, AllocationParameter]


def allocate(
    model: nn.Module,
    bits: float,
    *,
    codecs: Sequence[str] | None = None,
    group: dist.ProcessGroup | None = None,
    threads: int = 1,
) -> Rules:
    """Chooses a codec for each parameter, so that least is lost for ``bits`` a value.

    ::

        loss_of(model).backward()                       # of a model that has trained for a while
        rules = tersor.torch.allocate(model, bits=2)
        handle = tersor.torch.compress(DistributedDataParallel(model), rules=rules)

    ``model``: after one or more backward passes; what is in ``.grad``, of any shape, is encoded and
    decoded by each codec, without feedback, on the processor. Best are each rank's own gradients,
    as they are sent: before DDP has the model, or within ``no_sync()``. ``bits``: at most so many a
    value, of one payload of all parameters. ``codecs``: specs to choose from; default none, bf16,
    int8, and with feedback hadamard, blocktopk and, where gradients are not sharded, lowrank.
    ``group``: over whose ranks energies are added, so that all get the same rules; a collective
    call of theirs with equal arguments, default the whole world where there is one. ``threads``:
    for codecs.

    Returns ``(pattern, spec)`` for each parameter with a gradient and ``("*", "bf16")`` for any
    other: ``rules=`` of ``compress``, ``HookState`` and ``DistributedOptimizer`` (given
    ``named_parameters``). Energy lost is ``|sent - decoded|²``, in the gradients' units: where
    gradients are small, few bits are given. One whose gradients are all zeros gets the fewest
    bytes, and a warning. Raises InvalidArgumentError, on all ranks, for a budget that is too small
    (the message says the smallest), without gradients, and where a gradient is not finite.
    """
    expect(model, nn.Module, "model must be a torch.nn.Module")
    found = _over_ranks(_measure(model, codecs, threads), group)
    if not found:
        raise InvalidArgumentError(
            "no parameter has a gradient: call allocate() after backward(), before zero_grad()"
        )
    if zeros := ", ".join(one.name for one in found if one.energy == 0):
        warnings.warn(
            f"all gradients of {zeros} are zeros, so they get the fewest bytes: call "
            "allocate() after steps that use them",
            stacklevel=2,
        )
    return _core.allocate(found, bits).rules


def _measure(model: nn.Module, codecs: Sequence[str] | None, threads: int) -> Measured | str:
    """Of each parameter with a gradient; or what is wrong."""
    parameters, _ = split_parameters(wrapped_in(model))
    gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
    try:
        return {
            name: _core.measure_candidates(
                name, _whole(one), list(codecs or _default_codecs(one)), threads
            )
            for name, one in gradients.items()
            if is_supported(one)
        }
    except InvalidArgumentError as error:
        return str(error)


def _default_codecs(gradient: Tensor) -> list[str]:
    specs = _core.allocation_codecs()
    return [s for s in specs if not (isinstance(gradient, DTensor) and s.startswith("lowrank"))]


def _whole(gradient: Tensor) -> Tensor:
    """On the host, with the shards of all ranks."""
    own = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return own.detach().to("cpu").contiguous()


def _over_ranks(own: Measured | str, group: dist.ProcessGroup | None) -> list[AllocationParameter]:
    """The sums over ranks, in their order and so the same on all of them."""
    of_ranks: list[Measured | str | None] = [own]
    if dist.is_initialized():
        of_ranks = [None] * dist.get_world_size(group)
        dist.all_gather_object(of_ranks, own, group=group)
    total: Measured = {}
    for rank, measured in enumerate(of_ranks):
        if not isinstance(measured, dict):
            raise InvalidArgumentError(f"rank {rank}: {measured}")
        for name, sample in measured.items():
            if total.setdefault(name, sample) is not sample:
                total[name].add(sample)
    return list(total.values())
