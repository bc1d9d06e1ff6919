"""Chooses rules for a budget of bits from a model's gradients.

Solves the problem of L-GreCo (Markov, Alimohammadi, Frantar and Alistarh 2022, arXiv:2210.17357).
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
from tersor._renamed import renamed_keywords
from tersor.torch._src.parameters.selection import inner_module, is_supported, split_parameters

Rules = list[tuple[str, str]]

Measured = dict[str, AllocationParameter]


@renamed_keywords(group="process_group")
def allocate(
    model: nn.Module,
    bits: float,
    *,
    codecs: Sequence[str] | None = None,
    process_group: dist.ProcessGroup | None = None,
    threads: int = 1,
) -> Rules:
    """Chooses a codec per parameter that minimizes the squared error for ``bits`` per value.

    The squared error is ``|sent - decoded|²`` in the gradients' units, so small gradients get few
    bits. A parameter with a gradient of zeros gets the fewest bytes, and a warning. The problem is
    that of L-GreCo (Markov et al. 2022, arXiv:2210.17357).

    Args:
        model: A model after some training and at least one backward pass. Each codec encodes and
            decodes ``.grad`` without feedback, on the CPU. Use each rank's own gradients: before
            DDP wraps the model, or in ``no_sync()``.
        bits: Maximum number of bits per value in one payload of all parameters.
        codecs: Specs of the candidates. Default: none, bf16, int8, and with feedback hadamard,
            blocktopk and, for gradients that are not sharded, lowrank.
        process_group: The ranks over which errors are added, so that all ranks get equal rules. A
            collective call with equal arguments. Default: all ranks, if there are any.
        threads: Number of threads of the codecs.

    Returns:
        ``(pattern, spec)`` for each parameter with a gradient, and ``("*", "bf16")`` for other
        parameters. Pass the list as ``rules=``.

    Raises:
        InvalidArgumentError: On all ranks: the budget is too small (the message has the minimum),
            no parameter has a gradient, or a gradient is not finite.

    Example::

        loss_of(model).backward()
        rules = tersor.torch.allocate(model, bits=2)
        handle = tersor.torch.compress(DistributedDataParallel(model), rules=rules)
    """
    expect(model, nn.Module, "model must be a torch.nn.Module")
    found = _rank_sums(_measure(model, codecs, threads), process_group)
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
    """Measures each parameter with a gradient. Returns a message after an error."""
    parameters, _ = split_parameters(inner_module(model))
    measured: Measured = {}
    failed = ""
    for name, one in parameters.items():
        if one.grad is None or not is_supported(one.grad):
            continue
        whole = _whole(one.grad)  # a collective call, also after an error
        try:
            specs = list(codecs or _default_codecs(one.grad))
            measured[name] = _core.measure_candidates(name, whole, specs, threads)
        except InvalidArgumentError as error:
            failed = failed or str(error)
    return failed or measured


def _default_codecs(gradient: Tensor) -> list[str]:
    specs, whole = _core.allocation_codecs(), not isinstance(gradient, DTensor)
    return [one for one in specs if whole or not one.startswith("lowrank")]


def _whole(gradient: Tensor) -> Tensor:
    """Returns the gradient on the CPU, with the shards of all ranks."""
    own = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return own.detach().to("cpu").contiguous()


def _rank_sums(own: Measured | str, group: dist.ProcessGroup | None) -> list[AllocationParameter]:
    """Returns sums over ranks, added in the order of ranks and therefore equal on all ranks."""
    gathered: list[Measured | str | None] = [own]
    if dist.is_initialized():
        gathered = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, own, group=group)
    total: Measured = {}
    for rank, measured in enumerate(gathered):
        if not isinstance(measured, dict):
            raise InvalidArgumentError(f"rank {rank}: {measured}")
        for name, sample in measured.items():
            if total.setdefault(name, sample) is not sample:
                total[name].add(sample)
    return list(total.values())
