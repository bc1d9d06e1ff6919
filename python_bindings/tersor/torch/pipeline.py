"""Encoded activations and gradients between the stages of a pipeline.

::

    stage = PipelineStage(module, index, stages, device)   # torch.distributed.pipelining
    tersor.torch.pipeline.compress(stage, codec="int8")    # on all ranks, before the first step

The schedule sends the messages on its own process group. Each tensor becomes a payload of fixed
length.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.codec import Codec
from tersor.torch._src.parameters.memory_order import as_contiguous
from tersor.torch._src.parameters.selection import DTYPES

__all__ = ["CompressedStage", "compress"]
__dir__ = __all__.copy

_ELEMENTWISE_CODECS = {"none", "bf16", "f16"}  # codecs in which a value changes no other value
_CHECKED_MESSAGES = 16  # per stage: on a device, a check waits for the computation

_OpsOf = Callable[[int], list[dist.P2POp]]  # the argument is a microbatch


class CompressedStage:
    """The handle of a compressed stage; :func:`compress` makes one.

    Args:
        stage: The stage.
        codec: Spec of the activations' codec.
        backward_codec: Spec of the gradients' codec. None: ``codec``.

    Raises:
        InvalidArgumentError: As :func:`compress`.

    Example:
        >>> handle = tersor.torch.pipeline.compress(stage, codec="int8")
        >>> ratio = handle.uncompressed_bytes / max(1, handle.sent_bytes)
    """

    def __init__(self, stage: Any, codec: str, backward_codec: str | None) -> None:
        self._activations = _Direction(codec, warns=True)
        self._gradients = _Direction(codec if backward_codec is None else backward_codec)
        self._stage = stage
        self._replaced: list[str] = []
        activations = ("get_fwd_send_ops", "get_fwd_recv_ops", "forward_one_chunk")
        self._replace(activations, self._activations)
        gradients = ("get_bwd_send_ops", "get_bwd_recv_ops", "backward_one_chunk")
        self._replace(gradients, self._gradients)

    def _replace(self, names: tuple[str, str, str], direction: _Direction) -> None:
        methods: list[Callable[..., Any]] = [direction.send, direction.receive, direction.compute]
        for name, method in zip(names, methods, strict=True):
            setattr(self._stage, name, functools.partial(method, getattr(self._stage, name)))
            self._replaced.append(name)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all payloads so far."""
        return self._activations.sent_bytes + self._gradients.sent_bytes

    @property
    def uncompressed_bytes(self) -> int:
        """Bytes of the same tensors without a codec."""
        return self._activations.uncompressed_bytes + self._gradients.uncompressed_bytes

    def remove(self) -> None:
        """Ends the compression. Call on all ranks, between steps.

        Example:
            >>> handle.remove()
        """
        while self._replaced:
            delattr(self._stage, self._replaced.pop())


def compress(stage: Any, codec: str = "int8", backward_codec: str | None = None) -> CompressedStage:
    """Compresses the messages of a pipeline stage.

    Tensors of other dtypes than float32, bfloat16 and float16 are sent uncompressed. A damaged
    payload raises WireError in the computation that needs the tensor. On a device, the values of a
    damaged payload are NaN.

    Only the codecs none, bf16 and f16 keep infinities in activations, such as a mask of -inf. Other
    codecs replace a whole block of values by NaN, with a warning if this happens in the first
    messages.

    Args:
        stage: A stage of ``torch.distributed.pipelining``.
        codec: Spec of the activations' codec, equal on the stages of all ranks.
        backward_codec: Spec of the gradients' codec. Default: ``codec``.

    Returns:
        A handle with the byte counts and ``remove()``.

    Raises:
        InvalidArgumentError: The stage is compressed already. Or the codec has ``+ef``, or no
            payloads of fixed length. The receiver must know the length before a message arrives.
        TypeError: ``stage`` is not a pipeline stage.

    Example:
        >>> handle = tersor.torch.pipeline.compress(stage, codec="int8", backward_codec="bf16")
    """
    if not hasattr(stage, "get_fwd_send_ops"):
        raise TypeError(
            f"stage must be a PipelineStage of torch.distributed.pipelining, not {described(stage)}"
        )
    if "get_fwd_send_ops" in vars(stage):
        raise InvalidArgumentError("the stage is compressed already: call remove() of its handle")
    return CompressedStage(stage, codec, backward_codec)


class _Direction:
    """The activations of a stage, or the gradients."""

    def __init__(self, spec: str, *, warns: bool = False) -> None:
        """``warns``: True to warn of values that the codec cannot represent."""
        self._codec = _checked(spec)
        elementwise = self._codec.spec.partition(":")[0] in _ELEMENTWISE_CODECS
        self._messages_to_check = _CHECKED_MESSAGES if warns and not elementwise else 0
        self._step = 0  # for random numbers
        self._received: dict[int, list[tuple[Tensor, Tensor]]] = {}  # payloads and destinations
        self.sent_bytes = self.uncompressed_bytes = 0

    def send(self, ops_of: _OpsOf, chunk: int) -> list[dist.P2POp]:
        ops = ops_of(chunk)
        for op in ops:
            if _is_encoded(op.tensor):
                op.tensor = self._encode(op.tensor.detach().contiguous())
        return ops

    def receive(self, ops_of: _OpsOf, chunk: int) -> list[dist.P2POp]:
        ops = ops_of(chunk)
        self._received[chunk] = received = []
        for op in ops:
            if _is_encoded(op.tensor):
                received.append((self._payload(op.tensor), op.tensor))
                op.tensor = received[-1][0]
        return ops

    def compute(self, compute: Callable[..., Any], chunk: int, *args: Any, **options: Any) -> Any:
        """Decodes the received payloads before the computation."""
        for payload, tensor in self._received.pop(chunk, ()):
            with as_contiguous(tensor.detach()) as values:
                self._codec.decode(payload, values)
        return compute(chunk, *args, **options)

    def _encode(self, values: Tensor) -> Tensor:
        payload = self._payload(values)
        if self._messages_to_check > 0:
            self._check(values)
        self._codec.encode(values, payload, step=self._step)
        self._step += 1
        self.sent_bytes += payload.nbytes
        self.uncompressed_bytes += values.nbytes
        return payload

    def _check(self, values: Tensor) -> None:
        self._messages_to_check -= 1
        if not values.isfinite().all():
            self._messages_to_check = 0
            warnings.warn(
                f"an activation of shape {tuple(values.shape)} has values that are not finite: "
                f"codec {self._codec.spec} replaces whole blocks of values by NaN; pass "
                "codec='bf16', or send finite values",
                stacklevel=1,
            )

    def _payload(self, values: Tensor) -> Tensor:
        length = self._codec.max_payload_bytes(tuple(values.shape), values.dtype)
        return torch.empty(length, dtype=torch.uint8, device=values.device)


def _is_encoded(tensor: Tensor) -> bool:
    return tensor.dtype in DTYPES and tensor.numel() != 0


def _checked(spec: str) -> Codec:
    codec = Codec(spec)
    if codec.has_feedback:
        raise InvalidArgumentError(
            f"codec {spec} asks for error feedback, but a pipeline sends each activation once: "
            "leave out +ef"
        )
    try:
        codec.require("payload")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"codec {spec} has no payload of fixed length: {error}"
        ) from error
    return codec
