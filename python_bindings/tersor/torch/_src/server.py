"""A parameter server whose weights an optimizer of PyTorch moves, and workers with a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import tersor
from tersor.server import Part, Worker
from tersor.torch._src.parameters.selection import (
    DTYPES,
    every_parameter,
    followed,
    split_parameters,
    store,
)
from tersor.torch._src.process_group import connections

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tersor.server import ServerOptions

#: An optimizer of a server's parts of the parameters, as ``lambda parts: AdamW(parts, lr=1e-3)``.
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class ParameterServer(tersor.ParameterServer):
    """On the ranks of ``servers``: has a part of the model's weights, and moves it by an optimizer.

    Beside it all ranks that work make a `ParameterClient`, both collective calls of the group.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: MakeOptimizer,
        *,
        servers: Sequence[int] = (0,),
        workers: Sequence[int] | None = None,
        process_group: dist.ProcessGroup | None = None,
        straggler_timeout: float | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        """``model``: the same weights on all servers, copied, but those that need no gradient. Its
        options and errors are those of ``tersor.ParameterServer``, ``timeout`` is the group's."""
        super().__init__(
            connections.transport(process_group),
            {name: _on_host(one) for name, one in _served(model).items()},
            _ByOptimizer(optimizer),
            servers=servers,
            workers=workers,
            timeout=connections.seconds_of(process_group),
            straggler_timeout=straggler_timeout,
            **options,
        )


class ParameterClient(Worker):
    """A worker: ``pull`` into a model, ``push`` of its gradients. A context, as tersor's own."""

    def __init__(
        self,
        model: nn.Module,
        *,
        servers: Sequence[int] = (0,),
        workers: Sequence[int] | None = None,
        server: ParameterServer | None = None,
        process_group: dist.ProcessGroup | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        """``server``: this rank's own, where it serves, too. Its options and errors are those of
        ``tersor.ParameterClient``."""
        self._model, self._parameters = model, _served(model)
        self._arrays = {name: _on_host(one) for name, one in self._parameters.items()}
        self._client = tersor.ParameterClient(
            connections.transport(process_group),
            self._arrays,
            servers=servers,
            workers=workers,
            server=server,
            timeout=connections.seconds_of(process_group),
            **options,
        )
        self._own = self._client._own

    @torch.no_grad()
    def pull(self) -> None:
        """The weights of this clock, into the model. Frozen parameters and buffers are not served:
        ``tersor.torch.broadcast_parameters(model)`` makes all ranks start alike."""
        self._client.pull(self._arrays)
        for name, one in self._follow().items():
            store(one, torch.from_numpy(self._arrays[name]))

    def push(self) -> None:
        """The model's gradients; of a parameter without one zeros. Where one is not finite all are
        zeros, and a warning says so. Raises InvalidArgumentError for one of a parameter that needed
        none when this was made: no server has it."""
        for name, parameter in every_parameter(self._model).items():
            if parameter.grad is not None and name not in self._parameters:
                raise tersor.InvalidArgumentError(
                    f"{name} has a gradient, but was frozen or absent when the server was made"
                )
        gradients = {
            name: np.zeros_like(self._arrays[name]) if one.grad is None else _on_host(one.grad)
            for name, one in self._follow().items()
        }
        bad = [name for name, one in gradients.items() if not np.isfinite(one).all()]
        if bad:
            warnings.warn(f"the gradient of {bad[0]} is not finite: pushed zeros", stacklevel=2)
            gradients = {name: np.zeros_like(one) for name, one in gradients.items()}
        self._client.push(gradients)

    def _follow(self) -> dict[str, nn.Parameter]:
        self._parameters = followed(self._model, self._parameters, "ParameterClient")
        return self._parameters


class _ByOptimizer:
    """Moves parts by an optimizer of PyTorch, which is made of them at the first push."""

    def __init__(self, make: MakeOptimizer) -> None:
        self._make = make
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameters: list[nn.Parameter] = []

    def __call__(self, parts: list[Part]) -> None:
        if self._optimizer is None:
            self._parameters = [nn.Parameter(torch.from_numpy(own)) for _, own, _ in parts]
            self._optimizer = self._make(self._parameters)
        for one, (_, _, gradient) in zip(self._parameters, parts, strict=True):
            one.grad = torch.from_numpy(gradient.copy())
        self._optimizer.step()


def _served(model: nn.Module) -> dict[str, nn.Parameter]:
    parameters, _ = split_parameters(model)
    for name, one in parameters.items():
        if isinstance(one, torch.distributed.tensor.DTensor) or one.dtype not in DTYPES:
            raise tersor.InvalidArgumentError(
                f"{name}: a parameter server supports whole parameters of float32, bfloat16 and "
                "float16"
            )
    return parameters


def _on_host(values: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = (
        values.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
    )
    return array
