"""Activations and their gradients between the stages of a pipeline, encoded.

::

    stage = PipelineStage(module, index, stages, device)   # torch.distributed.pipelining
    tersor.torch.pipeline.compress(stage, codec="int8")    # on all ranks, before the first step

Messages stay those of the schedule, on the trainer's own group: each tensor becomes a payload of
fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor._core import InvalidArgumentError
from tersor._options import described
from tersor.codec import Codec
from tersor.torch._src.parameters.memory_order import straightened
from tersor.torch._src.parameters.selection import DTYPES

__all__ = ["CompressedStage", "compress"]

_OpsOf = Callable[[int], list[dist.P2POp]]  # of a microbatch


class CompressedStage:
    """What a stage sends encoded; ``remove`` ends it, between steps and on all ranks."""

    def __init__(self, stage: Any, codec: str, backward_codec: str | None) -> None:
        self._activations = _Direction(codec)
        self._gradients = _Direction(codec if backward_codec is None else backward_codec)
        self._stage = stage
        self._methods = {
            "get_fwd_send_ops": self._activations.sends(stage.get_fwd_send_ops),
            "get_fwd_recv_ops": self._activations.receives(stage.get_fwd_recv_ops),
            "forward_one_chunk": self._activations.used_by(stage.forward_one_chunk),
            "get_bwd_send_ops": self._gradients.sends(stage.get_bwd_send_ops),
            "get_bwd_recv_ops": self._gradients.receives(stage.get_bwd_recv_ops),
            "backward_one_chunk": self._gradients.used_by(stage.backward_one_chunk),
        }
        for name, method in self._methods.items():
            setattr(stage, name, method)

    @property
    def sent_bytes(self) -> int:
        """Of all payloads until now."""
        return self._activations.sent_bytes + self._gradients.sent_bytes

    @property
    def uncompressed_bytes(self) -> int:
        """What the same tensors would have taken."""
        return self._activations.uncompressed_bytes + self._gradients.uncompressed_bytes

    def remove(self) -> None:
        """Has the stage send its tensors as they are."""
        for name in self._methods:
            delattr(self._stage, name)
        self._methods = {}


def compress(stage: Any, codec: str = "int8", backward_codec: str | None = None) -> CompressedStage:
    """Has a stage of ``torch.distributed.pipelining`` send and receive encoded tensors.

    ``codec``: of activations, and of gradients where ``backward_codec`` is None; alike on the
    stages of all ranks. Tensors that are not float32, bfloat16 or float16 go as they are.
    Raises InvalidArgumentError for ``"+ef"``, and for codecs without a payload of fixed length: who
    receives must know the length before anything comes. A damaged payload is a WireError of the
    computation that needs it; on a device its values are NaN.
    """
    if not hasattr(stage, "get_fwd_send_ops"):
        raise TypeError(
            f"stage must be a PipelineStage of torch.distributed.pipelining, not {described(stage)}"
        )
    return CompressedStage(stage, codec, backward_codec)


class _Direction:
    """All activations of a stage, or all gradients."""

    def __init__(self, spec: str) -> None:
        self._codec = _checked(spec)
        self._step = 0  # of random numbers
        self._came: dict[int, list[tuple[Tensor, Tensor]]] = {}  # payloads, and where they belong
        self.sent_bytes = 0
        self.uncompressed_bytes = 0

    def sends(self, ops_of: _OpsOf) -> _OpsOf:
        def encoded(chunk: int) -> list[dist.P2POp]:
            ops = ops_of(chunk)
            for op in ops:
                if _is_encoded(op.tensor):
                    op.tensor = self._encode(op.tensor.detach().contiguous())
            return ops

        return encoded

    def receives(self, ops_of: _OpsOf) -> _OpsOf:
        def encoded(chunk: int) -> list[dist.P2POp]:
            ops = ops_of(chunk)
            self._came[chunk] = came = []
            for op in ops:
                if _is_encoded(op.tensor):
                    came.append((self._payload(op.tensor), op.tensor))
                    op.tensor = came[-1][0]
            return ops

        return encoded

    def used_by(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """The computation that needs what came."""

        def computed(chunk: int, *arguments: Any, **keywords: Any) -> Any:
            for payload, tensor in self._came.pop(chunk, ()):
                with straightened(tensor.detach()) as values:
                    self._codec.decode(payload, values)
            return compute(chunk, *arguments, **keywords)

        return computed

    def _encode(self, values: Tensor) -> Tensor:
        payload = self._payload(values)
        self._codec.encode(values, payload, step=self._step)
        self._step += 1
        self.sent_bytes += payload.nbytes
        self.uncompressed_bytes += values.nbytes
        return payload

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
