"""The end of a backward pass, and the buckets of a pass under DDP.

At the end of the pass, DDP waits for the future of each bucket. A thread of Tersor completes the
futures in the order of buckets, as results arrive. An exception must not reach a future (DDP would
lose the type) or autograd (DDP would stay in the middle of a pass). After an error, all futures
get NaN, and ``backward()`` raises the error after DDP has finished.

Passes may be nested (reentrant checkpointing, reversible layers). Autograd calls back at the end of
the innermost pass. DDP finishes at the end of the pass of its last gradient, FSDP at the end of the
pass of its first module.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tersor import _core
from tersor.torch import _compat
from tersor.torch._src.parameters.selection import is_supported, restore_overflow

Future = torch.futures.Future[Tensor]


@dataclass
class Bucket:
    """The gradients of one call of the hook."""

    gradients: Tensor
    future: Future
    names: list[str] = field(default_factory=list)
    sent: _core.ReadyGradients | None = None


@dataclass
class BucketParameters:
    """The parameters of a bucket, which may be thousands, so a pass does not check each."""

    parameters: list[Tensor]
    supported: bool
    names: list[str] | None = None


class BucketCache:
    """The parameters of DDP's buckets in the previous pass."""

    def __init__(self) -> None:
        self.rebuilt = False  #: True after a bucket changed
        self._buckets: dict[int, BucketParameters] = {}

    def lookup(self, bucket: dist.GradBucket) -> BucketParameters:  # type: ignore[name-defined]
        """Returns the parameters of a bucket, usually the same object as in the previous pass."""
        parameters = bucket.parameters()
        known = self._buckets.get(bucket.index())
        if known is None or list(map(id, known.parameters)) != list(map(id, parameters)):
            # After the first steps, DDP rebuilds its buckets in the order of the gradients.
            self.rebuilt |= known is not None
            # A complex parameter has a bucket of real numbers, so the check reads parameters.
            known = BucketParameters(parameters, all(map(is_supported, parameters)))
            self._buckets[bucket.index()] = known
        return known


class Backward:
    """The buckets of one pass. ``stream`` waits for results on a device. ``sums``: not means."""

    def __init__(self, stream: torch.cuda.Stream | None = None, *, sums: bool = False) -> None:
        self.buckets: list[Bucket] = []
        self.error: BaseException | None = None
        self._stream, self._sums = stream, sums
        self._completion: concurrent.futures.Future[None] | None = None

    def add(self, gradients: Tensor) -> Bucket:
        devices: Any = [gradients.device] if gradients.is_cuda else None
        self.buckets.append(Bucket(gradients, Future(devices=devices)))
        return self.buckets[-1]

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Keeps the first error of the block for ``raise_error``."""
        try:
            yield
        except Exception as error:  # of any library
            self.error = self.error or error

    def complete_on(self, executor: concurrent.futures.Executor) -> None:
        """Completes the futures as results arrive. Call after the flush of all buckets."""
        self._completion = executor.submit(self._complete)

    def end(self) -> None:
        """Call after the last bucket. Raises an error of the pass after DDP has finished the pass.

        Outside of a pass, raises the error at once: DDP's ``join`` calls hooks for ranks without
        inputs.
        """
        if not after_pass(self.raise_error):
            self.raise_error()

    def raise_error(self) -> None:
        """Raises the error that ended the pass, after the futures are complete."""
        if self._completion is not None:
            self._completion.result()
        if self.error is not None:
            raise self.error

    def _complete(self) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for bucket in self.buckets:
                with self.guard():
                    if self.error is None and bucket.sent is not None:
                        bucket.sent.wait()
                        if self._sums:
                            restore_overflow(bucket.gradients)
                try:
                    if self.error is not None:
                        bucket.gradients.fill_(math.nan)
                    bucket.future.set_result(bucket.gradients)
                except Exception as error:  # of a lost device; DDP waits for the future anyway
                    self.error = self.error or error
                    bucket.future.set_exception(error)  # type: ignore[arg-type]  # PyTorch's type


class Passes:
    """The current passes of FSDP, also of several models."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        """``at_end`` is called at the end of the last current pass."""
        self._at_end = at_end
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()  # autograd keeps them in a pass

    def begin(self) -> None:
        """Call when FSDP has queued its callback for the end of a pass."""
        current = _Pass()
        self._passes.add(current)
        after_pass(lambda: self._end(current))

    @property
    def active(self) -> bool:
        """True if ``at_end`` will be called. False after an error of another library."""
        return len(self._passes) > 0

    def _end(self, current: _Pass) -> None:
        self._passes.discard(current)
        if not self._passes:
            self._at_end()


class _Pass:
    """A pass. Autograd's callback keeps this object alive; autograd drops it if the pass fails."""


def in_pass() -> bool:
    """True if this thread is in a backward pass."""
    return after_pass(lambda: None)


def after_pass(callback: Callable[[], None]) -> bool:
    """Calls ``callback`` at the end of the innermost pass, after DDP's or FSDP's own callback.

    A callback that a hook queues runs before DDP's callback. A callback that is queued by this
    callback runs after DDP's. Returns False outside of a pass.
    """
    try:
        _compat.queue_callback(lambda: _compat.queue_callback(callback))
    except RuntimeError:
        return False
    return True
