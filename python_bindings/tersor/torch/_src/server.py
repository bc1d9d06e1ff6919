"""A parameter server with an optimizer of PyTorch, and workers with a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import tersor
from tersor._options import Unpack
from tersor.server import Part, ServerOptions, Worker
from tersor.torch._src.parameters import selection
from tersor.torch._src.parameters.selection import DTYPES
from tersor.torch._src.process_group import connections

#: An optimizer of a server's parts of the parameters, as ``lambda parts: AdamW(parts, lr=1e-3)``.
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class ParameterServer(tersor.ParameterServer):
    """A part of the model's parameters, which an optimizer of PyTorch changes.

    Create a server on each rank of ``servers``, and a `ParameterClient` on each worker at the same
    time: both are collective calls of the process group.

    Args:
        model: The model, with equal parameters on all servers. The server copies the parameters
            that need a gradient.
        optimizer: Creates an optimizer of a list of parameters, such as
            ``lambda parts: torch.optim.AdamW(parts, lr=1e-3)``.
        servers: The ranks that serve.
        workers: The ranks that create a client. None: all ranks except the servers; if all ranks
            serve, all ranks.
        process_group: The ranks; None: the default group. The group's timeout is the clients'.
        straggler_timeout: As for ``tersor.ParameterServer``.
        options: See ``tersor.server.ServerOptions``.

    Raises:
        InvalidArgumentError: This rank is not in ``servers``, or an option or a parameter is not
            supported.

    Example:
        >>> server = tersor.torch.ParameterServer(model, lambda parts: SGD(parts, lr=0.1))
        >>> lost = server.wait()
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
        """A collective call. See the class."""
        super().__init__(
            connections.transport(process_group),
            {name: _on_host(one) for name, one in _trained(model).items()}, _TorchUpdate(optimizer),
            servers=servers, workers=workers, timeout=connections.seconds_of(process_group),
            straggler_timeout=straggler_timeout, **options,
        )  # fmt: skip


class ParameterClient(Worker):
    """A worker with a model.

    A client is a context manager: at the end of the block the worker leaves.

    Args:
        model: The model, with the same parameters as on the servers.
        servers: The ranks that serve.
        workers: The ranks that create a client. None: as in `ParameterServer`.
        server: This rank's own server, if this rank serves too.
        process_group: The ranks; None: the default group. Its timeout is the timeout of each call.
        options: See ``tersor.server.ServerOptions``.

    Raises:
        InvalidArgumentError: An option is invalid, or ``server`` is missing.
        TransportError: A server is gone, or has another model or other options.

    Example:
        >>> with tersor.torch.ParameterClient(model) as client:
        ...     client.pull()
        ...     client.push()
    """

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
        """A collective call. See the class."""
        self._model, self._parameters = model, _trained(model)
        self._arrays = {name: _on_host(one) for name, one in self._parameters.items()}
        self._client = tersor.ParameterClient(
            connections.transport(process_group), self._arrays, servers=servers, workers=workers,
            server=server, timeout=connections.seconds_of(process_group), **options,
        )  # fmt: skip
        self._core_client = self._client._core_client
        self.skipped_steps = 0  #: Pushes of zeros: a gradient was not finite.

    @torch.no_grad()
    def pull(self) -> None:
        """Waits until no worker is too far behind, and reads the parameters into the model.

        Warns if a parameter on the server is not finite.

        Servers do not hold frozen parameters and buffers.
        ``tersor.torch.broadcast_parameters(model)`` makes them equal on all ranks.

        Raises:
            InvalidArgumentError: The model lost a parameter, or a server refused a push.
            TransportError: A server is gone or late.

        Example::

            client.pull()
        """
        self._client.pull(self._arrays)
        for name, one in self._refresh().items():
            if not np.isfinite(self._arrays[name]).all():
                warnings.warn(f"{name} on the server is not finite", stacklevel=2)
            selection.store(one, torch.from_numpy(self._arrays[name]))

    def push(self) -> None:
        """Sends the model's gradients, and begins the next clock.

        A missing gradient is sent as zeros. If a gradient is not finite, all gradients are sent as
        zeros, with a warning, and ``skipped_steps`` counts the push.

        Raises:
            InvalidArgumentError: A gradient is sparse, or is of a parameter unknown to the servers.
                Or a server refused a push.
            TransportError: A server is gone or late.

        Example::

            loss.backward()
            client.push()
        """
        for name, parameter in selection.every_parameter(self._model).items():
            if parameter.grad is not None and name not in self._parameters:
                raise tersor.InvalidArgumentError(
                    f"{name} has a gradient, but was frozen or absent when the server was made"
                )
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise tersor.InvalidArgumentError(
                    f"the gradient of {name} is sparse: a parameter server takes dense ones; make "
                    "the embedding with sparse=False"
                )
        gradients = {
            name: np.zeros_like(self._arrays[name]) if one.grad is None else _on_host(one.grad)
            for name, one in self._refresh().items()
        }
        bad = [name for name, one in gradients.items() if not np.isfinite(one).all()]
        if bad:
            warnings.warn(f"the gradient of {bad[0]} is not finite: pushed zeros", stacklevel=2)
            gradients = {name: np.zeros_like(one) for name, one in gradients.items()}
            self.skipped_steps += 1
        self._client.push(gradients)

    def _refresh(self) -> dict[str, nn.Parameter]:
        self._parameters = selection.refreshed(self._model, self._parameters, "ParameterClient")
        return self._parameters


class _TorchUpdate:
    """Applies an optimizer of PyTorch, created at the first push."""

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


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    parameters, _ = selection.split_parameters(model)
    for name, one in parameters.items():
        if isinstance(one, torch.distributed.tensor.DTensor) or one.dtype not in DTYPES:
            raise tersor.InvalidArgumentError(
                f"{name}: a parameter server supports whole parameters of float32, bfloat16 and "
                "float16"
            )
    return parameters


def _on_host(values: torch.Tensor) -> np.ndarray[Any, Any]:
    return values.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
