"""Gradients of a backward pass while a reducer sends copies.

Between ``backward`` and ``synchronize`` a program can edit a gradient through ``.data`` or
``numpy()``. PyTorch's version counter misses these edits. If the reducer worked on the edited
memory, ranks would end with different values. Therefore the reducer works on copies, and
``synchronize`` writes the means over the gradients. An edit before ``synchronize`` changes neither
a sent value nor a mean, and raises an error. On a device such an edit is reported by the next
``synchronize``, because the comparison of the bits must not hold up the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tersor.torch.parameters import local_shard


@dataclass
class _Sent:
    """``values``: the copy, until the mean arrives; None if the group reduces the gradient."""

    gradient: Tensor
    version: int
    address: int
    values: Tensor | None = None
    bits: Tensor | None = None


class SentGradients:
    """Gradients by the name of the parameter. Keeps one copy of each gradient.

    On a CPU ``changed`` waits for the comparison of the bits. On a GPU the next call reports.
    """

    def __init__(self, device: torch.device) -> None:
        self._waits = device.type == "cpu"
        self._copies: dict[str, Tensor] = {}
        self._sent: dict[str, _Sent] = {}
        self._compared: _Compared | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._sent

    def __len__(self) -> int:
        return len(self._sent)

    def gradient(self, name: str) -> Tensor:
        """The gradient of a parameter whose copy is being sent."""
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
        bits = None if values is None else _sum_of_bits(own)
        self._sent[name] = _Sent(gradient, own._version, own.data_ptr(), values, bits)

    def changed(self, parameters: Mapping[str, Tensor]) -> list[str]:
        """Names of parameters with a gradient edited or replaced after the copy.

        ``write_means`` leaves these gradients alone. Unless this object waits, edits that only the
        bits show are those of the step before.
        """
        found = [
            name
            for name, one in self._sent.items()
            if parameters[name].grad is not one.gradient
            or local_shard(one.gradient)._version != one.version
            or local_shard(one.gradient).data_ptr() != one.address
        ]
        kept = {name: one for name, one in self._sent.items() if name not in found}
        compared = _compare(kept)
        if self._waits:
            found += compared.differing()
        for name in found:
            self._sent[name].values = None
        if not self._waits:
            earlier, self._compared = self._compared, compared
            found += earlier.differing() if earlier is not None else []
        return found

    def end(self) -> list[tuple[Tensor, Tensor]]:
        """Forgets all gradients. Returns each gradient with the copy that receives the mean."""
        pairs = [
            (local_shard(one.gradient), one.values)
            for one in self._sent.values()
            if one.values is not None
        ]
        self._sent.clear()
        return pairs


@torch.no_grad()
def write_means(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copies the second tensor of each pair to the first."""
    if listed := list(pairs):
        gradients, means = zip(*listed, strict=True)
        torch._foreach_copy_(gradients, means)


@dataclass
class _Compared:
    """``differ``: a flag for each name, on the host once ``done`` has happened."""

    names: list[str]
    differ: Tensor
    done: torch.cuda.Event | None = None

    def differing(self) -> list[str]:
        if self.done is not None:
            self.done.synchronize()
        flags = self.differ.tolist()
        return [name for name, differs in zip(self.names, flags, strict=True) if differs]


def _compare(sent: Mapping[str, _Sent]) -> _Compared:
    """Compares the present bits with the sent bits. One transfer from a device for all."""
    pairs = {name: one.bits for name, one in sent.items() if one.bits is not None}
    if not pairs:
        return _Compared([], torch.empty(0))
    now = [_sum_of_bits(local_shard(sent[name].gradient)) for name in pairs]
    differ = torch.stack(now) != torch.stack(list(pairs.values()))
    if not differ.is_cuda:
        return _Compared(list(pairs), differ)
    flags = torch.empty(differ.shape, dtype=differ.dtype, pin_memory=True)
    flags.copy_(differ, non_blocking=True)
    done = torch.cuda.current_stream(differ.device).record_event()
    return _Compared(list(pairs), flags, done)


def _sum_of_bits(values: Tensor) -> Tensor:
    """The sum of the values' bits as 64-bit integers. Scaling and clipping change the sum."""
    flat = values.detach().flatten()
    per_word = 8 // flat.element_size()
    if len(flat) % per_word or flat.storage_offset() % per_word:
        flat = functional.pad(flat, (0, -len(flat) % per_word))
    return flat.view(torch.int64).sum()
