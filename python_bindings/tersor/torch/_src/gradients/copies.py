"""Gradients of a backward pass while a reducer sends copies.

Between ``backward`` and ``synchronize`` a program can edit a gradient through ``.data`` or
``numpy()``. PyTorch's version counter misses these edits. If the reducer worked on the edited
memory, ranks would end with different values. Therefore the reducer works on copies, and
``synchronize`` puts the means into the gradients. An edit before ``synchronize`` changes neither
a sent value nor a mean, and raises an error. On a device, an edit is reported by the next
``synchronize``, because the comparison of the bits must not hold up the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tersor.torch import _compat
from tersor.torch._src.gradients.loss_scale import HostCopy
from tersor.torch._src.parameters.selection import local_shard, restore_overflow


@dataclass
class _Entry:
    """``values``: the copy, until the mean arrives; None if the group reduces the gradient."""

    gradient: Tensor
    version: int
    address: int
    values: Tensor | None = None
    bits: Tensor | None = None

    @property
    def own(self) -> Tensor:
        return local_shard(self.gradient)


class SentGradients:
    """Gradients by the name of the parameter. Keeps one copy of each gradient. On a CPU ``changed``
    waits for the comparison of the bits. On a GPU the next call reports."""

    def __init__(self, device: torch.device) -> None:
        self._synchronous = device.type == "cpu"
        self._copies: dict[str, Tensor] = {}
        self._sent: dict[str, _Entry] = {}
        self._comparison: tuple[list[str], HostCopy] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._sent

    def __len__(self) -> int:
        return len(self._sent)

    def gradient(self, name: str) -> Tensor:
        """The gradient of a parameter under way."""
        return self._sent[name].gradient

    def copy(self, name: str, gradient: Tensor) -> Tensor:
        """The values to send, in index order, in memory that receives the mean."""
        own, values = local_shard(gradient).detach(), self._copies.get(name)
        if values is None or (values.shape, values.dtype) != (own.shape, own.dtype):
            values = torch.empty_like(own, memory_format=torch.contiguous_format)
            self._copies[name] = values
        return values.copy_(own)

    def add(self, name: str, gradient: Tensor, values: Tensor | None = None) -> None:
        """A gradient whose copy is being sent; without ``values`` by ``synchronize``."""
        own = local_shard(gradient)
        bits = None if values is None else _bit_sum(own)
        self._sent[name] = _Entry(gradient, _compat.version(own), own.data_ptr(), values, bits)

    def changed(self, parameters: Mapping[str, Tensor]) -> list[str]:
        """Names of parameters with a gradient edited or replaced after the copy.

        ``write_means`` leaves these gradients alone. Unless this object waits, edits that only the
        bits show are those of the step before.
        """
        found = [
            name
            for name, one in self._sent.items()
            if parameters[name].grad is not one.gradient
            or (_compat.version(one.own), one.own.data_ptr()) != (one.version, one.address)
        ]
        same = {n: one for n, one in self._sent.items() if n not in found and one.bits is not None}
        earlier, self._comparison = self._comparison, _compare(same)
        if self._synchronous:
            found += _differing(self._comparison)
        for name in found:
            self._sent[name].values = None
        return found if self._synchronous else found + _differing(earlier)

    def end(self) -> list[tuple[Tensor, Tensor]]:
        """Forgets all gradients. Returns each gradient with the copy that receives the mean."""
        pairs = [(one.own, one.values) for one in self._sent.values() if one.values is not None]
        self._sent.clear()
        return pairs


@torch.no_grad()
def write_means(pairs: Sequence[tuple[Tensor, Tensor]], *, sums: bool = False) -> None:
    """Puts the second tensor of each pair into the first. ``sums``: sums instead of means. On a CPU
    the tensors of a pair exchange memory if nothing else has the gradient's memory."""
    for _, mean in pairs if sums else ():
        restore_overflow(mean)
    copied = [pair for pair in pairs if not _swapped(*pair)]
    if copied:
        gradients, means = zip(*copied, strict=True)
        _compat.foreach_copy_(gradients, means)


def _swapped(gradient: Tensor, mean: Tensor) -> bool:
    storage = gradient.untyped_storage()
    if (
        type(gradient) is not Tensor
        or (gradient.device.type, gradient.requires_grad) != ("cpu", False)
        or not gradient.is_contiguous()
        or not storage.resizable()  # an array has the memory
        or storage.is_shared()
        or not _compat.has_memory_alone(gradient, storage)
    ):
        return False
    gradient.data, mean.data = mean.data, gradient.data
    return True


def _compare(sent: Mapping[str, _Entry]) -> tuple[list[str], HostCopy] | None:
    """Compares the present bits with the sent bits. One transfer from a device for all."""
    if not sent:
        return None
    now = torch.stack([_bit_sum(one.own) for one in sent.values()])
    before = torch.stack([one.bits for one in sent.values() if one.bits is not None])
    return list(sent), HostCopy(now != before)


def _differing(comparison: tuple[list[str], HostCopy] | None) -> list[str]:
    if comparison is None:
        return []
    names, differ = comparison
    return [name for name, differs in zip(names, differ.wait().tolist(), strict=True) if differs]


def _bit_sum(values: Tensor) -> Tensor:
    """The sum of the values' bits as 64-bit integers. Scaling and clipping change the sum."""
    flat = values.detach().flatten()
    per_word = 8 // flat.element_size()
    if len(flat) % per_word or flat.storage_offset() % per_word:
        flat = functional.pad(flat, (0, -len(flat) % per_word))
    return flat.view(torch.int64).sum()
