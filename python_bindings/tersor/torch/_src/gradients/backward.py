"""Backward passes: where one ends, and under DDP its buckets.

DDP waits for the future of each bucket at the end of the pass. They are completed by a thread of
ours, in the order of buckets, as results come in. An exception must reach neither a future (DDP
would lose its type) nor autograd (DDP would be left in the middle of a pass): after an error all
futures get NaN, and the error is raised by ``backward()`` itself once DDP has finished.

Within a pass there may be others (reentrant checkpointing, reversible layers): autograd calls back
at the end of the innermost. DDP finishes at the end of that which its last gradient comes in, FSDP
at the end of that which its first module was in.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tersor import _core
from tersor.torch import _compat

Future = torch.futures.Future[Tensor]


@dataclass
class Bucket:
    """What one call of the hook handed over."""

    gradients: Tensor
    future: Future
    names: list[str] = field(default_factory=list)
    sent: _core.ReadyGradients | None = None


@dataclass
class BucketParameters:
    """Of a bucket: there may be thousands, and a pass has no time to look at each."""

    parameters: list[Tensor]
    supported: bool
    names: list[str] | None = None

    def are(self, others: list[Tensor]) -> bool:
        same = len(self.parameters) == len(others)
        return same and all(map(operator.is_, self.parameters, others))


class Backward:
    """The buckets of one pass. ``stream``: where results on a device are waited for."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.buckets: list[Bucket] = []
        self.error: BaseException | None = None
        self._stream = stream
        self._completion: concurrent.futures.Future[None] | None = None

    def add(self, gradients: Tensor) -> Bucket:
        """A bucket that was handed over."""
        devices: list[int | str | torch.device] | None = (
            [gradients.device] if gradients.is_cuda else None
        )
        self.buckets.append(Bucket(gradients, Future(devices=devices)))
        return self.buckets[-1]

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Keeps the first error for ``raise_error``."""
        try:
            yield
        except Exception as error:  # also what is not ours
            self.error = self.error or error

    def complete_on(self, executor: concurrent.futures.Executor) -> None:
        """All buckets are there and were flushed: completes their futures as results come in."""
        self._completion = executor.submit(self._complete)

    def end(self) -> None:
        """The last bucket is there: what ended the pass is raised when DDP has finished it.

        At once outside of a pass: DDP's ``join`` calls hooks for ranks that have no more inputs.
        """
        if not after_pass(self.raise_error):
            self.raise_error()

    def raise_error(self) -> None:
        """Raises what ended the pass, once its futures are complete."""
        if self._completion is not None:
            self._completion.result()
        if self.error is not None:
            raise self.error

    def _complete(self) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for bucket in self.buckets:
                self._complete_one(bucket)

    def _complete_one(self, bucket: Bucket) -> None:
        with self.guard():
            if self.error is None and bucket.sent is not None:
                bucket.sent.wait()
        try:
            if self.error is not None:
                bucket.gradients.fill_(math.nan)
            bucket.future.set_result(bucket.gradients)
        except Exception as error:  # a device is lost; DDP waits for the future all the same
            self.error = self.error or error
            bucket.future.set_exception(error)  # type: ignore[arg-type]  # as PyTorch declares it


class Passes:
    """The passes under way that FSDP ends, of several models too."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        """``at_end`` is called when the last of them is over."""
        self._at_end = at_end
        self._ends: weakref.WeakSet[_End] = weakref.WeakSet()  # autograd has them until a pass ends

    def begin(self) -> None:
        """FSDP has asked autograd to be called where it ends a pass."""
        end = _End()
        self._ends.add(end)
        after_pass(lambda: self._end(end))

    @property
    def under_way(self) -> bool:
        """Whether ``at_end`` will be called; not for a pass that somebody else's error ended."""
        return len(self._ends) > 0

    def _end(self, end: _End) -> None:
        self._ends.discard(end)
        if not self._ends:
            self._at_end()


class _End:
    """Of a pass: what autograd calls keeps it, and is given up where the pass fails."""


def in_pass() -> bool:
    """Whether autograd is within a backward pass, on this thread."""
    return after_pass(lambda: None)


def after_pass(callback: Callable[[], None]) -> bool:
    """Has autograd call ``callback`` at the end of the innermost pass, behind what is queued there.

    So behind DDP or FSDP where they end it: a callback that the hook queues runs before DDP's own,
    one that it queues in turn after. False outside of a pass.
    """
    try:
        _compat.queue_callback(lambda: _compat.queue_callback(callback))
    except RuntimeError:
        return False
    return True
